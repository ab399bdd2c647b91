//! The head of a kept table: layout, configuration and the present index, as JSON in two copies of 64 KiB.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::memory::Region;
use crate::memory::copies::{Copies, Kind};
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, Step};

const KIND: Kind = Kind { magic: b"SNDRKEPT", version: 1, step: Step::Head };
pub(crate) const COPY_BYTES: usize = 64 << 10;
pub(crate) const HEAD_BYTES: usize = 2 * COPY_BYTES;

/// Everything that a later process must know to open the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    /// Properties of the memory, which must be the same in a program that opens it.
    pub(crate) layout: BTreeMap<String, String>,
    /// The table's configuration, like a checkpoint's.
    pub(crate) config: serde_json::Value,
    /// A text of the owner.
    pub(crate) note: String,
    /// The secret of the index's hashes.
    pub(crate) hash_key: [u64; 2],
    pub(crate) index: IndexName,
    /// The index that it grows to.
    pub(crate) next_index: Option<IndexName>,
    /// The highest number so far.
    pub(crate) last_index: u64,
    /// The boot of the system that used the table last, if the table survives the loss of power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<String>,
}

/// The file of an index, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IndexName {
    pub(crate) number: u64,
    pub(crate) buckets: usize,
}

/// The file with both copies.
#[derive(Debug)]
pub(crate) struct HeadFile(Copies);

impl HeadFile {
    /// Opens a file that must be [`HEAD_BYTES`] long.
    pub(crate) fn new(file: PageFile, persist: Option<Persist>) -> std::io::Result<HeadFile> {
        let bytes = Region::of_file(file, HEAD_BYTES)?;
        bytes.reserve(0..HEAD_BYTES)?;
        Ok(HeadFile(Copies::new(bytes, KIND, persist)))
    }

    /// Writes the head as the newest, over the older copy.
    ///
    /// # Panics
    ///
    /// If the head does not fit. Its size is bounded by that of a valid configuration.
    pub(crate) fn write(&mut self, head: &Head) {
        self.0.write(&serde_json::to_vec(head).expect("plain values become JSON"));
    }

    /// The newest valid copy. `path` is the file's, for errors.
    pub(crate) fn read(&mut self, path: &Path) -> Result<Head, StoreError> {
        let Some((version, text)) = self.0.read() else {
            let reason =
                "no copy of the head is valid; remove the table's folder (--forget), or restore a checkpoint";
            return Err(StoreError::Damaged { path: path.to_path_buf(), reason: reason.to_owned() });
        };
        if version != KIND.version {
            return Err(StoreError::Version {
                path: path.to_path_buf(),
                found: version,
                supported: KIND.version,
            });
        }
        serde_json::from_slice(&text)
            .map_err(|error| StoreError::Damaged { path: path.to_path_buf(), reason: error.to_string() })
    }
}
