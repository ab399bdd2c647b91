//! A client's side of frames over gRPC: connects within the time given, and carries what the connection sends and receives.
//! Tries nothing again; who lost a connection asks for another.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use sanderling_transport::{
    Address, ConnectOptions, Connection, Connector, Error, Relay, RelayOptions, dial, is_no_tls, relayed,
    tls_reason,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Code;
use tonic::codegen::Service;
use tonic::transport::{Endpoint, Uri};

use super::plain::Plain;
use super::{Carriers, Pieces, receive, words};
use crate::client::root_cause;
use crate::frames_proto::frames_client::FramesClient;
use crate::guest::Stream;
use crate::limit::{
    CONNECTION_WINDOW_BYTES, FRAME_MESSAGE_BYTES_MAX, HEADERS_BYTES_MAX, HTTP_FRAME_BYTES,
    STREAM_WINDOW_BYTES,
};
use crate::line::Line;

/// Connects to `grpc://` addresses. Its threads are started with the first connection, and end with the last copy.
#[must_use]
pub fn connector() -> Connector {
    let carriers: Mutex<Option<Arc<Carriers>>> = Mutex::default();
    Connector::new(move |address, options| {
        let carriers = {
            let mut started = carriers.lock().unwrap_or_else(PoisonError::into_inner);
            match &*started {
                Some(carriers) => Arc::clone(carriers),
                None => {
                    let failed = |source| Error::Io {
                        peer: address.to_string(),
                        action: "start the threads for gRPC",
                        source,
                    };
                    Arc::clone(started.insert(Arc::new(Carriers::start().map_err(failed)?)))
                }
            }
        };
        connect(&carriers, address, options)
    })
}

fn connect(carriers: &Carriers, address: &Address, options: &ConnectOptions) -> Result<Connection, Error> {
    let deadline = Instant::now() + options.timeout;
    let socket = dial(address, options)?;
    let relay_options = RelayOptions {
        framing: options.framing,
        write_timeout: options.write_timeout,
        spin_us: options.spin_us,
        queue_bytes: options.socket_buffer_bytes,
    };
    let (connection, relay) = relayed(address.to_string(), &relay_options)?;
    let opening = open(socket, address.clone(), options.clone(), relay);
    // Not `block_on`: who connects may be a thread of another runtime.
    let (told, outcome) = std::sync::mpsc::sync_channel(1);
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    carriers.runtime().spawn(async move {
        // Nobody waits any more when it is late.
        let _ = told.send(tokio::time::timeout(left, opening).await);
    });
    match outcome.recv() {
        Ok(Ok(opened)) => opened.map(|()| connection),
        Ok(Err(_)) => Err(Error::ConnectTimeout { address: address.to_string(), timeout: options.timeout }),
        Err(_) => Err(carrier(address, "the threads for gRPC have ended".to_owned())),
    }
}

fn carrier(address: &Address, reason: String) -> Error {
    Error::Carrier { peer: address.to_string(), reason }
}

/// Agrees on TLS, HTTP/2 and the stream, and leaves a task behind that carries it.
async fn open(
    socket: std::net::TcpStream,
    address: Address,
    options: ConnectOptions,
    relay: Relay,
) -> Result<(), Error> {
    let failed = |source| Error::Io { peer: address.to_string(), action: "connect", source };
    let (Address::Grpc(endpoints) | Address::Tcp(endpoints)) = &address else {
        return Err(Error::NoCarrier { address: address.to_string() });
    };
    let [host] = &endpoints[..] else {
        return Err(Error::SeveralServers { address: address.to_string() });
    };
    let socket = TcpStream::from_std(socket).map_err(failed)?;
    let line = Line::of(&socket).map_err(failed)?;
    let mut talks_tls = None;
    let stream: Box<dyn Stream> = match &options.tls {
        None => {
            let (plain, known) = Plain::new(socket);
            talks_tls = Some(known);
            Box::new(plain)
        }
        Some(tls) => {
            let mut config = (*tls.config()).clone();
            config.alpn_protocols = vec![b"h2".to_vec()];
            let wrong =
                |reason: String| Error::Tls { peer: address.to_string(), reason: tls_reason(&reason) };
            let name = ServerName::try_from(host.host.clone()).map_err(|error| wrong(error.to_string()))?;
            let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
            Box::new(connecting.await.map_err(|error| {
                let said = error.get_ref().and_then(|said| said.downcast_ref::<rustls::Error>());
                match error.kind() {
                    _ if said.is_some_and(is_no_tls) => Error::TalksNoTls { peer: address.to_string() },
                    // What TLS says; anything else is the line.
                    ErrorKind::InvalidData => wrong(error.to_string()),
                    _ => failed(error),
                }
            })?)
        }
    };
    // Whatever the library makes of it.
    let ended = |reason: String| match talks_tls.as_ref().is_some_and(|known| known.load(Ordering::Relaxed)) {
        true => Error::TalksTls { peer: address.to_string() },
        false => carrier(&address, reason),
    };
    let wrong = |error: tonic::transport::Error| ended(format!("no HTTP/2 there: {}", root_cause(&error)));
    // To the library it is plain HTTP, over a socket that is there already.
    let uri = |scheme| Uri::try_from(format!("{scheme}://{host}"));
    let origin = if options.tls.is_some() { "https" } else { "http" };
    let (Ok(plain), Ok(origin)) = (uri("http"), uri(origin)) else {
        return Err(carrier(&address, "its host cannot be said in HTTP".to_owned()));
    };
    let endpoint = Endpoint::from(plain)
        .origin(origin)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP_FRAME_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX);
    let channel = endpoint.connect_with_connector(Once(Some(stream))).await.map_err(wrong)?;
    let mut client = FramesClient::new(channel).max_decoding_message_size(FRAME_MESSAGE_BYTES_MAX);
    let Relay { outgoing, incoming } = relay;
    let stream = client.carry(Pieces(outgoing, None)).await.map_err(|status| {
        let hint = match status.code() {
            Code::Unimplemented => {
                "; it carries no frames: name an address at which the server says that it is \"listening at grpc://\""
            }
            _ => "",
        };
        ended(format!("{}{hint}", words(&status)))
    })?;
    tokio::spawn(async move {
        receive(stream.into_inner(), incoming, Some(Arc::new(line.stream()))).await;
        // The server has ended, so nothing that is still to be sent has an answer; and it need not wait for us.
        line.cut();
        // Until then the channel must be there.
        drop(client);
    });
    Ok(())
}

/// Gives the library the one socket that there is.
struct Once(Option<Box<dyn Stream>>);

impl Service<Uri> for Once {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let used = || std::io::Error::new(std::io::ErrorKind::NotConnected, "the connection has ended");
        std::future::ready(self.0.take().map(TokioIo::new).ok_or_else(used))
    }
}
