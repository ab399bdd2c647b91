//! The parts of a checkpoint on disk, and which of them a server reads: its own, or all parts of another shard count.
//!
//! The module knows folders and save times, not the contents of the parts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sanderling_wire::Fault;

use super::origin::Origin;
use super::unfinished::{self, MANIFEST};
use crate::refusal::Refusal;

/// The parts that a cluster with one shard count saved, by shard.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(BTreeMap<u16, PathBuf>);

/// The parts that a server reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Its own part.
    Own,
    /// All parts of another shard count, in shard order. `noted`: the notes of all shards are on disk.
    Parts { folders: Vec<PathBuf>, origin: Origin, noted: bool },
}

/// The folder of a part.
pub(super) fn folder(base: &Path, shard: u16, shards: u16) -> PathBuf {
    match shards {
        1 => base.to_path_buf(),
        shards => base.join(format!("shard-{shard}-of-{shards}")),
    }
}

/// Parses the folder name of a part: the shard, and the number of shards.
pub(super) fn of_name(name: &str) -> Option<(u16, u16)> {
    let (shard, shards) = name.strip_prefix("shard-")?.split_once("-of-")?;
    let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
    (shards > 1 && shard < shards).then_some((shard, shards))
}

/// Finds the parts below a folder, by shard count.
pub(super) fn find(base: &Path) -> io::Result<BTreeMap<u16, Parts>> {
    let mut found = BTreeMap::<u16, Parts>::new();
    let mut note = |shard, shards| {
        let folder = folder(base, shard, shards);
        if folder.join(MANIFEST).try_exists()? {
            found.entry(shards).or_default().0.insert(shard, folder);
        }
        Ok::<(), io::Error>(())
    };
    note(0, 1)?;
    let entries = match std::fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        if let Some((shard, shards)) = entry?.file_name().to_str().and_then(of_name) {
            note(shard, shards)?;
        }
    }
    Ok(found)
}

/// Finds a part whose manifest was lost, where no part of any shard count is complete.
pub(super) fn lost(base: &Path) -> io::Result<Option<PathBuf>> {
    if !find(base)?.is_empty() {
        return Ok(None);
    }
    let entries = match std::fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().and_then(of_name).is_some()
            && let Some(file) = unfinished::lost(&entry.path())?
        {
            return Ok(Some(file));
        }
    }
    unfinished::lost(base)
}

/// Whether the folder has parts that concern this server: a readable part, or rows of other shards, which imply a lost
/// part.
///
/// `has_rows` tells whether a part has rows.
pub(super) fn any(
    found: &BTreeMap<u16, Parts>,
    shard: u16,
    shards: u16,
    has_rows: impl Fn(&Path) -> bool,
) -> bool {
    found.iter().any(|(&of, parts)| {
        of != shards || parts.0.contains_key(&shard) || parts.0.values().any(|part| has_rows(part))
    })
}

/// Chooses the parts that shard `shard` of `shards` reads.
///
/// If clusters of several shard counts saved, the count whose parts are all newer than those of the others wins.
/// `saved_unix_ms` returns the save time of a part. If other shards of this count saved after the winner, this shard
/// may have saved, too, and lost its part, unless its note (`noted`) says that it has not.
pub(super) fn choose(
    mut found: BTreeMap<u16, Parts>,
    shard: u16,
    shards: u16,
    noted: Option<Origin>,
    saved_unix_ms: impl Fn(&Path) -> Result<u64, Refusal>,
) -> Result<Source, Refusal> {
    // The parts of other shards of this count matter only as evidence about this shard's part.
    let mut beside = Vec::new();
    if let Some(Parts(of_own)) = found.get_mut(&shards) {
        let own = of_own.remove(&shard);
        beside.extend(std::mem::take(of_own).into_values());
        of_own.extend(own.map(|own| (shard, own)));
    }
    found.retain(|_, parts| !parts.0.is_empty());
    let is_there = found.contains_key(&shards);
    let latest = match found.len() {
        0 => {
            let Some(beside) = beside.first() else { return Ok(Source::Own) };
            let base = beside.parent().unwrap_or(beside);
            let reason = format!(
                "{} is missing, but other shards of {shards} have saved this checkpoint beside it; put it back, or move \
                 theirs away, too, to start without rows",
                folder(base, shard, shards).display()
            );
            return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
        }
        1 => found.into_iter().next(),
        _ => latest(found, &saved_unix_ms)?,
    };
    let Some((of, parts)) = latest else { return Ok(Source::Own) };
    if of == shards {
        return Ok(Source::Own);
    }
    let first = parts.0.values().next().cloned().unwrap_or_default();
    let base = if of == 1 { first.as_path() } else { first.parent().unwrap_or(&first) };
    if let Some(missing) = (0..of).find(|part| !parts.0.contains_key(part)) {
        let reason = format!(
            "{} is missing: {of} servers saved this checkpoint, and all of their parts are needed to restore it on {shards}; \
             copy it there",
            folder(base, missing, of).display()
        );
        return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
    }
    let (oldest, newest) = parts.span(&saved_unix_ms)?;
    let origin = Origin { shards: of, saved_unix_ms: newest };
    let noted = noted == Some(origin);
    for beside in beside.iter().filter(|_| !noted) {
        // Save times may overlap. A doubtful part is not replaced.
        if saved_unix_ms(beside)? >= oldest {
            let is = if is_there { "from before" } else { "missing" };
            let reason = format!(
                "the number of shards changed from {of} to {shards}, {} was saved after that, and {} is {is}; put back what \
                 this shard saved last, or, to restore what was saved on {of}, move away the parts of all {shards}",
                beside.display(),
                folder(base, shard, shards).display()
            );
            return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
        }
    }
    Ok(Source::Parts { folders: parts.0.into_values().collect(), origin, noted })
}

impl Parts {
    /// The oldest and the newest save time of the parts.
    fn span(&self, saved_unix_ms: impl Fn(&Path) -> Result<u64, Refusal>) -> Result<(u64, u64), Refusal> {
        self.0.values().try_fold((u64::MAX, 0), |(oldest, newest), folder| {
            let at = saved_unix_ms(folder)?;
            Ok((at.min(oldest), at.max(newest)))
        })
    }
}

type Numbered = Option<(u16, Parts)>;

fn latest(
    found: BTreeMap<u16, Parts>,
    saved_unix_ms: impl Fn(&Path) -> Result<u64, Refusal>,
) -> Result<Numbered, Refusal> {
    let mut spans = Vec::new();
    for (&of, parts) in &found {
        let (oldest, newest) = parts.span(&saved_unix_ms)?;
        spans.push((of, oldest, newest));
    }
    let wins = |&&(of, oldest, _): &&(u16, u64, u64)| {
        spans.iter().all(|&(other, _, newest)| other == of || newest < oldest)
    };
    let Some(&(winner, ..)) = spans.iter().find(wins) else {
        let all: Vec<String> = found
            .values()
            .flat_map(|parts| parts.0.values())
            .map(|path| path.display().to_string())
            .collect();
        let reason = format!(
            "servers of several numbers of shards have saved this checkpoint, and none of them after the others: {}; move \
             away what is not to be restored",
            all.join(", ")
        );
        return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
    };
    Ok(found.into_iter().find(|&(of, _)| of == winner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row: saves as (shard, shards, time), the note of shard 0 of 2 as (shards, time), and the expected choice.
    ///
    /// The choice is "own", a shard count (with "noted" if the note says so), or an error. A save at time 1 has no
    /// rows.
    #[test]
    fn what_was_saved_last_is_read_whole() {
        for (saves, noted, expected) in [
            (&[][..], None, "own"),
            (&[(0, 2, 1)], None, "own"),
            (&[(0, 1, 1)], None, "1"),
            (&[(0, 3, 1), (1, 3, 1), (2, 3, 1)], None, "3"),
            (&[(0, 3, 1), (2, 3, 1)], None, "shard-1-of-3 is missing"),
            (&[(1, 2, 1)], None, "shard-0-of-2 is missing"),
            (&[(1, 2, 9)], None, "shard-0-of-2 is missing"),
            // The count went from 1 to 2 and this shard has saved since.
            (&[(0, 1, 1), (0, 2, 2), (1, 2, 2)], None, "own"),
            (&[(0, 1, 2), (0, 2, 3)], None, "own"),
            (&[(0, 1, 2), (0, 2, 3), (1, 2, 1)], None, "own"),
            // A stale note does not hide rows that exist.
            (&[(0, 1, 2), (0, 2, 3), (1, 2, 4)], Some((1, 2)), "own"),
            // The count goes from 1 to 2; this is the first and the second shard to start.
            (&[(0, 1, 2)], Some((1, 2)), "1 noted"),
            (&[(0, 1, 2), (1, 2, 9)], Some((1, 2)), "1 noted"),
            (&[(0, 3, 2), (1, 3, 4), (2, 3, 3), (1, 2, 9)], Some((3, 4)), "3 noted"),
            // This shard's part was lost, also where the others have no rows or saved in between.
            (&[(0, 1, 2), (1, 2, 9)], None, "shard-0-of-2 is missing; put back"),
            (&[(0, 1, 0), (1, 2, 1)], None, "shard-0-of-2 is missing; put back"),
            (&[(0, 1, 2), (1, 2, 2)], None, "shard-0-of-2 is missing; put back"),
            (&[(0, 3, 2), (1, 3, 5), (2, 3, 3), (1, 2, 4)], None, "shard-0-of-2 is missing; put back"),
            // The note is about another save.
            (&[(0, 1, 2), (1, 2, 9)], Some((3, 2)), "shard-0-of-2 is missing; put back"),
            (&[(0, 1, 4), (1, 2, 9)], Some((1, 2)), "shard-0-of-2 is missing; put back"),
            // The other parts of this count are older than the winner.
            (&[(0, 1, 2), (1, 2, 1)], None, "1"),
            // The count was 2 before and is 2 again, for both shards.
            (&[(0, 2, 1), (1, 2, 1), (0, 1, 2)], None, "1"),
            (&[(0, 2, 1), (1, 2, 9), (0, 1, 2)], Some((1, 2)), "1 noted"),
            // This shard saved after the change, and the part on disk is older.
            (&[(0, 2, 1), (1, 2, 9), (0, 1, 2)], None, "shard-0-of-2 is from before; put back"),
            (&[(0, 2, 1), (0, 3, 2), (1, 3, 3)], None, "shard-2-of-3 is missing"),
            // Some of three shards saved after the two, and some did not.
            (&[(0, 2, 2), (0, 3, 1), (1, 3, 3), (2, 3, 3)], None, "move away"),
            (&[(0, 2, 2), (0, 1, 2)], None, "move away"),
        ] {
            let root = tempfile::tempdir().unwrap();
            for &(shard, shards, at) in saves {
                let folder = folder(root.path(), shard, shards);
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join("manifest.json"), at.to_string()).unwrap();
            }
            std::fs::create_dir_all(root.path().join("shard-7-of-3")).unwrap();
            std::fs::create_dir_all(root.path().join("shard-x-of-y")).unwrap();
            let when = |folder: &Path| -> Result<u64, Refusal> {
                Ok(std::fs::read_to_string(folder.join("manifest.json")).unwrap().parse().unwrap())
            };
            let found = find(root.path()).unwrap();
            let has_rows = |folder: &Path| when(folder).unwrap() > 1;
            let others = saves.iter().any(|&(shard, shards, at)| shards != 2 || shard == 0 || at > 1);
            assert_eq!(any(&found, 0, 2, has_rows), others, "{saves:?}");
            let noted = noted.map(|(shards, saved_unix_ms)| Origin { shards, saved_unix_ms });
            let said = match choose(found, 0, 2, noted, when) {
                Ok(Source::Own) => "own".to_owned(),
                Ok(Source::Parts { folders, noted: true, .. }) => format!("{} noted", folders.len()),
                Ok(Source::Parts { folders, .. }) => folders.len().to_string(),
                Err(refusal) => {
                    assert!(refusal.reason.contains(expected), "{saves:?}: {}", refusal.reason);
                    continue;
                }
            };
            assert_eq!(said, expected, "{saves:?} {noted:?}");
        }
    }
}
