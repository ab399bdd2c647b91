//! Follows the dense part of a deep model, whose rows follow servers or checkpoints: loads it again when it was exported
//! again. The tables stay.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_learner::LearnError;

use super::Shared;
use crate::dense::DESCRIPTION_FILE;
use crate::models::ServedModel;
use crate::scores;

/// Interval of looks for another dense part.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Follows the directory of the model until the replica is stopped.
pub(super) fn follow(shared: &Shared) {
    let Some(directory) = &shared.model.directory else { return };
    let (mut served, mut failed) = (state_of(directory), None);
    while !shared.stops() {
        let begun = Instant::now();
        let found = state_of(directory);
        if found.is_some() && found != served {
            let line = match load(shared, directory) {
                Ok(model) => {
                    shared.replace(Arc::new(model));
                    (served, failed) = (found, None);
                    Some(format!("{}: the dense part was exported again and is served", directory.display()))
                }
                // Named once, and tried again.
                Err(_) if failed == found => None,
                Err(error) => {
                    failed = found;
                    Some(format!("the dense part before is served: {error}"))
                }
            };
            line.iter().for_each(|line| (shared.note)(line));
        }
        shared.pause(begun, LOOK_EVERY.min(shared.config.fresh.max(super::RETRY_AFTER)));
    }
}

fn load(shared: &Shared, directory: &Path) -> Result<ServedModel, LearnError> {
    let model = shared.model.with_new_dense_part(&shared.publisher.engines)?;
    let unfit = |reason| LearnError::Model { path: directory.into(), reason };
    scores::warm(&model, shared.publisher.threads).map_err(unfit)?;
    Ok(model)
}

/// Hash of the file that describes the dense part.
fn state_of(directory: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(directory.join(DESCRIPTION_FILE)).ok()?);
    Some(hasher.finish())
}
