//! The request engine of one thread: sends the messages of requests to all servers, numbers pushes, and tells of each
//! message the answer, checked for its shape, or the failure, with the names of server and table.
//!
//! Sessions, pipelines, synchronous steps and checkpoints make their requests with it; `split` cuts requests over rows
//! into messages, and `redirect` sends on what a server of a cluster does not have any more. Does not know how frames
//! travel, nor what a row means.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use sanderling_observe::unique;
use sanderling_wire::{Kind, PullReply, Reply, Request};

use crate::connection_set::{ConnectionSet, NoAnswer};
use crate::error::{ClientError, Names};
use crate::locations::Locations;
use crate::open_table::OpenTable;
use crate::placement::Placement;
use crate::rpc_state::{CallError, Needs, Timeout};

mod assembly;
use assembly::{Assembly, Part};

mod following;

mod redirect;
use redirect::Parked;

mod split;
pub(crate) use split::{PooledKeys, PushBuffers, check_push};

/// The subject of a message.
#[derive(Debug, Clone, Default)]
pub(crate) enum Subject {
    #[default]
    Nothing,
    /// A table by its name.
    Name(Arc<str>),
    Table(OpenTable),
}

impl Subject {
    /// Name of the table, or empty.
    fn table(&self) -> &str {
        match self {
            Subject::Nothing => "",
            Subject::Name(name) => name,
            Subject::Table(table) => table.name(),
        }
    }
}

/// The origin of a message.
#[derive(Debug, Clone, Default)]
enum Asker {
    /// The user of the engine.
    #[default]
    Caller,
    /// The engine itself, for a part of another message.
    Message(Box<Part>),
    /// The engine itself, for the number of a table.
    Opening,
}

/// A message under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The request that it is of, as the caller numbers them.
    pub(crate) request: u64,
    /// The part of the request, as the caller numbers them.
    pub(crate) part: usize,
    pub(crate) server: usize,
    /// Its keys within the server's share.
    pub(crate) keys: Range<usize>,
    /// The rows that it asks for, within the server's share.
    pub(crate) rows: Range<usize>,
    dim: usize,
    subject: Subject,
    asker: Asker,
    /// Counts messages. Parts of a message have its number.
    number: u64,
    /// Whether it changes rows.
    is_change: bool,
    /// Whether it has no answer yet.
    is_open: bool,
}

impl Message {
    /// A message about a table that asks for no rows.
    pub(crate) fn about(table: &OpenTable, request: u64, part: usize, server: usize) -> Message {
        let subject = Subject::Table(table.clone());
        Message { request, part, server, dim: table.dim(), subject, ..Message::default() }
    }

    /// The message with the keys and the rows that it asks for.
    pub(crate) fn asking(self, keys: Range<usize>, rows: Range<usize>) -> Message {
        Message { keys, rows, ..self }
    }

    /// Whether the reply has the sizes that were asked for. Its kind was checked.
    fn fits(&self, reply: &Reply<'_>) -> bool {
        match reply {
            Reply::Delete(removed) => *removed <= self.keys.len() as u64,
            // Halves come only where they were agreed on.
            reply => pulled(reply).is_none_or(|pulled| {
                let shape = pulled.shape();
                (shape.keys, shape.rows, shape.dim) == (self.keys.len(), self.rows.len(), self.dim as u32)
            }),
        }
    }
}

/// The rows of a reply to a pull.
pub(crate) fn pulled<'r, 'a>(reply: &'r Reply<'a>) -> Option<&'r PullReply<'a>> {
    match reply {
        Reply::Pull(pulled) | Reply::PullPooled(pulled) | Reply::PullFed(pulled) => Some(pulled),
        _ => None,
    }
}

/// Messages that wait to go on at other servers of a cluster. With more, [`Engine::begin`] waits.
const PARKED_MAX: usize = 256;

/// Told of each message that has ended.
pub(crate) type Each<'a> = dyn FnMut(&Message, Result<Reply<'_>, ClientError>) + 'a;

/// The answers of servers, in the order in which they were asked.
pub(crate) type Answers<T> = Vec<Result<T, ClientError>>;

/// See the top of this file. It connects when it is used first, and again when a connection breaks.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) connections: ConnectionSet,
    pub(crate) placement: Arc<Placement>,
    /// Where the placement comes from; None: it stays.
    locations: Option<Arc<Locations>>,
    under_way: UnderWay,
    /// Number of this client among those that push.
    client: u64,
    /// Per server, the number of the last push.
    sequences: Vec<u64>,
    /// Per server, messages that were begun since the owner set this to 0.
    pub(crate) begun: Vec<usize>,
}

/// The messages under way, by their tag.
#[derive(Debug)]
struct UnderWay {
    names: Names,
    messages: Vec<Message>,
    free: Vec<usize>,
    /// Messages that were begun.
    count: u64,
    /// Messages that wait to go on at other servers.
    parked: Vec<Parked>,
    /// By tag, messages that have gone on at other servers, and the answers so far.
    assemblies: Vec<(usize, Assembly)>,
    /// The answer to the last question for the number of a table.
    opened: Option<Result<(u32, OpenTable), ClientError>>,
}

impl UnderWay {
    fn new(names: Names) -> UnderWay {
        let (messages, free, count) = (Vec::new(), Vec::new(), 0);
        UnderWay { names, messages, free, count, parked: Vec::new(), assemblies: Vec::new(), opened: None }
    }

    fn add(&mut self, mut message: Message) -> u64 {
        self.count += 1;
        message.is_open = true;
        if !matches!(message.asker, Asker::Message(_)) {
            message.number = self.count;
        }
        let tag = self.free.pop().unwrap_or(self.messages.len());
        match self.messages.get_mut(tag) {
            Some(place) => *place = message,
            None => self.messages.push(message),
        }
        tag as u64
    }

    fn release(&mut self, tag: usize) {
        self.messages[tag].is_open = false;
        self.free.push(tag);
    }

    /// A message has its answer, has failed, or is to go on elsewhere.
    fn end(&mut self, tag: u64, result: Result<Reply<'_>, NoAnswer>, each: &mut Each<'_>) {
        let tag = tag as usize;
        let message = &self.messages[tag];
        let result = match result {
            Ok(reply) if message.fits(&reply) => Ok(reply),
            Ok(_) => Err(self.names.misfit(message.server, message.subject.table())),
            Err(NoAnswer::Failed(error)) => Err(self.error(tag, error)),
            Err(NoAnswer::Moved(call)) => {
                self.parked.push(Parked::new(tag, call));
                return;
            }
        };
        self.conclude(tag, result, each);
    }

    /// Tells whoever has asked for a message of its end.
    fn conclude(&mut self, tag: usize, result: Result<Reply<'_>, ClientError>, each: &mut Each<'_>) {
        self.release(tag);
        match self.messages[tag].asker {
            Asker::Caller => each(&self.messages[tag], result),
            Asker::Message(_) => self.assemble(tag, result, each),
            Asker::Opening => self.opened = Some(self.opening(tag, result)),
        }
    }

    /// A call's error with the names of server and table.
    fn error(&self, tag: usize, error: CallError) -> ClientError {
        let message = &self.messages[tag];
        self.names.error(message.server, message.subject.table(), error)
    }
}

impl Engine {
    /// `locations`: those of the cluster whose placement changes.
    pub(crate) fn new(
        connections: ConnectionSet,
        placement: Arc<Placement>,
        locations: Option<Arc<Locations>>,
    ) -> Engine {
        let servers = connections.len();
        let under_way = UnderWay::new(connections.names());
        let (sequences, begun) = (vec![0; servers], vec![0; servers]);
        Engine { connections, placement, locations, under_way, client: unique(), sequences, begun }
    }

    /// Number of servers.
    pub(crate) fn servers(&self) -> usize {
        self.connections.len()
    }

    /// Addresses of the servers.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.under_way.names.servers
    }

    /// Whether every server takes this many more messages without a wait.
    pub(crate) fn has_room(&self, messages: usize) -> bool {
        self.under_way.parked.len() < PARKED_MAX
            && (0..self.servers()).all(|server| self.connections.has_room(server, messages))
    }

    /// The client and the number of the next push to a server.
    pub(crate) fn next_push(&mut self, server: usize) -> (u64, u64) {
        self.sequences[server] += 1;
        (self.client, self.sequences[server])
    }

    /// Takes a message, for a server that has what it needs, and waits while it has too many. It goes with the next
    /// [`Engine::send`] or [`Engine::settle`].
    pub(crate) fn begin(
        &mut self,
        message: Message,
        needs: Needs,
        request: &Request<'_>,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        while self.under_way.parked.len() >= PARKED_MAX {
            self.turn_once(None, each);
        }
        let (server, timeout) = (message.server, self.connections.timeout(message.server));
        self.begin_by(timeout, message, needs, request, each)?;
        self.begun[server] += 1;
        Ok(())
    }

    /// [`Engine::begin`] with a time-out, of a message that is not counted as begun.
    fn begin_by(
        &mut self,
        timeout: Timeout,
        mut message: Message,
        needs: Needs,
        request: &Request<'_>,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        message.is_change = matches!(request.kind(), Kind::Push | Kind::Delete | Kind::Import);
        let Engine { connections, under_way, .. } = self;
        let server = message.server;
        let tag = under_way.add(message);
        let taken = connections.begin(server, tag, timeout, needs, request, &mut |_, tag, result| {
            under_way.end(tag, result, each);
        });
        if let Err(source) = taken {
            under_way.release(tag as usize);
            let table = under_way.messages[tag as usize].subject.table().to_owned();
            return Err(ClientError::Request { table, source });
        }
        Ok(())
    }

    /// Sends what can be sent now.
    pub(crate) fn send(&mut self, each: &mut Each<'_>) {
        let Engine { connections, under_way, .. } = self;
        connections.send(&mut |_, tag, result| under_way.end(tag, result, each));
    }

    /// Sends what there is to send and waits until every message has its answer or has failed.
    pub(crate) fn settle(&mut self, each: &mut Each<'_>) {
        self.settle_while(|| {}, each);
    }

    /// [`Engine::settle`] that runs `meanwhile` after sending.
    pub(crate) fn settle_while(&mut self, meanwhile: impl FnOnce(), each: &mut Each<'_>) {
        self.send(each);
        meanwhile();
        while self.is_waiting() {
            self.turn_once(None, each);
        }
        self.connections.settled();
    }

    /// Whether a message has neither an answer nor failed.
    fn is_waiting(&self) -> bool {
        self.connections.outstanding() > 0 || !self.under_way.parked.is_empty()
    }

    /// Takes the answers that are there, without waiting for any, and does what there is to do.
    pub(crate) fn look(&mut self, each: &mut Each<'_>) {
        let Engine { connections, under_way, .. } = self;
        connections.look(&mut |_, tag, result| under_way.end(tag, result, each));
        self.redirect(each);
    }

    /// Waits for answers until the given time at most. `false`: none is awaited.
    pub(crate) fn turn(&mut self, until: Instant, each: &mut Each<'_>) -> bool {
        let awaited = self.is_waiting();
        if awaited {
            self.turn_once(Some(until), each);
        }
        awaited
    }

    fn turn_once(&mut self, until: Option<Instant>, each: &mut Each<'_>) {
        let until = self.redirects_at().into_iter().chain(until).min();
        let Engine { connections, under_way, .. } = self;
        connections.turn(until, &mut |_, tag, result| under_way.end(tag, result, each));
        self.redirect(each);
    }

    /// The error of an answer that is none.
    pub(crate) fn misfit(&self, server: usize) -> ClientError {
        self.under_way.names.misfit(server, "")
    }

    /// Asks several servers at once, each with its part of a request: the message's `part` is its place in `servers`.
    pub(crate) fn begin_asking<'r>(
        &mut self,
        servers: &[usize],
        subject: &Subject,
        ask: impl Fn(usize) -> (Needs, Request<'r>),
        each: &mut Each<'_>,
    ) {
        for (part, &server) in servers.iter().enumerate() {
            let message = Message { part, server, subject: subject.clone(), ..Message::default() };
            let (needs, request) = ask(server);
            if let Err(error) = self.begin(message.clone(), needs, &request, each) {
                each(&message, Err(error));
            }
        }
    }

    /// Asks several servers at once and waits. `read` takes an answer; `None`: it is none. No other message may be under way.
    pub(crate) fn ask_each<'r, T>(
        &mut self,
        servers: &[usize],
        subject: &Subject,
        ask: impl Fn(usize) -> (Needs, Request<'r>),
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Answers<T> {
        let names = self.under_way.names.clone();
        let table = subject.table();
        let misfit = |server: &usize| Err(names.misfit(*server, table));
        let mut answers: Answers<T> = servers.iter().map(misfit).collect();
        let mut each = |message: &Message, result: Result<Reply<'_>, ClientError>| {
            answers[message.part] =
                result.and_then(|reply| read(reply).ok_or_else(|| names.misfit(message.server, table)));
        };
        self.begin_asking(servers, subject, ask, &mut each);
        self.settle(&mut each);
        answers
    }

    /// [`Engine::ask_each`] of all servers that have rows with one request.
    pub(crate) fn ask_all<T>(
        &mut self,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Answers<T> {
        let servers = self.with_rows();
        self.ask_each(&servers, &Subject::Nothing, |_| (Needs::Nothing, request.clone()), read)
    }

    /// [`Engine::ask_each`] of one server.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        subject: &Subject,
        needs: Needs,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        let answer = self.ask_each(&[server], subject, |_| (needs, request.clone()), read).pop();
        answer.unwrap_or_else(|| Err(self.under_way.names.misfit(server, subject.table())))
    }
}
