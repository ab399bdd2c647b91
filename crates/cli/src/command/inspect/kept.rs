//! Kept tables of a folder for a person, also while a server uses them.

use std::path::{Path, PathBuf};

use sanderling_store::{KeptTable, StoreError, kept_names, kept_tables, pages_cost};
use serde::Serialize;

use super::Args;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct KeptView {
    tables: Vec<TableView>,
    /// The cost of pages that are not huge.
    pages: Option<&'static str>,
}

#[derive(Serialize)]
struct TableView {
    name: String,
    folder: PathBuf,
    rows: u64,
    dim: usize,
    charged_rows: u64,
    pushes: u64,
    budget_bytes: Option<u64>,
    /// Changes that the next process will mend.
    interrupted: usize,
}

/// The kept tables of a folder, and of those of a server's shards in it.
pub(super) fn find(folder: &Path) -> Result<Vec<KeptTable>, StoreError> {
    let mut found = kept_tables(folder)?;
    // A device has them, too.
    let is_shard =
        |name: &String| name.starts_with("shard-") && (!folder.is_dir() || folder.join(name).is_dir());
    for shard in kept_names(folder)?.iter().filter(|name| is_shard(name)) {
        found.extend(kept_tables(&folder.join(shard))?);
    }
    Ok(found)
}

pub(super) fn show(args: &Args, tables: Vec<KeptTable>) -> Result<u8, Failure> {
    let tables = tables.into_iter().map(|table| {
        let (dim, budget_bytes) = (table.config.dim(), table.config.budget_bytes);
        let KeptTable { folder, config, rows, charged_rows, pushes, interrupted, .. } = table;
        TableView { name: config.name, folder, rows, dim, charged_rows, pushes, budget_bytes, interrupted }
    });
    let view = KeptView { tables: tables.collect(), pages: pages_cost(&args.path) };
    if args.json {
        output::json(&view)?;
    } else {
        output::prose(&describe(&view))?;
    }
    Ok(0)
}

fn describe(view: &KeptView) -> String {
    let mut lines = Vec::new();
    for table in &view.tables {
        lines.push(format!("table {}: dim {}, kept in {}", table.name, table.dim, table.folder.display()));
        let (rows, charged) = (output::count(table.rows), output::count(table.charged_rows));
        lines.push(format!("  rows           {rows}, memory for {charged}"));
        lines.push(format!("  pushes         {}", output::count(table.pushes)));
        if let Some(bytes) = table.budget_bytes {
            lines.push(format!("  budget         {}", output::bytes(bytes)));
        }
        if table.interrupted > 0 {
            lines.push(format!(
                "  in hand        {} changes, which the next process mends",
                table.interrupted
            ));
        }
    }
    lines.extend(view.pages.map(|pages| format!("pages: {pages}")));
    lines.join("\n")
}
