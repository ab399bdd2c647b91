//! Stop checks of waits for servers, and the grace period for silent servers. Knows no server and no signal.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(200);
/// Grace period after a flag was set: a healthy server answers sooner, unless it works on a long operation, see
/// [`Watch::bear_silence`].
const GRACE: Duration = Duration::from_secs(1);

type Ask = dyn Fn() -> Option<Duration> + Send + Sync;

/// Asked now and then by whoever waits, not with every request. Copies are the same one.
#[derive(Clone)]
pub struct Stop(Arc<Ask>);

impl Stop {
    /// Asks a function: None, to go on; or for how long a server may say nothing from then on.
    pub fn new(ask: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Stop {
        Stop(Arc::new(ask))
    }

    /// Looks at a flag. Once it is set, a server may be silent for a second.
    #[must_use]
    pub fn flag(flag: &Arc<AtomicBool>) -> Stop {
        let flag = Arc::clone(flag);
        Stop::new(move || flag.load(Ordering::Relaxed).then_some(GRACE))
    }

    /// How long a server may be silent, if it is to stop.
    #[must_use]
    pub fn told(&self) -> Option<Duration> {
        (self.0)()
    }

    /// Whether to stop without any grace period. Otherwise a thread that waits for another one goes on: that one
    /// gives silent servers up and reports it.
    #[must_use]
    pub fn is_at_once(&self) -> bool {
        self.told().is_some_and(|grace| grace.is_zero())
    }
}

/// The state of a wait's stop check. It is late by [`LOOK`] at most, and reads no clock before that time.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<Stop>,
    look_at: Instant,
    since: Option<Instant>,
    grace: Option<Duration>,
    bears_silence: bool,
}

impl Watch {
    pub(crate) fn new(stop: Option<Stop>) -> Watch {
        Watch { stop, look_at: Instant::now(), since: None, grace: None, bears_silence: false }
    }

    /// Declares a long operation, such as a save, in which servers are silent and which a stop should not interrupt:
    /// only a stop without grace period gives them up.
    pub(crate) fn bear_silence(&mut self) {
        self.bears_silence = true;
    }

    pub(crate) fn bears_silence(&self) -> bool {
        self.bears_silence
    }

    /// When to look next, if at all.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.stop.as_ref().map(|_| self.look_at)
    }

    /// When the stop was noticed, and the grace period; `None` without a stop, or if it is not time to look.
    pub(crate) fn look(&mut self) -> Option<(Instant, Duration)> {
        let stop = self.stop.as_ref()?;
        let now = Instant::now();
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK;
        let grace = stop.told().filter(|grace| grace.is_zero() || !self.bears_silence);
        (self.since, self.grace) = (grace.map(|_| self.since.unwrap_or(now)), grace);
        self.since.zip(grace)
    }

    /// Whether the grace period is over, as of the last look.
    pub(crate) fn is_over(&self) -> bool {
        self.since.zip(self.grace).is_some_and(|(since, grace)| since.elapsed() >= grace)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Stop")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn who_bears_silence_ends_at_once_or_not_at_all() {
        let told = Arc::new(Mutex::new(None));
        let asked = Arc::clone(&told);
        let check = |bears_silence: bool, grace: Option<Duration>, expected: Option<Duration>| {
            *told.lock().unwrap() = grace;
            let asked = Arc::clone(&asked);
            let mut watch = Watch::new(Some(Stop::new(move || *asked.lock().unwrap())));
            if bears_silence {
                watch.bear_silence();
            }
            let found = watch.look().map(|(_, grace)| grace);
            assert_eq!(found, expected, "{bears_silence} {grace:?}");
        };
        for bears_silence in [false, true] {
            check(bears_silence, None, None);
            check(bears_silence, Some(Duration::ZERO), Some(Duration::ZERO));
        }
        check(false, Some(GRACE), Some(GRACE));
        check(true, Some(GRACE), None);
    }
}
