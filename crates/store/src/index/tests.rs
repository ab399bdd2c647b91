//! The index agrees with a hash map, spreads structured ids, and keeps its overflow counts under promotion.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::index::hash::mix;

/// Few home buckets and few hashes, 0 among them, so that buckets overflow, wrap around, and lose and move
/// keys.
fn hash_of(high: u64, low: u64) -> u64 {
    if high == 3 { u64::MAX - low } else { high << 62 | low }
}

proptest! {
    // Miri is slow.
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
    #[test]
    fn agrees_with_a_hash_map(operations in prop::collection::vec((0_u8..5, 0_u64..4, 0_u64..12), 1..if cfg!(miri) { 40 } else { 400 })) {
        let mut index = Index::new().unwrap();
        let mut model = HashMap::new();
        for (number, (operation, high, low)) in operations.into_iter().enumerate() {
            let (hash, number) = (hash_of(high, low), number as u32);
            match operation {
                0 | 1 => {
                    model.entry(hash).or_insert_with(|| {
                        if index.keys_max() == index_len(&index) {
                            index = grown(&index, index.grown_bytes(index_len(&index) + 1, number % 2 == 0));
                        }
                        index.insert(hash, number);
                        number
                    });
                }
                2 => prop_assert_eq!(index.remove(hash), model.remove(&hash).unwrap_or(NO_ROW)),
                3 => {
                    let old = model.get_mut(&hash).map_or(NO_ROW, |row| std::mem::replace(row, number));
                    prop_assert_eq!(index.replace(hash, number), old);
                }
                _ => {
                    let (lines, hotness) = (index.lines(hash), |other| u32::from(other == hash));
                    let moved = index.promote(hash, hotness, |_| Some(()), None);
                    prop_assert!(!moved || (lines > 1 && index.lines(hash) == 1));
                }
            }
            prop_assert_eq!(index_len(&index), model.len());
            for high in 0..4_u64 {
                for low in 0..12_u64 {
                    let hash = hash_of(high, low);
                    prop_assert_eq!(index.find(hash), model.get(&hash).copied().unwrap_or(NO_ROW));
                }
            }
        }
        for hash in model.into_keys() {
            index.remove(hash);
        }
        prop_assert!(index.buckets.iter().all(|bucket| bucket.overflow() == 0), "an overflow count was lost");
    }
}

/// A copy of an index with more buckets.
fn grown(index: &Index, bytes: usize) -> Index {
    let grown = Index::with_bytes(bytes).expect("memory");
    index.for_each((0, u64::MAX), |hash, row| grown.insert(hash, row));
    grown
}

impl Index {
    /// Returns whether there are no keys and no overflow counts.
    pub(super) fn is_pristine(&self) -> bool {
        index_len(self) == 0 && self.buckets.iter().all(|bucket| bucket.overflow() == 0)
    }
}

fn index_len(index: &Index) -> usize {
    index.buckets.iter().map(|bucket| (0..SLOTS).filter(|&slot| bucket.row(slot) != 0).count()).sum()
}

/// An index with `n` keys at a fill of `fill_percent`.
fn filled(n: u64, fill_percent: usize, id: &dyn Fn(u64) -> u64) -> Index {
    let index =
        Index::with_bytes(buckets_for(n as usize, fill_percent) * size_of::<Bucket>()).expect("memory");
    (0..n).for_each(|i| index.insert(mix(id(i)), i as u32));
    index
}

/// Dense ids, shifted ids and random ids must all probe alike.
#[test]
fn structured_ids_find_their_home() {
    let n = if cfg!(miri) { 2000 } else { 200_000 };
    let check = |what: &str, id: &dyn Fn(u64) -> u64| {
        let index = filled(n, Fill::FAST.reserved, id);
        assert!(index.bytes() <= 22 * n as usize, "{what}: {} bytes", index.bytes());
        let lines: usize = (0..n).map(|i| index.lines(mix(id(i)))).sum();
        // Random hashes need 1.13 lines.
        let mean = lines as f64 / n as f64;
        assert!((1.05..1.2).contains(&mean), "{what}: {mean} lines per search");
    };
    check("dense", &|i| i);
    check("shifted by 20", &|i| i << 20);
    check("shifted by 44", &|i| i << 44);
    check("random", &|i| mix(i ^ 0x5555));
}

/// Promotion saves lines for hot keys and costs the others a few.
#[test]
fn hot_keys_move_home() {
    let n = if cfg!(miri) { 2000 } else { 100_000_u64 };
    let index = filled(n, 85, &|i| i);
    // Every tenth key is hot.
    let hot: std::collections::HashSet<u64> = (0..n / 10).map(|i| mix(i * 10)).collect();
    let mean = |step: u64| {
        let lines: usize = (0..n / step).map(|i| index.lines(mix(i * step))).sum();
        lines as f64 / (n / step) as f64
    };
    let (before, before_all) = (mean(10), mean(1));
    for &hash in &hot {
        index.promote(hash, |other| u32::from(hot.contains(&other)), |_| Some(()), None);
    }
    let (after, after_all) = (mean(10), mean(1));
    assert!(before > 1.3 && after < 1.0 + (before - 1.0) / 4.0, "hot keys: {before} lines, then {after}");
    assert!(after_all < before_all + 0.05, "all keys: {before_all} lines, then {after_all}");
    (0..n).for_each(|i| assert_eq!(index.find(mix(i)), i as u32));
}

/// In a tiny index, whose probe sequences wrap around, a victim may not move to a bucket that its own search
/// has already passed.
#[test]
fn a_victim_moves_only_forward() {
    for victim_home in 0..3_u64 {
        let (index, mut number) = (Index::new().unwrap(), 0);
        let mut insert = |home: u64| {
            number += 1;
            index.insert(home << 62 | number, number as u32);
            home << 62 | number
        };
        // Fills all buckets: 0, 1, 2 with the victim, and 3. Then a key leaves bucket 1, the only room for the
        // hot key.
        let mut others: Vec<u64> = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1].map(&mut insert).to_vec();
        let victim = insert(victim_home);
        others.extend([2, 2, 2, 2, 3, 3, 3, 3, 3].map(&mut insert));
        index.remove(others.remove(9));
        let hot = insert(2);
        let (before, hotness) =
            (index.lines(victim), |hash| if hash == hot { 2 } else { u32::from(hash != victim) });
        assert_eq!((before, index.lines(hot)), (3 - victim_home as usize, 4));
        let moved = index.promote(hot, hotness, |_| Some(()), None);
        assert!(moved && index.lines(victim) >= before, "home {victim_home}");
        others.extend([victim, hot]);
        assert!(others.iter().all(|&hash| index.remove(hash) != NO_ROW));
        assert!(index.buckets.iter().all(|bucket| bucket.overflow() == 0), "an overflow count was lost");
    }
}

#[test]
fn a_lost_overflow_count_stays() {
    let index = Index::new().unwrap();
    let bucket = &index.buckets[0];
    (0..300).for_each(|_| bucket.hold().inc_overflow());
    (0..300).for_each(|_| bucket.dec_overflow());
    assert_eq!(bucket.overflow(), crate::index::bucket::OVERFLOW_MAX);
}
