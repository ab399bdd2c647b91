//! The directory of a device: its files and their pieces, as its text has them. Knows no memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A piece of a device: offset and bytes.
pub(super) type Extent = (u64, u64);

/// The files of a device by name. A name is a path with `/`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Directory {
    pub(super) last_number: u64,
    pub(super) files: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) extents: Vec<Extent>,
}

pub(super) fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|(_, bytes)| bytes).sum()
}

impl Directory {
    pub(super) fn used(&self) -> impl Iterator<Item = Extent> {
        self.files.values().flat_map(|entry| entry.extents.iter().copied())
    }

    /// Describes the first defect: pieces beyond the device or of two files.
    pub(super) fn check(&self, device: std::ops::Range<u64>, align: u64) -> Result<(), String> {
        let mut extents: Vec<Extent> = self.used().collect();
        extents.sort_unstable();
        let mut end = device.start;
        for (at, bytes) in extents {
            let next = at.saturating_add(bytes);
            if at < end || next > device.end || !at.is_multiple_of(align) || !bytes.is_multiple_of(align) {
                return Err(format!("its directory has a wrong piece, {bytes} bytes at {at}"));
            }
            end = next;
        }
        Ok(())
    }
}
