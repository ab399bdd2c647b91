//! The request engine of one thread: sends the messages of requests to all servers, numbers pushes, and tells of each
//! message the answer, checked for its shape, or the failure, with the names of server and table.
//!
//! Sessions, pipelines, synchronous steps and checkpoints make their requests with it; `split` cuts requests over rows
//! into messages. Does not know how frames travel, nor what a row means.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use sanderling_observe::unique;
use sanderling_wire::{PullReply, Reply, Request};

use crate::connection_set::ConnectionSet;
use crate::error::{ClientError, Names};
use crate::open_table::OpenTable;
use crate::placement::Placement;
use crate::rpc_state::{CallError, Needs};

mod split;
pub(crate) use split::{PooledKeys, PushBuffers, check_push};

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
    /// Name of its table, or empty.
    table: Arc<str>,
}

impl Message {
    /// A message about a table that asks for no rows.
    pub(crate) fn about(table: &OpenTable, request: u64, part: usize, server: usize) -> Message {
        Message { request, part, server, dim: table.dim(), table: table.shared_name(), ..Message::default() }
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

/// Told of each message that has ended.
pub(crate) type Each<'a> = dyn FnMut(&Message, Result<Reply<'_>, ClientError>) + 'a;

/// The answers of servers, in the order in which they were asked.
pub(crate) type Answers<T> = Vec<Result<T, ClientError>>;

/// See the top of this file. It connects when it is used first, and again when a connection breaks.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) connections: ConnectionSet,
    pub(crate) placement: Placement,
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
}

impl UnderWay {
    fn add(&mut self, message: Message) -> u64 {
        let tag = self.free.pop().unwrap_or(self.messages.len());
        match self.messages.get_mut(tag) {
            Some(place) => *place = message,
            None => self.messages.push(message),
        }
        tag as u64
    }

    /// A message has its answer or has failed.
    fn end(&mut self, tag: u64, result: Result<Reply<'_>, CallError>, each: &mut Each<'_>) {
        let tag = tag as usize;
        self.free.push(tag);
        let message = &self.messages[tag];
        let result = match result {
            Ok(reply) if message.fits(&reply) => Ok(reply),
            Ok(_) => Err(self.names.misfit(message.server, &message.table)),
            Err(error) => Err(self.names.error(message.server, &message.table, error)),
        };
        each(message, result);
    }
}

impl Engine {
    pub(crate) fn new(connections: ConnectionSet, placement: Placement) -> Engine {
        let servers = connections.len();
        let under_way = UnderWay { names: connections.names(), messages: Vec::new(), free: Vec::new() };
        let (sequences, begun) = (vec![0; servers], vec![0; servers]);
        Engine { connections, placement, under_way, client: unique(), sequences, begun }
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
        (0..self.servers()).all(|server| self.connections.has_room(server, messages))
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
        let Engine { connections, under_way, begun, .. } = self;
        let server = message.server;
        let tag = under_way.add(message);
        let taken = connections.begin(server, tag, needs, request, &mut |_, tag, result| {
            under_way.end(tag, result, each);
        });
        if let Err(source) = taken {
            under_way.free.push(tag as usize);
            let table = under_way.messages[tag as usize].table.to_string();
            return Err(ClientError::Request { table, source });
        }
        begun[server] += 1;
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
        let Engine { connections, under_way, .. } = self;
        connections.settle_while(meanwhile, &mut |_, tag, result| under_way.end(tag, result, each));
    }

    /// Takes the answers that are there, without waiting for any, and does what there is to do.
    pub(crate) fn look(&mut self, each: &mut Each<'_>) {
        let Engine { connections, under_way, .. } = self;
        connections.look(&mut |_, tag, result| under_way.end(tag, result, each));
    }

    /// Waits for answers until the given time at most. `false`: none is awaited.
    pub(crate) fn turn(&mut self, until: Instant, each: &mut Each<'_>) -> bool {
        let Engine { connections, under_way, .. } = self;
        let awaited = connections.outstanding() > 0;
        if awaited {
            connections.turn(Some(until), &mut |_, tag, result| under_way.end(tag, result, each));
        }
        awaited
    }

    /// The error of an answer that is none.
    pub(crate) fn misfit(&self, server: usize) -> ClientError {
        self.under_way.names.misfit(server, "")
    }

    /// Asks several servers at once, each with its part of a request: the message's `part` is its place in `servers`.
    pub(crate) fn begin_asking<'r>(
        &mut self,
        servers: &[usize],
        table: &str,
        ask: impl Fn(usize) -> (Needs, Request<'r>),
        each: &mut Each<'_>,
    ) {
        let table: Arc<str> = table.into();
        for (part, &server) in servers.iter().enumerate() {
            let message = Message { part, server, table: Arc::clone(&table), ..Message::default() };
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
        table: &str,
        ask: impl Fn(usize) -> (Needs, Request<'r>),
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Answers<T> {
        let names = self.under_way.names.clone();
        let misfit = |server: &usize| Err(names.misfit(*server, table));
        let mut answers: Answers<T> = servers.iter().map(misfit).collect();
        let mut each = |message: &Message, result: Result<Reply<'_>, ClientError>| {
            answers[message.part] =
                result.and_then(|reply| read(reply).ok_or_else(|| names.misfit(message.server, table)));
        };
        self.begin_asking(servers, table, ask, &mut each);
        self.settle(&mut each);
        answers
    }

    /// [`Engine::ask_each`] of all servers with one request.
    pub(crate) fn ask_all<T>(
        &mut self,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Answers<T> {
        let servers: Vec<usize> = (0..self.servers()).collect();
        self.ask_each(&servers, "", |_| (Needs::Nothing, request.clone()), read)
    }

    /// [`Engine::ask_each`] of one server.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        table: &str,
        needs: Needs,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        let answer = self.ask_each(&[server], table, |_| (needs, request.clone()), read).pop();
        answer.unwrap_or_else(|| Err(self.under_way.names.misfit(server, table)))
    }
}
