//! The delta log of a server for a person, also while the server writes it.

use std::path::{Path, PathBuf};

use sanderling_store::{LogReader, LogSummary, StoreError};
use serde::Serialize;

use super::Args;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct LogsView {
    logs: Vec<LogView>,
}

#[derive(Serialize)]
struct LogView {
    folder: PathBuf,
    id: String,
    segments: Vec<SegmentView>,
    first_group: Option<u64>,
    last_group: Option<u64>,
    last_unix_ms: Option<u64>,
    rows: u64,
    removed: u64,
    /// Bytes after the last group, which a start cuts.
    torn_bytes: u64,
    damage: Option<String>,
}

#[derive(Serialize)]
struct SegmentView {
    file: PathBuf,
    bytes: u64,
}

/// A log: its folder, the number that names it, and its first segment.
pub(super) type Found = (PathBuf, u64, u64);

/// The logs of a folder, and of those of a server's shards in it.
pub(super) fn find(folder: &Path) -> Result<Vec<Found>, StoreError> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_shard = |path: &PathBuf| {
        path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("shard-"))
    };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_shard).collect();
    folders.push(folder.to_path_buf());
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        let logs = LogReader::logs(&folder)?;
        found.extend(logs.into_iter().map(|(id, first)| (folder.clone(), id, first)));
    }
    Ok(found)
}

pub(super) fn show(args: &Args, found: Vec<Found>) -> Result<u8, Failure> {
    let mut logs = Vec::new();
    for (folder, id, first) in found {
        let LogSummary { segments, groups, unix_ms, rows, removed, torn_bytes, damage } =
            LogReader::summary(&folder, id, first)?;
        let segments =
            segments.into_iter().map(|segment| SegmentView { file: segment.path, bytes: segment.bytes });
        logs.push(LogView {
            folder,
            id: format!("{id:x}"),
            segments: segments.collect(),
            first_group: groups.map(|(first, _)| first),
            last_group: groups.map(|(_, last)| last),
            last_unix_ms: unix_ms.map(|(_, last)| last),
            rows,
            removed,
            torn_bytes,
            damage,
        });
    }
    let view = LogsView { logs };
    if args.json {
        output::json(&view)?;
    } else {
        output::prose(&describe(&view))?;
    }
    Ok(0)
}

fn describe(view: &LogsView) -> String {
    let mut lines = Vec::new();
    for log in &view.logs {
        lines.push(format!("delta log in {}", log.folder.display()));
        let bytes = log.segments.iter().map(|segment| segment.bytes).sum();
        lines.push(format!("  segments       {}, {}", log.segments.len(), output::bytes(bytes)));
        if let (Some(first), Some(last)) = (log.first_group, log.last_group) {
            lines.push(format!("  groups         {first} to {last}"));
        }
        let (rows, removed) = (output::count(log.rows), output::count(log.removed));
        lines.push(format!("  rows           {rows}, removed keys {removed}"));
        if log.torn_bytes > 0 {
            lines.push(format!(
                "  unfinished     {}, which the next start cuts",
                output::bytes(log.torn_bytes)
            ));
        }
        if let Some(damage) = &log.damage {
            lines.push(format!("  damage         {damage}"));
            lines.push("                 ps --cut-log starts with the groups before it".to_owned());
        }
    }
    lines.join("\n")
}
