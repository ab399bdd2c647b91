//! Interleaved rounds: what is compared takes turns on the same threads, so that whatever else the machine does meets
//! all of it. Knows nothing of what is measured.
//!
//! Every thread has its own state and its own results; they meet at a barrier before a pass begins and share nothing
//! else. What a pass needs is made ready before the barrier.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A measurement that takes turns with others.
pub trait Passes: Send {
    /// Makes pass number `pass` ready: not measured.
    fn prepare(&mut self, pass: usize);
    /// One pass. It calls `lap` after every batch with the number of its keys, and whether the time of
    /// the batch counts.
    fn run(&mut self, pass: usize, lap: &mut dyn FnMut(u64, bool));
}

/// The measurements of one pass over all rounds and threads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Million keys per second of every round: the keys of all threads by the time from the first start to the last end.
    pub mkeys_per_s: Vec<f64>,
    /// Time of every batch, ascending.
    pub batch_us: Vec<f64>,
}

impl Measured {
    /// Median of the rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.mkeys_per_s)
    }

    /// Median of the ratios to another pass of the same rounds.
    #[must_use]
    pub fn ratio(&self, other: &Measured) -> f64 {
        let ratios = self.mkeys_per_s.iter().zip(&other.mkeys_per_s).map(|(rate, other)| rate / other);
        median(&ratios.collect::<Vec<_>>())
    }
}

/// One pass of one thread in one round.
struct Turn {
    start: Instant,
    end: Instant,
    keys: u64,
}

/// Lets `passes` passes take turns for `rounds` rounds, one thread per worker, and tells `done` after every round. The
/// order of the passes is another one in every round.
pub fn interleave<P: Passes>(
    workers: &mut [P],
    passes: usize,
    rounds: usize,
    done: &mut dyn FnMut(),
) -> Vec<Measured> {
    let Some((first, others)) = workers.split_first_mut() else { return Vec::new() };
    let barrier = Barrier::new(others.len() + 1);
    let parts = std::thread::scope(|scope| {
        let others = others.iter_mut();
        let handles: Vec<_> = others
            .map(|worker| scope.spawn(|| take_part(worker, &barrier, passes, rounds, &mut || ())))
            .collect();
        // The caller's own thread is one of them: it can say how far things are.
        let mut parts = vec![take_part(first, &barrier, passes, rounds, done)];
        for handle in handles {
            match handle.join() {
                Ok(part) => parts.push(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        parts
    });
    merge(passes, parts)
}

type Part = (Vec<Vec<Turn>>, Vec<Vec<f64>>);

fn take_part<P: Passes>(
    worker: &mut P,
    barrier: &Barrier,
    passes: usize,
    rounds: usize,
    done: &mut dyn FnMut(),
) -> Part {
    let mut turns: Vec<Vec<Turn>> = (0..passes).map(|_| Vec::with_capacity(rounds)).collect();
    let mut batch_us = vec![Vec::new(); passes];
    for round in 0..rounds {
        for turn in 0..passes {
            let pass = (turn + round) % passes;
            worker.prepare(pass);
            barrier.wait();
            let start = Instant::now();
            let (mut last, mut keys) = (start, 0);
            worker.run(pass, &mut |batch_keys, asked_for| {
                let now = Instant::now();
                keys += batch_keys;
                if asked_for {
                    batch_us[pass].push(micros(now - last));
                }
                last = now;
            });
            turns[pass].push(Turn { start, end: last, keys });
        }
        done();
    }
    (turns, batch_us)
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn merge(passes: usize, parts: Vec<Part>) -> Vec<Measured> {
    let (turns, batch_us): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let mut measured = vec![Measured::default(); passes];
    for (pass, measured) in measured.iter_mut().enumerate() {
        let rounds = turns.iter().map(|thread| thread[pass].len()).min().unwrap_or(0);
        for round in 0..rounds {
            let turns = || turns.iter().map(|thread| &thread[pass][round]);
            let (start, end) = (turns().map(|turn| turn.start).min(), turns().map(|turn| turn.end).max());
            let keys: u64 = turns().map(|turn| turn.keys).sum();
            if let (Some(start), Some(end)) = (start, end) {
                // A clock may stand still for a very small pass.
                measured.mkeys_per_s.push(keys as f64 / micros(end - start).max(1e-3));
            }
        }
        measured.batch_us = batch_us.iter().flat_map(|thread| thread[pass].iter().copied()).collect();
        measured.batch_us.sort_by(f64::total_cmp);
    }
    measured
}

/// The middle one, or the mean of the two in the middle; 0 for none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// The smallest of ascending values that at least `share` (0 to 1) of them do not exceed; 0 for none.
#[must_use]
pub fn percentile(ascending: &[f64], share: f64) -> f64 {
    let place = (share * ascending.len() as f64).ceil() as usize;
    ascending.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_and_percentiles() {
        for (values, expected) in
            [(vec![], 0.0), (vec![7.0], 7.0), (vec![3.0, 1.0], 2.0), (vec![9.0, 1.0, 4.0], 4.0)]
        {
            assert_eq!(median(&values), expected, "{values:?}");
        }
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)] {
            assert_eq!(percentile(&hundred, share), expected, "{share}");
        }
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    /// Remembers what was called.
    #[derive(Default)]
    struct Calls(Vec<(usize, bool)>);

    impl Passes for Calls {
        fn prepare(&mut self, pass: usize) {
            self.0.push((pass, false));
        }

        fn run(&mut self, pass: usize, lap: &mut dyn FnMut(u64, bool)) {
            assert_eq!(self.0.last(), Some(&(pass, false)), "a pass runs as soon as it is ready");
            self.0.push((pass, true));
            lap(10, true);
            lap(10, pass == 1);
        }
    }

    #[test]
    fn passes_take_turns_on_every_thread() {
        for threads in [1, 3] {
            let mut workers: Vec<Calls> = (0..threads).map(|_| Calls::default()).collect();
            let mut rounds_done = 0;
            let measured = interleave(&mut workers, 2, 3, &mut || rounds_done += 1);
            assert_eq!(rounds_done, 3);
            for Calls(calls) in workers {
                let order: Vec<usize> = calls.iter().filter(|call| call.1).map(|call| call.0).collect();
                assert_eq!(order, [0, 1, 1, 0, 0, 1]);
            }
            for (pass, laps) in [(0, 3), (1, 6)] {
                assert_eq!(measured[pass].batch_us.len(), laps * threads);
                assert!(measured[pass].batch_us.is_sorted());
                assert_eq!(measured[pass].mkeys_per_s.len(), 3);
                assert!(measured[pass].mkeys_per_s.iter().all(|&rate| rate > 0.0));
            }
        }
    }

    #[test]
    fn the_slowest_thread_decides() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let thread =
            |from, to, keys| (vec![vec![Turn { start: at(from), end: at(to), keys }]], vec![vec![1.0]]);
        let measured = merge(1, vec![thread(0, 8, 500), thread(2, 10, 700)]);
        assert_eq!(measured[0].mkeys_per_s, [120.0]);
        let other = Measured { mkeys_per_s: vec![240.0], batch_us: Vec::new() };
        assert_eq!((measured[0].ratio(&other), measured[0].median()), (0.5, 120.0));
    }
}
