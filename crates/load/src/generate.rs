//! Generated parts of requests: keys, sizes and times of arrival, drawn from laws. Every number is a function of seed
//! and cycle, not of the thread that draws it. Knows no table and no script.
//!
//! Random bits come from `sanderling_random`: a stream per seed, purpose, draw and cycle, so that no
//! draw waits for another and any thread can make any of them.

mod arrivals;
#[cfg(test)]
mod chi_square;
mod drift;
mod keys;
#[cfg(test)]
mod keys_tests;
mod scatter;
mod sizes;
mod speed;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use sanderling_observe::numbers::bytes as in_units;
use sanderling_random::Rng;

pub use arrivals::{ArrivalTimes, Arrivals};
pub use keys::{FRESH_CYCLES_MAX, FRESH_DRAWS_MAX, FRESH_KEYS_MAX, KEYS_MAX, KeyLaw, KeySource, Spread};
pub use sizes::{Arity, SIZE_MAX, Sizes};
pub use speed::keys_per_s;
pub use trace::TRACE_BYTES_MAX;

/// Seeds of what is drawn, separate so that one may change alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// Of keys, and of which of them are fresh.
    pub keys: u64,
    /// Of the sizes of batches and the keys per sample.
    pub sizes: u64,
    /// Of the times between requests.
    pub arrivals: u64,
}

impl Seeds {
    /// Three seeds from one.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, Purpose::Seeds as u64, 0);
        Seeds { keys: rng.next(), sizes: rng.next(), arrivals: rng.next() }
    }
}

/// Where in a run a draw is made. Every draw is a function of seed and this, never of the thread: the same
/// seed asks the same whatever the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct At {
    /// The request's number in the run.
    pub cycle: u64,
    /// The draw's number within the cycle.
    pub draw: u32,
    /// Intended time since the run's start.
    pub now: Duration,
}

/// Purpose of random bits, so that draws of one cycle and one seed do not repeat each other.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Seeds = 1,
    Keys,
    Fresh,
    Drift,
    Sizes,
    Arity,
    Arrivals,
}

impl At {
    /// The random bits of this draw.
    #[inline]
    fn rng(&self, seed: u64, purpose: Purpose) -> Rng {
        Rng::new(seed, (purpose as u64) << 32 | u64::from(self.draw), self.cycle)
    }
}

/// Why a law cannot be generated.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum GenerateError {
    #[error("{keys} keys: there must be 1 to {KEYS_MAX}")]
    Keys { keys: i128 },
    #[error("{what} is {value}: it must be {allowed}")]
    Parameter { what: &'static str, value: f64, allowed: &'static str },
    #[error(
        "keys of the law {law} do not drift: only uniform, zipf and hotspot have ranks that could change"
    )]
    NoRanks { law: &'static str },
    #[error(
        "cycle {cycle}, draw {draw}, {count} keys: not all of them can be fresh beyond {FRESH_CYCLES_MAX} cycles, \
         {FRESH_DRAWS_MAX} draws per cycle or {FRESH_KEYS_MAX} keys per draw"
    )]
    FreshBeyond { cycle: u64, draw: u32, count: usize },
    #[error("cannot read the trace {}: {source}", path.display())]
    TraceRead { path: PathBuf, source: std::io::Error },
    #[error("the trace {} has more than {}: take a part of it", path.display(), in_units(TRACE_BYTES_MAX))]
    TraceLong { path: PathBuf },
    #[error(
        "{}:{line}: {text:?} is not a key: keys are whole numbers below 2^64, with spaces or commas between",
        path.display()
    )]
    TraceKey { path: PathBuf, line: u64, text: String },
    #[error("the trace {} has no keys", path.display())]
    TraceEmpty { path: PathBuf },
    #[error(
        "arrivals {text:?}: {reason}; there are poisson, uniform, burst:FACTOR:PERIOD as in burst:10:1s, and \
         sine:AMPLITUDE:PERIOD as in sine:0.5:60s"
    )]
    Arrivals { text: String, reason: String },
}

/// `value`, if it is allowed.
fn within(
    what: &'static str,
    value: f64,
    allowed: &'static str,
    holds: impl Fn(f64) -> bool,
) -> Result<f64, GenerateError> {
    if holds(value) { Ok(value) } else { Err(GenerateError::Parameter { what, value, allowed }) }
}
