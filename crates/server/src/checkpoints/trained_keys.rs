//! How the keys of each table were distributed up to a checkpoint, which the checkpoint keeps. Knows no request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use sanderling_observe::Parts;
use sanderling_observe::distribution::PARTS;
use sanderling_store::Checkpoint;
use serde::{Deserialize, Serialize};

use super::Checkpoints;
use super::record::damaged;
use super::state_name::open;
use crate::refusal::Refusal;

/// The blob of a checkpoint.
pub(super) const KEYS_BLOB: &str = "keys.json";

/// Sampled keys by the name of the table: counts by part of the space of hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrainedKeys {
    tables: BTreeMap<String, Vec<u64>>,
}

impl TrainedKeys {
    /// Adds keys of a table.
    pub(crate) fn add(&mut self, table: &str, keys: &Parts) {
        let known = self.of(table).unwrap_or_default();
        let sum = known.0.iter().zip(keys.0).map(|(known, keys)| known.saturating_add(keys));
        self.tables.insert(table.to_owned(), sum.collect());
    }

    /// Forgets tables that are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.tables.retain(|table, _| is_wanted(table));
    }

    /// The keys of a table. `None`: there are none, or a version with other parts has counted them.
    pub(crate) fn of(&self, table: &str) -> Option<Parts> {
        let parts: [u64; PARTS] = self.tables.get(table)?.as_slice().try_into().ok()?;
        Some(Parts(parts))
    }

    /// The sum of the keys that these checkpoints keep; those of older versions keep none.
    fn read<'a>(parts: impl Iterator<Item = (&'a Path, Checkpoint)>) -> Result<TrainedKeys, Refusal> {
        let mut sum = TrainedKeys::default();
        for (folder, checkpoint) in parts {
            if !checkpoint.blobs().iter().any(|blob| blob.name == KEYS_BLOB) {
                continue;
            }
            let keys = serde_json::from_slice(&checkpoint.blob(KEYS_BLOB)?);
            let keys: TrainedKeys =
                keys.map_err(|error| damaged(folder, &format!("{KEYS_BLOB}: {error}")))?;
            for table in keys.tables.keys() {
                keys.of(table).into_iter().for_each(|parts| sum.add(table, &parts));
            }
        }
        Ok(sum)
    }

    /// The content of the blob.
    pub(super) fn to_blob(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and numbers become JSON")
    }
}

impl Checkpoints {
    /// The keys of the training that the restored checkpoint is of.
    pub(crate) fn trained(&self) -> TrainedKeys {
        self.trained.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the keys that the parts of a checkpoint keep, which is restored.
    pub(super) fn note_trained(&self, folders: &[PathBuf], deltas: Option<usize>) -> Result<(), Refusal> {
        let parts = folders.iter().filter_map(|folder| Some((&**folder, open(folder, deltas).ok()?)));
        *self.trained.lock().unwrap_or_else(PoisonError::into_inner) = TrainedKeys::read(parts)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_several_parts_are_summed() {
        let (root, mut parts) = (tempfile::tempdir().unwrap(), Parts::default());
        (0..100).for_each(|key| parts.add(key));
        let mut keys = TrainedKeys::default();
        keys.add("a", &parts);
        keys.add("b", &parts);
        keys.add("b", &parts);
        let other = r#"{"tables":{"a":[1,2]}}"#.as_bytes().to_vec();
        let of = |at: usize, blob: Option<&[u8]>| {
            let folder = root.path().join(at.to_string());
            let mut writer = sanderling_store::CheckpointWriter::create(&folder).unwrap();
            blob.into_iter().for_each(|blob| writer.blob(KEYS_BLOB, blob).unwrap());
            writer.commit().unwrap();
            Checkpoint::open(&folder).unwrap()
        };
        let read = |blobs: &[Option<&[u8]>]| {
            let parts = blobs.iter().enumerate().map(|(at, blob)| (root.path(), of(at, *blob)));
            TrainedKeys::read(parts)
        };
        let blob = keys.to_blob();
        let sum = read(&[Some(&blob), None, Some(&other), Some(&blob)]).unwrap();
        let total = |table| sum.of(table).map(|parts: Parts| parts.total());
        assert_eq!((total("a"), total("b"), total("c")), (Some(200), Some(400), None));
        assert!(read(&[Some(b"{")]).unwrap_err().reason.contains("keys.json: "));
        let mut kept = sum;
        kept.retain(|table| table == "b");
        assert_eq!(kept.of("a"), None);
    }
}
