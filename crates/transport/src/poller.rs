//! A set of connections on one thread, and which of them are ready. It sends and receives nothing itself.
//!
//! Recently used connections are *hot*: their rings and buffers are polled without a system call. Before the thread
//! sleeps, each hot connection is armed to wake it and becomes cold; then one system call waits for all of them.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::connection::{Arming, Connection};
use crate::error::Error;
use crate::socket::timespec;
use crate::spin::Spin;

/// Events that one system call returns.
const EVENTS_MAX: usize = 256;
/// Polls of hot connections per system call, while the thread is awake.
const LOOKS_PER_KERNEL_LOOK: u32 = 32;
/// The event id of the waker.
const WAKER: u64 = u64::MAX;

/// Names a connection of a [`Poller`]. Tokens are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    index: u32,
    generation: u32,
}

/// Wakes the thread that waits in a [`Poller`], from any other thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the current wait, or else the next one, at once.
    pub fn wake(&self) {
        // The write fails only if the counter is full, and then it is set already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The connections of one thread.
pub struct Poller {
    epoll: OwnedFd,
    waker: Waker,
    spin: Spin,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Indexes of connections that would not wake the thread.
    hot: Vec<u32>,
    /// Number of waits.
    round: u64,
    looks: u32,
}

#[derive(Debug)]
struct Entry {
    connection: Option<Connection>,
    generation: u32,
    /// The events that the kernel watches for.
    interest: EventFlags,
    hot: bool,
    /// The wait that last reported the connection as ready.
    listed: u64,
}

impl Poller {
    /// An empty poller. `spin_us` is the busy-poll time before a wait blocks, in microseconds.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptors left.
    pub fn new(spin_us: u32) -> Result<Poller, Error> {
        let make = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
            Ok((epoll, Waker(Arc::new(waker))))
        };
        let (epoll, waker) = make().map_err(|error: Errno| Error::io("poller", "be created", error))?;
        let (entries, free, hot) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Poller { epoll, waker, spin: Spin::new(spin_us), entries, free, hot, round: 0, looks: 0 })
    }

    /// A handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a connection.
    ///
    /// # Errors
    /// [`Error::Io`] when the system can watch no more.
    pub fn add(&mut self, connection: Connection) -> Result<Token, Error> {
        let index = self.free.last().copied().unwrap_or(self.entries.len() as u32);
        let interest = EventFlags::IN;
        epoll::add(&self.epoll, &connection, EventData::new_u64(index.into()), interest)
            .map_err(|error| Error::io(connection.peer(), "be watched", error))?;
        if self.free.pop().is_none() {
            self.entries.push(Entry { connection: None, generation: 0, interest, hot: false, listed: 0 });
        }
        let entry = &mut self.entries[index as usize];
        (entry.connection, entry.interest) = (Some(connection), interest);
        let token = Token { index, generation: entry.generation };
        self.heat(index);
        Ok(token)
    }

    /// Returns a connection.
    pub fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        let entry = self.entries.get_mut(token.index as usize)?;
        if entry.generation != token.generation || entry.connection.is_none() {
            return None;
        }
        // The caller may change the events that the connection waits for.
        self.heat(token.index);
        self.entries[token.index as usize].connection.as_mut()
    }

    /// Removes a connection. Ended and failed connections must be removed, or they stay ready forever.
    pub fn remove(&mut self, token: Token) -> Option<Connection> {
        let entry = self.entries.get_mut(token.index as usize)?;
        if entry.generation != token.generation {
            return None;
        }
        let connection = entry.connection.take()?;
        // It fails only for a socket that is not watched.
        let _ = epoll::delete(&self.epoll, &connection);
        entry.generation += 1;
        if std::mem::take(&mut entry.hot) {
            self.hot.retain(|&index| index != token.index);
        }
        self.free.push(token.index);
        Some(connection)
    }

    /// Waits until connections are ready, and replaces the content of `ready` by them. `true`: the [`Waker`] was used.
    ///
    /// A connection is ready when it has something to receive, or when its blocked sender can continue or has exceeded
    /// the write timeout. `ready` is empty after the deadline.
    ///
    /// A connection with a blocked sender is not ready for reading, so that replies are sent before further requests
    /// are read. A connection that was not drained is ready again at once, so that a thread can take a few frames of
    /// each in turn.
    ///
    /// # Errors
    /// [`Error::Io`] when the system cannot wait. The thread cannot continue then.
    pub fn wait(&mut self, ready: &mut Vec<Token>, deadline: Option<Instant>) -> Result<bool, Error> {
        ready.clear();
        self.round += 1;
        let mut woken = false;
        let mut spin = self.spin.clone();
        self.cool_sockets();
        let shared = self.shares_processor();
        let spun = spin.wait(shared, || {
            self.look_at_hot(ready);
            self.looks = self.looks.wrapping_add(1);
            if self.hot.is_empty() || self.looks.is_multiple_of(LOOKS_PER_KERNEL_LOOK) {
                woken |= self.look_at_kernel(ready, Some(Duration::ZERO))?;
            }
            Ok::<_, Error>(woken || !ready.is_empty())
        })?;
        if !spun && self.arm_hot(ready)? {
            let mut until = deadline;
            for &index in &self.hot {
                let wakes = self.entries[index as usize].connection.as_ref().and_then(Connection::wakes_at);
                until = until.into_iter().chain(wakes).min();
            }
            let asleep = Instant::now();
            while !woken && ready.is_empty() {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                woken = self.look_at_kernel(ready, left)?;
                if ready.is_empty() && left.is_some_and(|left| left.is_zero()) {
                    break;
                }
                // A spurious wake-up leaves its connection hot, so it must be armed again.
                if !woken && ready.is_empty() && !self.arm_hot(ready)? {
                    break;
                }
            }
            spin.slept(asleep.elapsed());
            self.look_at_hot(ready);
        }
        self.spin = spin;
        Ok(woken)
    }

    fn heat(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if !std::mem::replace(&mut entry.hot, true) {
            self.hot.push(index);
        }
    }

    /// Drained sockets that are watched for reading need no polling.
    fn cool_sockets(&mut self) {
        self.hot.retain(|&index| {
            let entry = &mut self.entries[index as usize];
            let only_kernel = entry.connection.as_ref().is_some_and(Connection::needs_only_kernel);
            entry.hot = !(only_kernel && entry.interest == EventFlags::IN);
            entry.hot
        });
    }

    /// Whether a hot connection has its peer on this processor, which cannot answer before this thread yields.
    fn shares_processor(&self) -> bool {
        if self.hot.is_empty() {
            return false;
        }
        let here = rustix::thread::sched_getcpu() as u32;
        let connections =
            self.hot.iter().filter_map(|&index| self.entries[index as usize].connection.as_ref());
        // All of them are told.
        connections.fold(false, |shares, connection| shares | connection.shares_processor(here))
    }

    fn look_at_hot(&mut self, ready: &mut Vec<Token>) {
        for &index in &self.hot {
            let entry = &mut self.entries[index as usize];
            if entry.connection.as_mut().is_some_and(Connection::look) {
                list(entry, index, self.round, ready);
            }
        }
    }

    /// Arms the hot connections. `false`: one is ready now, so the thread must not sleep.
    fn arm_hot(&mut self, ready: &mut Vec<Token>) -> Result<bool, Error> {
        let mut hot = std::mem::take(&mut self.hot);
        let mut failed = Ok(());
        hot.retain(|&index| {
            let entry = &mut self.entries[index as usize];
            let Some(connection) = &mut entry.connection else { return false };
            match connection.arm() {
                Arming::Ready => list(entry, index, self.round, ready),
                Arming::Watch { writing } => {
                    let interest = if writing { EventFlags::OUT } else { EventFlags::IN };
                    if interest != entry.interest {
                        let data = EventData::new_u64(index.into());
                        if let Err(error) = epoll::modify(&self.epoll, &*connection, data, interest) {
                            failed = Err(Error::io(connection.peer(), "be watched", error));
                        }
                        entry.interest = interest;
                    }
                    // Connections with a timeout under way stay hot.
                    entry.hot = connection.wakes_at().is_some();
                }
            }
            entry.hot
        });
        self.hot = hot;
        failed.map(|()| ready.is_empty())
    }

    /// Asks the kernel and waits for at most `timeout`. `true`: the waker was used.
    fn look_at_kernel(&mut self, ready: &mut Vec<Token>, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        let events = match epoll::wait(&self.epoll, &mut buffer, timeout.map(timespec).as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(Error::io("poller", "wait", error)),
        };
        let mut woken = false;
        for event in events {
            let data = event.data;
            if data.u64() == WAKER {
                let _ = rustix::io::read(&*self.waker.0, &mut [0; 8]);
                woken = true;
                continue;
            }
            let index = data.u64() as u32;
            self.heat(index);
            let entry = &mut self.entries[index as usize];
            if entry.connection.as_mut().is_some_and(Connection::signalled) {
                list(entry, index, self.round, ready);
            }
        }
        Ok(woken)
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Poller").field("connections", &self.len()).field("hot", &self.hot.len()).finish()
    }
}

fn list(entry: &mut Entry, index: u32, round: u64, ready: &mut Vec<Token>) {
    if entry.listed != round {
        entry.listed = round;
        ready.push(Token { index, generation: entry.generation });
    }
}
