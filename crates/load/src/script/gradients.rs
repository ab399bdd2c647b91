//! Gradients that a push sends: made natively, once, and sent again and again. Knows no table: how many values are needed is
//! told to it.

use sanderling_random::splitmix;

use crate::generate::{At, Seeds};

/// Kinds of gradients that a thread keeps ready.
const KINDS_MAX: usize = 16;
/// Places of the table of random values at which a push may start to read it.
const STARTS: usize = 4096;

/// Gradients of a push.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// All the same.
    Constant(f32),
    /// Uniform between minus and plus this. A push reads a stretch of one table of random values, from a place that
    /// follows from seed and cycle.
    Random(f32),
}

/// The values of each kind that was asked for.
pub(super) struct Gradients {
    seed: u64,
    kinds: Vec<(Kind, Vec<f32>)>,
}

impl Gradients {
    pub(super) fn new(seeds: &Seeds) -> Gradients {
        Gradients { seed: splitmix(seeds.keys ^ 0x6772_6164), kinds: Vec::new() }
    }

    /// So many values.
    pub(super) fn of(&mut self, kind: Kind, at: &At, count: usize) -> &[f32] {
        let found = match self.kinds.iter().position(|(other, _)| *other == kind) {
            Some(found) => found,
            None => {
                self.kinds.truncate(KINDS_MAX - 1);
                self.kinds.push((kind, Vec::new()));
                self.kinds.len() - 1
            }
        };
        let values = &mut self.kinds[found].1;
        match kind {
            Kind::Constant(value) => {
                if values.len() < count {
                    values.resize(count, value);
                }
                &values[..count]
            }
            Kind::Random(scale) => {
                let seed = self.seed;
                let first = values.len();
                if first < count + STARTS {
                    values
                        .extend((first..count + STARTS).map(|at| between(scale, splitmix(seed ^ at as u64))));
                }
                let drawn = splitmix(seed ^ splitmix(at.cycle) ^ (u64::from(at.draw) << 48));
                let start = (drawn % STARTS as u64) as usize;
                &values[start..start + count]
            }
        }
    }
}

/// A value in `[-scale, scale)` from random bits.
fn between(scale: f32, bits: u64) -> f32 {
    ((bits >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * scale
}
