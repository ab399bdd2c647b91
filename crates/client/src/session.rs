//! The requests of one thread, one at a time, with the rows of their answers in place; pushes go on meanwhile. Does not
//! know how requests are cut into messages, nor the meaning of a row.

use std::sync::Arc;

use sanderling_store::{Absent, PushScale};
use sanderling_wire::{Fault, Reply, Request};

use crate::engine::{Engine, Message, PushBuffers, Subject};
use crate::error::ClientError;
use crate::key_partition::{KeyPartition, RaggedPartition};
use crate::open_table::{Number, OpenTable};
use crate::outage::Outages;
use crate::rpc_state::{Needs, Peer};

mod fed;
mod pull;

pub use fed::FedBatch;
pub(crate) use fed::FedPart;
pub(crate) use pull::{PullInto, PullPart};

/// The parts of pushes of fed batches are numbered from here on.
const FED_PART: usize = 1;
/// The number of pulls and other requests that are waited for; all others are the marks of pushes.
const WAITED_FOR: u64 = u64::MAX;

/// The connections of one thread to all servers of a cluster, with room for one request at a time. It connects when it is
/// used first, and again when a connection breaks.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Engine,
    /// The mark of the next pushes.
    mark: u64,
    failed: Failed,
    partition: KeyPartition,
    ragged: RaggedPartition,
    buffers: PushBuffers,
    /// Gradients, or halves of rows, in single precision.
    floats: Vec<f32>,
}

/// Failures of pushes and other messages whose answers are not waited for.
#[derive(Debug)]
struct Failed {
    /// The first failure since the last report.
    first: Option<ClientError>,
    /// Marks of failed pushes since the last query, each once.
    marks: Vec<u64>,
    /// Pushes of fed batches that servers have forgotten.
    lost: Vec<(LostFed, ClientError)>,
    /// Whether an unknown outcome is a failure, too. Those who go on with training bear it: a repeated gradient would be worse.
    is_strict: bool,
    outages: Arc<Outages>,
}

/// The part of a fed batch that a server had forgotten when it was pushed: it was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostFed {
    /// The mark of its push.
    pub mark: u64,
    /// The fed feature, by its place in [`Lookup::fed`](crate::Lookup::fed).
    pub(crate) number: usize,
    pub(crate) server: usize,
}

impl Failed {
    fn note(&mut self, message: &Message, result: Result<Reply<'_>, ClientError>) {
        let Err(error) = result else { return };
        if let (ClientError::Refused { server, fault: Fault::StalePush { .. }, .. }, false) =
            (&error, self.is_strict)
        {
            self.outages.push_unknown(server);
            return;
        }
        let (mark, server) = (message.request, message.server);
        if let (ClientError::Refused { fault: Fault::UnknownBatch, .. }, FED_PART..) = (&error, message.part)
            && mark != WAITED_FOR
        {
            let number = message.part - FED_PART;
            return self.lost.push((LostFed { mark, number, server }, error));
        }
        self.note_error(mark, error);
    }

    fn note_error(&mut self, mark: u64, error: ClientError) {
        self.first.get_or_insert(error);
        if !self.marks.contains(&mark) {
            self.marks.push(mark);
        }
    }

    /// The function that an engine calls with each message that has ended.
    fn noting(&mut self) -> impl FnMut(&Message, Result<Reply<'_>, ClientError>) {
        |message, result| self.note(message, result)
    }
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Session {
        let outages = Arc::clone(engine.connections.outages());
        Session {
            engine,
            mark: 0,
            failed: Failed { first: None, marks: Vec::new(), lost: Vec::new(), is_strict: false, outages },
            partition: KeyPartition::default(),
            ragged: RaggedPartition::default(),
            buffers: PushBuffers::default(),
            floats: Vec::new(),
        }
    }

    /// A table's number that a server has just told.
    pub(crate) fn number(&self, server: usize, table: u32) -> Number {
        let peer = self.engine.connections.peer(server);
        peer.map_or_else(Number::default, |peer| Number::of(table, peer))
    }

    /// Asks one server and takes what `read` makes of the answer; `None` says that it is none. `table` is for messages.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        table: &str,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.finish()?;
        self.engine.ask(server, &Subject::Name(table.into()), Needs::Nothing, request, read)
    }

    /// Takes a newer placement of the cluster, if there is one.
    pub(crate) fn follow_placement(&mut self) {
        let Session { engine, failed, .. } = self;
        engine.follow_placement(&mut failed.noting());
    }

    /// The number of a table at a server, which is asked for it if need be.
    pub(crate) fn number_of(&mut self, table: &OpenTable, server: usize) -> Result<Number, ClientError> {
        let Session { engine, failed, .. } = self;
        engine.number(table, server, &mut failed.noting())
    }

    /// [`Session::ask`] about a table by its number. An answer that `continues` others is of the same start of the server.
    pub(crate) fn ask_table<T>(
        &mut self,
        table: &OpenTable,
        server: usize,
        continues: bool,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.finish()?;
        let peer = self.engine.connections.peer(server).filter(|_| continues);
        let needs = peer.map_or(table.number(server).needs, Peer::memory);
        self.engine.ask(server, &Subject::Table(table.clone()), needs, request, read)
    }

    /// Goes on with the tables that have the names now, if a pull that only reads has found one of them gone.
    fn follows<'t, T>(
        &mut self,
        pulled: &Result<T, ClientError>,
        absent: Absent,
        tables: impl Iterator<Item = &'t OpenTable>,
    ) -> Result<bool, ClientError> {
        let is_gone = matches!(pulled, Err(ClientError::Refused { fault: Fault::UnknownTable, .. }));
        if !is_gone || absent != Absent::Zero {
            return Ok(false);
        }
        for table in tables {
            self.follow(table)?;
        }
        Ok(true)
    }

    /// Goes on, for requests that only read, with the table that has the name now: the one that was opened is gone.
    fn follow(&mut self, table: &OpenTable) -> Result<(), ClientError> {
        let mut found = Vec::new();
        for server in self.engine.with_rows_of(table) {
            let (number, other) =
                self.ask(server, table.name(), &Request::Open(table.name()), |reply| match reply {
                    Reply::Open(info) => Some((info.table, OpenTable::of(&info))),
                    _ => None,
                })?;
            if !table.is_like(&other) {
                let reason = format!(
                    "table {:?} was replaced by another of this name since it was opened, with another configuration; open it again",
                    table.name()
                );
                return Err(ClientError::Cluster { reason });
            }
            found.push((server, number));
        }
        found.into_iter().for_each(|(server, number)| table.read_from(server, number));
        Ok(())
    }

    /// As [`RemoteTable::push`](crate::RemoteTable::push).
    pub fn push(
        &mut self,
        table: &OpenTable,
        keys: &[u64],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        self.finish()?;
        self.follow_placement();
        let Session { engine, mark, failed, buffers, .. } = self;
        failed.is_strict = true;
        let begun = engine.begin_push_keys(*mark, table, (keys, grads), scale, buffers, &mut failed.noting());
        let finished = self.finish();
        self.failed.is_strict = false;
        begun.and(finished)
    }

    /// Sends the gradients of the partition's distinct keys without waiting for the answers: the next pull of this
    /// session, which sees the push, or [`Session::finish`] waits for them and reports failures.
    pub(crate) fn begin_push(
        &mut self,
        table: &OpenTable,
        partition: &KeyPartition,
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let Session { engine, mark, failed, buffers, .. } = self;
        engine.begin_push(
            *mark,
            table,
            partition,
            (counts, grads),
            scale,
            &mut buffers.message,
            &mut failed.noting(),
        )
    }

    /// Removes the rows of these keys; returns at least how many there were.
    pub(crate) fn remove(&mut self, table: &OpenTable, keys: &[u64]) -> Result<u64, ClientError> {
        self.finish()?;
        self.follow_placement();
        let Session { engine, partition, .. } = self;
        let (mut removed, mut failed) = (0, Ok(()));
        let mut each = |_: &Message, result: Result<Reply<'_>, ClientError>| match result {
            Ok(Reply::Delete(count)) => removed += count,
            Ok(_) => {}
            Err(error) if failed.is_ok() => failed = Err(error),
            Err(_) => {}
        };
        let shares = partition.split(&engine.placement, table.home(), keys);
        let begun = engine.begin_delete(WAITED_FOR, table, shares, &mut each);
        engine.settle(&mut each);
        begun.and(failed).map(|()| removed)
    }

    /// Lets go what [`Session::begin_push`] has prepared.
    pub(crate) fn send(&mut self) {
        let Session { engine, failed, .. } = self;
        engine.send(&mut failed.noting());
    }

    /// Waits for the pushes that are under way. An error may be that of an earlier push.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        let Session { engine, failed, .. } = self;
        engine.settle(&mut failed.noting());
        for (lost, error) in std::mem::take(&mut failed.lost) {
            failed.note_error(lost.mark, error);
        }
        failed.first.take().map_or(Ok(()), Err)
    }

    /// Waits for the pushes that are under way; returns those of fed batches that servers had forgotten.
    /// [`Client::push_lost`](crate::Client::push_lost) pushes them by their keys. Otherwise [`Session::finish`]
    /// reports them.
    pub fn take_lost(&mut self) -> Vec<LostFed> {
        let Session { engine, failed, .. } = self;
        engine.settle(&mut failed.noting());
        failed.lost.drain(..).map(|(lost, _)| lost).collect()
    }

    /// Marks what is pushed from now on, so that [`Session::take_failed`] can tell it from the rest.
    pub fn mark_pushes(&mut self, mark: u64) {
        self.mark = mark;
    }

    /// The marks of the pushes that have failed since this was asked before. Of what has been answered, so after
    /// [`Session::finish`] of all.
    pub fn take_failed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.failed.marks)
    }
}
