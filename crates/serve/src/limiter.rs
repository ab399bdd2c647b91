//! Adaptive concurrency: how many requests may be under way so that none waits long. A machine without a clock.
//!
//! Additive increase, multiplicative decrease by the time in the queue. As in CoDel, the least time of a window counts:
//! a burst leaves some request without a wait, a standing queue does not.

use std::time::Duration;

/// Time over which the least wait is taken.
const WINDOW: Duration = Duration::from_millis(100);
/// Factor after a window with a standing queue.
const DECREASE: f64 = 0.7;

/// The limit of requests that wait or are worked on.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: f64,
    min: f64,
    max: f64,
    /// Wait that is accepted.
    target: Duration,
    window: Option<Window>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    ends: Duration,
    least_wait: Duration,
    most_under_way: usize,
}

impl Limiter {
    /// A limit between `min`, the requests that are worked on at once, and `max`, with which it begins.
    pub(crate) fn new(min: usize, max: usize, target: Duration) -> Limiter {
        Limiter { limit: max as f64, min: min as f64, max: max as f64, target, window: None }
    }

    /// Requests that may be under way.
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Notes the wait of a request whose work begins. `now` is the time since any fixed moment.
    pub(crate) fn note(&mut self, now: Duration, wait: Duration, under_way: usize) {
        // Without a queue behind it, a wait is the end of a burst.
        let wait = if under_way as f64 <= self.min { Duration::ZERO } else { wait };
        let fresh = Window { ends: now + WINDOW, least_wait: wait, most_under_way: under_way };
        let Some(window) = &mut self.window else {
            self.window = Some(fresh);
            return;
        };
        if now < window.ends {
            window.least_wait = window.least_wait.min(wait);
            window.most_under_way = window.most_under_way.max(under_way);
            return;
        }
        let most = window.most_under_way as f64;
        if window.least_wait > self.target {
            self.limit = (self.limit.min(most) * DECREASE).max(self.min);
        } else if most + 1.0 > self.limit {
            self.limit = (self.limit + self.min).min(self.max);
        }
        self.window = Some(fresh);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TARGET: Duration = Duration::from_millis(20);
    const THREADS: usize = 2;

    /// A queue before threads, in virtual time.
    struct Simulation {
        limiter: Limiter,
        now: Duration,
        queue: VecDeque<Duration>,
        /// When each thread is free.
        free: [Duration; THREADS],
        answered: u64,
        refused: u64,
        longest: Duration,
    }

    impl Simulation {
        fn new() -> Simulation {
            Simulation {
                limiter: Limiter::new(THREADS, THREADS + 256, TARGET),
                now: Duration::ZERO,
                queue: VecDeque::new(),
                free: [Duration::ZERO; THREADS],
                answered: 0,
                refused: 0,
                longest: Duration::ZERO,
            }
        }

        /// Lets requests come at an interval, some at once, each of which takes `work`; forgets counts first.
        fn run(&mut self, time: Duration, every: Duration, at_once: usize, work: Duration) {
            (self.answered, self.refused, self.longest) = (0, 0, Duration::ZERO);
            let (end, mut next) = (self.now + time, self.now);
            while self.now < end {
                if self.now >= next {
                    next += every;
                    for _ in 0..at_once {
                        let busy = self.free.iter().filter(|free| **free > self.now).count();
                        match self.queue.len() + busy < self.limiter.limit() {
                            true => self.queue.push_back(self.now),
                            false => self.refused += 1,
                        }
                    }
                }
                for thread in 0..THREADS {
                    if self.free[thread] <= self.now
                        && let Some(came) = self.queue.pop_front()
                    {
                        let wait = self.now - came;
                        self.free[thread] = self.now + work;
                        let busy = self.free.iter().filter(|free| **free > self.now).count();
                        self.limiter.note(self.now, wait, self.queue.len() + busy);
                        (self.answered, self.longest) = (self.answered + 1, self.longest.max(wait));
                    }
                }
                self.now += Duration::from_micros(250);
            }
        }
    }

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn overload_is_shed_and_the_limit_recovers() {
        let mut queue = Simulation::new();
        // Half of the capacity, which is 1,000 requests a second: nothing is refused.
        queue.run(5 * SECOND, 2 * MS, 1, 2 * MS);
        assert_eq!((queue.refused, queue.limiter.limit()), (0, 258));
        // Twice the capacity: threads stay busy, and waits are near the target.
        queue.run(3 * SECOND, MS / 2, 1, 2 * MS);
        queue.run(10 * SECOND, MS / 2, 1, 2 * MS);
        assert!(queue.answered >= 9800, "{}", queue.answered);
        assert!(queue.longest <= 2 * TARGET, "{:?}", queue.longest);
        assert!((9000..=11_000).contains(&queue.refused), "{}", queue.refused);
        // Slower work: fewer may wait.
        let before = queue.limiter.limit();
        queue.run(5 * SECOND, MS, 1, 8 * MS);
        queue.run(5 * SECOND, MS, 1, 8 * MS);
        assert!(queue.longest <= 3 * TARGET && queue.limiter.limit() < before, "{:?}", queue.longest);
        // Less load: nothing is refused any more, after a while.
        queue.run(2 * SECOND, 8 * MS, 1, 2 * MS);
        queue.run(5 * SECOND, 8 * MS, 1, 2 * MS);
        assert_eq!(queue.refused, 0);
    }

    #[test]
    fn bursts_are_no_overload() {
        let mut queue = Simulation::new();
        // 100 requests at once, whose last waits 100 ms, every 200 ms.
        queue.run(10 * SECOND, 200 * MS, 100, 2 * MS);
        assert_eq!(queue.refused, 0);
        assert!(queue.longest > 90 * MS);
    }

    #[test]
    fn as_many_as_threads_are_always_admitted() {
        let mut limiter = Limiter::new(THREADS, 10, TARGET);
        for window in 0..100 {
            limiter.note(window * WINDOW, SECOND, 10);
        }
        assert_eq!(limiter.limit(), THREADS);
    }
}
