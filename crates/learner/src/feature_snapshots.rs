//! The keys that a model was trained with, by feature, as a saved model has them. Knows no training.

use std::path::Path;

use sanderling_client::FeatureSnapshots;
use sanderling_store::Checkpoint;

use crate::error::LearnError;

/// The file in a model's directory.
pub const FEATURES_BLOB: &str = "features.json";

/// The keys of a saved model's training; none of one that was saved without them.
///
/// # Errors
/// [`LearnError::Model`] names the file if it is damaged.
pub fn feature_snapshots(checkpoint: &Checkpoint, path: &Path) -> Result<FeatureSnapshots, LearnError> {
    if !checkpoint.blobs().iter().any(|blob| blob.name == FEATURES_BLOB) {
        return Ok(FeatureSnapshots::default());
    }
    serde_json::from_slice(&checkpoint.blob(FEATURES_BLOB)?)
        .map_err(|error| LearnError::Model { path: path.join(FEATURES_BLOB), reason: error.to_string() })
}

/// The file's content.
pub(crate) fn to_blob(snapshots: &FeatureSnapshots) -> Vec<u8> {
    // A struct of numbers and text has a JSON form.
    serde_json::to_vec(snapshots).unwrap_or_default()
}
