//! Follows running parameter servers: one thread per server asks for pages of changes and applies them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_client::{ChangedRows, Cluster, FollowedTable, Follower};
use sanderling_store::Table;

use super::checkpoints::{self, Loaded};
use super::place::CheckpointPlace;
use super::rows::{RowWriter, remove_old};
use super::{FollowError, Moment, RETRY_AFTER, Shared, Source};

/// Pause after rows that do not fit.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(10);

/// A table and its place in the stream of one server.
struct Followed<'a> {
    table: &'a Arc<Table>,
    stream: FollowedTable,
    /// Stamp of the present export, which each row has that came with or after it.
    stamp: u32,
    /// Stamp of the rows that were there before the first export.
    first_stamp: u32,
    whole_since: Option<Instant>,
    weights: Vec<f32>,
    writer: RowWriter,
}

/// Follows all servers until the replica is stopped.
pub(super) fn follow(shared: &Shared, cluster: &Arc<Cluster>, start: Option<&CheckpointPlace>) {
    let loaded = start.and_then(|place| match checkpoints::load(shared, place) {
        Ok(loaded) => {
            shared.publish();
            let rows: usize = shared.model.all_tables().map(|table| table.len()).sum();
            (shared.note)(&format!("{place}: {rows} rows are served until those of the servers are here"));
            Some(loaded)
        }
        Err(FollowError::Stopped) => None,
        Err(error) => {
            (shared.note)(&format!("--start {place}: not loaded: {error}; all rows come from the servers"));
            None
        }
    });
    std::thread::scope(|scope| {
        for server in 0..shared.sources.len() {
            let loaded = loaded.as_ref();
            let thread = std::thread::Builder::new().name(format!("follow-{server}"));
            let started = thread.spawn_scoped(scope, move || follow_one(shared, cluster, server, loaded));
            if let Err(error) = started {
                shared.note_round(&shared.sources[server], Some(error.to_string()));
            }
        }
    });
}

/// Follows one server until the replica is stopped.
fn follow_one(shared: &Shared, cluster: &Arc<Cluster>, server: usize, loaded: Option<&Loaded>) {
    let run = shared.model.model.name();
    let stamp = loaded.map_or(0, |loaded| loaded.stamp);
    let mut epochs = 0;
    let mut tables: Vec<Followed<'_>> = shared
        .model
        .all_tables()
        .enumerate()
        .map(|(at, table)| {
            let mut stream = FollowedTable::new(&format!("{run}/{}", table.name()), table.dim());
            let epoch = loaded.and_then(|loaded| loaded.epoch(shared.sources.len(), server, at)).unwrap_or(0);
            if epoch > 0 {
                stream.go_on_from(epoch);
                epochs += 1;
            }
            let (weights, writer) = Default::default();
            Followed { table, stream, stamp, first_stamp: stamp, whole_since: None, weights, writer }
        })
        .collect();
    let source = &shared.sources[server];
    let (mut follower, mut is_started) = (None, loaded.is_none());
    while !shared.stops() {
        let begun = Instant::now();
        let round = match &mut follower {
            Some(follower) => drain_all(shared, source, follower, &mut tables),
            None => Follower::new(cluster, server)
                .map(|made| _ = follower.insert(made))
                .map_err(FollowError::from),
        };
        let is_drained = round.is_ok() && source.progress().whole_since.is_some();
        let (failed, pause) = match round {
            Ok(()) => (None, shared.config.fresh),
            Err(FollowError::Stopped) => return,
            // An export would begin anew, which is work for the server, too.
            Err(error @ (FollowError::Memory { .. } | FollowError::Store(_))) => {
                (Some(error.to_string()), FULL_RETRY_AFTER)
            }
            Err(error) => (Some(error.to_string()), RETRY_AFTER.max(shared.config.fresh)),
        };
        shared.note_round(source, failed);
        if is_drained && !is_started {
            is_started = true;
            (shared.note)(&started(source, epochs, &tables));
        }
        shared.publish_if_whole();
        shared.pause(begun, pause);
    }
}

/// The line that says how a server was followed from the rows of a checkpoint on.
fn started(source: &Source, epochs: usize, tables: &[Followed<'_>]) -> String {
    let (address, all) = (&source.address, tables.len());
    let exported = tables.iter().filter(|followed| followed.stamp > followed.first_stamp).count();
    let why = if epochs == 0 {
        "the checkpoint has no epoch of its changes"
    } else {
        "it does not keep all changes since the checkpoint"
    };
    match exported {
        0 => format!("{address}: followed from the epoch of the checkpoint on"),
        _ => format!("{address}: {why}, so all rows of {exported} of {all} tables were fetched"),
    }
}

/// Drains all tables once.
fn drain_all(
    shared: &Shared,
    source: &Source,
    follower: &mut Follower,
    tables: &mut [Followed<'_>],
) -> Result<(), FollowError> {
    for followed in &mut *tables {
        drain(shared, source, follower, followed)?;
    }
    let oldest = tables.iter().map(|followed| followed.whole_since).min().flatten();
    if let Some(oldest) = oldest {
        source.progress().whole_since = Some(Moment::Here(oldest));
    }
    Ok(())
}

/// Takes pages of one table until a drain has ended.
fn drain(
    shared: &Shared,
    source: &Source,
    follower: &mut Follower,
    followed: &mut Followed<'_>,
) -> Result<(), FollowError> {
    loop {
        if shared.stops() {
            return Err(FollowError::Stopped);
        }
        let begins = followed.stream.begins_export();
        let stamp = followed.stamp + u32::from(begins);
        let mut applied = Ok(());
        let Followed { table, stream, weights, writer, .. } = &mut *followed;
        // Half of the interval, so that each round of one follower has a drain of its own.
        let page = follower.page(stream, shared.config.fresh / 2, |rows| {
            applied = apply(shared, table, stamp, weights, writer, rows);
            let mut progress = source.progress();
            progress.rows += rows.keys.len() as u64;
            progress.removed += rows.removed.len() as u64;
        });
        let page = match page {
            // The changes since its place are not kept any more.
            Err(error) if error.is_stream_too_late() && !begins => continue,
            page => page?,
        };
        followed.stamp = stamp;
        source.progress().exports += u64::from(begins);
        if let Err(error) = applied {
            // The stream has gone on without these rows.
            followed.stream.restart();
            return Err(error);
        }
        if page.is_export && page.is_last {
            remove_older(source, follower, followed);
        }
        if page.whole_since.is_some() {
            followed.whole_since = page.whole_since;
        }
        if page.is_last && !page.has_more {
            return Ok(());
        }
    }
}

/// Writes the rows of a page, and removes keys.
fn apply(
    shared: &Shared,
    table: &Table,
    stamp: u32,
    weights: &mut Vec<f32>,
    writer: &mut RowWriter,
    rows: &ChangedRows<'_>,
) -> Result<(), FollowError> {
    for &key in rows.removed {
        table.remove(key);
    }
    weights.resize(rows.values.len(), 0.0);
    rows.values.copy_to(weights);
    writer.write(shared, table, stamp, rows.keys, weights)
}

/// Removes the server's keys that an export, which has ended, did not have.
fn remove_older(source: &Source, follower: &Follower, followed: &Followed<'_>) {
    // The first rows of all have no older ones beside them.
    if followed.first_stamp == 0 && followed.stamp == 1 {
        return;
    }
    let is_old = |key, stamp| stamp != followed.stamp && follower.has(&followed.stream, key);
    source.progress().removed += remove_old(followed.table, is_old);
}
