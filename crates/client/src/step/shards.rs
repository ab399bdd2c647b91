//! The messages of a step of one process, each cut into shards by key, so that as many workers can add them up and apply
//! them at the same time. Knows no group.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sanderling_store::{PushScale, index_part};
use sanderling_sync::{Gradients, Part};
use sanderling_wire::StepGradients;

use crate::dealt::{Dealt, gather};

/// There are as many shards as workers, and at most so many.
const SHARDS_MAX: u32 = 32;
/// Bytes of lists that are kept for their memory, of each kind of gradients.
const SPARE_BYTES_MAX: usize = 64 << 20;
/// How messages are cut, and memory for those to come. To a group a shard of a table is a table.
#[derive(Debug)]
pub(super) struct Shards {
    count: u32,
    spare: Mutex<Spare>,
}

/// Lists of steps that are applied. What one thread allocates and another frees, step by step, the allocator gives back to
/// the system and takes again.
#[derive(Debug, Default)]
struct Spare {
    single: Lists<f32>,
    fixed: Lists<i64>,
    /// One per worker that cuts at the same time.
    dealt: Vec<Dealt>,
}

#[derive(Debug)]
struct Lists<T> {
    lists: Vec<List<T>>,
    bytes: usize,
}

/// A shard of a message.
#[derive(Debug)]
struct List<T> {
    keys: Vec<u64>,
    counts: Vec<u32>,
    gradients: Vec<T>,
}

impl Shards {
    /// For so many workers.
    pub(super) fn new(workers: u32) -> Shards {
        Shards { count: workers.clamp(1, SHARDS_MAX), spare: Mutex::default() }
    }

    /// How many parts there are of so many messages.
    pub(super) fn parts_of(&self, messages: u32) -> u32 {
        messages.saturating_mul(self.count)
    }

    /// The table that a number is a shard of.
    pub(super) fn table_of(&self, number: u32) -> u32 {
        number / self.count
    }

    /// Cuts a message for a table: a part per shard, in their order, be it empty.
    pub(super) fn cut(
        &self,
        table: u32,
        dim: usize,
        (keys, counts): (&[u64], &[u32]),
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Vec<Part> {
        let (first, lr_scale) = (table * self.count, scale.lr_scale);
        let part =
            |(table, (keys, counts, gradients))| Part { table, lr_scale, dim, keys, counts, gradients };
        match gradients {
            StepGradients::Single(values) => {
                let lists = self.spare().single.take(self.count);
                let lists = self.deal(dim, keys, counts, values, lists).into_iter();
                let whole = |list: List<_>| (list.keys, list.counts, Gradients::Single(list.gradients));
                (first..).zip(lists.map(whole)).map(part).collect()
            }
            StepGradients::Fixed { unit_log2, sums } => {
                let lists = self.spare().fixed.take(self.count);
                let lists = self.deal(dim, keys, counts, sums, lists).into_iter();
                let fixed = |sums| Gradients::Fixed { unit_log2, sums };
                let whole = |list: List<_>| (list.keys, list.counts, fixed(list.gradients));
                (first..).zip(lists.map(whole)).map(part).collect()
            }
        }
    }

    /// Gives each key, its count and its gradients to the list of its shard.
    fn deal<T: Copy>(
        &self,
        dim: usize,
        keys: &[u64],
        counts: &[u32],
        gradients: &[T],
        mut lists: Vec<List<T>>,
    ) -> Vec<List<T>> {
        let mut dealt = self.spare().dealt.pop().unwrap_or_default();
        // Whoever applies a shard has a part of the tables' indexes for itself.
        dealt.deal(self.count as usize, keys, |key| index_part(key, self.count) as usize);
        for (shard, list) in lists.iter_mut().enumerate() {
            let positions = dealt.part(shard);
            gather(positions, 1, keys, &mut list.keys);
            gather(positions, 1, counts, &mut list.counts);
            gather(positions, dim, gradients, &mut list.gradients);
        }
        self.spare().keep(dealt);
        lists
    }

    /// Takes back what is applied, for its memory.
    pub(super) fn keep(&self, parts: impl Iterator<Item = Part>) {
        let mut spare = self.spare();
        for Part { keys, counts, gradients, .. } in parts {
            match gradients {
                Gradients::Single(gradients) => spare.single.keep(List { keys, counts, gradients }),
                Gradients::Fixed { sums, .. } => spare.fixed.keep(List { keys, counts, gradients: sums }),
            }
        }
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare {
    /// For who deals next; unless it has become very large.
    fn keep(&mut self, dealt: Dealt) {
        if dealt.bytes() <= SPARE_BYTES_MAX {
            self.dealt.push(dealt);
        }
    }
}

impl<T> Default for Lists<T> {
    fn default() -> Lists<T> {
        Lists { lists: Vec::new(), bytes: 0 }
    }
}

impl<T> Lists<T> {
    /// So many empty lists.
    fn take(&mut self, count: u32) -> Vec<List<T>> {
        let one = |_| match self.lists.pop() {
            Some(list) => {
                self.bytes -= list.bytes();
                list
            }
            None => List { keys: Vec::new(), counts: Vec::new(), gradients: Vec::new() },
        };
        (0..count).map(one).collect()
    }

    fn keep(&mut self, mut list: List<T>) {
        if self.bytes + list.bytes() <= SPARE_BYTES_MAX {
            list.keys.clear();
            list.counts.clear();
            list.gradients.clear();
            self.bytes += list.bytes();
            self.lists.push(list);
        }
    }
}

impl<T> List<T> {
    /// That it takes, be they used or not.
    fn bytes(&self) -> usize {
        size_of::<List<T>>()
            + self.keys.capacity() * size_of::<u64>()
            + self.counts.capacity() * size_of::<u32>()
            + self.gradients.capacity() * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: PushScale = PushScale { lr_scale: 0.5 };

    #[test]
    fn every_key_goes_to_one_shard_with_its_count_and_gradients() {
        let shards = Shards::new(3);
        let keys: Vec<u64> = (0..3000).map(|at| at << 20).chain([u64::MAX]).collect();
        let counts: Vec<u32> = (0..3001).collect();
        let values: Vec<f32> = (0..6002).map(|at| at as f32).collect();
        let sums: Vec<i64> = (0..6002).collect();
        // Again and again, with the memory of before.
        for table in [0, 7, 1] {
            let single = shards.cut(table, 2, (&keys, &counts), StepGradients::Single(&values), SCALE);
            let fixed = StepGradients::Fixed { unit_log2: -20, sums: &sums };
            let fixed = shards.cut(table, 2, (&keys, &counts), fixed, SCALE);
            assert!(single.len() == 3 && fixed.len() == 3);
            let mut seen = vec![0; 3001];
            for (shard, (single, fixed)) in (0..).zip(single.iter().zip(&fixed)) {
                assert_eq!((single.table, single.lr_scale, single.dim), (3 * table + shard, 0.5, 2));
                assert_eq!(shards.table_of(single.table), table);
                assert!((700..1300).contains(&single.keys.len()), "shard {shard}: {}", single.keys.len());
                assert!(single.keys == fixed.keys && single.counts == fixed.counts);
                let Gradients::Single(values) = &single.gradients else { panic!("{single:?}") };
                let Gradients::Fixed { unit_log2: -20, sums } = &fixed.gradients else { panic!("{fixed:?}") };
                for (at, &count) in single.counts.iter().enumerate() {
                    let number = count as usize;
                    seen[number] += 1;
                    assert_eq!(single.keys[at], keys[number]);
                    assert_eq!(values[2 * at..][..2], [2.0 * number as f32, 2.0 * number as f32 + 1.0]);
                    assert_eq!(sums[2 * at..][..2], [2 * number as i64, 2 * number as i64 + 1]);
                }
            }
            assert!(seen.iter().all(|&times| times == 1));
            shards.keep(single.into_iter().chain(fixed));
        }
    }

    #[test]
    fn what_is_kept_for_its_memory_is_bounded() {
        let shards = Shards::new(1);
        let values = vec![0.0; 1 << 20];
        let (keys, counts) = (vec![1; 1 << 20], vec![1; 1 << 20]);
        let cut = || shards.cut(0, 1, (&keys, &counts), StepGradients::Single(&values), SCALE);
        let parts: Vec<Part> = (0..8).flat_map(|_| cut()).collect();
        shards.keep(parts.into_iter());
        let bytes = |shards: &Shards| shards.spare().single.bytes;
        assert!(bytes(&shards) > 0 && bytes(&shards) <= SPARE_BYTES_MAX);
        shards.spare().single.take(8);
        assert_eq!(bytes(&shards), 0);
    }
}
