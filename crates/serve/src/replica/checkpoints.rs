//! Follows published checkpoints: looks for a newer manifest, and applies deltas in their order, each verified before.
//!
//! The rows of each part have a stamp. A full checkpoint that the applied links do not lead to is loaded with a new stamp
//! beside the rows that are served; rows of other stamps are removed in the end.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sanderling_store::{ChainLink, Checkpoint, Table};

use super::place::{CheckpointPlace, MANIFEST, PartName, Place};
use super::rows::{RowWriter, remove_old};
use super::{FollowError, Moment, RETRY_AFTER, Shared, Source};

/// Rows that are written at a time.
const ROWS_AT_ONCE: usize = 1 << 13;
/// Saves that may overtake a look.
const OVERTAKEN_MAX: usize = 16;
/// Intervals after which a manifest that failed is tried again, and the longest pause.
const RETRY_INTERVALS: u32 = 10;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The blob that a server adds to its part.
const SERVER_BLOB: &str = "server.json";

/// A part of the checkpoint, as far as it is applied.
#[derive(Debug, Default)]
struct Part {
    /// Stamp of its rows.
    stamp: u32,
    /// The links that are applied; none while its rows are a mixture.
    links: Vec<ChainLink>,
    /// Hash of the manifest whose links are all applied.
    manifest: Option<u64>,
    /// Time of the save of the last link.
    saved: Option<SystemTime>,
    /// Epoch of each table after the last link.
    epochs: Vec<Option<u64>>,
    failed: Option<Failed>,
}

/// Oldest and newest save of the parts of a number of shards.
type Span = (u16, Option<SystemTime>, Option<SystemTime>);

/// A manifest that could not be applied.
#[derive(Debug)]
struct Failed {
    manifest: u64,
    error: String,
    again: Instant,
}

/// A checkpoint with its table names in the order of the model's tables.
struct Opened {
    checkpoint: Checkpoint,
    tables: Vec<String>,
}

/// The rows of a checkpoint that were loaded once.
pub(super) struct Loaded {
    /// A stamp that is at least those of its rows.
    pub(super) stamp: u32,
    /// Epochs by part and table.
    parts: BTreeMap<PartName, Vec<Option<u64>>>,
}

impl Loaded {
    /// The epoch of a table, by its place in the model, at one of so many servers.
    pub(super) fn epoch(&self, shards: usize, server: usize, table: usize) -> Option<u64> {
        let (shards, shard) = (u16::try_from(shards).ok()?, u16::try_from(server).ok()?);
        self.parts.get(&PartName { shards, shard })?.get(table).copied()?
    }
}

/// Follows a place until the replica is stopped.
pub(super) fn follow(shared: &Shared, place: &CheckpointPlace) {
    let source = &shared.sources()[0];
    let mut follower = None;
    while !shared.stops() {
        let begun = Instant::now();
        let round = match &mut follower {
            None => Chains::open(shared, Some(source), place).map(|made| _ = follower.insert(made)),
            Some(_) => Ok(()),
        };
        let round = round.and_then(|()| follower.as_mut().map_or(Ok(()), Chains::look));
        let failed = match round {
            Ok(()) => None,
            Err(FollowError::Stopped) => return,
            Err(error) => Some(error.to_string()),
        };
        let pause = if failed.is_some() { RETRY_AFTER.max(shared.config.fresh) } else { shared.config.fresh };
        shared.note_round(source, failed);
        shared.publish_if_whole();
        shared.pause(begun, pause);
    }
}

/// Loads the newest whole state of a place once.
pub(super) fn load(shared: &Shared, place: &CheckpointPlace) -> Result<Loaded, FollowError> {
    let mut chains = Chains::open(shared, None, place)?;
    chains.look()?;
    let parts = std::mem::take(&mut chains.parts);
    let parts = parts.into_iter().map(|(name, part)| (name, part.epochs)).collect();
    Ok(Loaded { stamp: chains.stamp, parts })
}

/// The chains of all parts.
struct Chains<'a> {
    shared: &'a Shared,
    /// `None` for a load of a start.
    source: Option<&'a Source>,
    place: Place,
    parts: BTreeMap<PartName, Part>,
    /// The last stamp that was given.
    stamp: u32,
    writer: RowWriter,
}

impl<'a> Chains<'a> {
    fn open(
        shared: &'a Shared,
        source: Option<&'a Source>,
        place: &CheckpointPlace,
    ) -> Result<Chains<'a>, FollowError> {
        let place = Place::open(place).map_err(FollowError::Checkpoint)?;
        Ok(Chains { shared, source, place, parts: BTreeMap::new(), stamp: 0, writer: RowWriter::default() })
    }

    /// Applies what is new in all parts.
    fn look(&mut self) -> Result<(), FollowError> {
        let names = self.choose_parts()?;
        let mut outcome = Ok(());
        for &name in &names {
            // The other parts are followed also where one fails.
            match self.follow_part(name) {
                Err(FollowError::Stopped) => return Err(FollowError::Stopped),
                followed => outcome = outcome.and(followed),
            }
        }
        let is_loaded = |name: &PartName| self.parts.get(name).is_some_and(|part| !part.links.is_empty());
        if names.iter().all(is_loaded) {
            let before = self.parts.len();
            self.parts.retain(|name, _| names.contains(name));
            if self.parts.len() < before {
                self.remove_old();
            }
            self.report();
        }
        outcome
    }

    /// The parts of the number of shards that has saved last.
    fn choose_parts(&self) -> Result<Vec<PartName>, FollowError> {
        let mut found = self.place.parts().map_err(FollowError::Checkpoint)?;
        let is_whole = |shards: u16, parts: &Vec<PartName>| parts.len() == usize::from(shards);
        if let Some((&shards, parts)) = found.first_key_value()
            && found.iter().all(|(shards, parts)| !is_whole(*shards, parts))
        {
            let mut all = (0..shards).map(|shard| PartName { shards, shard });
            let missing = all.find(|part| !parts.contains(part));
            return Err(FollowError::Checkpoint(format!(
                "{}: {shards} servers saved it, and {} has no {MANIFEST}; copy all parts there",
                self.place,
                missing.map(|part| part.to_string()).unwrap_or_default()
            )));
        }
        found.retain(|shards, parts| is_whole(*shards, parts));
        if found.len() < 2 {
            return found.into_values().next().ok_or_else(|| {
                FollowError::Checkpoint(format!("{}: there is no {MANIFEST}: no checkpoint", self.place))
            });
        }
        // Parts that saved after all those of other numbers of shards.
        let mut spans: Vec<Span> = Vec::new();
        for (shards, parts) in &found {
            let saved = parts.iter().map(|&part| self.saved_of(part)).collect::<Result<Vec<_>, _>>()?;
            spans.push((*shards, saved.iter().min().copied(), saved.iter().max().copied()));
        }
        let is_newest = |&(shards, oldest, _): &Span| {
            spans.iter().all(|(other, _, newest)| *other == shards || *newest < oldest)
        };
        match spans.iter().find(|span| is_newest(span)) {
            Some((shards, ..)) => Ok(found.remove(shards).unwrap_or_default()),
            None => Err(FollowError::Checkpoint(format!(
                "{}: servers of several numbers of shards have saved, and none of them after the others; move away what is \
                 not meant",
                self.place
            ))),
        }
    }

    /// Time of the last save of a part.
    fn saved_of(&self, name: PartName) -> Result<SystemTime, FollowError> {
        if let Some(Part { saved: Some(saved), manifest: Some(known), .. }) = self.parts.get(&name)
            && self.manifest(name).is_ok_and(|(_, hash)| hash == *known)
        {
            return Ok(*saved);
        }
        let (manifest, _) = self.manifest(name)?;
        let checkpoint = Checkpoint::of_manifest(&self.place.folder(name), &manifest)?;
        let saved = self.saved(name, &checkpoint);
        self.place.release();
        Ok(saved?.unwrap_or(UNIX_EPOCH))
    }

    /// Applies what is new in a part.
    fn follow_part(&mut self, name: PartName) -> Result<(), FollowError> {
        let (mut manifest, mut hash) = self.manifest(name)?;
        for overtaken in 0.. {
            let part = self.parts.entry(name).or_default();
            if part.manifest == Some(hash) {
                part.failed = None;
                return Ok(());
            }
            let known = part.failed.as_ref().filter(|failed| failed.manifest == hash);
            if let Some(failed) = known.filter(|failed| Instant::now() < failed.again) {
                return Err(FollowError::Checkpoint(failed.error.clone()));
            }
            let done = self.catch_up(name, &manifest);
            self.place.release();
            let error = match done {
                Ok(()) => {
                    let part = self.parts.entry(name).or_default();
                    (part.manifest, part.failed) = (Some(hash), None);
                    return Ok(());
                }
                Err(FollowError::Stopped) => return Err(FollowError::Stopped),
                Err(error) => error,
            };
            // Files that a newer save has removed are no error.
            let newer = self.manifest(name)?;
            if newer.1 == hash || overtaken == OVERTAKEN_MAX {
                let pause = (self.shared.config.fresh * RETRY_INTERVALS).min(RETRY_AFTER_MAX);
                let failed =
                    Failed { manifest: hash, error: error.to_string(), again: Instant::now() + pause };
                self.parts.entry(name).or_default().failed = Some(failed);
                return Err(error);
            }
            (manifest, hash) = newer;
        }
        Ok(())
    }

    /// The manifest of a part, and its hash.
    fn manifest(&self, name: PartName) -> Result<(Vec<u8>, u64), FollowError> {
        let manifest = self.place.manifest(name).map_err(FollowError::Checkpoint)?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&manifest);
        Ok((manifest, hasher.finish()))
    }

    /// Loads the part anew if the applied links do not lead to those of the manifest; then applies further deltas.
    fn catch_up(&mut self, name: PartName, manifest: &[u8]) -> Result<(), FollowError> {
        let checkpoint = Checkpoint::of_manifest(&self.place.folder(name), manifest)?;
        let opened = Opened { tables: self.tables(name, &checkpoint)?, checkpoint };
        let links = opened.checkpoint.links();
        let applied = &self.part(name).links;
        if applied.is_empty() || !links.starts_with(applied) {
            self.load(name, &opened, &links)?;
        }
        while let Some(&link) = links.get(self.part(name).links.len()) {
            self.apply_delta(name, &opened, link)?;
        }
        Ok(())
    }

    fn part(&mut self, name: PartName) -> &mut Part {
        self.parts.entry(name).or_default()
    }

    /// The names that the model's tables have in a checkpoint: `RUN/TABLE` where a server saved it, or `TABLE`.
    fn tables(&self, name: PartName, checkpoint: &Checkpoint) -> Result<Vec<String>, FollowError> {
        let run = self.shared.model.model.name();
        let table = |table: &Arc<Table>| {
            let names = [format!("{run}/{}", table.name()), table.name().to_owned()];
            let found = checkpoint.tables().iter().find(|entry| names.contains(&entry.name));
            let problem = match found {
                Some(entry) if entry.dim == table.dim() => return Ok(entry.name.clone()),
                Some(entry) => {
                    format!("has rows of {} weights, those of the model {}", entry.dim, table.dim())
                }
                None => "is not in it; is it a checkpoint of this run?".to_owned(),
            };
            let (place, table) = (self.place.name(name, MANIFEST), &names[0]);
            Err(FollowError::Checkpoint(format!("{place}: table {table:?} {problem}")))
        };
        self.shared.model.all_tables().map(table).collect()
    }

    /// Loads the newest whole state of a part, in place.
    fn load(&mut self, name: PartName, opened: &Opened, links: &[ChainLink]) -> Result<(), FollowError> {
        let checkpoint = &opened.checkpoint;
        self.verify(name, opened, 0)?;
        // A damaged delta keeps the state before it. Applying it fails again, with its error.
        let whole = (1..links.len()).take_while(|&link| self.verify(name, opened, link).is_ok()).count();
        let state = checkpoint.through(whole)?;
        let saved = self.saved(name, &state)?;
        self.stamp += 1;
        let stamp = self.stamp;
        // Until the end its rows are a mixture.
        let is_first = std::mem::take(&mut self.part(name).links).is_empty() && self.part(name).stamp == 0;
        self.part(name).stamp = stamp;
        self.count(|progress| progress.exports += 1);
        let shared = self.shared;
        for (table, saved) in shared.model.all_tables().zip(&opened.tables) {
            let mut rows = Rows::new(self, table, stamp);
            state.for_each_row(saved, |row| rows.add(row.key, row.weights))?;
            rows.flush()?;
        }
        let epochs = epochs(&state, opened)?;
        let part = self.part(name);
        (part.links, part.saved, part.epochs) = (links[..=whole].to_vec(), saved, epochs);
        if !is_first {
            self.remove_old();
        }
        Ok(())
    }

    /// Applies the next delta of a part.
    fn apply_delta(&mut self, name: PartName, opened: &Opened, link: ChainLink) -> Result<(), FollowError> {
        let delta = self.part(name).links.len();
        self.verify(name, opened, delta)?;
        let state = opened.checkpoint.through(delta)?;
        let (saved, stamp) = (self.saved(name, &state)?, self.part(name).stamp);
        // If it fails in the middle, the rows are those of no state.
        let links = std::mem::take(&mut self.part(name).links);
        let (shared, mut removed) = (self.shared, 0);
        for (table, saved) in shared.model.all_tables().zip(&opened.tables) {
            let mut rows = Rows::new(self, table, stamp);
            opened.checkpoint.for_each_change(saved, delta, |key, row| match row {
                Some(row) => rows.add(key, row.weights),
                None => {
                    removed += u64::from(table.remove(key));
                    Ok(())
                }
            })?;
            rows.flush()?;
        }
        self.count(|progress| {
            progress.deltas += 1;
            progress.removed += removed;
        });
        let epochs = epochs(&state, opened)?;
        let part = self.part(name);
        (part.links, part.saved, part.epochs) = (links, saved, epochs);
        part.links.push(link);
        Ok(())
    }

    /// Has the files of a link, and verifies them.
    fn verify(&self, name: PartName, opened: &Opened, link: usize) -> Result<(), FollowError> {
        for table in &opened.tables {
            if let Some(file) = opened.checkpoint.file_of_link(table, link)? {
                self.fetch(name, file)?;
                opened.checkpoint.verify_link(table, link)?;
            }
        }
        Ok(())
    }

    fn fetch(&self, name: PartName, file: (String, u64)) -> Result<(), FollowError> {
        let fetched = self.place.fetch(name, &[file], &|| self.shared.stops());
        if self.shared.stops() {
            return Err(FollowError::Stopped);
        }
        fetched.map_err(FollowError::Checkpoint)
    }

    /// Time of the save of a state; `None` if no server saved it.
    fn saved(&self, name: PartName, state: &Checkpoint) -> Result<Option<SystemTime>, FollowError> {
        let Some(file) = state.file_of_blob(SERVER_BLOB) else { return Ok(None) };
        self.fetch(name, file)?;
        let blob = state.blob(SERVER_BLOB)?;
        let record: serde_json::Value = serde_json::from_slice(&blob).unwrap_or_default();
        let unix_ms = record["saved_unix_ms"].as_u64().filter(|&unix_ms| unix_ms > 0);
        Ok(unix_ms.and_then(|unix_ms| UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms))))
    }

    /// Removes rows that came with no part.
    fn remove_old(&self) {
        let stamps: Vec<u32> = self.parts.values().map(|part| part.stamp).collect();
        for table in self.shared.model.all_tables() {
            let removed = remove_old(table, |_, stamp| !stamps.contains(&stamp));
            self.count(|progress| progress.removed += removed);
        }
    }

    fn count(&self, change: impl FnOnce(&mut super::Progress)) {
        if let Some(source) = self.source {
            change(&mut source.progress());
        }
    }

    /// Shows what is applied.
    fn report(&self) {
        let saved = self.parts.values().map(|part| part.saved);
        // The time at which it was applied, if it does not say when it was saved.
        let oldest = saved.min().flatten();
        let part = |(name, part): (&PartName, &Part)| {
            let generation = part.links.first().map_or(0, |link| link.generation);
            (name.to_string(), generation, part.links.len().saturating_sub(1))
        };
        let parts = self.parts.iter().map(part).collect();
        self.count(|progress| {
            let is_new = progress.parts != parts;
            progress.whole_since = match (oldest, progress.whole_since) {
                (Some(saved), _) => Some(Moment::Saved(saved)),
                (None, Some(since)) if !is_new => Some(since),
                (None, _) => Some(Moment::Here(Instant::now())),
            };
            progress.parts = parts;
        });
    }
}

/// Epochs of the model's tables after a state.
fn epochs(state: &Checkpoint, opened: &Opened) -> Result<Vec<Option<u64>>, FollowError> {
    opened.tables.iter().map(|table| Ok(state.epoch(table)?)).collect()
}

/// Rows on their way into a table.
struct Rows<'a, 'b> {
    chains: &'b mut Chains<'a>,
    table: &'b Table,
    stamp: u32,
    keys: Vec<u64>,
    weights: Vec<f32>,
}

impl<'a, 'b> Rows<'a, 'b> {
    fn new(chains: &'b mut Chains<'a>, table: &'b Table, stamp: u32) -> Rows<'a, 'b> {
        Rows { chains, table, stamp, keys: Vec::new(), weights: Vec::new() }
    }

    fn add(&mut self, key: u64, weights: &[f32]) -> Result<(), FollowError> {
        self.keys.push(key);
        self.weights.extend_from_slice(weights);
        if self.keys.len() < ROWS_AT_ONCE { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), FollowError> {
        if self.chains.shared.stops() {
            return Err(FollowError::Stopped);
        }
        let Rows { chains, table, stamp, keys, weights } = self;
        chains.writer.write(chains.shared, table, *stamp, keys, weights)?;
        chains.count(|progress| progress.rows += keys.len() as u64);
        keys.clear();
        weights.clear();
        Ok(())
    }
}
