//! Incoming connections of an HTTP port: TCP or TLS, a bounded number at once.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::limit::{ACCEPT_AGAIN, HANDSHAKE_WITHIN};
use crate::sockets::{ConnectionSlots, SocketHandle};

/// ALPN protocols: gRPC needs the first, scrapers often know only the second.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Length of the HTTP/2 preface (RFC 9113, section 3.4). A request of HTTP/1.1 is longer.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// A byte stream in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl Stream for TcpStream {}
impl Stream for tokio_rustls::server::TlsStream<TcpStream> {}

/// One connection. It returns its slot on drop.
pub(crate) struct Incoming {
    stream: Box<dyn Stream>,
    socket: SocketHandle,
    preface: Option<Preface>,
    _slot: OwnedSemaphorePermit,
}

/// The first bytes of a connection. Before they arrive, the library cannot tell HTTP/2 from HTTP/1 and would wait
/// forever. After them it has limits of its own.
struct Preface {
    bytes_missing: usize,
    late: Pin<Box<Sleep>>,
}

impl Incoming {
    fn new(stream: Box<dyn Stream>, socket: SocketHandle, slot: OwnedSemaphorePermit) -> Incoming {
        let late = Box::pin(tokio::time::sleep(HANDSHAKE_WITHIN));
        let preface = Some(Preface { bytes_missing: PREFACE_BYTES, late });
        Incoming { stream, socket, preface, _slot: slot }
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let Some(preface) = &mut self.preface else { return read };
        if read.is_pending() {
            return preface.late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        preface.bytes_missing = preface.bytes_missing.saturating_sub(into.filled().len() - before);
        if preface.bytes_missing == 0 {
            self.preface = None;
        }
        read
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Incoming {
    type ConnectInfo = SocketHandle;

    fn connect_info(&self) -> SocketHandle {
        self.socket.clone()
    }
}

/// The server's certificate and key, from PEM files. The error names the file.
pub(crate) fn acceptor((certificate, key): &(PathBuf, PathBuf)) -> Result<TlsAcceptor, String> {
    let failed = |path: &Path, reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| failed(certificate, &error))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections, at most `connections_max` at once, while the receiver exists. A handshake delays no other
/// connection.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    connections_max: usize,
    connections: mpsc::Sender<io::Result<Incoming>>,
) {
    let mut slots = ConnectionSlots::new(connections_max);
    loop {
        let accepted =
            listener.accept().await.and_then(|(stream, _)| Ok((SocketHandle::of(&stream)?, stream)));
        let Ok((socket, stream)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let slot = slots.take(&socket).await;
        // Without it, replies are late at worst.
        let _ = stream.set_nodelay(true);
        let (tls, connections) = (tls.clone(), connections.clone());
        tokio::spawn(async move {
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    // A client without TLS gets no answer.
                    Ok(Err(_)) | Err(_) => return,
                },
            };
            let _ = connections.send(Ok(Incoming::new(stream, socket, slot))).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use sanderling_server::{Config, Server, listen_for_control};
    use sanderling_transport::Address;

    use crate::limit::CONNECTIONS_MAX;
    use crate::{Client, ClientOptions, ControlPlane};

    /// Longer than any operation of a passing test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Takes all slots with connections whose first bytes do not tell the protocol.
    fn silent(slots: usize, address: &str) -> Vec<TcpStream> {
        let connect = |at: usize| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"[..at % 24]).expect("sent");
            stream
        };
        (0..slots).map(connect).collect()
    }

    fn port(address: &str) -> Address {
        address.parse().expect("an address")
    }

    #[test]
    fn who_says_nothing_keeps_no_place_from_others() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let config = Config { listen, local: false, ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");

        let listening = listen_for_control(&config, &port("127.0.0.1:0")).expect("a port");
        let address = listening.address.clone();
        let plane = ControlPlane::start(listening, server.control()).expect("it starts");
        let accepted = silent(CONNECTIONS_MAX, &address);
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop((plane, accepted));
    }

    /// Opens more connections than there are slots, and waits for the first bytes of each answer.
    fn unauthenticated(slots: usize, address: &str, said: &[u8], answer: &[u8]) -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(LONG)).expect("set");
            stream.write_all(said).expect("sent");
            let mut found = vec![0; answer.len()];
            stream.read_exact(&mut found).expect("in time");
            assert_eq!(found, answer);
            stream
        };
        (0..slots + 3).map(connect).collect()
    }

    #[test]
    fn who_is_not_admitted_makes_room() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let token = Some("secret".to_owned());
        let config = Config { listen, local: false, token: token.clone(), ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");

        let listening = listen_for_control(&config, &port("127.0.0.1:0")).expect("a port");
        let address = listening.address.clone();
        let plane = ControlPlane::start(listening, server.control()).expect("it starts");
        let connect_with_token = || {
            Client::connect(&address, &ClientOptions { token: token.clone(), ca: None }).expect("it listens")
        };
        let mut first = connect_with_token();
        first.status().expect("an answer");
        let probe = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n";
        let accepted = unauthenticated(CONNECTIONS_MAX, &address, probe, b"HTTP/1.1 200");
        connect_with_token().status().expect("an answer");
        first.status().expect("it has kept its slot");
        drop((plane, accepted));
    }
}
