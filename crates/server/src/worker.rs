//! A thread that serves its share of the connections. A request runs start to end on it; what it shares with the others is
//! read without locks. Knows what to do with a frame only as [`Session`].
//!
//! Nobody who is slow costs the others anything: a request is taken only when there is room for its reply, each
//! connection has a few requests per turn, and who takes nothing for too long is closed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, NotAccepted, Poller, Token, Waker};
use sanderling_wire::{Buffer, Features, Kind};

use crate::call::Desk;
use crate::connections::Presence;
use crate::errand::Postbox;
use crate::event::{Event, Log};
use crate::limit::{DRAIN_QUIET, HELLO_WITHIN, ROUND_TIME, SILENCE_KEPT};
use crate::logins::Plane;
use crate::session::Session;
use crate::state::State;
use crate::turn::{Bench, Client, Turn};

/// How often it is looked whether somebody has not said hello, or draining is done.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A message to a worker.
pub(crate) enum Letter {
    /// A connection is its from now on.
    Join { connection: Box<Connection>, presence: Arc<Presence>, features: Features },
    /// An errand is done.
    Reply { to: Token, kind: Kind, took: Duration, frame: Buffer },
    /// Tell everybody to go, answer what is under way, and end by then.
    Drain { until: Instant },
    /// Look at the list of tables.
    Look,
}

/// A worker's address.
#[derive(Clone)]
pub(crate) struct Mailbox {
    letters: Sender<Letter>,
    waker: Waker,
}

impl Mailbox {
    /// A worker that has ended gets nothing any more.
    pub(crate) fn post(&self, letter: Letter) {
        let _ = self.letters.send(letter);
        self.waker.wake();
    }
}

/// One thread's connections, and what it needs to serve them.
pub(crate) struct Worker {
    poller: Poller,
    inbox: Receiver<Letter>,
    bench: Bench,
    log: Log,
    clients: HashMap<Token, Client>,
    /// Those of which nothing comes any more, until their errands are done: to the poller they would be ready for ever.
    parked: HashMap<Token, (Client, Connection)>,
    /// How many of them have not said hello.
    silent: usize,
    /// Those that were closed before their hello: anybody can make any number of them, so they are told of seldom.
    strangers: NotAccepted,
    /// Set when it was told to end.
    draining_until: Option<Instant>,
    last_request: Instant,
    /// Connections that were ready in the last round and had no turn.
    left: Vec<Token>,
    /// What the connection that is served had so far: one that was idle has as much, since nobody saves turns up.
    served_bytes: u64,
}

impl Worker {
    /// One without connections, and where letters to it go.
    pub(crate) fn new(
        state: &Arc<State>,
        spin_us: u32,
        errands: Postbox,
        log: Log,
    ) -> Result<(Worker, Mailbox), Error> {
        let poller = Poller::new(spin_us)?;
        let (letters, inbox) = std::sync::mpsc::channel();
        let mailbox = Mailbox { letters, waker: poller.waker() };
        let bench = Bench {
            state: Arc::clone(state),
            desk: Desk::default(),
            recorder: state.statistics.recorder(),
            errands,
            mailbox: mailbox.clone(),
        };
        let worker = Worker {
            poller,
            inbox,
            bench,
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
        Ok((worker, mailbox))
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
                self.bench.desk.view.refresh(&self.bench.state.tables);
                while let Ok(letter) = self.inbox.try_recv() {
                    self.read(letter, start, &mut ready);
                }
            }
            self.serve_some(&mut ready, start);
            if self.silent > 0 {
                self.close_silent(start);
            }
            if self.draining_until.is_some_and(|until| self.is_drained(until)) {
                let parked = self.parked.values().map(|(client, _)| client);
                let all = self.clients.values().chain(parked);
                all.for_each(|client| self.bench.state.connections.leave(&client.presence));
                return Ok(());
            }
        }
    }

    fn read(&mut self, letter: Letter, now: Instant, ready: &mut Vec<Token>) {
        match letter {
            Letter::Join { connection, presence, features } => {
                let session = Session::new(Arc::clone(&self.bench.state), features, presence.surplus);
                let client = Client::new(session, presence, now);
                if self.add(*connection, client).is_some() {
                    self.silent += 1;
                }
            }
            Letter::Reply { to, kind, took, frame } => {
                let client = self.clients.get_mut(&to);
                let client = client.or_else(|| self.parked.get_mut(&to).map(|(client, _)| client));
                // Who asked may be gone.
                let Some(client) = client else { return };
                client.errands -= 1;
                client.done.push_back(frame);
                self.bench.recorder.record(kind, client.seat, took);
                match client.errands {
                    0 => ready.extend(self.unpark(to).or(Some(to))),
                    _ => ready.push(to),
                }
            }
            Letter::Drain { until } => {
                (self.draining_until, self.last_request) = (Some(until), now);
                let within_ms = until.saturating_duration_since(now).as_millis() as u32;
                for (&token, client) in &mut self.clients {
                    if let Some(connection) = self.poller.connection(token) {
                        client.say_goaway(connection, within_ms);
                    }
                }
            }
            Letter::Look => {}
        }
    }

    /// Takes a connection, if the system can watch it.
    fn add(&mut self, connection: Connection, client: Client) -> Option<Token> {
        match self.poller.add(connection) {
            Ok(token) => {
                self.clients.insert(token, client);
                Some(token)
            }
            Err(error) => {
                self.bench.state.connections.leave(&client.presence);
                self.log.say(Event::NotAccepted { reason: error.to_string() });
                None
            }
        }
    }

    /// Takes a connection out of the poller until its errands are done.
    fn park(&mut self, token: Token) {
        if let (Some(client), Some(connection)) = (self.clients.remove(&token), self.poller.remove(token)) {
            self.parked.insert(token, (client, connection));
        }
    }

    /// Takes one up again if it is parked: by another name.
    fn unpark(&mut self, token: Token) -> Option<Token> {
        let (client, connection) = self.parked.remove(&token)?;
        self.add(connection, client)
    }

    /// Gives those that are ready their turns, the one that had least first, until the round has lasted for long; the others
    /// come in the next round.
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
        let turn = client.turn(token, connection, start, &mut self.bench);
        if was_silent && client.session.take_login_refused() {
            self.bench.state.logins.refused(Plane::Data, connection.peer(), &self.log);
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

    /// Lets a connection go, with a word if that is not its own wish.
    fn close(&mut self, token: Token, reason: Option<String>) {
        let (Some(client), Some(connection)) = (self.clients.remove(&token), self.poller.remove(token))
        else {
            return;
        };
        let is_greeted = client.session.is_greeted();
        self.silent -= usize::from(!is_greeted);
        self.bench.state.connections.leave(&client.presence);
        if let Some(reason) = reason {
            let peer = connection.peer().to_owned();
            let tell = |reason| self.log.say(Event::Lost { peer, reason });
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
            if client.presence.makes_room() {
                return Some((token, "no hello, and others need its place".to_owned()));
            }
            // Who is only to be told "busy" keeps a descriptor for less long.
            let within = if client.presence.surplus { SILENCE_KEPT } else { HELLO_WITHIN };
            let is_late = now.saturating_duration_since(client.since) > within;
            is_late.then(|| (token, format!("no hello within {} s", within.as_secs())))
        };
        let late: Vec<(Token, String)> = self.clients.iter().filter_map(late).collect();
        for (token, reason) in late {
            self.close(token, Some(reason));
        }
    }

    /// Has everybody been answered, as far as can be known?
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

    /// The requests of a connection whose turn comes a minute after its round began, after those of the others: of the first
    /// one as of the others it is known that it waited so long, and none is noted as having taken it.
    #[test]
    fn a_late_turn_is_waiting_for_all_of_its_requests() {
        const LATE: Duration = Duration::from_secs(60);
        let config = Config::default();
        let state = Arc::new(State::new(&config));
        let (errands, _inboxes) = Postbox::new();
        let log = Log(Arc::new(|_| {}));
        let (mut worker, _) = Worker::new(&state, 0, errands, log).expect("a worker");
        let framing = framing(config.frame_bytes_max);
        let any = "tcp://127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&any, &ListenOptions::new(framing)).expect("a port");
        let mut client = connect(listener.address(), &ConnectOptions::new(framing)).expect("it listens");
        let connection = listener.accept().expect("it waits").expect("a connection");
        let presence = state.connections.enter("test", Instant::now()).expect("a place");
        let (connection, features) = (Box::new(connection), Features::NONE);
        let join = Letter::Join { connection, presence, features };
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

    /// Three connections with large answers to come and one with a small one: it waits for no more than the one at hand. A round
    /// that began long ago ends after one turn, so that the order shows.
    #[test]
    fn who_had_least_is_served_next() {
        const LARGE: u32 = 64 << 10;
        const LONG: Duration = Duration::from_secs(60);
        let config = Config::default();
        let state = Arc::new(State::new(&config));
        let (errands, _inboxes) = Postbox::new();
        let (mut worker, _) = Worker::new(&state, 0, errands, Log(Arc::new(|_| {}))).expect("a worker");
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
            let presence = state.connections.enter("test", Instant::now()).expect("a place");
            let session = Session::new(Arc::clone(&state), Features::NONE, false);
            let token = worker.add(connection, Client::new(session, presence, Instant::now()));
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
        // All three have large ones waiting: each has a turn.
        let large = [(0, LARGE), (1, LARGE), (2, LARGE)];
        let mut first = turns(&mut worker, &mut clients, &large);
        for _ in 0..2 {
            first.extend(turns(&mut worker, &mut clients, &[]));
        }
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
        assert!(worker.left.is_empty());
        // More large ones, and a small one that is told of last.
        let more = [(0, LARGE), (1, LARGE), (2, LARGE), (3, 8)];
        assert_eq!(turns(&mut worker, &mut clients, &more), [3]);
        assert_eq!(worker.left.len(), 3);
        // It has waited for nothing, so it is not before the others for ever.
        let tokens: Vec<Token> = clients.iter().map(|(_, token)| *token).collect();
        assert!(tokens[..3].iter().all(|token| worker.clients[token].ready_since.is_some()));
        let next = turns(&mut worker, &mut clients, &[]);
        assert!(next.len() == 1 && next[0] < 3, "{next:?}");
        assert!(worker.served_bytes >= u64::from(LARGE));
    }
}
