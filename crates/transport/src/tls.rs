//! TLS 1.3 over a socket: certificates, handshake, and the state that both halves of a connection share.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, InvalidMessage, RootCertStore, ServerConfig, ServerConnection};

use crate::error::Error;
use crate::socket::{Read, Socket};

/// Limit of encrypted bytes that wait to be sent. Beyond it no plaintext is accepted.
const TLS_BUFFER_BYTES_MAX: usize = 256 << 10;
/// Start of a TLS alert, which a TLS server sends to a client without TLS (RFC 8446, section 5.1).
const ALERT: [u8; 2] = [21, 3];
/// Start of a client's TLS hello.
const HELLO: [u8; 2] = [22, 3];
/// Reply of a peer without TLS to a TLS hello: it is not TLS, so the client fails at once, and a person can read it.
pub(crate) const NO_TLS: &[u8] = b"sanderling: no TLS here\n";
static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// A server's certificate and key.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// The certificate authorities that a client trusts.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

fn tls_error(peer: impl std::fmt::Display, reason: impl std::fmt::Display) -> Error {
    Error::Tls { peer: peer.to_string(), reason: tls_reason(&reason.to_string()) }
}

/// Rewrites messages of the TLS library that only describe its own code.
#[must_use]
pub fn tls_reason(said: &str) -> String {
    match said.contains("CaUsedAsEndEntity") {
        true => "invalid peer certificate: the server's certificate is itself a CA certificate; make a server certificate \
                 with CA:FALSE, signed by it"
            .to_owned(),
        false => said.to_owned(),
    }
}

/// Whether a reply is that of a TLS server to a client without TLS.
pub(crate) fn is_tls_alert(answer: &[u8]) -> bool {
    answer.starts_with(&ALERT)
}

/// Whether the bytes start a TLS connection.
pub(crate) fn is_tls_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&HELLO)
}

/// Whether a client's error says that the peer does not use TLS.
fn is_no_tls(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |error| tls_error(path.display(), format!("cannot read certificates: {error}"));
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() {
        return Err(tls_error(path.display(), "holds no certificate in PEM form"));
    }
    Ok(all)
}

impl TlsServer {
    /// Loads the certificate chain and the private key from PEM files.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file that is unreadable or does not fit.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<TlsServer, Error> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| tls_error(key.display(), format!("cannot read a private key: {error}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(VERSIONS)
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| tls_error(certificate.display(), error))?;
        Ok(TlsServer(Arc::new(config)))
    }

    pub(crate) fn accept(&self, socket: Socket) -> Result<TlsChannel, Error> {
        let state = ServerConnection::new(self.0.clone()).map_err(|error| tls_error(&socket.peer, error))?;
        Ok(TlsChannel::new(socket, state.into()))
    }
}

impl TlsClient {
    /// Loads trusted authorities from a PEM file. The server's certificate must be for the host of the address.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file that is unreadable or does not fit.
    pub fn from_ca_file(authorities: &Path) -> Result<TlsClient, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities)? {
            roots.add(certificate).map_err(|error| tls_error(authorities.display(), error))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(VERSIONS)
            .map_err(|error| tls_error(authorities.display(), error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsClient(Arc::new(config)))
    }

    /// The state of a connection to a host, before its handshake, for callers with a socket of their own.
    ///
    /// # Errors
    /// [`Error::Tls`] if the host is no name and no address.
    pub fn state(&self, host: &str) -> Result<ClientConnection, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| tls_error(host, error))?;
        ClientConnection::new(self.0.clone(), name).map_err(|error| tls_error(host, error))
    }

    /// Connects and finishes the handshake. `None`: the deadline passed.
    pub(crate) fn connect(
        &self,
        socket: Socket,
        host: &str,
        deadline: Instant,
    ) -> Result<Option<TlsChannel>, Error> {
        let channel = TlsChannel::new(socket, self.state(host)?.into());
        loop {
            let mut state = channel.state();
            let sent = channel.send_encrypted(&mut state)?;
            if !state.is_handshaking() {
                drop(state);
                return Ok(Some(channel));
            }
            match channel.read_encrypted(&mut state)? {
                Read::End => return Err(Error::Closed { peer: channel.socket.peer.clone() }),
                Read::Bytes(_) => continue,
                Read::Nothing => drop(state),
            }
            let ready = if sent {
                channel.socket.wait_readable(Some(deadline))
            } else {
                channel.socket.wait_writable(Some(deadline))
            };
            if !ready? {
                return Ok(None);
            }
        }
    }
}

/// A socket and its encryption. Both halves lock it during an attempt, never while they wait.
///
/// A reader and a writer in two threads take turns, because rustls keeps both directions in one object: alerts, key
/// updates and the handshake concern both. Workers and clients use both halves in one thread, without contention.
#[derive(Debug)]
pub(crate) struct TlsChannel {
    pub(crate) socket: Socket,
    state: Mutex<rustls::Connection>,
    /// Encrypted bytes that the socket has accepted.
    taken: AtomicU64,
}

impl TlsChannel {
    fn new(socket: Socket, mut state: rustls::Connection) -> TlsChannel {
        state.set_buffer_limit(Some(TLS_BUFFER_BYTES_MAX));
        TlsChannel { socket, state: Mutex::new(state), taken: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, rustls::Connection> {
        // After a panic of one half the state fails its own checks at worst.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to read plaintext, and advances the handshake.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Read, Error> {
        let mut state = self.state();
        loop {
            match state.reader().read(buffer) {
                Ok(0) => return Ok(Read::End),
                Ok(bytes) => return Ok(Read::Bytes(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a TLS close notification the connection was cut.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Error::Cut { peer: self.socket.peer.clone(), bytes: 0 });
                }
                Err(error) => return Err(Error::io(&self.socket.peer, "receive", error)),
            }
            match self.read_encrypted(&mut state)? {
                Read::Nothing => return Ok(Read::Nothing),
                // The reader tells whether the end came with a close notification.
                Read::Bytes(_) | Read::End => {}
            }
            self.send_encrypted(&mut state)?;
        }
    }

    /// Tries to write plaintext. Returns the accepted length; `None`: there is no room now.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let mut state = self.state();
        if !self.finish_handshake(&mut state)? {
            return Ok(None);
        }
        let taken = state
            .writer()
            .write_vectored(pieces)
            .map_err(|error| Error::io(&self.socket.peer, "encrypt", error))?;
        self.send_encrypted(&mut state)?;
        Ok((taken > 0).then_some(taken))
    }

    /// Waits until something can be sent: for the socket, or for the peer's part of the handshake. `false`: the
    /// deadline passed.
    pub(crate) fn wait_writable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        if self.sends_after_reading() {
            return self.socket.wait_readable(deadline);
        }
        self.socket.wait_writable(deadline)
    }

    /// Whether the peer must send more before this side can.
    pub(crate) fn sends_after_reading(&self) -> bool {
        let state = self.state();
        state.is_handshaking() && !state.wants_write()
    }

    /// Advances the handshake without waiting. `true`: it is finished.
    fn finish_handshake(&self, state: &mut rustls::Connection) -> Result<bool, Error> {
        while state.is_handshaking() {
            self.send_encrypted(state)?;
            match self.read_encrypted(state)? {
                Read::Bytes(_) => {}
                Read::Nothing => return Ok(!state.is_handshaking()),
                Read::End => return Err(Error::Closed { peer: self.socket.peer.clone() }),
            }
        }
        Ok(true)
    }

    /// Tries to send the encrypted bytes. `true`: all are sent.
    pub(crate) fn try_flush(&self) -> Result<bool, Error> {
        self.send_encrypted(&mut self.state())
    }

    /// Number of encrypted bytes sent by both halves.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Sends a close notification, so that the peer can tell the end from a cut.
    pub(crate) fn shut_write(&self) {
        let mut state = self.state();
        state.send_close_notify();
        if self.send_encrypted(&mut state).is_ok() {
            self.socket.shut_write();
        }
    }

    fn read_encrypted(&self, state: &mut rustls::Connection) -> Result<Read, Error> {
        loop {
            let read = match state.read_tls(&mut &self.socket) {
                Ok(0) => Read::End,
                Ok(bytes) => Read::Bytes(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Read::End,
                Err(error) => return Err(Error::io(&self.socket.peer, "receive", error)),
            };
            if let Err(error) = state.process_new_packets() {
                if is_no_tls(&error)
                    && matches!(state, rustls::Connection::Client(_))
                    && state.protocol_version().is_none()
                {
                    return Err(Error::TalksNoTls { peer: self.socket.peer.clone() });
                }
                // Tells the peer the reason, if it still reads.
                let _ = self.send_encrypted(state);
                return Err(tls_error(&self.socket.peer, error));
            }
            return Ok(read);
        }
    }

    fn send_encrypted(&self, state: &mut rustls::Connection) -> Result<bool, Error> {
        while state.wants_write() {
            match state.write_tls(&mut &self.socket) {
                Ok(bytes) => {
                    self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(&self.socket.peer, "send", error)),
            }
        }
        Ok(true)
    }
}
