//! Delivers the coordinator's observations to the job's observer, on a thread of its own: the observer may be slow,
//! or wait for a terminal or an interpreter, and the thread that talks to the other workers must not. Decides
//! nothing.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::coordinator::Note;
use super::gather::spawn;
use crate::error::JobError;
use crate::event::{JobEvent, Observer};

/// Events that may wait for who is told; those of more are not told.
const EVENTS_MAX: usize = 256;

/// See the top of this file.
pub(super) struct EventLog {
    names: Vec<String>,
    stages: Vec<String>,
    telling: Option<(SyncSender<JobEvent>, JoinHandle<()>)>,
}

impl EventLog {
    /// Of workers and stages with these names. Without an observer it has no thread.
    pub(super) fn new(
        names: Vec<String>,
        stages: Vec<String>,
        observer: Option<Observer>,
    ) -> Result<EventLog, JobError> {
        let telling = observer.map(|Observer(observer)| {
            let (sender, events) = sync_channel(EVENTS_MAX);
            let thread = spawn("tell", move || events.into_iter().for_each(|event| observer(&event)));
            thread.map(|thread| (sender, thread))
        });
        Ok(EventLog { names, stages, telling: telling.transpose()? })
    }

    /// Queues an event without waiting.
    pub(super) fn note(&self, note: &Note) {
        let Some((sender, _)) = &self.telling else { return };
        let stage = |stage: u32| {
            self.stages.get(stage as usize).cloned().unwrap_or_else(|| "its own code".to_owned())
        };
        let address = |worker: u32| self.names.get(worker as usize).cloned().unwrap_or_default();
        let event = match *note {
            Note::Straggler { worker, stage: in_stage, is_silent, waited_us } => JobEvent::Straggler {
                worker,
                address: address(worker),
                stage: stage(in_stage),
                is_silent,
                waited: Duration::from_micros(waited_us),
            },
            Note::Lost { worker, stage: in_stage, ref reason, goes_on } => JobEvent::Lost {
                worker,
                address: address(worker),
                stage: stage(in_stage),
                reason: reason.clone(),
                goes_on,
            },
        };
        // An event without room is dropped: an observer that has not read 256 events would not read this one either.
        let _ = sender.try_send(event);
    }

    /// Waits until all that it took is told.
    pub(super) fn finish(self) {
        if let Some((sender, thread)) = self.telling {
            drop(sender);
            // An observer that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_observer_that_is_stuck_holds_nobody_up() {
        let stuck = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&stuck);
        let observer =
            Observer(Arc::new(move |event: &JobEvent| told.lock().unwrap().push(event.to_string())));
        let names = vec!["tcp://a:1".to_owned(), "tcp://b:2".to_owned()];
        let event_log = EventLog::new(names, vec!["compute".to_owned()], Some(observer)).unwrap();

        let held = stuck.lock().unwrap();
        let note = |waited_us| Note::Straggler { worker: 1, stage: 0, is_silent: false, waited_us };
        for _ in 0..3 * EVENTS_MAX {
            event_log.note(&note(2_000_000));
        }
        drop(held);
        event_log.finish();

        let told = stuck.lock().unwrap();
        // One more can be in the observer's hands.
        assert!((EVENTS_MAX..=EVENTS_MAX + 1).contains(&told.len()), "{}", told.len());
        assert_eq!(told[0], "others have waited for worker 1 at tcp://b:2 for 2.0 s; it is in compute");
    }

    #[test]
    fn what_was_noticed_last_is_told_before_the_end() {
        let told = Arc::new(Mutex::new(0));
        let count = Arc::clone(&told);
        let observer = Observer(Arc::new(move |_: &JobEvent| *count.lock().unwrap() += 1));
        let event_log = EventLog::new(Vec::new(), Vec::new(), Some(observer)).unwrap();
        let note = Note::Lost { worker: 1, stage: 9, reason: "gone".to_owned(), goes_on: true };
        (0..7).for_each(|_| event_log.note(&note));
        event_log.finish();
        assert_eq!(*told.lock().unwrap(), 7);
    }
}
