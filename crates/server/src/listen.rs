//! The listeners of a server: configured addresses, local addresses for clients of this host, and the control port.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use sanderling_transport::{
    Address, Endpoint, Error, Framing, ListenOptions, Listener, TlsServer, make_private,
};
use sanderling_wire::{HEADER_BYTES, body_bytes};

use crate::Config;
use crate::event::{Event, Log};
use crate::gather::Cards;
use crate::server_error::ServerError;

/// The control port is this far above the first TCP port.
const CONTROL_PORT_ABOVE: u16 = 100;

/// The framing of the wire format, for frames of at most this length. Clients use it, too.
pub fn framing(frame_bytes_max: u32) -> Framing {
    let body = |header: &[u8]| {
        let header = header.try_into().map_err(|_| "not a whole header".to_owned())?;
        body_bytes(header).map_err(|error| error.to_string())
    };
    Framing { header_bytes: HEADER_BYTES, body_bytes: body, frame_bytes_max: frame_bytes_max as usize }
}

fn options(config: &Config) -> Result<ListenOptions, Error> {
    let mut options = ListenOptions::new(framing(config.frame_bytes_max));
    (options.expose, options.insecure) = (config.expose, config.insecure);
    (options.write_timeout, options.spin_us) = (config.write_timeout, config.spin_us);
    options.token = config.token.is_some();
    options.tls = match &config.tls {
        Some((certificate, key)) => Some(TlsServer::from_files(certificate, key)?),
        None => None,
    };
    Ok(options)
}

/// Listens at all configured addresses, and at local ones if the configuration wants them.
pub(crate) fn listen(config: &Config, cards: &Cards, log: &Log) -> Result<Vec<Listener>, Error> {
    let mut options = options(config)?;
    cards.set(&mut options);
    let bind = |address: &Address| Listener::bind(address, &options);
    let mut listeners = config.listen.iter().map(bind).collect::<Result<Vec<_>, Error>>()?;
    if config.local {
        listen_locally(&mut listeners, &config.runtime_dir, &options, log);
    }
    Ok(listeners)
}

/// A TCP port for a protocol other than frames.
#[derive(Debug)]
pub struct PortListener {
    /// A nonblocking listener.
    pub listener: TcpListener,
    /// `host:port`, with the real port.
    pub address: String,
    /// Certificate and key (PEM files), if the port uses TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// The default address of the control plane: the host of the first TCP address, its port plus 100.
///
/// Beside a port that the system chooses, the system chooses this one, too. None: there is no such port.
#[must_use]
pub fn control_address(config: &Config) -> Option<Address> {
    let endpoint = config.listen.iter().find_map(|address| address.endpoints().first())?;
    let port = match endpoint.port {
        0 => 0,
        port => port.checked_add(CONTROL_PORT_ABOVE)?,
    };
    Some(Address::Tcp(vec![Endpoint { host: endpoint.host.clone(), port }]))
}

/// All host names of this server: listeners, peers, the machine's name, and configured ones.
pub(crate) fn hosts(config: &Config) -> Vec<String> {
    let of = |address: &Address| -> Vec<String> {
        address.endpoints().iter().map(|endpoint| endpoint.host.clone()).collect()
    };
    let peers = config.peers.iter().filter_map(|peer| peer.parse().ok());
    let mut hosts: Vec<String> = peers.flat_map(|peer: Address| of(&peer)).collect();
    hosts.extend(config.listen.iter().flat_map(of));
    hosts.extend(config.hosts.iter().cloned());
    hosts.push("localhost".to_owned());
    hosts.extend(std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()));
    hosts
}

/// Listens for the control plane, by the exposure rules of the data plane.
///
/// # Errors
/// The address is not a single TCP address, it is taken, or the configuration does not allow exposing it.
pub fn listen_for_control(config: &Config, address: &Address) -> Result<PortListener, ServerError> {
    if !matches!(address, Address::Tcp(_)) {
        let reason = format!("{address}: the control plane listens on TCP only; write host:port");
        return Err(ServerError::Config(reason));
    }
    let options = options(config)?;
    let listener = Listener::bind(address, &options)?;
    let failed = |source| Error::Io { peer: listener.address().to_string(), action: "listen", source };
    let (port, address) = listener.port().map_err(failed)?;
    Ok(PortListener { listener: port, address, tls: config.tls.clone() })
}

/// Adds a unix socket and a shared-memory address, named after the first TCP port, for clients of this host.
fn listen_locally(listeners: &mut Vec<Listener>, folder: &Path, options: &ListenOptions, log: &Log) {
    let port =
        listeners.iter().find_map(|listener| listener.address().endpoints().first()).map(|first| first.port);
    let Some(port) = port else { return };
    let taken = |listeners: &[Listener], of: fn(&Address) -> bool| {
        listeners.iter().any(|listener| of(listener.address()))
    };
    let mut wanted = Vec::new();
    if !taken(listeners, |address| matches!(address, Address::Shm(_))) {
        wanted.push(Address::Shm(format!("port-{port}")));
    }
    if !taken(listeners, |address| matches!(address, Address::Unix(_))) {
        // Clients get this path, whatever their working directory is.
        match std::path::absolute(folder).and_then(|folder| make_private(&folder).map(|()| folder)) {
            Ok(folder) => wanted.push(Address::Unix(folder.join(format!("port-{port}.sock")))),
            Err(error) => {
                log.report(Event::NoLocalAddress { reason: format!("{}: {error}", folder.display()) });
            }
        }
    }
    for address in wanted {
        match Listener::bind(&address, options) {
            Ok(listener) => listeners.push(listener),
            // Local addresses are optional.
            Err(error) => log.report(Event::NoLocalAddress { reason: error.to_string() }),
        }
    }
}

/// The fastest local address, for clients of this host.
pub(crate) fn fastest(addresses: &[Address]) -> Option<&Address> {
    let rank = |address: &&Address| match address {
        Address::Shm(_) => 0,
        Address::Unix(_) => 1,
        _ => 2,
    };
    let short = |address: &&Address| address.to_string().len() <= sanderling_wire::limit::URL_BYTES_MAX;
    addresses.iter().filter(short).min_by_key(rank).filter(|address| rank(address) < 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_plane_is_beside_the_first_tcp_address() {
        for (listen, expected) in [
            (&["127.0.0.1:7000"][..], Some("tcp://127.0.0.1:7100")),
            (&["unix:/run/x", "tcp://[::1]:0"], Some("tcp://[::1]:0")),
            (&["127.0.0.1:65500"], None),
            (&["rdma://10.0.0.1:7000"], Some("tcp://10.0.0.1:7100")),
            (&["shm:x"], None),
        ] {
            let listen = listen.iter().map(|text| text.parse().expect(text)).collect();
            let config = Config { listen, ..Config::default() };
            assert_eq!(control_address(&config).map(|address| address.to_string()).as_deref(), expected);
        }
    }
}
