//! What compressed bytes may cost: how many they may unpack to, and how many they do, found without keeping them. Knows
//! algorithms, no file format.

use std::io::{self, Read};

/// Whatever is read together, a batch of rows of a Parquet file or a message of an Arrow file, may unpack to this many bytes,
pub const UNPACKED_FREE_BYTES: u64 = 256 << 20;

/// and to this many more for each byte that it has in the file.
pub const UNPACKED_RATIO_MAX: u64 = 256;

/// What so many bytes of a file may unpack to.
pub(super) fn bytes_max(stored_bytes: u64) -> u64 {
    UNPACKED_FREE_BYTES.saturating_add(stored_bytes.saturating_mul(UNPACKED_RATIO_MAX))
}

/// Bytes unpacked at a time while they are counted.
const COUNTED_BYTES: usize = 64 << 10;

/// Whether a stream ends within so many bytes; nothing is kept. One that is damaged does: its reader says so.
pub(super) fn ends_within(mut stream: impl Read, bytes_max: u64) -> bool {
    let mut buffer = vec![0; COUNTED_BYTES];
    let mut left = bytes_max;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => match left.checked_sub(count as u64) {
                Some(rest) => left = rest,
                None => return false,
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}
