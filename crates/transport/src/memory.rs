//! Fallible growth of a connection's buffers. Clients decide their size, so a lack of memory must fail the connection,
//! not the process.

use crate::error::Error;

/// Growth of at least so many bytes must leave [`HEADROOM_BYTES`].
const LARGE_BYTES: usize = 64 << 10;
/// Bytes that a large buffer leaves to small allocations: the process ends if one of these fails.
const HEADROOM_BYTES: usize = 4 << 20;

/// Resizes a buffer to `len` elements. New elements are zero.
pub(crate) fn grow<T: Copy + Default>(buffer: &mut Vec<T>, len: usize, peer: &str) -> Result<(), Error> {
    let more = len.saturating_sub(buffer.len());
    reserve(buffer, more, peer)?;
    buffer.resize(len.max(buffer.len()), T::default());
    Ok(())
}

/// Reserves room for `more` elements.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, more: usize, peer: &str) -> Result<(), Error> {
    if reserve_with_headroom(buffer, more) {
        return Ok(());
    }
    let bytes = buffer.len().saturating_add(more).saturating_mul(size_of::<T>());
    Err(Error::NoMemory { peer: peer.to_owned(), bytes })
}

/// Whether a vector now has room for `more` elements, and the process room for its small allocations. A vector whose
/// growth would leave too little has its capacity back.
pub fn reserve_with_headroom<T>(buffer: &mut Vec<T>, more: usize) -> bool {
    let capacity = buffer.capacity();
    if buffer.try_reserve_exact(more).is_err() {
        return false;
    }
    let grown_bytes = (buffer.capacity() - capacity).saturating_mul(size_of::<T>());
    let mut headroom = Vec::<u8>::new();
    if grown_bytes < LARGE_BYTES || headroom.try_reserve_exact(std::hint::black_box(HEADROOM_BYTES)).is_ok() {
        return true;
    }
    buffer.shrink_to(capacity);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_cannot_grow_is_an_error_and_stays_as_it_is() {
        let mut buffer = vec![7u64];
        grow(&mut buffer, 4, "peer").unwrap();
        grow(&mut buffer, 2, "peer").unwrap();
        assert_eq!(buffer, [7, 0, 0, 0]);
        for words in [usize::MAX, usize::MAX / 8, 1 << 58] {
            let error = grow(&mut buffer, words, "a peer").unwrap_err();
            assert!(
                matches!(error, Error::NoMemory { .. }) && error.to_string().starts_with("a peer: no memory")
            );
            assert_eq!(buffer, [7, 0, 0, 0]);
        }
    }
}
