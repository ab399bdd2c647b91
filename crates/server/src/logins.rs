//! Refused logins: a counter, and events at a bounded rate, because any process that reaches a port can retry forever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sanderling_transport::NotAccepted;

use crate::event::{Event, Log};

/// The interface that refused a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plane {
    Data,
    Control,
}

/// Refused logins since the start.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    data: AtomicU64,
    control: AtomicU64,
    told: Mutex<NotAccepted>,
}

impl Logins {
    /// Counts a refused login and reports it if the rate allows.
    pub(crate) fn refused(&self, plane: Plane, peer: &str, log: &Log) {
        let (counter, name) = match plane {
            Plane::Data => (&self.data, "data plane"),
            Plane::Control => (&self.control, "control plane"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let who = format!("{peer} ({name})");
        let tell = |who| log.report(Event::LoginRefused { who });
        self.told.lock().unwrap_or_else(PoisonError::into_inner).note_stranger(&who, tell);
    }

    pub(crate) fn of(&self, plane: Plane) -> u64 {
        match plane {
            Plane::Data => self.data.load(Ordering::Relaxed),
            Plane::Control => self.control.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn refused_logins_are_all_counted_and_told_of_seldom() {
        let (said, hears) = std::sync::mpsc::channel();
        let log = Log(Arc::new(move |event: Event| said.send(event.to_string()).unwrap()));
        let logins = Logins::default();
        (0..1000).for_each(|_| logins.refused(Plane::Data, "tcp://10.0.0.9:1", &log));
        logins.refused(Plane::Control, "10.0.0.9:2", &log);
        assert_eq!((logins.of(Plane::Data), logins.of(Plane::Control)), (1000, 1));
        let said: Vec<String> = hears.try_iter().collect();
        assert!((1..=3).contains(&said.len()), "{said:?}");
        assert!(said[0].contains("tcp://10.0.0.9:1 (data plane)"), "{said:?}");
    }
}
