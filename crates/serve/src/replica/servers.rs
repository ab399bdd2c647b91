//! Follows running parameter servers: one thread per server asks for pages of changes and applies them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use sanderling_client::{ChangedRows, Cluster, FollowedTable, Follower, TablePart};
use sanderling_store::Table;

use super::checkpoints::{self, Loaded};
use super::homes::Homes;
use super::place::CheckpointPlace;
use super::rows::{RowWriter, remove_old};
use super::{FollowError, Moment, RETRY_AFTER, Shared, Source};

/// Pause after rows that do not fit.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The state that the threads of all servers share.
struct Following<'a> {
    shared: &'a Shared,
    cluster: &'a Arc<Cluster>,
    homes: Homes,
    loaded: Option<Loaded>,
    /// The last stamp that was given. Exports of all servers have different ones: a row may come from several.
    stamps: AtomicU32,
}

/// A table and its place in the stream of one server.
struct Followed<'a> {
    table: &'a Arc<Table>,
    stream: FollowedTable,
    /// Stamp of the present export, which each row has that came with or after it.
    stamp: u32,
    /// Stamp of the rows that were there before the first export.
    first_stamp: u32,
    /// Whether rows may be here that are older than the present export.
    has_older: bool,
    /// Version of the placement when the present export began.
    since: u64,
    whole_since: Option<Instant>,
    rows: FilteredRows,
    writer: RowWriter,
}

/// The rows of a page that are the server's.
#[derive(Debug, Default)]
struct FilteredRows {
    keys: Vec<u64>,
    weights: Vec<f32>,
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
    let stamps = AtomicU32::new(loaded.as_ref().map_or(0, |loaded| loaded.stamp));
    let following = &Following { shared, cluster, homes: Homes::new(cluster), loaded, stamps };
    let first = following.homes.read().servers();
    std::thread::scope(|scope| {
        let mut threads = BTreeMap::new();
        while !shared.stops() {
            let begun = Instant::now();
            following.homes.follow();
            let servers = following.homes.read().servers();
            for server in servers {
                if threads.get(&server).is_some_and(|it: &ScopedJoinHandle<'_, ()>| !it.is_finished()) {
                    continue;
                }
                let source = shared.source_of(server, &cluster.shard_name(server));
                let is_late = threads.contains_key(&server) || !first.contains(&server);
                let thread = std::thread::Builder::new().name(format!("follow-{server}"));
                let of_thread = Arc::clone(&source);
                match thread.spawn_scoped(scope, move || follow_one(following, &of_thread, is_late)) {
                    Ok(thread) => _ = threads.insert(server, thread),
                    Err(error) => shared.note_round(&source, Some(error.to_string())),
                }
            }
            shared.pause(begun, RETRY_AFTER);
        }
    });
}

/// Follows one server until the replica is stopped, or the server has no rows any more. `is_late`: rows that it has may
/// have come from other servers before.
fn follow_one(following: &Following<'_>, source: &Source, is_late: bool) {
    let Following { shared, cluster, homes, loaded, .. } = following;
    let (run, server) = (shared.model.model.name(), source.server);
    let shards = shared.sources().len();
    // The epochs of a checkpoint are of streams that did not tell what became of rows which moved since.
    let loaded = loaded.as_ref().filter(|_| !is_late && !homes.read().has_changed());
    let stamp = following.loaded.as_ref().map_or(0, |loaded| loaded.stamp);
    let mut epochs = 0;
    let mut tables: Vec<Followed<'_>> = shared
        .model
        .all_tables()
        .enumerate()
        .map(|(at, table)| {
            let mut stream = FollowedTable::new(&format!("{run}/{}", table.name()), table.dim());
            let epoch = loaded.and_then(|loaded| loaded.epoch(shards, server, at)).unwrap_or(0);
            if epoch > 0 {
                stream.go_on_from(epoch);
                epochs += 1;
            }
            Followed {
                table,
                stream,
                stamp,
                first_stamp: stamp,
                has_older: is_late || following.loaded.is_some(),
                since: homes.read().version(),
                whole_since: None,
                rows: FilteredRows::default(),
                writer: RowWriter::default(),
            }
        })
        .collect();
    let (mut follower, mut is_started) = (None, is_late || following.loaded.is_none());
    while !shared.stops() {
        let begun = Instant::now();
        homes.follow();
        if !homes.read().servers().contains(&server) {
            shared.forget_source(server);
            return;
        }
        let round = match &mut follower {
            Some(follower) => drain_all(following, source, follower, &mut tables),
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
            (shared.note)(&started(source, epochs, homes.read().has_changed(), &tables));
        }
        shared.publish_if_whole();
        shared.pause(begun, pause);
    }
}

/// The line that says how a server was followed from the rows of a checkpoint on.
fn started(source: &Source, epochs: usize, has_moved: bool, tables: &[Followed<'_>]) -> String {
    let (address, all) = (&source.address, tables.len());
    let exported = tables.iter().filter(|followed| followed.stamp > followed.first_stamp).count();
    let why = if epochs == 0 && has_moved {
        "slots have moved between the groups of the cluster"
    } else if epochs == 0 {
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
    following: &Following<'_>,
    source: &Source,
    follower: &mut Follower,
    tables: &mut [Followed<'_>],
) -> Result<(), FollowError> {
    for followed in &mut *tables {
        drain(following, source, follower, followed)?;
    }
    let oldest = tables.iter().map(|followed| followed.whole_since).min().flatten();
    if let Some(oldest) = oldest {
        source.progress().whole_since = Some(Moment::Here(oldest));
    }
    Ok(())
}

/// Takes pages of one table until a drain has ended.
fn drain(
    following: &Following<'_>,
    source: &Source,
    follower: &mut Follower,
    followed: &mut Followed<'_>,
) -> Result<(), FollowError> {
    let Following { shared, homes, stamps, .. } = following;
    loop {
        if shared.stops() {
            return Err(FollowError::Stopped);
        }
        if homes.read().has_gained(source.server, followed.since) {
            followed.stream.restart();
        }
        let begins = followed.stream.begins_export();
        let mut stamp = followed.stamp;
        if begins {
            followed.has_older |= stamp != followed.first_stamp;
            stamp = stamps.fetch_add(1, Ordering::Relaxed) + 1;
            followed.since = homes.read().version();
        }
        let mut applied = Ok(());
        let Followed { table, stream, rows, writer, .. } = &mut *followed;
        // Half of the interval, so that each round of one follower has a drain of its own.
        let page = follower.page(stream, shared.config.fresh / 2, |changed, part| {
            applied = apply(following, source, (table, part), stamp, rows, writer, changed);
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
        if page.is_export && page.is_last && !remove_older(homes, source, follower, followed) {
            continue;
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
    following: &Following<'_>,
    source: &Source,
    (table, part): (&Table, TablePart),
    stamp: u32,
    rows: &mut FilteredRows,
    writer: &mut RowWriter,
    changed: &ChangedRows<'_>,
) -> Result<(), FollowError> {
    // Held until the page is applied.
    let known = following.homes.read();
    let is_counted = |key: &&u64| known.has(part, **key);
    let mut removed = 0;
    for &key in changed.removed.iter().filter(is_counted) {
        table.remove(key);
        removed += 1;
    }
    let FilteredRows { keys, weights } = rows;
    weights.resize(changed.values.len(), 0.0);
    changed.values.copy_to(weights);
    keys.clear();
    let dim = table.dim();
    for (at, &key) in changed.keys.iter().enumerate() {
        if known.has(part, key) {
            if keys.len() < at {
                weights.copy_within(at * dim..(at + 1) * dim, keys.len() * dim);
            }
            keys.push(key);
        }
    }
    let written = writer.write(following.shared, table, stamp, keys, &weights[..keys.len() * dim]);
    let mut progress = source.progress();
    progress.rows += keys.len() as u64;
    progress.removed += removed;
    written
}

/// Removes the server's keys that an export, which has ended, did not have. `false`: the server has gained slots since the
/// export began, which must begin anew.
fn remove_older(homes: &Homes, source: &Source, follower: &Follower, followed: &Followed<'_>) -> bool {
    let known = homes.read();
    if known.has_gained(source.server, followed.since) {
        return false;
    }
    // The first rows of all have no older ones beside them.
    if followed.has_older
        && let Some(part) = follower.part(&followed.stream)
    {
        let is_old = |key, stamp| stamp != followed.stamp && known.is_of(part, key);
        source.progress().removed += remove_old(followed.table, is_old);
    }
    true
}
