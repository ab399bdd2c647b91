//! A text in two copies, of which the newest valid one counts: after the death of a process or the loss of power it is
//! the one before or the one after a change.
//!
//! A copy: the magic bytes (8), version (u32), length of the text (u32), generation (u64), CRC-32C (u32) of all of these
//! but itself and of the text, then the text. Numbers are little-endian.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crate::memory::Region;
use crate::memory::persist::{Persist, Step, ordered};

/// Positions in a copy.
const AT_VERSION: usize = 8;
const AT_LEN: usize = 12;
const AT_GENERATION: usize = 16;
const AT_CRC: usize = 24;
pub(crate) const AT_TEXT: usize = 28;

/// The kind of text: magic bytes, version, and the step of the protocol that makes it durable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) magic: &'static [u8; 8],
    pub(crate) version: u32,
    pub(crate) step: Step,
}

/// Both copies.
#[derive(Debug)]
pub(crate) struct Copies {
    bytes: Region<AtomicU8>,
    kind: Kind,
    generation: u64,
    persist: Option<Persist>,
}

impl Copies {
    /// Copies in memory whose halves they are.
    pub(crate) fn new(bytes: Region<AtomicU8>, kind: Kind, persist: Option<Persist>) -> Copies {
        Copies { bytes, kind, generation: 0, persist }
    }

    fn copy_bytes(&self) -> usize {
        self.bytes.len() / 2
    }

    /// The longest text that fits.
    pub(crate) fn text_bytes_max(&self) -> usize {
        self.copy_bytes() - AT_TEXT
    }

    /// Reserves space for a text of this length, which a file without space needs before it is read or written.
    pub(crate) fn reserve(&self, text_bytes: usize) -> std::io::Result<()> {
        let copies = [0, self.copy_bytes()].into_iter();
        copies
            .map(|first| first..first + AT_TEXT + text_bytes)
            .try_for_each(|bytes| self.bytes.reserve(bytes))
    }

    /// Writes a text as the newest, over the older copy.
    ///
    /// # Panics
    ///
    /// If it is longer than [`Copies::text_bytes_max`].
    pub(crate) fn write(&mut self, text: &[u8]) {
        assert!(text.len() <= self.text_bytes_max(), "a text of {} bytes", text.len());
        self.generation += 1;
        let mut copy = Vec::with_capacity(AT_TEXT + text.len());
        copy.extend_from_slice(self.kind.magic);
        copy.extend_from_slice(&self.kind.version.to_le_bytes());
        copy.extend_from_slice(&(text.len() as u32).to_le_bytes());
        copy.extend_from_slice(&self.generation.to_le_bytes());
        copy.extend_from_slice(&checksum(&copy, text).to_le_bytes());
        copy.extend_from_slice(text);
        let (first, len) = ((self.generation % 2) as usize * self.copy_bytes(), copy.len());
        self.bytes[first..].iter().zip(copy).for_each(|(to, byte)| to.store(byte, Relaxed));
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        ordered();
        if let Some(persist) = self.persist {
            persist.write_back(self.kind.step, &self.bytes[first..][..len]);
        }
    }

    /// The bytes of a copy up to the end of its text.
    fn copy(&self, first: usize) -> Vec<u8> {
        let bytes = |len: usize| self.bytes[first..][..len].iter().map(|byte| byte.load(Relaxed));
        let start: Vec<u8> = bytes(AT_TEXT).collect();
        bytes(self.copy_bytes().min(AT_TEXT + text_len(&start))).collect()
    }

    /// Version and text of the newest valid copy, which the next write leaves; `None` if there is none.
    pub(crate) fn read(&mut self) -> Option<(u32, Vec<u8>)> {
        let copies = [0, 1].map(|copy| self.copy(copy * self.copy_bytes()));
        let valid = copies.iter().filter_map(|copy| decode(self.kind.magic, copy));
        let (generation, version, text) = valid.max_by_key(|(generation, ..)| *generation)?;
        self.generation = generation;
        if let Some(persist) = self.persist {
            // A killed process may not have written it back, and the next write is over the other one.
            let first = (generation % 2) as usize * self.copy_bytes();
            persist.write_back(Step::Found, &self.bytes[first..][..AT_TEXT + text.len()]);
        }
        Some((version, text.to_vec()))
    }

    /// Whether nothing was ever written here: all bytes are zero.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.iter().all(|byte| byte.load(Relaxed) == 0)
    }

    /// Whether a text of this kind was begun here, even if no copy of it is valid.
    pub(crate) fn is_begun(&self) -> bool {
        [0, self.copy_bytes()].into_iter().any(|first| self.copy(first).starts_with(self.kind.magic))
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
fn decode<'a>(magic: &[u8; 8], copy: &'a [u8]) -> Option<(u64, u32, &'a [u8])> {
    let short = |at: usize| u32::from_le_bytes(copy[at..at + 4].try_into().expect("four bytes"));
    let text = copy[AT_TEXT..].get(..text_len(copy))?;
    if !copy.starts_with(magic) || short(AT_CRC) != checksum(copy, text) {
        return None;
    }
    let generation = u64::from_le_bytes(copy[AT_GENERATION..AT_CRC].try_into().expect("eight bytes"));
    Some((generation, short(AT_VERSION), text))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::memory::file::PageFile;

    const BYTES: usize = 8192;

    /// The newest copy whose checksum fits counts, whichever byte of the other one is wrong.
    #[test]
    fn the_newest_valid_copy_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copies");
        let kind = Kind { magic: b"SNDRTEST", version: 3, step: Step::Head };
        PageFile::create(&path).unwrap().extend(BYTES as u64).unwrap();
        let open = || {
            let file = PageFile::open(&path).unwrap();
            Copies::new(Region::of_file(file, BYTES).unwrap(), kind, None)
        };
        let mut written = open();
        assert!(written.read().is_none() && written.is_empty() && !written.is_begun());
        let text = |number: usize| format!("text {number}").into_bytes();
        for number in 1..5 {
            written.write(&text(number));
            assert_eq!(open().read(), Some((3, text(number))));
            assert!(!written.is_empty() && written.is_begun());
            let newest = number % 2 * BYTES / 2;
            for at in [0, AT_VERSION, AT_LEN, AT_GENERATION, AT_CRC, AT_TEXT + 3] {
                let byte = &written.bytes[newest + at];
                let right = byte.fetch_xor(1, Relaxed);
                assert_eq!(open().read(), (number > 1).then(|| (3, text(number - 1))), "{at}");
                byte.store(right, Relaxed);
            }
        }
        let longest = vec![7; written.text_bytes_max()];
        written.write(&longest);
        assert_eq!(open().read(), Some((3, longest)));
    }
}
