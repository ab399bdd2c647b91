//! Files beside kept tables, for their server: bytes that change in place, and a text that is replaced whole. Knows no
//! table.

use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;

use crate::StoreError;
use crate::memory::Region;
use crate::memory::copies::{AT_TEXT, Copies, Kind};
use crate::memory::persist::{Persist, Step};
use crate::memory::place::Place;
use crate::table::durability::{Durability, can_survive_power};

const TEXT_KIND: Kind = Kind { magic: b"SNDRTEXT", version: 1, step: Step::Bytes };

/// Opens or creates a file of this length beside kept tables. Its bytes have no space yet.
fn open(
    path: &Path,
    len: usize,
    durability: Durability,
) -> Result<(Region<AtomicU8>, Option<Persist>), StoreError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let can_sync = can_survive_power(folder);
    let writes_back = match durability {
        Durability::Process => false,
        Durability::Detect | Durability::Power => can_sync,
        Durability::Emulate => true,
    };
    let persist = Persist::detect().filter(|_| writes_back);
    let open = || {
        let is_synced = can_sync && persist.is_some();
        let (place, name) = (Place::of(folder)?, path.file_name().unwrap_or_default().to_string_lossy());
        let file = if place.has(&name) { place.open(&name)? } else { place.create(&name)? };
        let file = file.synced(is_synced);
        file.extend(len as u64)?;
        if is_synced {
            file.sync()?;
            place.sync()?;
        }
        Region::of_file(file, len)
    };
    let bytes = open().map_err(|error| failed(path, "open", error))?;
    Ok((bytes, persist))
}

fn failed(path: &Path, action: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}

/// Bytes of a file that outlive the process, beside kept tables.
#[derive(Debug)]
pub struct KeptBytes {
    bytes: Region<AtomicU8>,
    persist: Option<Persist>,
}

impl KeptBytes {
    /// Opens a file of this length, and creates it with zeros if there is none. It survives what `durability` says.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, has another length, or its file system has no space.
    pub fn open(path: &Path, len: usize, durability: Durability) -> Result<KeptBytes, StoreError> {
        let (bytes, persist) = open(path, len, durability)?;
        bytes.reserve(0..len).map_err(|error| failed(path, "reserve the space of", error))?;
        let opened = KeptBytes { bytes, persist };
        // Bytes that a killed process has not written back.
        opened.write_back(0..len);
        Ok(opened)
    }

    /// Makes these bytes durable before later stores, if the file survives the loss of power.
    pub fn write_back(&self, bytes: Range<usize>) {
        if let Some(persist) = self.persist {
            persist.write_back(Step::Bytes, &self.bytes[bytes]);
        }
    }
}

impl Deref for KeptBytes {
    type Target = [AtomicU8];

    fn deref(&self) -> &[AtomicU8] {
        &self.bytes
    }
}

/// A text of a file that outlives the process, beside kept tables. A later process finds the text before or after a
/// change, never a mixture.
#[derive(Debug)]
pub struct KeptText {
    path: PathBuf,
    copies: Copies,
}

impl KeptText {
    /// Opens a file for a text of at most so many bytes, and creates it if there is none. It survives what `durability`
    /// says.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or its file system has no space.
    pub fn open(path: &Path, bytes_max: usize, durability: Durability) -> Result<KeptText, StoreError> {
        let (bytes, persist) = open(path, 2 * (AT_TEXT + bytes_max), durability)?;
        let text = KeptText { path: path.to_path_buf(), copies: Copies::new(bytes, TEXT_KIND, persist) };
        // Of a file without a text, the rest has no space.
        text.reserve(0)?;
        Ok(text)
    }

    fn reserve(&self, text_bytes: usize) -> Result<(), StoreError> {
        let reserved = self.copies.reserve(text_bytes);
        reserved.map_err(|error| failed(&self.path, "reserve the space of", error))
    }

    /// The text; `None` if there is none that this version understands.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let (version, text) = self.copies.read()?;
        (version == TEXT_KIND.version).then_some(text)
    }

    /// Replaces the text.
    ///
    /// # Errors
    ///
    /// It is too long, or the file system has no space.
    pub fn write(&mut self, text: &[u8]) -> Result<(), StoreError> {
        let max = self.copies.text_bytes_max();
        if text.len() > max {
            let reason = format!("its {} bytes are more than {max}", text.len());
            return Err(failed(&self.path, "write", std::io::Error::other(reason)));
        }
        self.reserve(text.len())?;
        self.copies.write(text);
        Ok(())
    }
}

#[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_whole_and_its_length_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let open = || KeptText::open(&path, 10_000, Durability::Process).unwrap();
        assert_eq!(open().read(), None);
        for text in [&b"one"[..], &[b'x'; 10_000], b"", b"four"] {
            let mut before = open();
            let _ = before.read();
            before.write(text).unwrap();
            assert_eq!(open().read().as_deref(), Some(text));
        }
        let refused = open().write(&[0; 10_001]).unwrap_err().to_string();
        assert!(refused.contains("text") && refused.contains("10001 bytes are more than 10000"), "{refused}");
        // Another program's file.
        std::fs::write(&path, "{}").unwrap();
        let mut other = open();
        assert_eq!(other.read(), None);
        other.write(b"five").unwrap();
        assert_eq!(open().read().as_deref(), Some(&b"five"[..]));
    }
}
