//! Rows that were read, in bounded memory, for a bounded time. Knows no clock and no network.

use std::time::Duration;

use sanderling_random::mix;

/// Slots of a set: a key has one of them.
const WAYS: usize = 2;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Row,
    /// The key has no row.
    Absence,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: u64,
    content: Content,
    /// When it was read from a server.
    read: Duration,
    /// Number of the last use.
    used: u64,
}

const EMPTY: Slot = Slot { key: 0, content: Content::Nothing, read: Duration::ZERO, used: 0 };

/// The rows of one table in one version. Times are those since any fixed moment.
#[derive(Debug)]
pub(crate) struct RowCache {
    dim: usize,
    age_max: Duration,
    slots: Vec<Slot>,
    weights: Vec<f32>,
    uses: u64,
}

impl RowCache {
    /// Room for as many rows as fit in so many bytes.
    pub(crate) fn new(dim: usize, bytes_max: usize, age_max: Duration) -> RowCache {
        let sets = bytes_max / (WAYS * (size_of::<Slot>() + dim * size_of::<f32>()));
        let slots = vec![EMPTY; sets * WAYS];
        RowCache { dim, age_max, weights: vec![0.0; slots.len() * dim], slots, uses: 0 }
    }

    /// The row of a key, `Some(None)` if it is known to have none; `None` if a server must be asked.
    pub(crate) fn get(&mut self, now: Duration, key: u64) -> Option<Option<&[f32]>> {
        let (age_max, uses) = (self.age_max, self.uses);
        let first = self.set(key)?;
        let is_it = |slot: &Slot| slot.key == key && slot.content != Content::Nothing;
        let at = (first..first + WAYS).find(|at| is_it(&self.slots[*at]))?;
        let slot = &mut self.slots[at];
        if now.saturating_sub(slot.read) > age_max {
            return None;
        }
        slot.used = uses + 1;
        self.uses += 1;
        let is_row = slot.content == Content::Row;
        Some(is_row.then(|| &self.weights[at * self.dim..(at + 1) * self.dim]))
    }

    /// Keeps the row of a key, or that it has none.
    pub(crate) fn put(&mut self, now: Duration, key: u64, row: Option<&[f32]>) {
        let Some(first) = self.set(key) else { return };
        let set = &self.slots[first..first + WAYS];
        let own = set.iter().position(|slot| slot.key == key && slot.content != Content::Nothing);
        let oldest = || (0..WAYS).min_by_key(|way| set[*way].used).unwrap_or(0);
        let at = first + own.unwrap_or_else(oldest);
        self.uses += 1;
        let content = if row.is_some() { Content::Row } else { Content::Absence };
        self.slots[at] = Slot { key, content, read: now, used: self.uses };
        if let Some(row) = row {
            self.weights[at * self.dim..(at + 1) * self.dim].copy_from_slice(row);
        }
    }

    /// The first slot of a key's set; none if there is no room at all.
    fn set(&self, key: u64) -> Option<usize> {
        let sets = self.slots.len() / WAYS;
        let place = (u128::from(mix(key)) * sets as u128) >> 64;
        (sets > 0).then_some(place as usize * WAYS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sanderling_random::SplitMix64;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DIM: usize = 3;

    #[test]
    fn it_has_the_last_row_of_a_key_or_none_and_nothing_old() {
        let bytes_max = 10_000;
        let mut cache = RowCache::new(DIM, bytes_max, SECOND);
        let used = cache.slots.len() * size_of::<Slot>() + cache.weights.len() * size_of::<f32>();
        assert!((bytes_max / 2..=bytes_max).contains(&used), "{used}");
        // The last row of each key, and its time.
        let mut model: HashMap<u64, (Duration, Option<[f32; DIM]>)> = HashMap::new();
        let (mut numbers, mut now, mut hits) = (SplitMix64::new(1), Duration::ZERO, 0);
        for _ in 0..20_000 {
            now += Duration::from_millis(numbers.below(4));
            let key = numbers.below(150);
            if numbers.below(2) == 0 {
                let row = (numbers.below(3) > 0).then(|| [0; DIM].map(|_: u8| numbers.below(100) as f32));
                cache.put(now, key, row.as_ref().map(|row| &row[..]));
                model.insert(key, (now, row));
            } else if let Some(found) = cache.get(now, key) {
                let (read, row) = model[&key];
                assert!(now - read <= SECOND, "{key} is {:?} old", now - read);
                assert_eq!(found, row.as_ref().map(|row| &row[..]));
                hits += 1;
            }
        }
        assert!(hits > 5000, "{hits}");
    }

    #[test]
    fn a_key_that_is_used_stays() {
        // One set.
        let row_bytes = size_of::<Slot>() + DIM * size_of::<f32>();
        let mut cache = RowCache::new(DIM, 2 * row_bytes, SECOND);
        for other in 1..100 {
            cache.put(SECOND, 0, Some(&[1.0; DIM]));
            cache.put(SECOND, other, None);
            assert!(cache.get(SECOND, 0).is_some(), "{other}");
            assert_eq!(cache.get(SECOND, other), Some(None));
        }
        let mut none = RowCache::new(DIM, row_bytes, SECOND);
        none.put(SECOND, 0, None);
        assert_eq!(none.get(SECOND, 0), None);
    }
}
