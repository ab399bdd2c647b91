//! Connections as a port for HTTP takes them: TCP or TLS, a bounded number at once. Knows no request.

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
use crate::line::{Line, Places};

/// What clients may talk inside TLS: gRPC needs the first, scrapers often know only the second.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// How HTTP/2 begins (RFC 9113, section 3.4); a request of HTTP/1.1 is longer.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl Stream for TcpStream {}
impl Stream for tokio_rustls::server::TlsStream<TcpStream> {}

/// One connection; gives its place back when it is dropped.
pub(crate) struct Guest {
    stream: Box<dyn Stream>,
    line: Line,
    opening: Option<Opening>,
    _place: OwnedSemaphorePermit,
}

/// What a connection begins with. Until that is there, the library cannot tell HTTP/2 from HTTP/1 and waits for as long as
/// the connection stays; after it, it has limits of its own.
struct Opening {
    bytes_missing: usize,
    late: Pin<Box<Sleep>>,
}

impl Guest {
    fn new(stream: Box<dyn Stream>, line: Line, place: OwnedSemaphorePermit) -> Guest {
        let late = Box::pin(tokio::time::sleep(HANDSHAKE_WITHIN));
        let opening = Some(Opening { bytes_missing: PREFACE_BYTES, late });
        Guest { stream, line, opening, _place: place }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let Some(opening) = &mut self.opening else { return read };
        if read.is_pending() {
            return opening.late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        opening.bytes_missing = opening.bytes_missing.saturating_sub(into.filled().len() - before);
        if opening.bytes_missing == 0 {
            self.opening = None;
        }
        read
    }
}

impl AsyncWrite for Guest {
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

impl Connected for Guest {
    type ConnectInfo = Line;

    fn connect_info(&self) -> Line {
        self.line.clone()
    }
}

/// What a server proves who it is with, from PEM files; the reason names the file.
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

/// Takes connections, so many at once, and hands them over for as long as somebody takes them. A handshake holds up nobody else.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    connections_max: usize,
    guests: mpsc::Sender<io::Result<Guest>>,
) {
    let mut places = Places::new(connections_max);
    loop {
        let accepted = listener.accept().await.and_then(|(stream, _)| Ok((Line::of(&stream)?, stream)));
        let Ok((line, stream)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let place = places.take(&line).await;
        // Without it, replies are late at worst.
        let _ = stream.set_nodelay(true);
        let (tls, guests) = (tls.clone(), guests.clone());
        tokio::spawn(async move {
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    // Who does not talk TLS is not answered.
                    Ok(Err(_)) | Err(_) => return,
                },
            };
            let _ = guests.send(Ok(Guest::new(stream, line, place))).await;
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
    use crate::{Client, ClientOptions, Plane};

    /// Far longer than anything takes that goes well.
    const LONG: Duration = Duration::from_secs(60);

    /// As many connections as there are places, over which less comes than tells what will be talked.
    fn silent(places: usize, address: &str) -> Vec<TcpStream> {
        let connect = |at: usize| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"[..at % 24]).expect("sent");
            stream
        };
        (0..places).map(connect).collect()
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
        let plane = Plane::start(listening, server.control()).expect("it starts");
        let guests = silent(CONNECTIONS_MAX, &address);
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop((plane, guests));
    }

    /// More connections than there are places; of each a few bytes are awaited as the answer to what it says.
    fn strangers(places: usize, address: &str, said: &[u8], answer: &[u8]) -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(LONG)).expect("set");
            stream.write_all(said).expect("sent");
            let mut found = vec![0; answer.len()];
            stream.read_exact(&mut found).expect("in time");
            assert_eq!(found, answer);
            stream
        };
        (0..places + 3).map(connect).collect()
    }

    #[test]
    fn who_is_not_admitted_makes_room() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let token = Some("secret".to_owned());
        let config = Config { listen, local: false, token: token.clone(), ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");

        let listening = listen_for_control(&config, &port("127.0.0.1:0")).expect("a port");
        let address = listening.address.clone();
        let plane = Plane::start(listening, server.control()).expect("it starts");
        let connect_with_token = || {
            Client::connect(&address, &ClientOptions { token: token.clone(), ca: None }).expect("it listens")
        };
        let mut first = connect_with_token();
        first.status().expect("an answer");
        let probe = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n";
        let guests = strangers(CONNECTIONS_MAX, &address, probe, b"HTTP/1.1 200");
        connect_with_token().status().expect("an answer");
        first.status().expect("it has kept its place");
        drop((plane, guests));
    }
}
