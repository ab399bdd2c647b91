//! Reporting of failed connections at a bounded rate, for loops that accept or serve them.

use std::time::{Duration, Instant};

use crate::error::Error;

/// Minimum interval between two reports, because local processes can cause any number of failures.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failure for want of descriptors or memory.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Failures of one accepting or serving loop: errors of [`crate::Listener::accept`], and connections closed before
/// their hello.
#[derive(Debug, Default)]
pub struct NotAccepted {
    told: Option<Instant>,
    untold: u64,
}

impl NotAccepted {
    /// Records an error of `accept`. Calls `tell` if the rate allows, and pauses if the system lacks resources.
    ///
    /// Other errors cause no pause, because a refused client must not delay others.
    pub fn note(&mut self, error: &Error, tell: impl FnOnce(String)) {
        self.note_stranger(&error.to_string(), tell);
        if error.is_shortage() {
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    /// Records a connection that was accepted and closed early. Calls `tell` if the rate allows. Never pauses.
    pub fn note_stranger(&mut self, reason: &str, tell: impl FnOnce(String)) {
        if self.told.is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            self.untold += 1;
        } else {
            let more = match self.untold {
                0 => String::new(),
                untold => format!(" (and {untold} more since the last that was told)"),
            };
            tell(format!("{reason}{more}"));
            (self.told, self.untold) = (Some(Instant::now()), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_is_said_of_many() {
        let (mut not_accepted, mut said) = (NotAccepted::default(), Vec::new());
        let mut note = |times: usize, not_accepted: &mut NotAccepted| {
            for _ in 0..times {
                let error = Error::io("peer", "accept a connection", Errno::PIPE);
                not_accepted.note(&error, |reason| said.push(reason));
            }
        };
        note(1000, &mut not_accepted);
        not_accepted.told = Instant::now().checked_sub(TOLD_EVERY);
        note(2, &mut not_accepted);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(!said[0].contains("more") && said[1].contains("and 999 more"), "{said:?}");
    }

    #[test]
    fn what_is_said_of_many_strangers() {
        let (mut strangers, mut said) = (NotAccepted::default(), Vec::new());
        for _ in 0..1000 {
            strangers.note_stranger("not a frame", |reason| said.push(reason));
        }
        strangers.told = Instant::now().checked_sub(TOLD_EVERY);
        strangers.note_stranger("not a frame", |reason| said.push(reason));
        assert_eq!(said, ["not a frame", "not a frame (and 999 more since the last that was told)"]);
    }
}
