//! The hash of a key: a bijection of 64 bits with full avalanche. Knows nothing of what it is used for.
//!
//! Because it is a bijection, the index stores the hash in place of the key and never compares keys.

/// Odd constant (the golden ratio) that separates streams of hashes.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes all 64 bits: `SplitMix64`'s step (Steele et al. 2014, constants of Stafford's variant 13).
#[inline(always)]
pub(crate) const fn mix(key: u64) -> u64 {
    let mut hash = key.wrapping_add(GOLDEN);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

/// The key of a hash.
pub(crate) const fn unmix(hash: u64) -> u64 {
    // The inverses of the factors modulo 2^64; a shift by more than a third is undone by two.
    let mut key = hash ^ (hash >> 31) ^ (hash >> 62);
    key = key.wrapping_mul(0x3196_42B2_D24D_8EC3);
    key = (key ^ (key >> 27) ^ (key >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    (key ^ (key >> 30) ^ (key >> 60)).wrapping_sub(GOLDEN)
}

/// In which of so many equal parts of an index the key is: threads that change keys of different parts share neither its
/// cache lines nor its locks.
#[inline]
#[must_use]
pub const fn index_part(key: u64, parts: u32) -> u32 {
    part(mix(key), parts)
}

/// The same for a hash. The upper bits choose the part, and with as many parts as buckets the bucket.
#[inline(always)]
pub(crate) const fn part(hash: u64, parts: u32) -> u32 {
    (((hash >> 32) * parts as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Structured ids must fill 1024 slots (low bits) and 16 shards (high bits) like random ones.
    #[test]
    fn low_and_high_bits_are_even_for_structured_ids() {
        let check = |what: &str, id: &dyn Fn(u64) -> u64| {
            let mut slots = vec![0_u32; 1024];
            let mut shards = vec![0_u32; 16];
            let n = 1 << 18;
            for i in 0..n {
                let hash = mix(id(i));
                slots[(hash & 1023) as usize] += 1;
                shards[(hash >> 60) as usize] += 1;
            }
            for (name, bins) in [("slots", &slots), ("shards", &shards)] {
                let expected = n as f64 / bins.len() as f64;
                let chi2: f64 = bins.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
                let freedom = (bins.len() - 1) as f64;
                assert!(
                    (chi2 - freedom).abs() < 6.0 * (2.0 * freedom).sqrt(),
                    "{what} {name}: chi2 {chi2} of {freedom}"
                );
            }
        };
        check("dense", &|i| i);
        check("shifted by 20", &|i| i << 20);
        check("shifted by 44", &|i| i << 44);
        check("strided", &|i| i * 1000);
        check("high and low", &|i| ((i >> 12) << 52) | (i & 0xFFF));
    }

    #[test]
    fn a_hash_says_its_key() {
        let keys = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, !(1 << bit), GOLDEN << bit]);
        keys.for_each(|key: u64| assert_eq!(unmix(mix(key)), key, "{key:#x}"));
    }

    #[test]
    fn every_bit_flips_half_of_the_bits() {
        for bit in 0..64 {
            let flips: u32 =
                (0..4096_u64).map(|i| (mix(i * 977) ^ mix((i * 977) ^ (1 << bit))).count_ones()).sum();
            let mean = f64::from(flips) / 4096.0;
            assert!((30.0..34.0).contains(&mean), "bit {bit}: {mean} of 64 flip");
        }
    }
}
