//! The bytes of an answer with rows. Knows no connection.

use crate::client::Rows;

/// First bytes of an answer, and the length of its head (docs/serving.md).
const MAGIC: &[u8; 4] = b"SROW";
const HEAD_BYTES: usize = 28;

/// The rows of an answer, which must have so many.
pub(crate) fn decode(bytes: &[u8], count: usize) -> Result<Rows, &'static str> {
    let u32_at = |at: usize| {
        bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
    };
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or("it is too short")?;
    let version = head[16..24].try_into().map(u64::from_le_bytes).map_err(|_| "it is too short")?;
    let (Some(0), Some(rows), Some(dim), Some(absent)) = (u32_at(4), u32_at(8), u32_at(12), u32_at(24))
    else {
        return Err("its datatype is not f32");
    };
    if &head[..4] != MAGIC || rows != count || absent > rows {
        return Err("its head is wrong");
    }
    let weight_bytes = rows.checked_mul(dim).and_then(|weights| weights.checked_mul(4));
    let (places, weights) = rest.split_at_checked(absent * 4).ok_or("it is too short")?;
    if weight_bytes != Some(weights.len()) {
        return Err("its length is wrong");
    }
    let word = |word: &[u8]| [word[0], word[1], word[2], word[3]];
    let absent: Vec<usize> =
        places.chunks_exact(4).map(|place| u32::from_le_bytes(word(place)) as usize).collect();
    if !absent.iter().all(|at| *at < rows) || !absent.is_sorted_by(|a, b| a < b) {
        return Err("its absent rows are wrong");
    }
    let weights = weights.chunks_exact(4).map(|weight| f32::from_le_bytes(word(weight))).collect();
    Ok(Rows { version, dim, weights, absent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Vec<u8> {
        let head =
            [&b"SROW"[..], &[0; 4], &[3, 0, 0, 0], &[2, 0, 0, 0], &[7, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0]];
        let weights = [1.0_f32, 2.0, 0.0, 0.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
        [&head.concat()[..], &[1, 0, 0, 0], &weights].concat()
    }

    #[test]
    fn answers_are_rows_or_errors() {
        let rows = decode(&answer(), 3).expect("it is right");
        let weights = vec![1.0, 2.0, 0.0, 0.0, 3.0, 4.0];
        assert_eq!(rows, Rows { version: 7, dim: 2, weights, absent: vec![1] });
        for cut in 0..answer().len() {
            assert!(decode(&answer()[..cut], 3).is_err(), "{cut}");
        }
        for at in 0..HEAD_BYTES + 4 {
            let mut bytes = answer();
            bytes[at] ^= 0xff;
            let is_version = (16..24).contains(&at);
            assert_eq!(decode(&bytes, 3).is_ok(), is_version, "{at}");
        }
        assert!(decode(&answer(), 2).is_err());
    }
}
