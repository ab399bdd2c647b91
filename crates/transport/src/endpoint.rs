//! Opening connections: listening, accepting, connecting. Unsafe configurations are refused before anything is opened.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::{Address, Endpoint};
use crate::connection::{Connection, Receiver, Sender};
use crate::error::Error;
use crate::options::{ConnectOptions, Framing, ListenOptions};
use crate::pipe::Pipe;
use crate::resolve;
use crate::shm::{self, RingReceiver, RingSender};
use crate::socket::{Socket, wait};
use crate::spin::Spin;
use crate::stream::{StreamReceiver, StreamSender};

/// Length of the accept queue. The system may limit it further.
const BACKLOG: i32 = 1024;
/// Retry interval when a unix server's accept queue is full.
const BACKLOG_RETRY: Duration = Duration::from_millis(2);
/// Time to resolve a listener's own host name.
const LISTEN_RESOLVE: Duration = Duration::from_secs(30);
/// Mode of a unix socket: only its owner may connect.
const UNIX_MODE: u32 = 0o600;

/// A listening address.
///
/// One thread calls [`Listener::accept`]; a [`Stopper`] ends it from any thread. The file descriptor is readable when
/// a connection waits, so that one thread can poll several listeners.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
    options: ListenOptions,
    stopper: Stopper,
    /// Socket file to remove on drop.
    path: Option<PathBuf>,
}

/// Ends the [`Listener::accept`] of another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Makes `accept` return `None` from now on.
    pub fn stop(&self) {
        // The write fails only if the counter is full, and then it is set already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Listener {
    /// Listens at one address.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Permission`] and others name the address; [`Error::NotLoopback`] and
    /// [`Error::Insecure`] when other machines could connect and the options do not allow it.
    pub fn bind(address: &Address, options: &ListenOptions) -> Result<Listener, Error> {
        let name = address.to_string();
        options.framing.check(&name)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::opening(&name, "create an event", error.into()))?;
        let stopper = Stopper(Arc::new(stop));
        let (fd, address, path) = match address {
            Address::Embedded => return Err(Error::NoServer { address: name }),
            Address::Shm(shm) => {
                let failed = |error: Errno| Error::opening(&name, "listen", error.into());
                let fd = unix_socket().map_err(failed)?;
                let at = SocketAddrUnix::new_abstract_name(&shm::abstract_name(shm)).map_err(failed)?;
                rustix::net::bind(&fd, &at).map_err(failed)?;
                rustix::net::listen(&fd, BACKLOG).map_err(failed)?;
                (fd, address.clone(), None)
            }
            Address::Unix(path) => (listen_unix(path, &name)?, address.clone(), Some(path.clone())),
            Address::Tcp(endpoints) => {
                let [endpoint] = &endpoints[..] else { return Err(Error::SeveralServers { address: name }) };
                let (fd, bound) = listen_tcp(endpoint, options, &name)?;
                (fd, Address::Tcp(vec![Endpoint { host: endpoint.host.clone(), port: bound.port() }]), None)
            }
            Address::Rdma(endpoints) => {
                let [endpoint] = &endpoints[..] else { return Err(Error::SeveralServers { address: name }) };
                check_rdma(&name)?;
                let (fd, bound) = listen_tcp(endpoint, options, &name)?;
                (fd, Address::Rdma(vec![Endpoint { host: endpoint.host.clone(), port: bound.port() }]), None)
            }
        };
        Ok(Listener { fd, address, options: options.clone(), stopper, path })
    }

    /// The address, with the real port if port 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The socket of a TCP address for another protocol than frames, and its `host:port`. It stays open without this
    /// listener.
    ///
    /// # Errors
    /// The system lacks descriptors.
    pub fn port(&self) -> std::io::Result<(TcpListener, String)> {
        let fd = self.fd.try_clone()?;
        Ok((TcpListener::from(fd), self.address.to_string().trim_start_matches("tcp://").to_owned()))
    }

    /// A handle that ends `accept`.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the next connection. `None`: the listener was stopped. A client cannot delay it.
    ///
    /// # Errors
    /// They concern one connection or a lack of descriptors: report them and continue, as [`crate::NotAccepted`] does.
    pub fn accept(&self) -> Result<Option<Connection>, Error> {
        let name = self.address.to_string();
        let failed = |error: Errno| Error::io(&name, "accept a connection", error);
        loop {
            let mut fds =
                [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&*self.stopper.0, PollFlags::IN)];
            wait(&mut fds, None).map_err(failed)?;
            if !fds[1].revents().is_empty() {
                return Ok(None);
            }
            match rustix::net::acceptfrom_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    return self.welcome(fd, from).map(Some);
                }
                // Another thread took the connection, or the client went away.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn welcome(&self, fd: OwnedFd, from: Option<SocketAddr>) -> Result<Connection, Error> {
        let options = &self.options;
        let spin = Spin::new(options.spin_us);
        let peer = match from {
            Some(from) if matches!(self.address, Address::Rdma(_)) => format!("rdma://{from}"),
            Some(from) => format!("tcp://{from}"),
            None => process_name(&fd, &self.address),
        };
        let socket = Socket::new(fd, peer)?;
        if let Address::Shm(_) = self.address {
            let ring_bytes = shm::ring_bytes(options.ring_bytes, &options.framing);
            let halves = shm::send_memory(socket, ring_bytes, options.framing, options.write_timeout, &spin)?;
            return Ok(ring_connection(halves, options.framing));
        }
        socket.set_buffers(options.socket_buffer_bytes);
        let pipe = match (&self.address, &options.tls) {
            (Address::Tcp(_) | Address::Rdma(_), tls) => {
                socket.tune_tcp(options.write_timeout)?;
                match tls {
                    Some(tls) => Pipe::Tls(Arc::new(tls.accept(socket)?)),
                    None => Pipe::Plain(Arc::new(socket)),
                }
            }
            _ => Pipe::Plain(Arc::new(socket)),
        };
        match self.address {
            Address::Rdma(_) => {
                #[cfg(feature = "rdma")]
                let role = crate::rdma::Role::Server(options.gather.clone());
                #[cfg(not(feature = "rdma"))]
                let role = ();
                rdma_connection(pipe, options.framing, options.write_timeout, spin, role)
            }
            _ => stream_connection(pipe, options.framing, options.write_timeout, spin),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn stream_connection(
    pipe: Pipe,
    framing: Framing,
    write_timeout: Duration,
    spin: Spin,
) -> Result<Connection, Error> {
    Ok(Connection {
        sender: Sender::stream(StreamSender::new(pipe.clone(), framing, write_timeout)?, framing),
        receiver: Receiver::stream(StreamReceiver::new(pipe, framing, spin)?),
    })
}

fn ring_connection((sender, receiver): (RingSender, RingReceiver), framing: Framing) -> Connection {
    Connection { sender: Sender::ring(sender, framing), receiver: Receiver::ring(receiver) }
}

/// An IP address of this machine that a server may listen at by RDMA.
///
/// # Errors
/// [`Error::NoRdma`] says which part is missing.
pub fn rdma_host() -> Result<std::net::IpAddr, Error> {
    #[cfg(feature = "rdma")]
    return crate::rdma::host();
    #[cfg(not(feature = "rdma"))]
    check_rdma("rdma://").map(|()| std::net::Ipv6Addr::UNSPECIFIED.into())
}

/// Finds out whether there is RDMA, before anything is opened.
fn check_rdma(name: &str) -> Result<(), Error> {
    #[cfg(feature = "rdma")]
    return crate::rdma::check(name);
    #[cfg(not(feature = "rdma"))]
    Err(Error::NoRdma {
        address: name.to_owned(),
        reason: "this program was built without RDMA; build it with the cargo feature `rdma`".to_owned(),
    })
}

#[cfg(feature = "rdma")]
fn rdma_connection(
    pipe: Pipe,
    framing: Framing,
    write_timeout: Duration,
    spin: Spin,
    role: crate::rdma::Role,
) -> Result<Connection, Error> {
    let (sender, receiver) = crate::rdma::halves(pipe, framing, write_timeout, spin, role)?;
    Ok(Connection { sender: Sender::rdma(sender, framing), receiver: Receiver::rdma(receiver) })
}

#[cfg(not(feature = "rdma"))]
fn rdma_connection(pipe: Pipe, _: Framing, _: Duration, _: Spin, (): ()) -> Result<Connection, Error> {
    Err(check_rdma(pipe.peer()).err().unwrap_or(Error::Closed { peer: pipe.peer().to_owned() }))
}

/// Names the process at the other end of a local socket.
fn process_name(fd: &OwnedFd, address: &Address) -> String {
    match rustix::net::sockopt::socket_peercred(fd) {
        Ok(peer) => format!("{address} (process {})", peer.pid.as_raw_nonzero()),
        Err(_) => address.to_string(),
    }
}

fn listen_tcp(
    endpoint: &Endpoint,
    options: &ListenOptions,
    name: &str,
) -> Result<(OwnedFd, SocketAddr), Error> {
    let addresses = resolve(endpoint, name, Instant::now() + LISTEN_RESOLVE)?;
    if !addresses.iter().all(|address| address.ip().is_loopback()) {
        if !options.expose {
            return Err(Error::NotLoopback { address: name.to_owned() });
        }
        let protected = options.tls.is_some() && options.token;
        if !protected && !options.insecure {
            return Err(Error::Insecure { address: name.to_owned() });
        }
    }
    let failed = |error| Error::opening(name, "listen", error);
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    // The socket listens already, with a queue of 128.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener.into(), bound))
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn listen_unix(path: &Path, name: &str) -> Result<OwnedFd, Error> {
    let failed = |error: Errno| Error::opening(name, "listen", error.into());
    let at = SocketAddrUnix::new(path).map_err(failed)?;
    let fd = unix_socket().map_err(failed)?;
    let mut bound = rustix::net::bind(&fd, &at);
    if bound == Err(Errno::ADDRINUSE) {
        if std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            let reason = "is there already and is no socket; choose another path".to_owned();
            return Err(Error::Options { address: name.to_owned(), reason });
        }
        // A killed server leaves its socket file. No process answers there.
        let probe = unix_socket().map_err(failed)?;
        if rustix::net::connect(&probe, &at) == Err(Errno::CONNREFUSED) {
            std::fs::remove_file(path)
                .map_err(|error| Error::opening(name, "remove the stale socket", error))?;
            bound = rustix::net::bind(&fd, &at);
        }
    }
    match bound {
        // A missing folder is not the same as a server that does not run.
        Err(Errno::NOENT) => {
            let source = Errno::NOENT.into();
            return Err(Error::Io { peer: name.to_owned(), action: "create the socket's file", source });
        }
        other => other.map_err(failed)?,
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(UNIX_MODE))
        .map_err(|error| Error::opening(name, "set the mode of the socket", error))?;
    rustix::net::listen(&fd, BACKLOG).map_err(failed)?;
    Ok(fd)
}

/// Connects to one server.
///
/// # Errors
/// [`Error::Refused`], [`Error::ConnectTimeout`], [`Error::Tls`] and others name the address.
pub fn connect(address: &Address, options: &ConnectOptions) -> Result<Connection, Error> {
    let name = address.to_string();
    options.framing.check(&name)?;
    let deadline = Instant::now() + options.timeout;
    let late = || Error::ConnectTimeout { address: name.clone(), timeout: options.timeout };
    let spin = Spin::new(options.spin_us);
    let pipe = match address {
        Address::Embedded => return Err(Error::NoServer { address: name }),
        Address::Shm(shm) => {
            let at = SocketAddrUnix::new_abstract_name(&shm::abstract_name(shm));
            let at = at.map_err(|error| Error::opening(&name, "connect", error.into()))?;
            let fd = connect_unix(&at, &name, deadline)?.ok_or_else(late)?;
            let socket = Socket::new(fd, name.clone())?;
            let halves =
                shm::receive_memory(socket, options.framing, options.write_timeout, &spin, deadline)?;
            return Ok(ring_connection(halves.ok_or_else(late)?, options.framing));
        }
        Address::Unix(path) => {
            let at = SocketAddrUnix::new(path.as_path());
            let at = at.map_err(|error| Error::opening(&name, "connect", error.into()))?;
            let fd = connect_unix(&at, &name, deadline)?.ok_or_else(late)?;
            let socket = Socket::new(fd, name.clone())?;
            socket.set_buffers(options.socket_buffer_bytes);
            Pipe::Plain(Arc::new(socket))
        }
        Address::Tcp(endpoints) | Address::Rdma(endpoints) => {
            let [endpoint] = &endpoints[..] else { return Err(Error::SeveralServers { address: name }) };
            if matches!(address, Address::Rdma(_)) {
                check_rdma(&name)?;
            }
            let fd = connect_tcp(endpoint, &name, deadline)?.ok_or_else(late)?;
            let socket = Socket::new(fd, name.clone())?;
            socket.set_buffers(options.socket_buffer_bytes);
            socket.tune_tcp(options.write_timeout)?;
            match &options.tls {
                Some(tls) => {
                    let channel = tls.connect(socket, &endpoint.host, deadline)?.ok_or_else(late)?;
                    Pipe::Tls(Arc::new(channel))
                }
                None => Pipe::Plain(Arc::new(socket)),
            }
        }
    };
    match address {
        Address::Rdma(_) => {
            #[cfg(feature = "rdma")]
            let role = crate::rdma::Role::Client;
            #[cfg(not(feature = "rdma"))]
            let role = ();
            rdma_connection(pipe, options.framing, options.write_timeout, spin, role)
        }
        _ => stream_connection(pipe, options.framing, options.write_timeout, spin),
    }
}

fn resolve(endpoint: &Endpoint, name: &str, deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
    let Endpoint { host, port } = endpoint;
    match resolve::resolve(host, *port, deadline, resolve::system) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Error::ResolveTimeout { address: name.to_owned(), host: host.clone() }),
        Err(source) => Err(Error::Resolve { address: name.to_owned(), source }),
    }
}

/// Tries each address of the host in turn. `None`: the deadline passed.
fn connect_tcp(endpoint: &Endpoint, name: &str, deadline: Instant) -> Result<Option<OwnedFd>, Error> {
    let mut last = None;
    let addresses = resolve(endpoint, name, deadline)?;
    for (address, to_try) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        // Each attempt leaves time for the remaining addresses.
        let share = deadline.saturating_duration_since(Instant::now()) / to_try;
        if share.is_zero() {
            return Ok(None);
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(Some(stream.into())),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Some(error) => Err(Error::opening(name, "connect", error)),
        None => Ok(None),
    }
}

/// Connects to a unix socket and retries while its accept queue is full. `None`: the deadline passed.
fn connect_unix(at: &SocketAddrUnix, name: &str, deadline: Instant) -> Result<Option<OwnedFd>, Error> {
    let failed = |error: Errno| Error::opening(name, "connect", error.into());
    let fd = unix_socket().map_err(failed)?;
    loop {
        match rustix::net::connect(&fd, at) {
            Ok(()) => return Ok(Some(fd)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(BACKLOG_RETRY),
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
    }
}
