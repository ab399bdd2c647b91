//! The keys that the newer files of a chain have, while its files are read from the newest one on.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::chain::RowFile;
use super::rows::u64_at;
use crate::index::hash::HashKey;

/// The bytes of a removed key in a file. A row has more.
const KEY_BYTES: u64 = size_of::<u64>() as u64;

/// The keys of newer files, whose older rows are not read.
#[derive(Debug)]
pub(super) struct NewerKeys(HashSet<u64, BuildHasherDefault<KeyHasher>>);

/// Hashes keys like the index.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = HashKey::get().hash(key);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl NewerKeys {
    /// No keys yet, with room for those of all deltas among these files.
    pub(super) fn of(files: &[RowFile<'_>]) -> NewerKeys {
        let keys = files.iter().filter_map(|file| {
            let (_, removed) = file.expected.link?;
            // The size of the file bounds the numbers of the manifest.
            Some(file.expected.rows.saturating_add(removed).min(file.file.bytes / KEY_BYTES))
        });
        // Beyond that, the set grows as keys are added.
        let room = keys.sum::<u64>().min(1 << 24) as usize;
        NewerKeys(HashSet::with_capacity_and_hasher(room, BuildHasherDefault::default()))
    }

    /// Whether a row of this file is the newest of its key; notes it for older files.
    pub(super) fn take(&mut self, file: &RowFile<'_>, key: u64) -> bool {
        match file.expected.link {
            // The oldest file of all.
            None => self.0.is_empty() || !self.0.contains(&key),
            Some(_) => self.0.insert(key),
        }
    }

    /// Notes removed keys, which older files may have.
    pub(super) fn remove(&mut self, keys: &[u8]) {
        self.0.extend(keys.chunks_exact(size_of::<u64>()).map(|key| u64_at(key, 0)));
    }
}
