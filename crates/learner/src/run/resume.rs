//! Going on with a run: its latest checkpoint, and whether the configuration still fits it. Knows nothing of how runs go on.

use std::path::Path;

use sanderling_sample::Holdout;
use sanderling_store::Checkpoint;

use super::RunOptions;
use crate::config::{Config, EVERY_TABLE, TableOptions};
use crate::error::LearnError;
use crate::kept::KeptTables;
use crate::metrics::Scores;
use crate::model::{Model, config_of};
use crate::model_diagnostics::is_saved;
use crate::run_marker;
use crate::state::{RunState, data_bytes};

/// Loads the latest checkpoint of the run that was begun last in a folder, from where it saves, and checks that the
/// configuration still fits it. How long, with how many threads and on which servers, if any, to train may change; what the
/// tables and the data mean may not.
pub(super) fn resume(
    config: &Config,
    options: &RunOptions,
    run_dir: &Path,
    saved_dirs: [&Path; 2],
    kept: &mut KeptTables,
) -> Result<(Model, RunState, Scores), LearnError> {
    let open = |path| -> Result<_, LearnError> {
        let checkpoint = Checkpoint::open(path)?;
        let (state, scores) = RunState::from_checkpoint(&checkpoint, path)?;
        Ok((path, checkpoint, state, scores))
    };
    let nothing = |what: &str| {
        let reason = format!("{what}; start the run without --resume");
        LearnError::Model { path: run_dir.into(), reason }
    };
    let mut saves = Vec::new();
    for path in saved_dirs {
        if is_saved(path) {
            saves.push(open(path)?);
        }
    }
    if saves.is_empty() {
        return Err(nothing("nothing was saved here to resume"));
    }
    if let run_id @ Some(_) = run_marker::last(run_dir)? {
        saves.retain(|(_, _, state, _)| state.run_id == run_id);
    }
    // Killed between its two saves after a pass, a run is further in its model.
    let furthest = saves.into_iter().rev().max_by_key(|(_, _, state, _)| (state.step, !state.pass_to_judge));
    let Some((path, checkpoint, state, scores)) = furthest else {
        return Err(nothing(
            "the run that was begun here last has saved nothing, and what is here is an earlier one's",
        ));
    };
    let saved = &config_of(&checkpoint, path)?;
    let fitted = fitted_like(config, saved);
    let algorithm = options.job.as_ref().map(|job| job.algorithm);
    let differing = [
        ("the algorithm", state.algorithm != algorithm),
        ("seed", fitted.seed != saved.seed),
        ("model", fitted.model != saved.model),
        (
            "optimizer",
            fitted.optimizer != saved.optimizer || fitted.factor_optimizer != saved.factor_optimizer,
        ),
        ("the features, the label, weights or negatives", fitted.spec() != saved.spec()),
        ("[table]", table_options(&fitted) != table_options(saved)),
        ("data.train", !fitted.data.train.is_like(&saved.data.train)),
        (
            "the size of the files of data.train",
            state.data_bytes.is_some() && state.data_bytes != data_bytes(config)?,
        ),
        (
            "data.valid",
            fitted.data.holdout != saved.data.holdout
                || (state.best.is_some() && !fitted.data.valid.is_like(&saved.data.valid)),
        ),
        ("train.monitor", state.best.is_some() && fitted.train.monitor() != saved.train.monitor()),
        ("train.loss", fitted.train.loss != saved.train.loss),
        (
            "train.reduction or train.class_weight",
            (fitted.train.reduction, fitted.train.class_weight)
                != (saved.train.reduction, saved.train.class_weight),
        ),
        ("how data is read", fitted.data.reading != saved.data.reading),
        ("train.batch_size", fitted.train.batch_size != saved.train.batch_size),
        ("train.shuffle_rows", fitted.train.shuffle_rows != saved.train.shuffle_rows),
        // One worker counts used rows in the order of its shuffle, several in the order of the input.
        (
            "train.threads, one or several, in the middle of a shuffled pass",
            state.used_rows > 0
                && saved.train.shuffle_rows > 0
                && (fitted.train.threads == 1) != (saved.train.threads == 1),
        ),
    ];
    if let Some((what, _)) = differing.iter().find(|(_, differs)| *differs) {
        return Err(LearnError::Model {
            path: path.into(),
            reason: format!(
                "cannot resume: {what} changed since this run was saved; put it back, or start anew without --resume"
            ),
        });
    }
    // The rows are those of the checkpoint, on servers too: what these may still have is from after it.
    let model = match &options.servers {
        Some(cluster) => {
            Model::onto_servers(fitted, cluster, &checkpoint, path)?.going_on_from(&checkpoint, path)?
        }
        None => {
            let save = (path, state.save);
            Model::resumed(fitted, &checkpoint, path, |config, table| {
                kept.resume(config, &checkpoint, save, table)
            })?
        }
    };
    Ok((model, state, scores))
}

/// The options of each table without the place of its memory, which may change.
fn table_options(config: &Config) -> Vec<TableOptions> {
    let of = |name: &str| config.table.get(name).or_else(|| config.table.get(EVERY_TABLE));
    let names = config.feature.iter().map(sanderling_sample::spec::Feature::table);
    names.map(|name| TableOptions { memory: None, ..of(name).cloned().unwrap_or_default() }).collect()
}

/// The configuration with the quantile boundaries that the saved one was fitted with, where it leaves them open.
pub(super) fn fitted_like(config: &Config, saved: &Config) -> Config {
    let mut fitted = config.clone();
    if let (Some(now), Some(before)) = (&mut fitted.data.holdout, &saved.data.holdout)
        && now.is_unfitted()
        && (Holdout { after: None, ..before.clone() }) == *now
    {
        now.after = before.after;
    }
    for feature in &mut fitted.feature {
        if feature.boundaries.is_none()
            && let Some(twin) = saved.feature.iter().find(|other| other.name == feature.name)
        {
            feature.boundaries.clone_from(&twin.boundaries);
        }
    }
    fitted
}
