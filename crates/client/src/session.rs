//! The connections of one thread to all servers, and single requests over them. Knows neither how frames travel nor
//! the meaning of a row.
//!
//! A reply must have the shape of its request, whatever rows were found, and its rows go to the positions of the
//! request's keys.

use sanderling_store::Dedup;
use sanderling_wire::{Reply, Request, limit};

use crate::connection_set::ConnectionSet;
use crate::error::ClientError;
use crate::key_partition::{KeyPartition, RaggedPartition};
use crate::placement::Placement;
use crate::remote::RemoteTable;
use crate::rpc_state::CallError;

mod pull;
use pull::Asked;
pub(crate) use pull::{PullInto, PullPart, check_offsets, sample_runs, wire_absent};

mod push;
use push::Pushes;
pub(crate) use push::{Outgoing, check_push, sum_duplicates};

mod fed;
pub use fed::FedBatch;
pub(crate) use fed::{FedKeys, FedPart};

/// Rows and gradients travel in requests of about this size, so that servers and network work at the same time.
const REQUEST_BYTES: usize = 1 << 20;

/// The connections of one thread to all servers of a cluster, with room for one request at a time. It connects when it is
/// used first, and again when a connection breaks.
#[derive(Debug)]
pub struct Session {
    pub(crate) connections: ConnectionSet,
    placement: Placement,
    pushes: Pushes,
    asked: Vec<Asked>,
    partition: KeyPartition,
    ragged: RaggedPartition,
    dedup: Dedup,
    /// Gradients of distinct keys.
    summed: Vec<f32>,
}

/// Rows of so many values that one request over these connections may have.
pub(crate) fn rows_per_request(connections: &ConnectionSet, values: usize) -> usize {
    let bytes = REQUEST_BYTES.min(connections.frame_bytes_max() / 2);
    (bytes / (size_of::<f32>() * values.max(1))).clamp(1, limit::KEYS_MAX)
}

/// [`rows_per_request`] for pulls of rows of this dim: the shortest rows have fewer bytes than their keys.
pub(crate) fn rows_per_pull(connections: &ConnectionSet, dim: usize) -> usize {
    rows_per_request(connections, dim.max(size_of::<u64>() / size_of::<f32>()))
}

impl Session {
    pub(crate) fn new(connections: ConnectionSet, placement: Placement) -> Session {
        let pushes = Pushes::new(connections.len());
        Session {
            connections,
            placement,
            pushes,
            asked: Vec::new(),
            partition: KeyPartition::default(),
            ragged: RaggedPartition::default(),
            dedup: Dedup::new(),
            summed: Vec::new(),
        }
    }

    /// Where keys are.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Rows of so many values that one request may have.
    pub(crate) fn rows_per_request(&self, values: usize) -> usize {
        rows_per_request(&self.connections, values)
    }

    /// The start of a server that has answered.
    pub(crate) fn boot_id(&self, server: usize) -> u64 {
        self.connections.peer(server).map_or(0, |peer| peer.boot_id)
    }

    /// Asks one server and takes what `read` makes of the answer; `None` says that it is none. `table` is for messages.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        table: &str,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.ask_start(server, table, None, request, read)
    }

    /// [`Session::ask`] about a table by its number.
    pub(crate) fn ask_table<T>(
        &mut self,
        table: &RemoteTable,
        server: usize,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.ask_start(server, table.name(), Some(table.number(server).boot_id), request, read)
    }

    fn ask_start<T>(
        &mut self,
        server: usize,
        table: &str,
        boot_id: Option<u64>,
        request: &Request<'_>,
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.finish()?;
        let names = self.connections.names();
        let mut answer = None;
        let mut sink = |_: usize, _: u64, result: Result<Reply<'_>, CallError>| {
            answer = Some(match result {
                Ok(reply) => read(reply).ok_or_else(|| names.misfit(server, table)),
                Err(error) => Err(names.error(server, table, error)),
            });
        };
        let begun = self.connections.begin(server, 0, boot_id, request, &mut sink);
        begun.map_err(|source| ClientError::Request { table: table.to_owned(), source })?;
        self.connections.settle(&mut sink);
        answer.unwrap_or_else(|| Err(names.misfit(server, table)))
    }
}
