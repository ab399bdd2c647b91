//! Tables of a run that outlive its process: whether one is still what a checkpoint has, and the note in its folder that
//! says so. Knows no training.
//!
//! After each save, the note has the save's number and the table's count of pushes. A push counts itself before it changes
//! a row. So a table with this count has the rows of that save.

use std::path::Path;

use sanderling_client::Client;
use sanderling_store::{Checkpoint, StoreError, Table, TableConfig, forget_kept, kept_table};
use serde::{Deserialize, Serialize};

use crate::config::{Config, EVERY_TABLE};
use crate::error::LearnError;
use crate::event::Event;
use crate::model::{BIAS_TABLE, table_configs};

/// The text in a kept table's folder.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptNote {
    /// The save that had the table's rows.
    save: u64,
    /// The table's pushes then.
    pushes: u64,
}

/// Opens the kept tables of a run, and collects what there is to say of each.
#[derive(Debug, Default)]
pub(crate) struct KeptTables {
    /// Remove the rows of earlier processes.
    forget: bool,
    /// Tables, and what was found of each.
    found: Vec<(String, String)>,
}

/// The folder that keeps a table beyond the process.
fn folder<'a>(config: &'a Config, table: &str) -> Option<&'a Path> {
    let options = config.table.get(table).or_else(|| config.table.get(EVERY_TABLE))?;
    options.memory.as_ref().filter(|_| table != BIAS_TABLE).map(|memory| memory.kept.as_path())
}

/// Checks the kept tables of a run: none if its tables are on servers; without rows if it is new.
pub(crate) fn check(config: &Config, is_on_servers: bool, is_new: bool) -> Result<(), LearnError> {
    match is_on_servers {
        true => check_on_servers(config),
        false if is_new => {
            table_configs(config).iter().try_for_each(|table| check_without_rows(config, table))
        }
        false => Ok(()),
    }
}

fn check_on_servers(config: &Config) -> Result<(), LearnError> {
    let Some(table) = table_configs(config).into_iter().find(|table| folder(config, &table.name).is_some())
    else {
        return Ok(());
    };
    let reason = "the tables are on parameter servers, which keep them: sanderling ps --kept DIR; leave memory out, or --ps";
    Err(LearnError::Config { path: format!("table.{}.memory", table.name).into(), reason: reason.to_owned() })
}

/// Refuses to begin a run over rows that a kept table has.
fn check_without_rows(config: &Config, table: &TableConfig) -> Result<(), LearnError> {
    let Some(root) = folder(config, &table.name) else { return Ok(()) };
    match kept_table(root, &table.name)? {
        Some(kept) if kept.rows > 0 => {
            let rows = kept.rows;
            let reason = format!(
                "has {rows} rows of table {:?} from an earlier run: --resume goes on with that run, --forget removes them, or \
                 name another folder in table.{}.memory",
                table.name, table.name
            );
            Err(LearnError::Config { path: kept.folder, reason })
        }
        _ => Ok(()),
    }
}

impl KeptTables {
    pub(crate) fn new(forget: bool) -> KeptTables {
        KeptTables { forget, found: Vec::new() }
    }

    /// Makes an empty table, kept if the configuration says so.
    pub(crate) fn create(&mut self, config: &Config, table: TableConfig) -> Result<Table, LearnError> {
        let Some(root) = folder(config, &table.name) else { return Ok(Table::new(table)?) };
        if !self.forget {
            check_without_rows(config, &table)?;
        }
        forget_kept(root, &table.name)?;
        let (table, attached) = Table::kept(table, root, "")?;
        self.say(&table, attached.summary(), attached.pages);
        Ok(table)
    }

    /// The table as a checkpoint has it: attached if its rows are those of the save, otherwise restored.
    pub(crate) fn resume(
        &mut self,
        config: &Config,
        checkpoint: &Checkpoint,
        (path, save): (&Path, Option<u64>),
        table: TableConfig,
    ) -> Result<Table, LearnError> {
        let name = table.name.clone();
        let Some(root) = folder(config, &name) else { return Ok(checkpoint.load_table(&name)?) };
        let why = match self.forget {
            true => "as --forget says".to_owned(),
            false => match attach(root, &table, save)? {
                Ok((table, found, pages)) => {
                    self.say(&table, found, pages);
                    return Ok(table);
                }
                Err(why) => why,
            },
        };
        forget_kept(root, &name)?;
        let (mut table, attached) = Table::kept(table, root, "")?;
        checkpoint.load_rows(&name, &mut table, |_| true)?;
        note(&table, save);
        let (from, into) = (path.display(), attached.folder.display());
        let found = format!("restored {} rows from {from} into {into}: {why}", table.len());
        self.say(&table, found, attached.pages);
        Ok(table)
    }

    /// Tells an observer what was found of each table.
    pub(crate) fn tell(&self, observer: &mut dyn FnMut(&Event<'_>)) {
        self.found.iter().for_each(|(table, found)| observer(&Event::Kept { table, found }));
    }

    fn say(&mut self, table: &Table, found: String, pages: Option<&str>) {
        let pages = pages.map_or(String::new(), |cost| format!("; {cost}"));
        self.found.push((table.name().to_owned(), found + &pages));
    }
}

type Attached = (Table, String, Option<&'static str>);

/// Attaches a table that has the rows of a save; the reason if it has not.
fn attach(
    root: &Path,
    table: &TableConfig,
    save: Option<u64>,
) -> Result<Result<Attached, String>, LearnError> {
    let kept = match kept_table(root, &table.name) {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ok(Err("the folder has no such table".to_owned())),
        Err(error @ StoreError::Io { .. }) => return Err(error.into()),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let note: Option<KeptNote> = serde_json::from_str(&kept.note).ok();
    let Some(note) = note.filter(|note| Some(note.save) == save) else {
        return Ok(Err("the kept rows are not of this save".to_owned()));
    };
    let later = |pushes: u64| format!("{} pushes came after the save", pushes.abs_diff(note.pushes));
    if kept.pushes != note.pushes {
        return Ok(Err(later(kept.pushes)));
    }
    match Table::kept(table.clone(), root, &kept.note) {
        // Now that it is locked.
        Ok((table, _)) if table.pushes() != note.pushes => Ok(Err(later(table.pushes()))),
        Ok((table, attached)) => {
            // For exact counts; a run has no maintenance.
            table.find_free_rows();
            Ok(Ok((table, attached.summary(), attached.pages)))
        }
        Err(error @ StoreError::Io { .. }) => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Notes in the folders of kept tables that a save has their rows.
pub(crate) fn note_save(client: &Client, save: Option<u64>) {
    client.tables().iter().for_each(|table| note(table, save));
}

fn note(table: &Table, save: Option<u64>) {
    if let (Some(save), Some(_)) = (save, table.kept_in()) {
        let note = KeptNote { save, pushes: table.pushes() };
        table.set_kept_note(&serde_json::to_string(&note).expect("numbers become JSON"));
    }
}
