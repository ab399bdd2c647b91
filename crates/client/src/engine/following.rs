//! Follows the placement of a cluster: takes newer ones between requests, adds connections to new groups, and asks groups
//! for the numbers of tables that were opened before they had slots.

use std::time::{Duration, Instant};

use sanderling_store::Pooling;
use sanderling_wire::{Fault, Reply, Request};

use super::{Asker, Each, Engine, Message, Subject, UnderWay};
use crate::error::ClientError;
use crate::open_table::{Number, OpenTable};
use crate::rpc_state::{Needs, Timeout};

/// Pause before a group is asked once more for a table that it does not have yet.
const AGAIN: Duration = Duration::from_millis(20);

impl UnderWay {
    /// The answer to a question for the number of a table.
    pub(super) fn opening(
        &self,
        tag: usize,
        result: Result<Reply<'_>, ClientError>,
    ) -> Result<(u32, OpenTable), ClientError> {
        let message = &self.messages[tag];
        match result? {
            Reply::Open(info) => Ok((info.table, OpenTable::of(&info))),
            _ => Err(self.names.misfit(message.server, message.subject.table())),
        }
    }
}

impl Engine {
    /// Takes a newer placement, if there is one; before a request is cut. What is under way is settled first: a pull that
    /// goes to another server than a push before it would not see that one.
    #[inline]
    pub(crate) fn follow_placement(&mut self, each: &mut Each<'_>) {
        let is_newer =
            |version: u64| self.locations.as_ref().is_some_and(|it| it.placement_version() != version);
        if is_newer(self.placement.version) {
            self.take_placement(each);
        }
    }

    #[cold]
    fn take_placement(&mut self, each: &mut Each<'_>) {
        self.settle(each);
        if let Some(placement) = self.locations.as_ref().map(|locations| locations.placement()) {
            self.grow(placement.servers);
            self.placement = placement;
        }
    }

    /// Adds connections, up to this number of servers.
    pub(super) fn grow(&mut self, servers: usize) {
        if let Some(locations) = self.locations.as_ref().filter(|_| servers > self.connections.len()) {
            self.connections.grow(servers, locations);
            self.under_way.names = self.connections.names();
            self.sequences.resize(servers, 0);
            self.begun.resize(servers, 0);
        }
    }

    /// Whether groups of replicas have the rows.
    pub(crate) fn is_cluster(&self) -> bool {
        self.locations.is_some()
    }

    /// How servers pool. A mean over several servers is not the mean of theirs: each gives its sum, to be divided here. The
    /// keys of one group may be those of several at any time.
    pub(crate) fn pooling_there(&self, pooling: Pooling) -> Pooling {
        if self.servers() == 1 && self.locations.is_none() { pooling } else { Pooling::Sum }
    }

    /// The servers that have rows.
    pub(crate) fn with_rows(&self) -> Vec<usize> {
        match self.locations {
            Some(_) => self.placement.with_slots(),
            None => (0..self.servers()).collect(),
        }
    }

    /// The servers that have rows of a table.
    pub(crate) fn with_rows_of(&self, table: &OpenTable) -> Vec<usize> {
        match self.locations {
            Some(_) => self.placement.with_slots(),
            None => table.servers().collect(),
        }
    }

    /// The number of a table at a server. A group of a cluster that has got its first slots since the table was opened is
    /// asked for it.
    #[inline]
    pub(crate) fn number(
        &mut self,
        table: &OpenTable,
        server: usize,
        each: &mut Each<'_>,
    ) -> Result<Number, ClientError> {
        match table.told_number(server) {
            Some(number) => Ok(number),
            None if self.locations.is_none() => Ok(Number::default()),
            None => {
                let until_us = self.connections.seen_us() + self.connections.timeout(server).us;
                self.number_until(until_us, table, server, each)
            }
        }
    }

    /// [`Engine::number`] with a time-out by [`ConnectionSet::seen_us`](crate::connection_set::ConnectionSet::seen_us).
    pub(super) fn number_until(
        &mut self,
        until_us: u64,
        table: &OpenTable,
        server: usize,
        each: &mut Each<'_>,
    ) -> Result<Number, ClientError> {
        loop {
            if let Some(number) = table.told_number(server) {
                return Ok(number);
            }
            match self.open_at(until_us, table, server, each) {
                Ok((_, found)) if !table.is_like(&found) => {
                    let reason = format!(
                        "table {:?} has another configuration at {} than where it was opened; drop it and make it anew",
                        table.name(),
                        self.addresses()[server]
                    );
                    return Err(ClientError::Cluster { reason });
                }
                Ok((number, _)) => {
                    let peer = self.connections.peer(server).ok_or_else(|| self.misfit(server))?;
                    table.add_number(server, Number::of(number, peer));
                }
                // Its rows are on their way.
                Err(ClientError::Refused { fault: Fault::UnknownTable, .. })
                    if self.connections.seen_us() < until_us && !self.connections.is_stopped() =>
                {
                    let again = Instant::now() + AGAIN;
                    while Instant::now() < again {
                        self.wait(Some(again), each);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open_at(
        &mut self,
        until_us: u64,
        table: &OpenTable,
        server: usize,
        each: &mut Each<'_>,
    ) -> Result<(u32, OpenTable), ClientError> {
        let left_us = until_us.saturating_sub(self.connections.seen_us()).max(1);
        let timeout = Timeout { us: left_us, is_limited: false };
        let subject = Subject::Table(table.clone());
        let message = Message { server, subject, asker: Asker::Opening, ..Message::default() };
        self.under_way.opened = None;
        self.begin_by(timeout, message, Needs::Nothing, &Request::Open(table.name()), each)?;
        self.send(each);
        loop {
            if let Some(opened) = self.under_way.opened.take() {
                return opened;
            }
            self.wait(None, each);
        }
    }

    /// Waits for answers, and leaves parked messages as they are.
    fn wait(&mut self, until: Option<Instant>, each: &mut Each<'_>) {
        let Engine { connections, under_way, .. } = self;
        connections.turn(until, &mut |_, tag, result| under_way.end(tag, result, each));
    }
}
