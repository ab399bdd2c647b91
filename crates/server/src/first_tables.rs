//! The tables with which a server starts: kept ones, those of a checkpoint and the log after it, or none.

use sanderling_store::{Durability, LogReader};
use sanderling_wire::Restored;

use crate::Config;
use crate::background;
use crate::checkpoints::{Checkpoints, LATEST, SaveMode};
use crate::delta_log::DeltaLog;
use crate::event::{Event, Log};
use crate::history::Origin;
use crate::refusal::Refusal;
use crate::server_error::ServerError;
use crate::state::State;

/// Attaches kept tables, or restores a checkpoint and the log after it.
pub(crate) fn restore(state: &State, config: &Config, log: &Log) -> Result<(), ServerError> {
    if let Some(checkpoints) = &state.checkpoints {
        checkpoints.tell(log);
    }
    let origin = restore_tables(state, config, log)?;
    state.tables.check_gather().map_err(|refusal| ServerError::Data(refusal.reason))?;
    state.tables.history.start(origin).map_err(|refusal| ServerError::Data(refusal.reason))?;
    // The log follows a checkpoint, and clients may push from here on.
    if state.log.as_ref().is_some_and(DeltaLog::has_no_base) {
        let saved = state.save(LATEST, 0, SaveMode::Full);
        log.report(background::saved(LATEST, saved.clone()));
        saved.map_err(ServerError::Start)?;
    }
    Ok(())
}

/// Gets the tables of an earlier server; returns what they are.
fn restore_tables(state: &State, config: &Config, log: &Log) -> Result<Origin, ServerError> {
    if attach(state, config, log)? {
        return Ok(Origin::Attached);
    }
    let has_latest = || state.checkpoints.as_ref().is_some_and(|all| all.has(LATEST));
    match &config.restore {
        None if !has_latest() => {
            check_no_log(config)?;
            begin(state, config, log)?;
        }
        None => {
            let log_folder = config.log_folder();
            let restored = state.restore_latest(log_folder.as_deref(), config.cut_log);
            let (restored, end) = restored.map_err(ServerError::Restore)?;
            tell_restored(state, log, LATEST, restored);
            if let (Some(end), Some(folder)) = (end, log_folder) {
                log.report(Event::LogReplayed { folder: folder.display().to_string(), groups: end.groups });
                if let Some((file, offset, bytes)) = end.cut {
                    log.report(Event::LogCut { file: file.display().to_string(), offset, bytes });
                }
            }
            let saved_unix_ms = state.checkpoints.as_ref().map_or(0, Checkpoints::latest_unix_ms);
            // A start that cuts the log may lose groups. Kept tables were newer than any checkpoint.
            if saved_unix_ms > 0 && !config.cut_log && config.kept.is_none() {
                return Ok(Origin::Latest { saved_unix_ms });
            }
        }
        Some(name) => {
            let restored = state.restore(name).map_err(ServerError::Restore)?;
            tell_restored(state, log, name, restored);
        }
    }
    Ok(Origin::Other)
}

/// Refuses to start a log anew where one is whose checkpoint is gone.
fn check_no_log(config: &Config) -> Result<(), ServerError> {
    let Some(folder) = config.log_folder() else { return Ok(()) };
    let logs = LogReader::logs(&folder).map_err(|error| ServerError::Data(error.to_string()))?;
    if logs.is_empty() {
        return Ok(());
    }
    Err(ServerError::Data(format!(
        "{}: it has a log, but there is no checkpoint {LATEST} that it follows: put that back, or move the log away",
        folder.display()
    )))
}

fn tell_restored(state: &State, log: &Log, name: &str, restored: Restored) {
    log.report(Event::Restored { name: name.to_owned(), rows: restored.rows });
    let (bytes, unbounded) = state.budgets();
    if restored.tables > 0 {
        log.report(Event::Budgets { tables: restored.tables, bytes, unbounded });
    }
}

/// Attaches the tables that an earlier server kept; returns whether there were any.
fn attach(state: &State, config: &Config, log: &Log) -> Result<bool, ServerError> {
    let Some(folder) = config.kept_folder() else { return Ok(false) };
    let failed = |refusal: Refusal| ServerError::Data(refusal.reason);
    sanderling_store::create_kept_folder(&folder).map_err(|error| failed(error.into()))?;
    if config.forget {
        state
            .tables
            .forget()
            .map_err(failed)?
            .into_iter()
            .for_each(|table| log.report(Event::Forgotten { table }));
    }
    let survives_power = sanderling_store::can_survive_power(&folder);
    if config.durability == Durability::Power && !survives_power {
        return Err(ServerError::Data(format!(
            "{}: cannot survive the loss of power; name a folder on persistent memory that is mounted with dax=always, or a /dev/dax device",
            folder.display()
        )));
    }
    state.tables.history.keep(&folder.join("history"), config.durability).map_err(failed)?;
    let found = state.tables.attach().map_err(failed)?;
    let pushes = folder.join("pushes");
    state.push_dedup.keep(&pushes, config.durability).map_err(|error| failed(error.into()))?;
    log.report(Event::KeptIn { folder: folder.display().to_string(), survives_power });
    let pages = found.iter().find_map(|(_, attached)| attached.pages);
    if let Some(cost) = pages.or_else(|| sanderling_store::pages_cost(&folder).filter(|_| !survives_power)) {
        log.report(Event::SmallPages { folder: folder.display().to_string(), cost });
    }
    if let (Some(name), false) = (&config.restore, found.is_empty()) {
        return Err(ServerError::Data(format!(
            "{} has {} tables of an earlier server: --forget drops them for {name}, and without --restore they are used",
            folder.display(),
            found.len()
        )));
    }
    for (table, attached) in &found {
        log.report(Event::Attached { table: table.clone(), found: attached.summary() });
    }
    Ok(!found.is_empty())
}

/// Saves an empty checkpoint for a shard without rows, before any shard has rows: all shards are needed for training.
///
/// From then on a missing part of a checkpoint is a lost one.
fn begin(state: &State, config: &Config, log: &Log) -> Result<(), ServerError> {
    let others = state.checkpoints.as_ref().map(Checkpoints::list).unwrap_or_default();
    if let (Some(root), Some(first)) = (&config.data, others.first()) {
        let others = match others.len() {
            1 => first.name.clone(),
            count => format!("{} and {} more", first.name, count - 1),
        };
        log.report(Event::StartsEmpty { folder: root.display().to_string(), others });
    }
    if config.data.is_none() || config.shards == 1 {
        return Ok(());
    }
    let saved = state.save(LATEST, 0, SaveMode::Full);
    log.report(background::saved(LATEST, saved.clone()));
    saved.map(|_| ()).map_err(ServerError::Start)
}
