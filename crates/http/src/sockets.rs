//! The sockets below a port's connections: a bounded number of slots, and which connection loses its slot to a newer
//! one.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// The socket below a connection. Copies share it.
#[derive(Debug, Clone)]
pub struct SocketHandle(Arc<Socket>);

#[derive(Debug)]
struct Socket {
    peer: Option<SocketAddr>,
    socket: std::net::TcpStream,
    /// Whether an authenticated request came over it.
    admitted: AtomicBool,
}

impl Socket {
    fn cut(&self) {
        // It fails when the connection has ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl SocketHandle {
    pub(crate) fn of(socket: &TcpStream) -> io::Result<SocketHandle> {
        let peer = socket.peer_addr().ok();
        let socket = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        Ok(SocketHandle(Arc::new(Socket { peer, socket, admitted: AtomicBool::new(false) })))
    }

    /// Address of the peer, if the system knows it.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// Marks the connection as authenticated, so that it keeps its slot.
    pub fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }
}

/// The connection slots of a port.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    free: Arc<Semaphore>,
    /// Time for which a connection keeps its slot in any case.
    kept: Duration,
    /// Connections that may lose their slot: those that never authenticated, oldest first.
    unauthenticated: VecDeque<(Instant, Weak<Socket>)>,
}

impl ConnectionSlots {
    pub(crate) fn new(slots: usize, kept: Duration) -> ConnectionSlots {
        ConnectionSlots { free: Arc::new(Semaphore::new(slots)), kept, unauthenticated: VecDeque::new() }
    }

    /// Takes a slot. If none is free, the oldest unauthenticated connection loses its slot; if there is none, the
    /// caller waits.
    pub(crate) async fn take(&mut self, socket: &SocketHandle) -> OwnedSemaphorePermit {
        let slot = loop {
            let patience = match self.free.available_permits() {
                0 => self.make_room(),
                _ => self.kept,
            };
            if let Ok(Ok(slot)) = timeout(patience, Arc::clone(&self.free).acquire_owned()).await {
                break slot;
            }
        };
        let is_stranger = |socket: Arc<Socket>| !socket.admitted.load(Ordering::Relaxed);
        self.unauthenticated.retain(|(_, socket)| socket.upgrade().is_some_and(is_stranger));
        self.unauthenticated.push_back((Instant::now(), Arc::downgrade(&socket.0)));
        slot
    }

    /// Closes the oldest unauthenticated connection unless it is too young. Returns when to try again.
    fn make_room(&mut self) -> Duration {
        let stranger = |(_, socket): &(Instant, Weak<Socket>)| {
            socket.upgrade().is_some_and(|socket| !socket.admitted.load(Ordering::Relaxed))
        };
        let Some(at) = self.unauthenticated.iter().position(stranger) else { return self.kept };
        let young = self.kept.saturating_sub(self.unauthenticated[at].0.elapsed());
        if !young.is_zero() {
            return young;
        }
        if let Some(socket) = self.unauthenticated.remove(at).and_then(|(_, socket)| socket.upgrade()) {
            socket.cut();
        }
        self.kept
    }
}
