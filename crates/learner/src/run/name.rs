//! Default names of runs: an earlier run of another configuration keeps its folder, and the new run gets a number
//! after its name. Knows no training.

use std::path::Path;

use sanderling_store::Checkpoint;

use super::RunOptions;
use super::resume::fitted_like;
use crate::config::Config;
use crate::error::LearnError;
use crate::event::Event;
use crate::model::config_of;
use crate::model_diagnostics::{is_deep, is_saved};

/// Largest number after a name.
const NUMBER_MAX: u32 = 9999;

/// Gives a run its name: the first of `NAME`, `NAME-2`, `NAME-3` and so on whose folder holds no run, or one of this
/// configuration. A run that is resumed has the name of the run that it can go on from. Returns whether the name has a number.
pub(super) fn name_run(
    config: &mut Config,
    options: &RunOptions,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<bool, LearnError> {
    let base = config.name.clone();
    let names = (1..=NUMBER_MAX).map(|number| match number {
        1 => base.clone(),
        number => format!("{base}-{number}"),
    });
    for name in names {
        let run_dir = options.runs_dir.join(&name);
        let found = saved_in(&run_dir);
        let is_fit = match &found {
            Found::Nothing if options.resume => break,
            // The run itself reports unreadable files.
            Found::Nothing | Found::Unreadable => true,
            Found::Deep => false,
            Found::Run(saved) if options.resume => is_resumable(config, saved),
            Found::Run(saved) => is_same(config, saved),
        };
        if is_fit {
            let is_numbered = name != base;
            if is_numbered {
                let replaces = !options.resume && !matches!(found, Found::Nothing);
                observer(&Event::Renamed { from: &base, to: &name, replaces });
                config.name = name;
            }
            return Ok(is_numbered);
        }
    }
    if options.resume {
        // Resuming says what differs.
        return Ok(false);
    }
    let reason =
        format!("{NUMBER_MAX} runs of this name are there; remove some, or give the run another name");
    Err(LearnError::Config { path: options.runs_dir.join(base), reason })
}

/// The contents of a run's folder.
enum Found {
    Nothing,
    Unreadable,
    /// A run of a deep model.
    Deep,
    Run(Box<Config>),
}

fn saved_in(run_dir: &Path) -> Found {
    let saved = ["last", "model"].map(|name| run_dir.join(name)).into_iter().find(|path| is_saved(path));
    let Some(path) = saved else { return Found::Nothing };
    if is_deep(&path) {
        return Found::Deep;
    }
    let config = Checkpoint::open(&path).ok().and_then(|checkpoint| config_of(&checkpoint, &path).ok());
    config.map_or(Found::Unreadable, |config| Found::Run(Box::new(config)))
}

/// Whether a run would be of the same configuration.
fn is_same(config: &Config, saved: &Config) -> bool {
    let mut fitted = Config { name: saved.name.clone(), ..fitted_like(config, saved) };
    let pairs = [(&mut fitted.data.train, &saved.data.train), (&mut fitted.data.valid, &saved.data.valid)];
    for (inputs, saved) in pairs {
        if inputs.is_like(saved) {
            inputs.clone_from(saved);
        }
    }
    fitted == *saved
}

/// Whether a run may go on from what was saved, as far as this decides between runs of one name.
fn is_resumable(config: &Config, saved: &Config) -> bool {
    let fitted = fitted_like(config, saved);
    fitted.seed == saved.seed
        && fitted.model == saved.model
        && fitted.optimizer == saved.optimizer
        && fitted.factor_optimizer == saved.factor_optimizer
        && fitted.spec() == saved.spec()
        && fitted.data.train.is_like(&saved.data.train)
        && (fitted.train.batch_size, fitted.train.shuffle_rows)
            == (saved.train.batch_size, saved.train.shuffle_rows)
}
