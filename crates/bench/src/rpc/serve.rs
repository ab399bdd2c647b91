//! The servers' processes. Each has one table, filled before it says that it is ready, and serves until it is told to end.
//! Prints nothing and reads nothing: what it has to say is returned.

use std::path::PathBuf;

use sanderling_client::{Cluster, RemoteTable};
use sanderling_server::{Config, GatherOptions, Server, framing};
use sanderling_store::PushScale;
use sanderling_transport::{Address, ListenOptions, Listener};
use serde::{Deserialize, Serialize};

use crate::result::BenchError;
use crate::rpc::FRAME_BYTES_MAX;
use crate::rpc::batches::{load, loaded_table, table_config};
use crate::rpc::constant::ConstantServer;
use crate::rpc::frames::constant_reply;
use crate::rpc::options::{Gather, RpcOptions, Transport};
use crate::rpc::rival::RivalServer;

/// The service of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The parameter server over shared memory, unix socket and TCP, and servers of constants over the same.
    Frames,
    /// The service over TLS.
    Tls,
    /// The rival.
    Grpc,
}

/// Options of a server process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServeOptions {
    /// The service.
    pub role: Role,
    /// The benchmark's options.
    pub options: RpcOptions,
    /// For sockets and certificates; it belongs to who started the process.
    pub folder: PathBuf,
}

/// Where a transport is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The transport.
    pub transport: Transport,
    /// Is it a server of constants?
    pub constant: bool,
    /// Address of ours, or the rival's socket address.
    pub address: String,
}

/// Running servers. They end when it is dropped.
#[derive(Debug)]
pub struct Serving {
    /// Where what is answered.
    pub places: Vec<Place>,
    _servers: Servers,
}

#[derive(Debug)]
enum Servers {
    Frames { _server: Box<Server>, _constant: ConstantServer },
    Grpc { _rival: RivalServer },
}

/// Certificate and key of the server, below its folder.
pub(crate) const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// Starts what `serve` says, with a full table.
///
/// # Errors
/// [`BenchError`] for whatever table, server or system say.
pub fn start(serve: &ServeOptions) -> Result<Serving, BenchError> {
    match serve.role {
        Role::Grpc => {
            let rival = RivalServer::start(loaded_table(&serve.options)?)?;
            let place = |transport, address: std::net::SocketAddr| Place {
                transport,
                constant: false,
                address: address.to_string(),
            };
            let places = vec![
                place(Transport::GrpcUnary, rival.tuned),
                place(Transport::GrpcBidi, rival.tuned),
                place(Transport::GrpcUnaryUntuned, rival.untuned),
            ];
            Ok(Serving { places, _servers: Servers::Grpc { _rival: rival } })
        }
        Role::Frames | Role::Tls => frames(serve),
    }
}

/// The transports of a process, and an address of each to listen at.
fn addresses(serve: &ServeOptions, what: &str) -> Result<Vec<(Transport, Address)>, BenchError> {
    let tcp = "tcp://localhost:0".to_owned();
    let texts = match serve.role {
        Role::Tls => vec![(Transport::Tls, tcp)],
        _ => {
            let mut texts = vec![
                (Transport::Shm, format!("shm:bench-{}-{what}", std::process::id())),
                (Transport::Unix, format!("unix:{}", serve.folder.join(format!("{what}.sock")).display())),
                (Transport::Tcp, tcp),
            ];
            if serve.options.transports.contains(&Transport::Rdma) {
                let host = sanderling_transport::rdma_host()?;
                let host = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
                texts.push((Transport::Rdma, format!("rdma://{host}:0")));
            }
            texts
        }
    };
    let parse = |(transport, text): (Transport, String)| {
        Ok((transport, text.parse().map_err(sanderling_transport::Error::from)?))
    };
    texts.into_iter().map(parse).collect()
}

fn frames(serve: &ServeOptions) -> Result<Serving, BenchError> {
    let options = &serve.options;
    let ours = addresses(serve, "table")?;
    let mut config = Config {
        listen: ours.iter().map(|(_, address)| address.clone()).collect(),
        local: false,
        workers: options.connections.min(std::thread::available_parallelism().map_or(1, usize::from)),
        spin_us: options.spin_us,
        frame_bytes_max: FRAME_BYTES_MAX,
        ..Config::default()
    };
    // Only the server with the device has a card.
    let has_device = config.listen.iter().any(|address| matches!(address, Address::Rdma(_)));
    let gather = if has_device { options.gather } else { Gather::Cpu };
    config.gather = GatherOptions::parse([gather.to_string().as_str()]).map_err(BenchError::Server)?;
    let mut listen_options = ListenOptions::new(framing(FRAME_BYTES_MAX));
    listen_options.spin_us = options.spin_us;
    // A device has no address that only this machine reaches.
    let exposes = serve.role == Role::Frames && options.transports.contains(&Transport::Rdma);
    (config.expose, config.insecure) = (exposes, exposes);
    (listen_options.expose, listen_options.insecure) = (exposes, exposes);
    let mut client_options = sanderling_client::ConnectOptions { prefer_local: false, ..Default::default() };
    if serve.role == Role::Tls {
        let failed = |error: &dyn std::fmt::Display| BenchError::Server(format!("certificate: {error}"));
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(|error| failed(&error))?;
        let (certificate, key) = (serve.folder.join(CERTIFICATE), serve.folder.join(KEY));
        std::fs::write(&certificate, made.cert.pem()).map_err(|error| failed(&error))?;
        std::fs::write(&key, made.signing_key.serialize_pem()).map_err(|error| failed(&error))?;
        listen_options.tls = Some(sanderling_transport::TlsServer::from_files(&certificate, &key)?);
        client_options.tls = Some(sanderling_transport::TlsClient::from_ca_file(&certificate)?);
        config.tls = Some((certificate, key));
    }
    let server = Server::start(&config, |_| ()).map_err(|error| BenchError::Server(error.to_string()))?;
    let first = &server.addresses()[..1];
    let cluster = Cluster::connect(first, client_options)?;
    let table = RemoteTable::create(&cluster, &table_config(options))?;
    load(options, |keys, grads| Ok(table.push(keys, grads, PushScale::default())?))?;
    let (rows, _) = table.size()?;
    if rows != options.rows {
        return Err(BenchError::Lost(options.rows.abs_diff(rows)));
    }
    let mut places = Vec::new();
    let mut place = |(transport, _): &(Transport, Address), address: &Address, constant| {
        places.push(Place { transport: *transport, constant, address: address.to_string() });
    };
    ours.iter().zip(server.addresses()).for_each(|(one, address)| place(one, address, false));
    let theirs = addresses(serve, "constant")?;
    let bind = |(_, address): &(Transport, Address)| Listener::bind(address, &listen_options);
    let listeners = theirs.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    theirs.iter().zip(&listeners).for_each(|(one, listener)| place(one, listener.address(), true));
    let constant = ConstantServer::start(listeners, constant_reply(options)?, options.spin_us)?;
    Ok(Serving { places, _servers: Servers::Frames { _server: Box::new(server), _constant: constant } })
}
