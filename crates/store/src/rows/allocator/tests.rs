//! Rows are allocated once, reused, counted, and bounded by budget and address space.

use super::*;
use crate::index::Index;
use crate::rows::placement::Placement;

fn placed(words: usize) -> Placement {
    Placement { weights: 1, rest: words - 1, weights_stride: words, rest_stride: words, is_split: false }
}

#[test]
fn rows_are_handed_out_once_reused_and_counted() {
    for (stride, rows) in [(6, 150_000), (8, 70_000), (37, 3000), (200_000, 70)] {
        if cfg!(miri) && stride > 100 {
            continue;
        }
        let count = if cfg!(miri) { 20 } else { rows };
        let (slab, budget) = (Slab::new(placed(stride), None).unwrap(), Budget::new(None));
        let (rows, directory) = (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
        let take = |lane: usize, count: usize| {
            let mut taken = Vec::new();
            rows.take(lane, count, &slab, &budget, &directory, &mut taken);
            taken
        };
        // In order and contiguous.
        assert_eq!(take(0, count), (0..count as u32).collect::<Vec<_>>());
        for row in 0..count as u32 {
            slab.write_unpublished(row, &vec![row as f32; stride]);
        }
        let mut values = vec![0.0; stride];
        for row in 0..count as u32 {
            slab.read(row, &mut values);
            assert!(values.iter().all(|&word| word == row as f32));
        }
        rows.retire(0, &slab, &directory, &mut vec![0, 1]);
        rows.give_back(1, &slab, &mut vec![2, 3]);
        assert_eq!(rows.free_rows(), 4);
        assert_eq!(take(1, 2), [2, 3]);
        let used = count * stride * 4;
        assert_eq!(rows.bytes() as u64, budget.used_bytes());
        assert!((used..used * 2 + FIRST_PIECE_BYTES + PIECE_BYTES).contains(&rows.bytes()));
        rows.clear(&slab, &budget);
        assert_eq!((budget.used_bytes(), take(0, 1)), (0, vec![0]));
        slab.read(count as u32 - 1, &mut values);
        assert!(values.iter().all(|&word| word == 0.0));
    }
}

/// Rows end where the granted address space does.
#[test]
fn rows_end_where_the_address_space_does() {
    for (row_words, visited_words, expected) in [(10 * 37 + 5, 1, 10), (100 * 37, 1, 64), (37, 1, 1)] {
        let slab = Slab::of(placed(37), Region::zeroed(row_words).unwrap(), None).unwrap();
        let rows = RowAllocator::of(&slab, Region::zeroed(visited_words).unwrap());
        let (budget, directory) = (Budget::new(None), Directory::new(Index::new().unwrap()));
        let mut taken = Vec::new();
        rows.take(0, 200, &slab, &budget, &directory, &mut taken);
        assert_eq!(taken, (0..expected).collect::<Vec<u32>>(), "{row_words} {visited_words}");
        taken.iter().for_each(|&row| slab.write_unpublished(row, &[1.0; 37]));
    }
    assert!(Slab::of(placed(37), Region::zeroed(36).unwrap(), None).is_none());
}

/// Every lane can take the shared rows, and the array of their numbers is bounded.
#[test]
fn the_reserve_keeps_few_numbers_and_loses_no_row() {
    if cfg!(miri) {
        return;
    }
    let (slab, budget) = (Slab::new(placed(8), None).unwrap(), Budget::new(None));
    let (rows, directory) = (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
    let mut taken = Vec::new();
    rows.take(0, 3 * RESERVE_MAX, &slab, &budget, &directory, &mut taken);
    for part in taken.chunks(1000) {
        rows.retire_for_all(&slab, &directory, &mut part.to_vec());
        assert!(lock(&rows.reserve).ready.capacity() <= 2 * RESERVE_MAX);
    }
    let (removed, charged) = (taken.len(), rows.charged());
    assert_eq!((rows.reserved_rows(), rows.free_rows()), (removed, removed));
    let mut again = Vec::new();
    (0..removed / 1024).for_each(|_| rows.take(1, 1024, &slab, &budget, &directory, &mut again));
    again.sort_unstable();
    assert!(again == taken && rows.charged() == charged);
}

/// Every lane can use the whole budget.
#[test]
fn lanes_help_each_other_out() {
    let slab = Slab::new(placed(8), None).unwrap();
    // Including a version per row.
    let budget = Budget::new(Some(36 * 5000));
    let (rows, directory) = (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
    let mut taken = Vec::new();
    for lane in [0, 1, 0, 1] {
        rows.take(lane, 10, &slab, &budget, &directory, &mut taken);
    }
    rows.retire(0, &slab, &directory, &mut taken.split_off(30));
    rows.retire_for_all(&slab, &directory, &mut taken.split_off(10));
    assert_eq!((rows.reserved_rows(), rows.free_rows()), (20, 30));
    rows.take(1, 6000, &slab, &budget, &directory, &mut taken);
    taken.sort_unstable();
    assert_eq!(taken, (0..5000).collect::<Vec<_>>());
    assert_eq!(budget.used_bytes(), 36 * 5000);
    rows.take(0, 1, &slab, &budget, &directory, &mut taken);
    assert_eq!(taken.len(), 5000);
}
