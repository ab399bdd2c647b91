//! The head of a kept table: layout, configuration and the present index, in two copies of which the newest valid one
//! counts.
//!
//! A copy is 64 KiB: the magic bytes, version (u32), length of the text (u32), generation (u64), CRC-32C (u32) of all
//! of these but itself and of the text, then the text (JSON). Numbers are little-endian.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::memory::Region;
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, Step};

const MAGIC: &[u8; 8] = b"SNDRKEPT";
const VERSION: u32 = 1;
pub(crate) const COPY_BYTES: usize = 64 << 10;
pub(crate) const HEAD_BYTES: usize = 2 * COPY_BYTES;
/// Positions in a copy.
const AT_VERSION: usize = 8;
const AT_LEN: usize = 12;
const AT_GENERATION: usize = 16;
const AT_CRC: usize = 24;
const AT_TEXT: usize = 28;

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
pub(crate) struct HeadFile {
    bytes: Region<AtomicU8>,
    generation: u64,
    persist: Option<Persist>,
}

impl HeadFile {
    /// Opens a file that must be [`HEAD_BYTES`] long.
    pub(crate) fn new(file: PageFile, persist: Option<Persist>) -> std::io::Result<HeadFile> {
        let bytes = Region::of_file(file, HEAD_BYTES)?;
        bytes.reserve(0..HEAD_BYTES)?;
        Ok(HeadFile { bytes, generation: 0, persist })
    }

    /// Writes the head as the newest, over the older copy.
    ///
    /// # Panics
    ///
    /// If the head does not fit. Its size is bounded by that of a valid configuration.
    pub(crate) fn write(&mut self, head: &Head) {
        let text = serde_json::to_vec(head).expect("plain values become JSON");
        assert!(text.len() <= COPY_BYTES - AT_TEXT, "a head of {} bytes", text.len());
        self.generation += 1;
        let mut copy = Vec::with_capacity(AT_TEXT + text.len());
        copy.extend_from_slice(MAGIC);
        copy.extend_from_slice(&VERSION.to_le_bytes());
        copy.extend_from_slice(&(text.len() as u32).to_le_bytes());
        copy.extend_from_slice(&self.generation.to_le_bytes());
        copy.extend_from_slice(&checksum(&copy, &text).to_le_bytes());
        copy.extend_from_slice(&text);
        let (first, len) = ((self.generation % 2) as usize * COPY_BYTES, copy.len());
        self.bytes[first..].iter().zip(copy).for_each(|(to, byte)| to.store(byte, Relaxed));
        crate::kept::in_order();
        if let Some(persist) = self.persist {
            persist.write_back(Step::Head, &self.bytes[first..][..len]);
        }
    }

    /// The bytes of a copy up to the end of its text.
    fn copy(&self, first: usize) -> Vec<u8> {
        let bytes = |len: usize| self.bytes[first..][..len].iter().map(|byte| byte.load(Relaxed));
        let start: Vec<u8> = bytes(AT_TEXT).collect();
        bytes(COPY_BYTES.min(AT_TEXT + text_len(&start))).collect()
    }

    /// The newest valid copy. `path` is the file's, for errors.
    pub(crate) fn read(&mut self, path: &Path) -> Result<Head, StoreError> {
        let copies = [0, 1].map(|copy| self.copy(copy * COPY_BYTES));
        let valid = copies.iter().filter_map(|copy| decode(copy));
        let Some((generation, version, text)) = valid.max_by_key(|(generation, ..)| *generation) else {
            let reason =
                "no copy of the head is valid; remove the table's folder (--forget), or restore a checkpoint";
            return Err(StoreError::Damaged { path: path.to_path_buf(), reason: reason.to_owned() });
        };
        if version != VERSION {
            return Err(StoreError::Version { path: path.to_path_buf(), found: version, supported: VERSION });
        }
        self.generation = generation;
        serde_json::from_slice(text)
            .map_err(|error| StoreError::Damaged { path: path.to_path_buf(), reason: error.to_string() })
    }
}

/// The length of the text that a copy claims to have.
fn text_len(start: &[u8]) -> usize {
    u32::from_le_bytes(start[AT_LEN..AT_GENERATION].try_into().expect("four bytes")) as usize
}

fn checksum(start: &[u8], text: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&[&start[..AT_CRC], text].concat())
}

/// Generation, version and text of a valid copy.
fn decode(copy: &[u8]) -> Option<(u64, u32, &[u8])> {
    let short = |at: usize| u32::from_le_bytes(copy[at..at + 4].try_into().expect("four bytes"));
    let text = copy[AT_TEXT..].get(..text_len(copy))?;
    if !copy.starts_with(MAGIC) || short(AT_CRC) != checksum(copy, text) {
        return None;
    }
    let generation = u64::from_le_bytes(copy[AT_GENERATION..AT_CRC].try_into().expect("eight bytes"));
    Some((generation, short(AT_VERSION), text))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn head(number: u64) -> Head {
        let index = IndexName { number, buckets: 4 };
        let (layout, config, note) = (BTreeMap::new(), serde_json::Value::Null, String::new());
        Head {
            layout,
            config,
            note,
            hash_key: [1, 2],
            index,
            next_index: None,
            last_index: number,
            boot: None,
        }
    }

    /// The newest copy whose checksum fits counts, whichever byte of the other one is wrong.
    #[test]
    fn the_newest_valid_copy_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let file = PageFile::create(&path).unwrap();
        file.extend(HEAD_BYTES as u64).unwrap();
        let mut written = HeadFile::new(file, None).unwrap();
        assert!(written.read(&path).unwrap_err().to_string().contains("no copy"));
        let open = || HeadFile::new(PageFile::open(&path).unwrap(), None).unwrap();
        for index in 1..5 {
            written.write(&head(index));
            assert_eq!(open().read(&path).unwrap(), head(index));
            let newest = (index % 2) as usize * COPY_BYTES;
            for at in [0, AT_VERSION, AT_LEN, AT_GENERATION, AT_CRC, AT_TEXT + 3] {
                let byte = &written.bytes[newest + at];
                let right = byte.fetch_xor(1, Relaxed);
                let found = open().read(&path);
                assert_eq!(found.ok(), (index > 1).then(|| head(index - 1)), "{at}");
                byte.store(right, Relaxed);
            }
        }
    }
}
