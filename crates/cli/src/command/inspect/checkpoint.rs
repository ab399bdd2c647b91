//! A server's checkpoint for a person: its tables, and the deltas after its full save.

use std::path::Path;

use sanderling_store::{Checkpoint, StoreError};
use serde::Serialize;

use super::Args;
use crate::failure::Failure;
use crate::output;

/// The blob of every server's checkpoint.
const SERVER_BLOB: &str = "server.json";

#[derive(Serialize)]
struct CheckpointView {
    generation: u64,
    tables: Vec<TableView>,
    deltas: Vec<DeltaView>,
    /// The first damage of the chain; the view is that of the state before it.
    damage: Option<String>,
}

#[derive(Serialize)]
struct TableView {
    name: String,
    rows: u64,
    dim: usize,
    bytes: u64,
    pushes: u64,
}

#[derive(Serialize)]
struct DeltaView {
    sequence: usize,
    generation: u64,
    rows: u64,
    removed: u64,
    bytes: u64,
}

/// A checkpoint, or the whole part of a chain before its first damage.
pub(super) struct Found {
    checkpoint: Checkpoint,
    damage: Option<StoreError>,
}

/// The server's checkpoint in a folder. `None`: there is none, or nothing of it is whole.
pub(super) fn find(folder: &Path) -> Option<Found> {
    let full = Checkpoint::open_through(folder, 0).ok()?;
    if !full.blobs().iter().any(|blob| blob.name == SERVER_BLOB) {
        return None;
    }
    let opened = Checkpoint::open(folder);
    let verified = opened.and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint));
    let damage = match verified {
        Ok(checkpoint) => return Some(Found { checkpoint, damage: None }),
        Err(error) => Some(error),
    };
    let (whole, _) = Checkpoint::whole_deltas(folder).ok()?;
    let checkpoint = Checkpoint::open_through(folder, whole).ok()?;
    Some(Found { checkpoint, damage })
}

/// Shows a checkpoint, all of whose checksums were verified.
pub(super) fn show(args: &Args, Found { checkpoint, damage }: Found) -> Result<u8, Failure> {
    let tables = checkpoint.tables().iter().map(|table| TableView {
        name: table.name.clone(),
        rows: table.rows,
        dim: table.dim,
        bytes: table.bytes,
        pushes: table.pushes,
    });
    let deltas = checkpoint.deltas().iter().map(|delta| DeltaView {
        sequence: delta.sequence,
        generation: delta.generation,
        rows: delta.rows,
        removed: delta.removed,
        bytes: delta.bytes,
    });
    let view = CheckpointView {
        generation: checkpoint.generation(),
        tables: tables.collect(),
        deltas: deltas.collect(),
        damage: damage.as_ref().map(ToString::to_string),
    };
    if args.json {
        output::json(&view)?;
    } else {
        output::prose(&describe(&view))?;
    }
    damage.map_or(Ok(0), |error| Err(error.into()))
}

fn describe(view: &CheckpointView) -> String {
    let mut lines = vec![format!("checkpoint of a parameter server, generation {}", view.generation)];
    for table in &view.tables {
        lines.push(format!("table {}: dim {}", table.name, table.dim));
        lines.push(format!("  rows           {}", output::count(table.rows)));
        lines.push(format!("  pushes         {}", output::count(table.pushes)));
        lines.push(format!("  size           {}", output::bytes(table.bytes)));
    }
    for DeltaView { sequence, generation, rows, removed, bytes } in &view.deltas {
        let (rows, removed) = (output::count(*rows), output::count(*removed));
        let bytes = output::bytes(*bytes);
        lines.push(format!(
            "delta {sequence}: {rows} rows, {removed} removed, {bytes}, generation {generation}"
        ));
    }
    if view.damage.is_some() {
        let whole = view.deltas.len();
        lines.push(format!(
            "the rest is damaged: sanderling ps --restore NAME@{whole} starts from this state"
        ));
    }
    lines.join("\n")
}
