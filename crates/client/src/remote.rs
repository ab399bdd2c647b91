//! A table on servers, with the interface of a table in this process. Does not know how requests travel.

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

use sanderling_store::{Absent, Pooling, PushScale, RowColumns, TableConfig, WholeRows};
use sanderling_wire::{Create, Export, Fault, Home, Import, Reply, Request, RowBlock};

use crate::cluster::{Cluster, Server};
use crate::description::describe;
use crate::error::ClientError;
use crate::key_partition::KeyPartition;
use crate::open_table::OpenTable;

/// Rows of one block of an export.
const EXPORT_ROWS: usize = 1 << 14;

/// A table on the servers of a cluster, opened by its name. If a new run replaces the table of this name, pulls with
/// [`Absent::Zero`] continue with the new table, provided that its configuration is the same; all other requests fail
/// until the table is opened again.
///
/// All methods take `&self` and may run in several threads, each on connections of
/// its own. Rows are as those of a table in one process with the same configuration: where a row is does not matter.
#[derive(Debug, Clone)]
pub struct RemoteTable {
    cluster: Arc<Cluster>,
    table: OpenTable,
}

impl Deref for RemoteTable {
    type Target = OpenTable;

    fn deref(&self) -> &OpenTable {
        &self.table
    }
}

/// An error unless tables that are used together are in this cluster: elsewhere the same number is another table.
pub(crate) fn check_tables(cluster: &Cluster, tables: &[RemoteTable]) -> Result<(), ClientError> {
    // Under another address it is the same start of it, and after another start it has the same address.
    let is_same =
        |one: &Server, other: &Server| one.peer.boot_id == other.peer.boot_id || one.address == other.address;
    let here = cluster.servers();
    let is_here = |table: &&RemoteTable| {
        let there = table.cluster().servers();
        match (table.cluster().registry(), cluster.registry()) {
            (None, None) => {
                there.len() == here.len() && there.iter().zip(here).all(|(one, other)| is_same(one, other))
            }
            // Groups may have been added between two looks at it.
            (there, here) => there == here,
        }
    };
    let Some(table) = tables.iter().find(|table| !is_here(table)) else { return Ok(()) };
    let at = |servers: &[Server]| servers.first().map_or_else(String::new, |one| one.address.to_string());
    let (name, there, here) = (table.name(), at(table.cluster().servers()), at(here));
    let reason = format!(
        "table {name:?} is in the cluster of {there}, and not in that of {here}: use tables of one cluster together"
    );
    Err(ClientError::Cluster { reason })
}

impl RemoteTable {
    /// Makes a table on all servers, or opens the one that is there with the same configuration. Each server gets an equal
    /// part of `budget_bytes`; in a cluster that has grown since the table was made, the part that it has stays.
    pub fn create(cluster: &Arc<Cluster>, config: &TableConfig) -> Result<RemoteTable, ClientError> {
        RemoteTable::create_as(cluster, config, false)
    }

    /// [`RemoteTable::create`] of a table that may be temporary.
    pub(crate) fn create_as(
        cluster: &Arc<Cluster>,
        config: &TableConfig,
        temporary: bool,
    ) -> Result<RemoteTable, ClientError> {
        let text = describe(config, cluster.shards().len(), temporary);
        let request = Request::Create(Create { home: Home::Sharded, name: &config.name, config: &text });
        let table = match RemoteTable::ask(cluster, &config.name, &request) {
            Err(error @ ClientError::Refused { fault: Fault::TableExists, .. })
                if cluster.registry().is_some() =>
            {
                let there = RemoteTable::open(cluster, &config.name)?;
                if !differs_by_budget(&text, there.config_json()) {
                    return Err(error);
                }
                there
            }
            made => made?,
        };
        if table.dim() != config.dim() {
            let (name, found, expected) = (&config.name, table.dim(), config.dim());
            let reason =
                format!("table {name:?}: the servers made it with dim {found} instead of {expected}");
            return Err(ClientError::Cluster { reason });
        }
        Ok(table)
    }

    /// Makes a table all of whose rows are on one server, or opens the one that is there with the same configuration. In
    /// a cluster, it is in the group that has the tables pinned to this one: they move when the group is drained.
    pub fn create_pinned(
        cluster: &Arc<Cluster>,
        config: &TableConfig,
        shard: u32,
    ) -> Result<RemoteTable, ClientError> {
        let text = describe(config, 1, false);
        let create = Create { home: Home::Pinned(shard), name: &config.name, config: &text };
        RemoteTable::ask(cluster, &config.name, &Request::Create(create))
    }

    /// Opens a table that is there.
    pub fn open(cluster: &Arc<Cluster>, name: &str) -> Result<RemoteTable, ClientError> {
        RemoteTable::ask(cluster, name, &Request::Open(name))
    }

    /// Asks all servers for the table. Those that say it is not theirs have no part of a pinned one.
    fn ask(cluster: &Arc<Cluster>, name: &str, request: &Request<'_>) -> Result<RemoteTable, ClientError> {
        let mut shapes: Vec<OpenTable> = Vec::new();
        let mut numbers = Vec::new();
        let mut elsewhere = Ok(());
        cluster.with_session(|session| {
            session.follow_placement();
            for server in session.engine.with_rows() {
                let found = session.ask(server, name, request, |reply| match reply {
                    Reply::Create(info) | Reply::Open(info) => Some((info.table, OpenTable::of(&info))),
                    _ => None,
                });
                match found {
                    Ok((table, shape)) => {
                        numbers.push((server, session.number(server, table)));
                        shapes.push(shape);
                    }
                    Err(
                        error @ ClientError::Refused {
                            fault: Fault::UnknownTable | Fault::NotHere { .. },
                            ..
                        },
                    ) => {
                        elsewhere = Err(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        let Some(shape) = shapes.pop() else {
            elsewhere?;
            return Err(ClientError::Cluster { reason: "no server was named".to_owned() });
        };
        if shape.home() == Home::Sharded {
            elsewhere?;
        }
        if let Some(other) = shapes.iter().find(|other| !other.is_like(&shape)) {
            let reason =
                format!("table {name:?} is not the same on all servers: {shape:?} and {other:?}; drop it");
            return Err(ClientError::Cluster { reason });
        }
        numbers.into_iter().for_each(|(server, number)| shape.add_number(server, number));
        Ok(RemoteTable { cluster: Arc::clone(cluster), table: shape })
    }

    /// Drops a table on all servers; was it there?
    pub fn drop_named(cluster: &Arc<Cluster>, name: &str) -> Result<bool, ClientError> {
        let mut was_there = false;
        cluster.with_session(|session| {
            session.follow_placement();
            for server in session.engine.with_rows() {
                let is_there = session.ask(server, "", &Request::Tables, |reply| match reply {
                    Reply::Tables(infos) => Some(infos.iter().any(|info| info.name == name)),
                    _ => None,
                })?;
                if is_there {
                    session.ask(server, name, &Request::Drop(name), |_| Some(()))?;
                }
                was_there |= is_there;
            }
            Ok(())
        })?;
        Ok(was_there)
    }

    /// Its cluster.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Rows and bytes of memory, over all servers.
    pub fn size(&self) -> Result<(u64, u64), ClientError> {
        let (mut rows, mut bytes) = (0, 0);
        self.cluster.with_session(|session| {
            session.follow_placement();
            for server in session.engine.with_rows_of(self) {
                let found =
                    session.ask(server, self.name(), &Request::Open(self.name()), |reply| match reply {
                        Reply::Open(info) => Some((info.rows, info.bytes)),
                        _ => None,
                    })?;
                (rows, bytes) = (rows + found.0, bytes + found.1);
            }
            Ok(())
        })?;
        Ok((rows, bytes))
    }

    /// As [`sanderling_store::Table::pull`].
    pub fn pull(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        self.cluster.with_session(|session| session.pull(self, keys, absent, out, missing))
    }

    /// As [`sanderling_store::Table::pull_pooled`], with a partial sum per server.
    ///
    /// The servers sum a sample's keys, and the client adds these sums, so the last bits may differ from one sum in
    /// one place.
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub fn pull_pooled(
        &self,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        pooling: Pooling,
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        self.cluster.with_session(|session| {
            session.pull_pooled(self, keys, values, offsets, pooling, absent, out, missing)
        })
    }

    /// As [`sanderling_store::Table::push`]; returns when all servers have applied it. Each server applies its part or
    /// refuses it, so that after an error others may have applied theirs.
    pub fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), ClientError> {
        self.cluster.with_session(|session| session.push(self, keys, grads, scale))
    }

    /// Removes the rows of these keys; returns at least how many there were.
    ///
    /// After a broken connection a server is asked again, and rows that it had removed before are not counted.
    pub fn remove(&self, keys: &[u64]) -> Result<u64, ClientError> {
        self.cluster.with_session(|session| session.remove(self, keys))
    }

    /// Removes all rows; returns at least how many there were, as [`RemoteTable::remove`]. Rows made meanwhile may
    /// stay.
    pub fn clear(&self) -> Result<u64, ClientError> {
        let mut keys = Vec::new();
        self.export(|rows| keys.extend_from_slice(rows.keys))?;
        self.remove(&keys)
    }

    /// Calls `each` on all rows, in blocks, server after server. Rows that are made or removed meanwhile may be seen or
    /// not. While slots of keys move between the groups of a cluster, so do the rows in them, and some may come twice.
    pub fn export(&self, mut each: impl FnMut(&RowBlock<'_>)) -> Result<(), ClientError> {
        self.try_export(|rows| {
            each(rows);
            ControlFlow::Continue(())
        })
    }

    /// [`RemoteTable::export`] until `each` breaks off, which is no error.
    pub fn try_export(
        &self,
        mut each: impl FnMut(&RowBlock<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        self.cluster.with_session(|session| {
            session.follow_placement();
            for server in session.engine.with_rows_of(self) {
                let (table, mut cursor) = (session.number_of(self, server)?.table, 0);
                let rows_max =
                    session.engine.rows_per_message(self.dim() + self.state() + 5).min(EXPORT_ROWS) as u32;
                loop {
                    let request = Request::Export(Export { table, cursor, rows_max });
                    let (dim, state) = (self.dim(), self.state());
                    let next =
                        session.ask_table(self, server, cursor != 0, &request, |reply| match reply {
                            Reply::Export(exported)
                                if (exported.rows.dim as usize, exported.rows.state as usize)
                                    == (dim, state) =>
                            {
                                Some(each(&exported.rows).is_continue().then_some(exported.next))
                            }
                            _ => None,
                        })?;
                    match next {
                        None => return Ok(()),
                        Some(Some(next)) => cursor = next,
                        Some(None) => break,
                    }
                }
            }
            Ok(())
        })
    }

    /// Writes whole rows, with state and metadata, replacing existing ones. No key may occur twice.
    ///
    /// Each server gets its rows in blocks and takes a block whole or, if a value is not finite, not at all. After an
    /// error some blocks may have been written.
    pub fn import(&self, rows: &RowBlock<'_>) -> Result<(), ClientError> {
        let (count, dim, state) = (rows.keys.len(), self.dim(), self.state());
        for (what, expected, found) in [
            ("dim", dim, rows.dim as usize),
            ("state", state, rows.state as usize),
            ("frequencies", count, rows.frequencies.len()),
            ("last_uses", count, rows.last_uses.len()),
            ("versions", count, rows.versions.len()),
            ("weights", count * dim, rows.weights.len()),
            ("states", count * state, rows.states.len()),
        ] {
            self.length(what, expected, found)?;
        }
        let RowBlock { keys, frequencies, last_uses, versions, weights, states, .. } = *rows;
        let all = WholeRows { keys, frequencies, last_uses, versions, weights, states };
        let mut part = RowColumns::default();
        self.cluster.with_session(|session| {
            session.follow_placement();
            let rows_max = session.engine.rows_per_message(dim + state + 5).min(EXPORT_ROWS);
            let mut partition = KeyPartition::default();
            partition.assign(&session.engine.placement, self.home(), keys);
            for (server, share) in partition.shares().enumerate() {
                for positions in share.positions.chunks(rows_max) {
                    part.clear();
                    positions.iter().for_each(|&at| part.push(all.row(at as usize, dim, state)));
                    let WholeRows { keys, frequencies, last_uses, versions, weights, states } = part.rows();
                    let (dim, state) = (rows.dim, rows.state);
                    let rows =
                        RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
                    let table = session.number_of(self, server)?.table;
                    let request = Request::Import(Import { table, rows });
                    session.ask_table(self, server, false, &request, |reply| match reply {
                        Reply::Import(count) if count == positions.len() as u64 => Some(()),
                        _ => None,
                    })?;
                }
            }
            Ok(())
        })
    }

    /// Is it the same opening of the same table, or a copy of it?
    pub(crate) fn is_same(&self, other: &RemoteTable) -> bool {
        self.table.is_same(&other.table)
    }
}

/// Whether two configurations of a table are the same but for its budget.
fn differs_by_budget(one: &str, other: &str) -> bool {
    let without_budget = |text: &str| {
        let mut config = serde_json::from_str::<serde_json::Value>(text).ok()?;
        config.as_object_mut()?.remove("budget_bytes");
        Some(config)
    };
    one != other && without_budget(one).is_some_and(|one| Some(one) == without_budget(other))
}
