//! TLS over a socket: who proves what to whom, and the one object that both halves of a connection share. Only
//! version 1.3. It knows no frame, and no token: that is a matter of the layer above, inside the encryption.

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

/// Encrypted bytes that may wait to be sent; more plain text is not taken until they are gone.
const TLS_BUFFER_BYTES_MAX: usize = 256 << 10;
/// How an alert of TLS begins, by which a server ends what does not begin as TLS does (RFC 8446, section 5.1).
const ALERT: [u8; 2] = [21, 3];
/// How a client's hello begins, in the same place.
const HELLO: [u8; 2] = [22, 3];
/// What a peer without TLS says to such a hello: what is no TLS, so that the other need not wait, and can tell a reader why.
pub(crate) const NO_TLS: &[u8] = b"sanderling: no TLS here\n";
static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// What a server proves who it is with.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// Whom a client believes.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

fn tls_error(peer: impl std::fmt::Display, reason: impl std::fmt::Display) -> Error {
    Error::Tls { peer: peer.to_string(), reason: tls_reason(&reason.to_string()) }
}

/// What the TLS library says of a peer, in words that help where its own are those of its code.
#[must_use]
pub fn tls_reason(said: &str) -> String {
    match said.contains("CaUsedAsEndEntity") {
        true => "invalid peer certificate: the server's certificate is itself a CA certificate; make a server certificate \
                 with CA:FALSE, signed by it"
            .to_owned(),
        false => said.to_owned(),
    }
}

/// Is this how a server that talks TLS answers who does not?
pub(crate) fn is_tls_alert(answer: &[u8]) -> bool {
    answer.starts_with(&ALERT)
}

/// Is this how a client that talks TLS begins?
pub(crate) fn is_tls_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&HELLO)
}

/// Does this error of a client say that what it got, before anything was agreed, is no TLS?
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
    /// Certificate chain and private key, both in PEM files.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file that cannot be read or does not fit.
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
    /// The authorities to believe, in a PEM file. The server's certificate must be for the host of the address.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file that cannot be read or does not fit.
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

    /// Connects and finishes the handshake. `None`: the deadline came first.
    pub(crate) fn connect(
        &self,
        socket: Socket,
        host: &str,
        deadline: Instant,
    ) -> Result<Option<TlsChannel>, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| tls_error(&socket.peer, error))?;
        let state =
            ClientConnection::new(self.0.clone(), name).map_err(|error| tls_error(&socket.peer, error))?;
        let channel = TlsChannel::new(socket, state.into());
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

/// A socket and its encryption. Both halves lock it for the time of one attempt, never while they sleep.
///
/// So a reader and a writer in two threads take turns. It stays so: rustls keeps both directions in one object (alerts,
/// key updates and the handshake concern both), and apart they would need a record layer of our own. Workers and clients
/// have both halves of a connection in one thread, where the lock is never contended.
#[derive(Debug)]
pub(crate) struct TlsChannel {
    pub(crate) socket: Socket,
    state: Mutex<rustls::Connection>,
    /// Encrypted bytes that the socket has taken.
    taken: AtomicU64,
}

impl TlsChannel {
    fn new(socket: Socket, mut state: rustls::Connection) -> TlsChannel {
        state.set_buffer_limit(Some(TLS_BUFFER_BYTES_MAX));
        TlsChannel { socket, state: Mutex::new(state), taken: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, rustls::Connection> {
        // A half that panicked leaves a state that fails its own checks at worst.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One attempt to read plain text; drives the handshake as far as it goes.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Read, Error> {
        let mut state = self.state();
        loop {
            match state.reader().read(buffer) {
                Ok(0) => return Ok(Read::End),
                Ok(bytes) => return Ok(Read::Bytes(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // No farewell inside the encryption: somebody cut the line.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Error::Cut { peer: self.socket.peer.clone(), bytes: 0 });
                }
                Err(error) => return Err(Error::io(&self.socket.peer, "receive", error)),
            }
            match self.read_encrypted(&mut state)? {
                Read::Nothing => return Ok(Read::Nothing),
                // The reader says whether the end came with a farewell.
                Read::Bytes(_) | Read::End => {}
            }
            self.send_encrypted(&mut state)?;
        }
    }

    /// One attempt to write plain text: how much was taken, `None` when nothing fits now.
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

    /// Sleeps until something can be sent: after the socket's writability, or while the handshake is not finished,
    /// what the peer has to say. `false`: the deadline came first.
    pub(crate) fn wait_writable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        if self.sends_after_reading() {
            return self.socket.wait_readable(deadline);
        }
        self.socket.wait_writable(deadline)
    }

    /// Must more come from the peer before anything can be sent?
    pub(crate) fn sends_after_reading(&self) -> bool {
        let state = self.state();
        state.is_handshaking() && !state.wants_write()
    }

    /// As far as it goes without waiting. `true`: it is finished.
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

    /// One attempt to send what is encrypted. `true`: all of it is gone.
    pub(crate) fn try_flush(&self) -> Result<bool, Error> {
        self.send_encrypted(&mut self.state())
    }

    /// How many bytes have gone, by whichever half.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Says farewell, so that the peer can tell the end from a cut.
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
                // The peer should hear why, if it still listens.
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
