//! What a loop that accepts or serves connections does about those that come to nothing. Knows not who listens, nor where it
//! is said.

use std::time::{Duration, Instant};

use crate::error::Error;

/// It is said so often at most: whoever is on this host can make any number of them.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// After an attempt that failed for want of descriptors or memory, another is made after so long.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Connections of which nothing came, of one loop: that [`crate::Listener::accept`] has failed to accept, or that were given up
/// before it was known whose they are.
#[derive(Debug, Default)]
pub struct NotAccepted {
    told: Option<Instant>,
    untold: u64,
}

impl NotAccepted {
    /// Takes note of one more, for which `tell` is called with the reason unless it was a moment ago; and waits if the system
    /// lacks something that others may give back. Not otherwise: whoever is refused would hold up the others.
    pub fn note(&mut self, error: &Error, tell: impl FnOnce(String)) {
        self.note_stranger(&error.to_string(), tell);
        if error.is_shortage() {
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    /// Takes note of one more that was accepted and given up, for which `tell` is called as seldom. Never waits.
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
