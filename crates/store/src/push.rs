//! The inside of a push: every key is looked up, rows are made where there are none, and each is updated. Knows nothing
//! of how keys are found or of the optimizers.

use crate::index::NO_ROW;
use crate::kernel::Step;
use crate::layout::Update;
use crate::lookup::{Lookup, Visit};
use crate::slab::Shared;
use crate::table::Table;
use crate::words::Work;

/// A chunk of a push. Its result is the number of keys that were left out.
pub(crate) struct Scatter<'a> {
    pub(crate) table: &'a Table,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) counts: &'a [u32],
    pub(crate) grads: &'a [f32],
    pub(crate) clock: u32,
}

/// Updates the rows of a chunk and notes who has none.
struct Updater<'a> {
    table: &'a Table,
    rows: &'a Shared<'a>,
    steps: &'a [Step],
    counts: &'a [u32],
    grads: &'a [f32],
    clock: u32,
    absent: Vec<u32>,
}

impl Updater<'_> {
    #[inline(always)]
    fn update(&self, at: usize, row: u32) {
        let layout = &self.table.layout;
        let gradient = &self.grads[at * layout.dim..][..layout.dim];
        let update = Update { count: self.counts[at], clock: self.clock, gradient };
        let changing = self.rows.change(row);
        layout.update(self.steps, changing.row, update);
    }
}

impl Visit for Updater<'_> {
    // Not a closure: it must be inlined to be compiled for the machine.
    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        if row == NO_ROW {
            self.absent.push(at as u32);
        } else {
            self.update(at, row);
        }
    }
}

impl Work for Scatter<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Scatter { table, lookup, keys, counts, grads, clock } = self;
        let (steps, mut absent) = (std::mem::take(&mut lookup.steps), std::mem::take(&mut lookup.absent));
        absent.clear();
        // No row is removed while this right is held, so that row numbers stay good.
        let rows = &table.share();
        let mut updater = Updater { table, rows, steps: &steps, counts, grads, clock, absent };
        lookup.assign(keys);
        table.walk(lookup, table.layout.words(), &mut updater);
        let mut rejected = 0;
        if !updater.absent.is_empty() {
            rejected = table.create_absent(lookup, keys, &updater.absent);
            for (&at, &row) in updater.absent.iter().zip(&lookup.rows).filter(|(_, row)| **row != NO_ROW) {
                updater.update(at as usize, row);
            }
        }
        lookup.absent = updater.absent;
        lookup.steps = steps;
        rejected
    }
}
