//! The requests of one thread: drawn fresh for every pass, outside what is measured, from a generator and into buffers
//! of its own. A second look at the same keys would find them in the cache. Knows nothing of rounds and rates.
#![allow(unsafe_code)] // rewrites rows of the measured table without their locks

use sanderling_random::{Rng, below, mix};
use sanderling_store::roofline::Roofline;
use sanderling_store::{Absent, Dedup, Pooling, PushScale, StoreError, Table};

use crate::keys::Keys;
use crate::rounds::Passes;

/// Of so many batches of the mix one is a push.
const MIX_BATCHES: u64 = 50;
/// Gradient of every weight.
const GRADIENT: f32 = 0.01;

/// The operation of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pull,
    Gather { ahead: usize },
    PullPooled,
    Pool { ahead: usize },
    Push,
    Rewrite { ahead: usize },
    Mix,
}

/// State shared by all threads; only the table changes.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) table: &'a Table,
    pub(crate) keys: &'a Keys,
    /// Cache lines of the table's index.
    pub(crate) lines: u32,
    /// 32-bit words of a row.
    pub(crate) row_words: usize,
    /// Keys per request.
    pub(crate) batch: usize,
    /// Requests per pass.
    pub(crate) batches: usize,
    /// Bags of ids per pooled request.
    pub(crate) bags: usize,
    pub(crate) passes: &'a [Kind],
}

pub(crate) struct Worker<'a> {
    scene: &'a Scene<'a>,
    rng: Rng,
    dedup: Dedup,
    /// The numbers of all requests' keys one after the other, where each request ends, and whether it is a push.
    numbers: Vec<u32>,
    ends: Vec<(usize, bool)>,
    /// Table keys, or index lines, of the numbers.
    ids: Vec<u64>,
    lines: Vec<u32>,
    /// Of pooled requests: offsets of the bags, request after request.
    offsets: Vec<u32>,
    drawn: Vec<u64>,
    mix_batches: u64,
    ones: Vec<u32>,
    gradients: Vec<f32>,
    row: Vec<f32>,
    out: Vec<f32>,
    /// Keys that were not found.
    pub(crate) absent_keys: u64,
    /// The first failure ends the work.
    pub(crate) error: Option<StoreError>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(scene: &'a Scene<'a>, seed: u64, thread: usize) -> Worker<'a> {
        let dim = scene.table.dim();
        Worker {
            scene,
            rng: Rng::new(seed, thread as u64, 0),
            dedup: Dedup::new(),
            numbers: Vec::new(),
            ends: Vec::new(),
            ids: Vec::new(),
            lines: Vec::new(),
            offsets: Vec::new(),
            drawn: Vec::new(),
            // Threads do not push at the same moments.
            mix_batches: thread as u64 * (MIX_BATCHES / 2 - 1),
            ones: vec![1; scene.batch],
            gradients: vec![GRADIENT; scene.batch * dim],
            row: vec![0.0; scene.row_words],
            out: vec![0.0; scene.batch.max(scene.bags) * dim],
            absent_keys: 0,
            error: None,
        }
    }

    /// Requests of single keys.
    fn draw_plain(&mut self, kind: Kind) {
        let Scene { keys, batch, batches, .. } = *self.scene;
        for _ in 0..batches {
            self.mix_batches += u64::from(kind == Kind::Mix);
            let pushes = match kind {
                Kind::Push | Kind::Rewrite { .. } => true,
                Kind::Mix => self.mix_batches.is_multiple_of(MIX_BATCHES),
                _ => false,
            };
            if pushes {
                self.drawn.clear();
                self.drawn.extend((0..batch).map(|_| u64::from(keys.draw(&mut self.rng))));
                self.dedup.assign(&self.drawn);
                self.numbers.extend(self.dedup.unique.iter().map(|&number| number as u32));
            } else {
                self.numbers.extend((0..batch).map(|_| keys.draw(&mut self.rng)));
            }
            self.ends.push((self.numbers.len(), pushes));
        }
    }

    /// Ragged requests, about as many keys as the plain ones have.
    fn draw_pooled(&mut self) {
        let Scene { keys, batch, batches, bags, .. } = *self.scene;
        self.offsets.clear();
        while self.ends.is_empty() || self.numbers.len() < batch * batches {
            keys.draw_bags(bags, &mut self.rng, &mut self.numbers, &mut self.offsets);
            self.ends.push((self.numbers.len(), false));
        }
    }

    fn request(&mut self, kind: Kind, at: usize, first: usize) -> Result<usize, StoreError> {
        let Scene { table, bags, .. } = *self.scene;
        let dim = table.dim();
        let (end, pushes) = self.ends[at];
        let (numbers, keys) = (&self.numbers[first..end], end - first);
        let offsets = || &self.offsets[at * (bags + 1)..][..=bags];
        match kind {
            Kind::Gather { ahead } => {
                let (lines, out) = (&self.lines[first..end], &mut self.out[..keys * dim]);
                Roofline::of(table).gather(lines, numbers, ahead, out);
            }
            Kind::Pool { ahead } => {
                Roofline::of(table).pool(numbers, offsets(), ahead, &mut self.out[..bags * dim]);
            }
            Kind::Rewrite { ahead } => {
                // SAFETY: all threads of this pass rewrite, and nothing reads the rows afterwards but benchmarks.
                unsafe { Roofline::rewrite(table, numbers, ahead, &mut self.row) };
            }
            Kind::PullPooled => {
                let out = &mut self.out[..bags * dim];
                let ids = &self.ids[first..end];
                return table.pull_pooled(ids, None, offsets(), Pooling::Sum, Absent::Zero, out, None);
            }
            Kind::Pull | Kind::Push | Kind::Mix if pushes => {
                let (ids, gradients) = (&self.ids[first..end], &self.gradients[..keys * dim]);
                table.push_unique(ids, &self.ones[..keys], gradients, PushScale::default())?;
            }
            Kind::Pull | Kind::Push | Kind::Mix => {
                let out = &mut self.out[..keys * dim];
                return table.pull(&self.ids[first..end], Absent::Zero, out, None);
            }
        }
        Ok(0)
    }
}

impl Passes for Worker<'_> {
    fn prepare(&mut self, pass: usize) {
        let Scene { keys, lines, passes, .. } = *self.scene;
        let kind = passes[pass];
        self.numbers.clear();
        self.ends.clear();
        match kind {
            Kind::PullPooled | Kind::Pool { .. } => self.draw_pooled(),
            _ => self.draw_plain(kind),
        }
        match kind {
            Kind::Gather { .. } => {
                self.lines.clear();
                self.lines.extend(self.numbers.iter().map(|&number| line_of(number, lines)));
            }
            Kind::Pool { .. } | Kind::Rewrite { .. } => (),
            _ => {
                self.ids.clear();
                self.ids.extend(self.numbers.iter().map(|&number| keys.id(number)));
            }
        }
    }

    fn run(&mut self, pass: usize, lap: &mut dyn FnMut(u64, bool)) {
        let kind = self.scene.passes[pass];
        let mut first = 0;
        for at in 0..self.ends.len() {
            if self.error.is_some() {
                return;
            }
            match self.request(kind, at, first) {
                Ok(absent) => self.absent_keys += absent as u64,
                Err(error) => self.error = Some(error),
            }
            let (end, pushes) = self.ends[at];
            lap((end - first) as u64, !(pushes && kind == Kind::Mix));
            first = end;
        }
    }
}

/// The index line of a row: any, but always the same one, so that popular rows have popular lines.
#[inline]
fn line_of(number: u32, lines: u32) -> u32 {
    below((mix(u64::from(number)) >> 32) as u32, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_spread_evenly() {
        for (rows, lines) in [(1 << 20, 64), (100_000, 1000), (3_000_000, 7)] {
            let mut seen = vec![0_u32; lines as usize];
            (0..rows).for_each(|number| seen[line_of(number, lines) as usize] += 1);
            let mean = f64::from(rows) / f64::from(lines);
            assert!(seen.iter().all(|&rows| (f64::from(rows) - mean).abs() < 0.5 * mean), "{rows} {lines}");
        }
    }
}
