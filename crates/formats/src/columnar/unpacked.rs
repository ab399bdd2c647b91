//! Limits of decompression: how many bytes compressed data may yield, and a count that keeps none of them. Knows
//! algorithms, no file format.

use std::io::{self, Read};

/// Bytes that data which is read together, a batch of rows of a Parquet file or a message of an Arrow file, may
/// always decompress to.
pub const UNPACKED_FREE_BYTES: u64 = 256 << 20;

/// Further decompressed bytes allowed per stored byte.
pub const UNPACKED_RATIO_MAX: u64 = 256;

/// The limit of the decompressed bytes of `stored_bytes` bytes.
pub(super) fn bytes_max(stored_bytes: u64) -> u64 {
    UNPACKED_FREE_BYTES.saturating_add(stored_bytes.saturating_mul(UNPACKED_RATIO_MAX))
}

/// Bytes decompressed at a time while counting.
const COUNTED_BYTES: usize = 64 << 10;

/// Whether a stream ends within `bytes_max` bytes; nothing is kept. A damaged stream counts as ended: its reader
/// reports it.
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
