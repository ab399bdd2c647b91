//! Memory of a connection's buffers. What a client sends decides how large they are, so having none is an error of that connection
//! alone: the standard library would end the process. Knows no frame.

use crate::error::Error;

/// Makes a buffer so many elements long, the new ones zero.
pub(crate) fn grow<T: Copy + Default>(buffer: &mut Vec<T>, len: usize, peer: &str) -> Result<(), Error> {
    let more = len.saturating_sub(buffer.len());
    reserve(buffer, more, peer)?;
    buffer.resize(len.max(buffer.len()), T::default());
    Ok(())
}

/// Makes room for so many elements more.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, more: usize, peer: &str) -> Result<(), Error> {
    buffer.try_reserve_exact(more).map_err(|_| Error::NoMemory {
        peer: peer.to_owned(),
        bytes: buffer.len().saturating_add(more).saturating_mul(size_of::<T>()),
    })
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
