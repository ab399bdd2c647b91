//! A worker thread, which serves its share of the connections. A request runs from start to end on it; shared state is
//! read without locks. It handles frames through [`Session`].
//!
//! A slow client does not delay others: a request is read only when there is room for its reply, a turn has few
//! requests, and a client that reads nothing is closed after a timeout.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, NotAccepted, Poller, Token, Waker};
use sanderling_wire::{Buffer, Features, Kind};

use crate::background::JobQueues;
use crate::call::Workspace;
use crate::connections::ConnectionEntry;
use crate::event::{Event, Log};
use crate::limit::{DRAIN_QUIET, HELLO_WITHIN, ROUND_TIME, SILENCE_KEPT};
use crate::logins::Plane;
use crate::session::Session;
use crate::state::State;
use crate::traces::HeldTrace;
use crate::turn::{Client, Turn, WorkerContext};

/// How often to check for missing hellos and the end of draining.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A message to a worker.
pub(crate) enum WorkerMsg {
    /// A new connection.
    Join { connection: Box<Connection>, entry: Arc<ConnectionEntry>, features: Features },
    /// The reply of a background job, or one that was held back.
    Reply {
        to: Token,
        kind: Kind,
        took: Duration,
        frame: Buffer,
        was_held: bool,
        trace: Option<Box<HeldTrace>>,
    },
    /// Announce the shutdown to all clients, answer pending requests, and end by this time.
    Drain { until: Instant },
    /// Refresh the list of tables.
    RefreshTables,
}

/// Sends messages to a worker and wakes it.
#[derive(Clone)]
pub(crate) struct WorkerHandle {
    messages: Sender<WorkerMsg>,
    waker: Waker,
}

impl WorkerHandle {
    /// Sends a message. A worker that has ended ignores it.
    pub(crate) fn send(&self, message: WorkerMsg) {
        let _ = self.messages.send(message);
        self.waker.wake();
    }
}

/// A worker's connections and its context.
pub(crate) struct Worker {
    poller: Poller,
    inbox: Receiver<WorkerMsg>,
    context: WorkerContext,
    log: Log,
    clients: HashMap<Token, Client>,
    /// Connections that ended their direction and wait for background jobs. In the poller they would be ready all the
    /// time.
    parked: HashMap<Token, (Client, Connection)>,
    /// Number of connections without a hello.
    silent: usize,
    /// Rate limit for reports about connections that were closed before their hello.
    strangers: NotAccepted,
    /// Set when the worker was told to end.
    draining_until: Option<Instant>,
    last_request: Instant,
    /// Ready connections that the last round did not reach.
    left: Vec<Token>,
    /// Bytes served to the connection of the current turn. An idle connection is raised to it, since turns cannot be
    /// saved up.
    served_bytes: u64,
}

impl Worker {
    /// A worker without connections, and the handle to it.
    pub(crate) fn new(
        number: usize,
        state: &Arc<State>,
        spin_us: u32,
        jobs: JobQueues,
        log: Log,
    ) -> Result<(Worker, WorkerHandle), Error> {
        let poller = Poller::new(spin_us)?;
        let (messages, inbox) = std::sync::mpsc::channel();
        let handle = WorkerHandle { messages, waker: poller.waker() };
        let context = WorkerContext {
            state: Arc::clone(state),
            workspace: Workspace { worker: number, tracer: state.traces.tracer(), ..Workspace::default() },
            recorder: state.statistics.recorder(),
            jobs,
            handle: handle.clone(),
        };
        let worker = Worker {
            poller,
            inbox,
            context,
            log,
            clients: HashMap::new(),
            parked: HashMap::new(),
            silent: 0,
            strangers: NotAccepted::default(),
            draining_until: None,
            last_request: Instant::now(),
            left: Vec::new(),
            served_bytes: 0,
        };
        Ok((worker, handle))
    }

    /// Serves until it is told to drain and has done so.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut ready = Vec::new();
        loop {
            let looks = self.silent > 0 || self.draining_until.is_some();
            let until = match self.left.is_empty() {
                true => looks.then(|| Instant::now() + LOOK_EVERY),
                false => Some(Instant::now()),
            };
            let woken = self.poller.wait(&mut ready, until)?;
            let start = Instant::now();
            if woken {
                self.context.workspace.view.refresh(&self.context.state.tables);
                while let Ok(message) = self.inbox.try_recv() {
                    self.read(message, start, &mut ready);
                }
            }
            self.serve_some(&mut ready, start);
            if self.silent > 0 {
                self.close_silent(start);
            }
            if self.draining_until.is_some_and(|until| self.is_drained(until)) {
                let parked = self.parked.values().map(|(client, _)| client);
                let all = self.clients.values().chain(parked);
                all.for_each(|client| self.context.state.connections.leave(&client.entry));
                return Ok(());
            }
        }
    }

    fn read(&mut self, message: WorkerMsg, now: Instant, ready: &mut Vec<Token>) {
        match message {
            WorkerMsg::Join { connection, entry, features } => {
                let session = Session::new(Arc::clone(&self.context.state), features, entry.over_limit);
                let client = Client::new(session, entry, now);
                if self.add(*connection, client).is_some() {
                    self.silent += 1;
                }
            }
            WorkerMsg::Reply { to, kind, took, frame, was_held, trace } => {
                let client = self.clients.get_mut(&to);
                let client = client.or_else(|| self.parked.get_mut(&to).map(|(client, _)| client));
                // The connection may be gone.
                let Some(client) = client else { return };
                client.jobs -= 1;
                client.held_replies -= usize::from(was_held);
                client.done.push_back(frame);
                self.context.recorder.record(kind, client.peer_slot, took);
                self.context.workspace.tracer.end_held(kind, client.name(), took, trace);
                match client.jobs {
                    0 => ready.extend(self.unpark(to).or(Some(to))),
                    _ => ready.push(to),
                }
            }
            WorkerMsg::Drain { until } => {
                (self.draining_until, self.last_request) = (Some(until), now);
                let within_ms = until.saturating_duration_since(now).as_millis() as u32;
                for (&token, client) in &mut self.clients {
                    if let Some(connection) = self.poller.connection(token) {
                        client.say_goaway(connection, within_ms);
                    }
                }
            }
            WorkerMsg::RefreshTables => {}
        }
    }

    /// Adds a connection to the poller.
    fn add(&mut self, connection: Connection, client: Client) -> Option<Token> {
        match self.poller.add(connection) {
            Ok(token) => {
                self.clients.insert(token, client);
                Some(token)
            }
            Err(error) => {
                self.context.state.connections.leave(&client.entry);
                self.log.report(Event::NotAccepted { reason: error.to_string() });
                None
            }
        }
    }

    /// Removes a connection from the poller until its background jobs are done.
    fn park(&mut self, token: Token) {
        if let (Some(client), Some(connection)) = (self.clients.remove(&token), self.poller.remove(token)) {
            self.parked.insert(token, (client, connection));
        }
    }

    /// Puts a parked connection back, under a new token.
    fn unpark(&mut self, token: Token) -> Option<Token> {
        let (client, connection) = self.parked.remove(&token)?;
        self.add(connection, client)
    }

    /// Gives ready connections their turns, the one with the fewest bytes first, until the round's time is over. The
    /// rest is left for the next round.
    fn serve_some(&mut self, ready: &mut Vec<Token>, start: Instant) {
        if !self.left.is_empty() {
            ready.retain(|token| self.clients.get(token).is_some_and(|client| client.ready_since.is_none()));
            ready.append(&mut self.left);
        }
        if ready.len() > 1 {
            let (clients, least) = (&self.clients, self.served_bytes);
            ready.sort_by_cached_key(|token| {
                clients.get(token).map_or(0, |client| client.served_bytes.max(least))
            });
        }
        for (at, &token) in ready.iter().enumerate() {
            if at > 0 && start.elapsed() > ROUND_TIME {
                self.left.extend(&ready[at..]);
                break;
            }
            self.serve(token, start);
        }
        for token in &self.left {
            if let Some(client) = self.clients.get_mut(token) {
                client.ready_since.get_or_insert(start);
            }
        }
    }

    /// Gives a connection its turn.
    fn serve(&mut self, token: Token, start: Instant) {
        let (Some(client), Some(connection)) = (self.clients.get_mut(&token), self.poller.connection(token))
        else {
            return;
        };
        client.served_bytes = client.served_bytes.max(self.served_bytes);
        self.served_bytes = client.served_bytes;
        let start = client.ready_since.take().unwrap_or(start);
        let (was_silent, served) = (!client.session.is_greeted(), client.served());
        let turn = client.turn(token, connection, start, &mut self.context);
        if was_silent && client.session.take_login_refused() {
            self.context.state.logins.refused(Plane::Data, connection.peer(), &self.log);
        }
        if client.served() != served {
            self.last_request = Instant::now();
        }
        if was_silent && client.session.is_greeted() {
            self.silent -= 1;
        }
        match turn {
            Turn::Open => {}
            Turn::Parked => self.park(token),
            Turn::Ended => self.close(token, None),
            Turn::Failed(reason) => self.close(token, Some(reason)),
        }
    }

    /// Closes a connection and reports the reason, if there is one.
    fn close(&mut self, token: Token, reason: Option<String>) {
        let (Some(client), Some(connection)) = (self.clients.remove(&token), self.poller.remove(token))
        else {
            return;
        };
        let is_greeted = client.session.is_greeted();
        self.silent -= usize::from(!is_greeted);
        self.context.state.connections.leave(&client.entry);
        if let Some(reason) = reason {
            let peer = connection.peer().to_owned();
            let tell = |reason| self.log.report(Event::Lost { peer, reason });
            match is_greeted {
                true => tell(reason),
                false => self.strangers.note_stranger(&reason, tell),
            }
        }
    }

    fn close_silent(&mut self, now: Instant) {
        let late = |(&token, client): (&Token, &Client)| {
            if client.session.is_greeted() {
                return None;
            }
            if client.entry.makes_room() {
                return Some((token, "no hello, and others need its place".to_owned()));
            }
            // A connection over the limit keeps its descriptor for a shorter time.
            let within = if client.entry.over_limit { SILENCE_KEPT } else { HELLO_WITHIN };
            let is_late = now.saturating_duration_since(client.since) > within;
            is_late.then(|| (token, format!("no hello within {} s", within.as_secs())))
        };
        let late: Vec<(Token, String)> = self.clients.iter().filter_map(late).collect();
        for (token, reason) in late {
            self.close(token, Some(reason));
        }
    }

    /// Whether all requests are answered, as far as the worker can know.
    fn is_drained(&self, until: Instant) -> bool {
        let idle = self.parked.is_empty() && self.clients.values().all(Client::is_idle);
        idle && (self.clients.is_empty() || self.last_request.elapsed() >= DRAIN_QUIET)
            || Instant::now() >= until
    }
}

#[cfg(test)]
mod tests {
    use sanderling_transport::{ConnectOptions, ListenOptions, Listener, connect};
    use sanderling_wire::*;

    use super::*;
    use crate::Config;
    use crate::listen::framing;

    /// A connection's turn comes a minute after its round began. All of its requests count as having waited that long,
    /// and the statistics count none of that time as work.
    #[test]
    fn a_late_turn_is_waiting_for_all_of_its_requests() {
        const LATE: Duration = Duration::from_secs(60);
        let config = Config::default();
        let state = Arc::new(State::new(&config));
        let (jobs, _inboxes) = JobQueues::new(None);
        let log = Log(Arc::new(|_| {}));
        let (mut worker, _) = Worker::new(0, &state, 0, jobs, log).expect("a worker");
        let framing = framing(config.frame_bytes_max);
        let any = "tcp://127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&any, &ListenOptions::new(framing)).expect("a port");
        let mut client = connect(listener.address(), &ConnectOptions::new(framing)).expect("it listens");
        let connection = listener.accept().expect("it waits").expect("a connection");
        let entry = state.connections.enter("test", Instant::now()).expect("a place");
        let (connection, features) = (Box::new(connection), Features::NONE);
        let join = WorkerMsg::Join { connection, entry, features };
        worker.read(join, Instant::now(), &mut Vec::new());

        let hello = Hello { offer: Offer::of(Features::NONE), token: "", name: "" };
        let mut agreed = Agreed::BEFORE_HELLO;
        let delete = Request::Delete(Delete { table: 1, keys: &[1] });
        for requests in [&[Request::Hello(hello)][..], &[delete.clone(), delete]] {
            let mut frames = Buffer::new(1 << 16);
            for request in requests {
                frames.clear();
                frames.append(|out| request.encode(&agreed, 9, 0, out)).expect("it fits");
                client.sender.frame(frames.len()).expect("room").write(frames.bytes());
            }
            client.sender.flush().expect("sent");
            let (mut ready, until) = (Vec::new(), Instant::now() + LATE);
            while ready.is_empty() {
                assert!(Instant::now() < until, "nothing has come");
                worker.poller.wait(&mut ready, Some(until)).expect("it can wait");
            }
            worker.serve(ready[0], Instant::now() - LATE);
            for request in requests {
                let reply = client.receiver.receive(Some(until)).expect("an answer").expect("an answer");
                let Parsed::Frame(frame) = Frame::parse(reply, &agreed).expect("a frame") else {
                    panic!("not whole")
                };
                match (request, Reply::decode(&frame).expect("a reply")) {
                    (Request::Hello(_), Reply::Hello(said)) => agreed = said.agreed,
                    (_, Reply::Failed(Failure { fault, .. })) => {
                        assert!(matches!(fault, Fault::Busy { .. }), "{fault:?}");
                    }
                    (_, reply) => panic!("{reply:?}"),
                }
            }
        }
        let latencies = state.statistics.latencies(StatsScope::Commands);
        assert_eq!(latencies.len(), 2);
        for latency in latencies {
            assert!(u128::from(latency.summary.max_ns) < LATE.as_nanos(), "{latency:?}");
        }
    }

    /// Three connections wait for large replies, a fourth for a small one. The fourth waits for one large reply only.
    /// A round that began long ago ends after one turn, which shows the order.
    #[test]
    fn who_had_least_is_served_next() {
        // Two of them fit into the buffers of a socket: the clients read none.
        const LARGE: u32 = 16 << 10;
        const LONG: Duration = Duration::from_secs(60);
        let config = Config::default();
        let state = Arc::new(State::new(&config));
        let (jobs, _inboxes) = JobQueues::new(None);
        let (mut worker, _) = Worker::new(0, &state, 0, jobs, Log(Arc::new(|_| {}))).expect("a worker");
        let framing = framing(config.frame_bytes_max);
        let any = "tcp://127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&any, &ListenOptions::new(framing)).expect("a port");
        let mut clients = Vec::new();
        let turns = |worker: &mut Worker, clients: &mut Vec<(Connection, Token)>, sent: &[(usize, u32)]| {
            for &(client, reply_bytes) in sent {
                let ping = Request::Ping(Ping { reply_bytes, bytes: &[] });
                let token = clients[client].1;
                let sender = &mut clients[client].0.sender;
                let mut slot = sender.frame(4096).expect("room");
                let agreed = worker.clients[&token].session.agreed();
                let bytes = ping.encode(agreed, 9, 0, &mut slot).expect("it fits");
                slot.commit(bytes);
                sender.flush().expect("sent");
            }
            // The kernel has them all by now, or soon.
            let until = Instant::now() + LONG;
            let mut ready = Vec::new();
            while ready.len() + worker.left.len() < sent.len() {
                assert!(Instant::now() < until, "nothing has come");
                worker.poller.wait(&mut ready, Some(until)).expect("it can wait");
            }
            let served = |worker: &Worker| -> Vec<u64> {
                clients.iter().map(|(_, token)| worker.clients[token].served()).collect()
            };
            let before = served(worker);
            worker.serve_some(&mut ready, Instant::now() - LONG);
            let after = served(worker);
            (0..clients.len()).filter(|&at| after[at] > before[at]).collect::<Vec<_>>()
        };
        for _ in 0..4 {
            let mut client = connect(listener.address(), &ConnectOptions::new(framing)).expect("it listens");
            let connection = listener.accept().expect("it waits").expect("a connection");
            let entry = state.connections.enter("test", Instant::now()).expect("a place");
            let session = Session::new(Arc::clone(&state), Features::NONE, false);
            let token = worker.add(connection, Client::new(session, entry, Instant::now()));
            worker.silent += 1;
            let hello = Hello { offer: Offer::of(Features::NONE), token: "", name: "" };
            let mut slot = client.sender.frame(4096).expect("room");
            let bytes =
                Request::Hello(hello).encode(&Agreed::BEFORE_HELLO, 1, 0, &mut slot).expect("it fits");
            slot.commit(bytes);
            client.sender.flush().expect("sent");
            let token = token.expect("watched");
            while !worker.clients[&token].session.is_greeted() {
                worker.serve(token, Instant::now());
            }
            clients.push((client, token));
        }
        // Three large replies are pending: each connection has a turn.
        let large = [(0, LARGE), (1, LARGE), (2, LARGE)];
        let mut first = turns(&mut worker, &mut clients, &large);
        for _ in 0..2 {
            first.extend(turns(&mut worker, &mut clients, &[]));
        }
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
        assert!(worker.left.is_empty());
        // Further large replies, and a small one that was requested last.
        let more = [(0, LARGE), (1, LARGE), (2, LARGE), (3, 8)];
        assert_eq!(turns(&mut worker, &mut clients, &more), [3]);
        assert_eq!(worker.left.len(), 3);
        // It waited for no reply, but it does not stay ahead of the others.
        let tokens: Vec<Token> = clients.iter().map(|(_, token)| *token).collect();
        assert!(tokens[..3].iter().all(|token| worker.clients[token].ready_since.is_some()));
        let next = turns(&mut worker, &mut clients, &[]);
        assert!(next.len() == 1 && next[0] < 3, "{next:?}");
        assert!(worker.served_bytes >= u64::from(LARGE));
    }
}
