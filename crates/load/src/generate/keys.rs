//! Which keys are asked for: how popular they are, how popularity moves, and what their 64 bits look like.
//! Knows nothing of how many are asked for at once, nor of who asks.
//!
//! A key is the *n*-th of a table, and [`Spread`] says what its 64 bits are. Laws draw *ranks*; ranks are
//! scattered over the numbers by a bijection that is always the same, so that popular keys are not
//! neighbours in a table that was loaded in order, and stay popular under another seed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sanderling_random::{Rng, ZIPF_RANKS_MAX, Zipf, splitmix};

use super::drift::Drift;
use super::scatter::Scatter;
use super::trace::Trace;
use super::{At, GenerateError, Purpose, Seeds, within};

/// Most keys of a source.
pub const KEYS_MAX: u64 = ZIPF_RANKS_MAX;
/// Largest theta: beyond it a handful of keys gets everything.
const THETA_MAX: f64 = 4.0;
/// Most keys that a cycle may add to those of [`KeyLaw::Latest`].
const GROWTH_MAX: f64 = (1 << 20) as f64;
/// How many keys are added per cycle unless it is said: YCSB D inserts one key in a twentieth of its
/// requests.
const GROWTH_DEFAULT: f64 = 0.05;

const FRESH_CYCLE_BITS: u32 = 35;
const FRESH_DRAW_BITS: u32 = 10;
const FRESH_KEY_BITS: u32 = 18;
const _: () = assert!(FRESH_CYCLE_BITS + FRESH_DRAW_BITS + FRESH_KEY_BITS == 63);
/// Cycles in which keys can be fresh.
pub const FRESH_CYCLES_MAX: u64 = 1 << FRESH_CYCLE_BITS;
/// Draws of a cycle in which keys can be fresh.
pub const FRESH_DRAWS_MAX: u32 = 1 << FRESH_DRAW_BITS;
/// Keys of a draw that can be fresh.
pub const FRESH_KEYS_MAX: usize = 1 << FRESH_KEY_BITS;
/// Fresh keys have numbers from here on: beyond all keys, and beyond what any of them grow to.
const FRESH_FIRST: u64 = 1 << 63;

/// How popular the keys are.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyLaw {
    /// All alike.
    Uniform,
    /// The `r`-th most popular one is drawn with a probability proportional to `r^-theta`.
    Zipf {
        /// From 0 (uniform) to 4; 1 is no exception.
        theta: f64,
    },
    /// Two kinds of keys, each uniform.
    Hotspot {
        /// Share of the keys that are hot; at least one is.
        hot_keys: f64,
        /// Share of the draws that they get.
        hot_draws: f64,
    },
    /// The `r`-th newest key is drawn with a probability proportional to `r^-theta`, see
    /// [`KeySource::newest`].
    Latest {
        /// From 0 to 4.
        theta: f64,
    },
    /// One key after the other: a draw of `count` in cycle `c` starts with the `c * count`-th and, after the
    /// last key, goes on with the first. While `count` stays the same, cycles leave no key out.
    Sequential,
    /// Keys of a text file: a request per line, numbers with spaces or commas between. They are sent as
    /// they are. Cycle `c` replays the `c`-th line; in a file whose lines are single keys it goes on where
    /// cycle `c - 1` ended, if that drew as many. After the last line comes the first. The file may have
    /// `TRACE_BYTES_MAX` bytes.
    Trace(PathBuf),
}

impl KeyLaw {
    fn name(&self) -> &'static str {
        match self {
            KeyLaw::Uniform => "uniform",
            KeyLaw::Zipf { .. } => "zipf",
            KeyLaw::Hotspot { .. } => "hotspot",
            KeyLaw::Latest { .. } => "latest",
            KeyLaw::Sequential => "sequential",
            KeyLaw::Trace(_) => "trace",
        }
    }
}

/// Pattern of the 64 bits of the `n`-th key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// Well mixed, as of hashed strings.
    #[default]
    Scrambled,
    /// `n`.
    Dense,
    /// `n` shifted left by this many bits, as where the low bits hold something else. Bits that leave at the
    /// top come back at the bottom, so that keys stay apart.
    Shifted(u32),
}

/// A law with what it needs.
#[derive(Debug, Clone)]
enum Law {
    Uniform,
    Zipf(Zipf),
    Hotspot { hot: u64, threshold: u64 },
    Latest(Zipf),
    Sequential,
    Trace(Arc<Trace>),
}

/// A source of keys. A draw is a function of the seed and [`At`], and a longer one begins like a shorter
/// one. Making a source takes less than a millisecond and about 40 KB (a trace takes its file's); a clone
/// shares nothing that is written, so every thread has its own.
#[derive(Debug, Clone)]
pub struct KeySource {
    law: Law,
    name: &'static str,
    keys: u64,
    seed: u64,
    scatter: Scatter,
    drift: Option<(Drift, Duration)>,
    /// Of 2^64, how many draws of bits make a key fresh.
    fresh: u64,
    /// Keys added per cycle.
    growth: f64,
    spread: Spread,
}

impl KeySource {
    /// Draws from `keys` keys by a law.
    ///
    /// # Errors
    /// If there are no keys or more than [`KEYS_MAX`], a parameter of the law is out of range, or a trace
    /// cannot be used.
    pub fn new(law: &KeyLaw, keys: u64, seeds: &Seeds) -> Result<Self, GenerateError> {
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(GenerateError::Keys { keys: keys.into() });
        }
        let zipf = |theta| {
            let theta = within("theta", theta, "from 0 to 4", |theta| (0.0..=THETA_MAX).contains(&theta))?;
            Ok::<_, GenerateError>(Zipf::new(keys, theta))
        };
        let inner = match law {
            KeyLaw::Uniform => Law::Uniform,
            KeyLaw::Zipf { theta } => Law::Zipf(zipf(*theta)?),
            KeyLaw::Latest { theta } => Law::Latest(zipf(*theta)?),
            KeyLaw::Hotspot { hot_keys, hot_draws } => {
                let hot_keys = share("hot_keys", *hot_keys)?;
                let threshold = bits(share("hot_draws", *hot_draws)?);
                Law::Hotspot { hot: ((keys as f64 * hot_keys).round() as u64).clamp(1, keys), threshold }
            }
            KeyLaw::Sequential => Law::Sequential,
            KeyLaw::Trace(path) => Law::Trace(Arc::new(Trace::open(path)?)),
        };
        Ok(KeySource {
            law: inner,
            name: law.name(),
            keys,
            seed: seeds.keys,
            scatter: Scatter::new(keys),
            drift: None,
            fresh: 0,
            growth: GROWTH_DEFAULT,
            spread: Spread::default(),
        })
    }

    /// Every so long (by [`At::now`]) this share of the ranks comes to mean other keys: which, and which
    /// keys, is a function of seed and epoch. Ranks move in up to 4096 groups, all of a group at once, each
    /// once in `1 / share` epochs.
    ///
    /// # Errors
    /// If the share is not from 0 to 1, the time is 0, or the law is not uniform, zipf or hotspot.
    pub fn drift(&mut self, share_of_ranks: f64, every: Duration) -> Result<(), GenerateError> {
        if !matches!(self.law, Law::Uniform | Law::Zipf(_) | Law::Hotspot { .. }) {
            return Err(GenerateError::NoRanks { law: self.name });
        }
        let share = share("drift", share_of_ranks)?;
        within("the time between drifts", every.as_secs_f64(), "more than 0 s", |every| every > 0.0)?;
        let seed = Rng::new(self.seed, Purpose::Drift as u64, 0).next();
        self.drift = Some((Drift::new(self.keys, share, seed), every));
        Ok(())
    }

    /// This share of the keys was never seen before, and will not be again: numbers beyond all keys, each a
    /// function of cycle, draw and position. See [`FRESH_CYCLES_MAX`] and its neighbours for how many there
    /// are.
    ///
    /// # Errors
    /// If the share is not from 0 to 1.
    pub fn fresh(&mut self, share_of_keys: f64) -> Result<(), GenerateError> {
        self.fresh = bits(share("fresh", share_of_keys)?);
        Ok(())
    }

    /// Returns the `n`-th key.
    pub fn spread(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// How many keys a cycle adds to those of [`KeyLaw::Latest`], on average; 0.05 unless it is said.
    ///
    /// # Errors
    /// If it is below 0 or more than 2^20.
    pub fn grow(&mut self, keys_per_cycle: f64) -> Result<(), GenerateError> {
        let allowed = |growth| (0.0..=GROWTH_MAX).contains(&growth);
        self.growth = within("growth per cycle", keys_per_cycle, "from 0 to 1048576 keys", allowed)?;
        Ok(())
    }

    /// How many keys it was made for.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// One more than the number of the newest key at a cycle: the keys that it was made for, and what
    /// [`grow`](Self::grow) says of every cycle before, rounded down. [`KeyLaw::Latest`] draws from the keys
    /// just below it, and whoever inserts writes those of [`fill_newest`](Self::fill_newest). Keys that were
    /// added since the last insertion are not in the table yet, so the newest few may miss.
    #[must_use]
    pub fn newest(&self, cycle: u64) -> u64 {
        self.keys.saturating_add((cycle as f64 * self.growth) as u64)
    }

    /// Appends the `count` newest keys at a cycle, the oldest of them first; fewer if there are not as many.
    /// If a share `w` of the cycles inserts, `count` should be at least `4 / w` times the keys added per
    /// cycle, so that hardly any key (1 in 50) is left out by chance.
    pub fn fill_newest(&self, at: &At, count: usize, out: &mut Vec<u64>) {
        let newest = self.newest(at.cycle);
        out.extend((newest.saturating_sub(count as u64)..newest).map(|n| self.key(n)));
    }

    /// How many keys the request that this cycle replays has, if the law is a trace whose lines are requests.
    #[must_use]
    pub fn request_keys(&self, at: &At) -> Option<usize> {
        if let Law::Trace(trace) = &self.law { trace.request_keys(at.cycle) } else { None }
    }

    /// The 64 bits of the `n`-th key, counted from 0; of different keys they differ.
    #[inline]
    #[must_use]
    pub fn key(&self, n: u64) -> u64 {
        match self.spread {
            Spread::Scrambled => splitmix(n),
            Spread::Dense => n,
            Spread::Shifted(bits) => n.rotate_left(bits),
        }
    }

    /// Appends `count` keys.
    ///
    /// # Errors
    /// If keys are to be fresh beyond the cycles, draws or keys for which there are fresh ones; `out` is
    /// left as it was.
    pub fn fill(&self, at: &At, count: usize, out: &mut Vec<u64>) -> Result<(), GenerateError> {
        if self.fresh > 0
            && (at.cycle >= FRESH_CYCLES_MAX || at.draw >= FRESH_DRAWS_MAX || count > FRESH_KEYS_MAX)
        {
            return Err(GenerateError::FreshBeyond { cycle: at.cycle, draw: at.draw, count });
        }
        let first = out.len();
        self.fill_numbers(at, count, out);
        let keys = &mut out[first..];
        match self.spread {
            _ if matches!(self.law, Law::Trace(_)) => {}
            Spread::Scrambled => keys.iter_mut().for_each(|n| *n = splitmix(*n)),
            Spread::Dense => {}
            Spread::Shifted(bits) => keys.iter_mut().for_each(|n| *n = n.rotate_left(bits)),
        }
        if self.fresh > 0 {
            self.freshen(at, keys);
        }
        Ok(())
    }

    /// Appends the numbers of keys or, of a trace, the keys.
    fn fill_numbers(&self, at: &At, count: usize, out: &mut Vec<u64>) {
        let (keys, first) = (self.keys, out.len());
        let mut rng = at.rng(self.seed, Purpose::Keys);
        match &self.law {
            Law::Uniform => out.extend((0..count).map(|_| below(rng.next(), keys))),
            Law::Zipf(zipf) => out.extend((0..count).map(|_| zipf.rank(&mut rng) - 1)),
            Law::Hotspot { hot, threshold } => out.extend((0..count).map(|_| {
                let is_hot = rng.next() <= *threshold || *hot == keys;
                let (start, len) = if is_hot { (0, *hot) } else { (*hot, keys - hot) };
                start + below(rng.next(), len)
            })),
            Law::Latest(zipf) => {
                let newest = self.newest(at.cycle);
                out.extend((0..count).map(|_| newest - zipf.rank(&mut rng)));
                return;
            }
            Law::Sequential => {
                let mut next = (u128::from(at.cycle) * count as u128 % u128::from(keys)) as u64;
                out.extend((0..count).map(|_| {
                    let n = next;
                    next = if n + 1 == keys { 0 } else { n + 1 };
                    n
                }));
                return;
            }
            Law::Trace(trace) => return trace.fill(at.cycle, count, out),
        }
        let ranks = &mut out[first..];
        if let Some((drift, every)) = &self.drift {
            let epoch = drift.epoch((at.now.as_nanos() / every.as_nanos()) as u64);
            ranks.iter_mut().for_each(|rank| *rank = epoch.rank(*rank));
        }
        ranks.iter_mut().for_each(|rank| *rank = self.scatter.number(*rank));
    }

    /// Puts fresh keys in the place of some.
    fn freshen(&self, at: &At, keys: &mut [u64]) {
        let mut rng = at.rng(self.seed, Purpose::Fresh);
        let before = (at.cycle << FRESH_DRAW_BITS | u64::from(at.draw)) << FRESH_KEY_BITS;
        for (position, key) in keys.iter_mut().enumerate() {
            if rng.next() <= self.fresh {
                *key = self.key(FRESH_FIRST | before | position as u64);
            }
        }
    }
}

/// Maps 64 random bits to `0..n`, uneven by `n / 2^64` at most.
#[inline]
fn below(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}

fn share(what: &'static str, value: f64) -> Result<f64, GenerateError> {
    within(what, value, "from 0 to 1", |share| (0.0..=1.0).contains(&share))
}

/// 64 random bits are no more than this in about this share of the cases; in none, but for one in 2^64, if
/// it is 0.
fn bits(share: f64) -> u64 {
    (share * 2f64.powi(64)) as u64
}
