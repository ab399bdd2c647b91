//! The sockets below the connections of a port, of which there is room for so many: who has to make room for others, and how
//! a connection is ended whose peer does not end it. Knows neither what is talked nor who has which token.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::limit::PLACE_KEPT;

/// The socket below a connection; copies are of the same one.
#[derive(Debug, Clone)]
pub(crate) struct Line(Arc<Socket>);

#[derive(Debug)]
struct Socket {
    peer: Option<SocketAddr>,
    socket: std::net::TcpStream,
    /// Has somebody asked over it whom the server admits?
    admitted: AtomicBool,
}

impl Socket {
    fn cut(&self) {
        // It fails when it has ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Line {
    pub(crate) fn of(socket: &TcpStream) -> io::Result<Line> {
        let peer = socket.peer_addr().ok();
        let socket = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        Ok(Line(Arc::new(Socket { peer, socket, admitted: AtomicBool::new(false) })))
    }

    /// Who is at the other end, if the system knows.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// Somebody asks over it whom the server admits: from now on it keeps its place.
    pub(crate) fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }
}

/// The places of a port.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    /// Who may have to make room: those over which nobody has been admitted, oldest first.
    strangers: VecDeque<(Instant, Weak<Socket>)>,
}

impl Places {
    pub(crate) fn new(places: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(places)), strangers: VecDeque::new() }
    }

    /// A place for a connection. If there is none, the one that is in nobody's use for longest makes room; if all are in use,
    /// it waits.
    pub(crate) async fn take(&mut self, line: &Line) -> OwnedSemaphorePermit {
        let place = loop {
            let patience = match self.free.available_permits() {
                0 => self.make_room(),
                _ => PLACE_KEPT,
            };
            if let Ok(Ok(place)) = timeout(patience, Arc::clone(&self.free).acquire_owned()).await {
                break place;
            }
        };
        let is_stranger = |socket: Arc<Socket>| !socket.admitted.load(Ordering::Relaxed);
        self.strangers.retain(|(_, socket)| socket.upgrade().is_some_and(is_stranger));
        self.strangers.push_back((Instant::now(), Arc::downgrade(&line.0)));
        place
    }

    /// Ends the oldest connection that is in nobody's use, if it is not too young for that. When to look again.
    fn make_room(&mut self) -> std::time::Duration {
        let stranger = |(_, socket): &(Instant, Weak<Socket>)| {
            socket.upgrade().is_some_and(|socket| !socket.admitted.load(Ordering::Relaxed))
        };
        let Some(at) = self.strangers.iter().position(stranger) else { return PLACE_KEPT };
        let young = PLACE_KEPT.saturating_sub(self.strangers[at].0.elapsed());
        if !young.is_zero() {
            return young;
        }
        if let Some(socket) = self.strangers.remove(at).and_then(|(_, socket)| socket.upgrade()) {
            socket.cut();
        }
        PLACE_KEPT
    }
}
