//! Per-thread state without false sharing: every thread has a lane.
//!
//! There are as many lanes as processors, up to a bound. More threads share lanes, which costs only speed, because
//! lanes hold atomics and locks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of lanes: one per bit of a word.
const LANES_MAX: usize = u64::BITS as usize;

/// Threads that have a lane number.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LANE: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread's lane number, for every [`Lanes`].
#[inline(always)]
pub(crate) fn lane() -> usize {
    LANE.with(|lane| *lane)
}

/// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

/// One `T` per lane.
#[derive(Debug)]
pub(crate) struct Lanes<T>(Box<[Padded<T>]>);

impl<T: Default> Lanes<T> {
    pub(crate) fn new() -> Lanes<T> {
        Lanes((0..count()).map(|_| Padded::default()).collect())
    }
}

impl<T> Lanes<T> {
    pub(crate) fn bytes() -> usize {
        count() * size_of::<Padded<T>>()
    }

    /// The state of this lane.
    #[inline(always)]
    pub(crate) fn get(&self, lane: usize) -> &T {
        &self.0[lane & (self.0.len() - 1)].0
    }

    /// The bit of this lane in a word for all lanes.
    #[inline(always)]
    pub(crate) fn bit(&self, lane: usize) -> u64 {
        1 << (lane & (self.0.len() - 1))
    }

    /// The lanes of these bits.
    #[inline(always)]
    pub(crate) fn of_bits(&self, mut bits: u64) -> impl Iterator<Item = &T> {
        std::iter::from_fn(move || {
            let lane = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(self.get(lane))
        })
    }

    /// All lanes, from number `first` on.
    pub(crate) fn from(&self, first: usize) -> impl Iterator<Item = &T> {
        (0..self.0.len()).map(move |number| self.get(first.wrapping_add(number)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lane| &lane.0)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|lane| &mut lane.0)
    }
}

/// The number of lanes, a power of two.
fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    if cfg!(loom) {
        return 2;
    }
    let processors = || std::thread::available_parallelism().map_or(8, usize::from);
    *COUNT.get_or_init(|| processors().next_power_of_two().clamp(2, LANES_MAX))
}
