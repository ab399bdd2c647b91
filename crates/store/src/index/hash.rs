//! Key hashes: bijections of 64 bits with full avalanche.
//!
//! A bijective hash stands for its key, so the index stores hashes and never compares keys. Index hashes depend on
//! a random secret of the process. Hashes that decide results (initial weights, admission, rounding) do not.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Odd constant, from the golden ratio, that separates streams of hashes.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes all 64 bits: `SplitMix64`'s step (Steele et al. 2014, constants of Stafford's variant 13).
#[inline(always)]
pub(crate) const fn mix(key: u64) -> u64 {
    let mut hash = key.wrapping_add(GOLDEN);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

/// The secret of index hashes. An attacker who chooses keys cannot choose their positions in an index. A process draws
/// it once for all tables and never saves it, except with a table that outlives the process; no result depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashKey {
    first: u64,
    second: u64,
}

impl HashKey {
    /// The secret of this process.
    #[inline]
    pub(crate) fn get() -> HashKey {
        static KEY: OnceLock<HashKey> = OnceLock::new();
        *KEY.get_or_init(|| {
            // Two hashes under a random key of the operating system.
            let random = RandomState::new();
            HashKey { first: random.hash_one(0), second: random.hash_one(1) }
        })
    }

    /// The secret as numbers, for the head of a kept table.
    pub(crate) fn numbers(self) -> [u64; 2] {
        [self.first, self.second]
    }

    pub(crate) fn of_numbers([first, second]: [u64; 2]) -> HashKey {
        HashKey { first, second }
    }

    /// Hashes a key; like [`mix`], a bijection.
    #[inline(always)]
    pub(crate) const fn hash(self, key: u64) -> u64 {
        let mut hash = key.wrapping_add(self.first);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ self.second;
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^ (hash >> 31)
    }

    /// Recovers the key from its hash.
    pub(crate) const fn key(self, hash: u64) -> u64 {
        // The inverses of the multipliers modulo 2^64. A shift by more than a third of the bits needs two steps to
        // invert.
        let mut key = hash ^ (hash >> 31) ^ (hash >> 62);
        key = key.wrapping_mul(0x3196_42B2_D24D_8EC3);
        key = (key ^ (key >> 27) ^ (key >> 54) ^ self.second).wrapping_mul(0x96DE_1B17_3F11_9089);
        (key ^ (key >> 30) ^ (key >> 60)).wrapping_sub(self.first)
    }
}

/// The part of the index, of `parts` equal ones, that holds the key.
///
/// Threads that change keys of different parts share neither cache lines nor locks, except in a table that an earlier
/// process has made.
#[inline]
#[must_use]
pub fn index_part(key: u64, parts: u32) -> u32 {
    part(HashKey::get().hash(key), parts)
}

/// The part of a hash, by its upper bits. With one part per bucket this is the home bucket.
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
        let hash = HashKey::get();
        let keys = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, !(1 << bit), GOLDEN << bit]);
        keys.for_each(|key: u64| assert_eq!(hash.key(hash.hash(key)), key, "{key:#x}"));
        // With these constants it equals the public hash.
        let public = HashKey { first: GOLDEN, second: 0 };
        assert_eq!((public.hash(77), public.key(mix(77))), (mix(77), 77));
    }

    /// Keys that collide under the public hash spread like any others.
    #[test]
    fn keys_that_flood_the_public_hash_are_spread() {
        let public = HashKey { first: GOLDEN, second: 0 };
        let n: u64 = if cfg!(miri) { 200 } else { 20_000 };
        for shift in [0, 4, 20] {
            let keys: Vec<u64> = (0..n).map(|low| public.key(low << shift)).collect();
            assert!(keys.iter().all(|&key| part(mix(key), 1 << 10) <= (n << shift >> 54) as u32));
            let parts: std::collections::HashSet<u32> =
                keys.iter().map(|&key| index_part(key, 1 << 10)).collect();
            // Random placement hits about as many of 1024.
            assert!(parts.len() > if cfg!(miri) { 150 } else { 1000 }, "{} parts", parts.len());
        }
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
