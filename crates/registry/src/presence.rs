//! The record of a process with a lease, kept alive by a thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cluster::{MemberRecord, member_name};
use crate::registry::{Edit, Outcome, Registry, RegistryError};

/// Shares of a term: the lease is kept alive this often in it.
const RENEWALS_PER_TERM: u32 = 3;
/// Longest pause after a failure.
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// Time of the calls at the end of a process.
const REVOKE_WITHIN: Duration = Duration::from_millis(500);

/// An event of the record of a process.
#[derive(Debug, Clone, PartialEq)]
pub enum PresenceEvent {
    /// The record is in the registry.
    Listed,
    /// The registry does not answer, or refuses. It is asked again; until then the record may end with its lease.
    Failed(RegistryError),
    /// Another process has taken the record of this server's number. It is left to the other.
    Replaced(MemberRecord),
}

/// Keeps the record of a process in a registry until it is dropped, which removes the record.
#[derive(Debug)]
pub struct Presence {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    record: Arc<Mutex<MemberRecord>>,
}

impl Presence {
    /// Writes the record with a lease of this term, and keeps both alive. A record of an earlier process of this server's
    /// number is replaced. `note` gets each event, from the thread of this.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        registry: Arc<dyn Registry>,
        record: MemberRecord,
        term: Duration,
        note: impl FnMut(PresenceEvent) + Send + 'static,
    ) -> std::io::Result<Presence> {
        let (stop, stopped) = channel();
        let record = Arc::new(Mutex::new(record));
        let wanted = Arc::clone(&record);
        let keeping = Keeping { registry, wanted, term, note, lease: None, written: None };
        let thread = std::thread::Builder::new().name("presence".to_owned());
        let thread = thread.spawn(move || keeping.run(&stopped))?;
        Ok(Presence { stop: Some(stop), thread: Some(thread), record })
    }

    /// Changes the record, within a third of the term.
    pub fn update(&self, change: impl FnOnce(&mut MemberRecord)) {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

struct Keeping<F> {
    registry: Arc<dyn Registry>,
    wanted: Arc<Mutex<MemberRecord>>,
    term: Duration,
    note: F,
    lease: Option<u64>,
    /// The record as it was written, and its revision.
    written: Option<(MemberRecord, u64)>,
}

/// Whether the record is still this process's.
enum Step {
    Kept,
    Replaced(MemberRecord),
}

impl<F: FnMut(PresenceEvent)> Keeping<F> {
    fn run(mut self, stopped: &Receiver<()>) {
        let every = self.term / RENEWALS_PER_TERM;
        let mut failed: Option<RegistryError> = None;
        let mut is_listed = false;
        loop {
            let start = Instant::now();
            let pause = match self.step(every) {
                Ok(Step::Kept) => {
                    if !is_listed {
                        (self.note)(PresenceEvent::Listed);
                    }
                    (is_listed, failed) = (true, None);
                    every.saturating_sub(start.elapsed())
                }
                Ok(Step::Replaced(by)) => {
                    (self.note)(PresenceEvent::Replaced(by));
                    break;
                }
                Err(error) => {
                    // A failure is noted once, until another one or a success.
                    if failed.as_ref() != Some(&error) {
                        (self.note)(PresenceEvent::Failed(error.clone()));
                    }
                    (is_listed, failed) = (false, Some(error));
                    AGAIN_MAX.min(every)
                }
            };
            if !matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                break;
            }
        }
        if let Some(lease) = self.lease {
            // It ends by itself otherwise.
            let _ = self.registry.revoke(lease, REVOKE_WITHIN);
        }
    }

    fn step(&mut self, within: Duration) -> Result<Step, RegistryError> {
        if let Some(lease) = self.lease
            && !self.registry.keep_alive(lease, within)?
        {
            (self.lease, self.written) = (None, None);
        }
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lease = match self.lease {
            Some(lease) => lease,
            None => *self.lease.insert(self.registry.grant(self.term, within)?),
        };
        let name = member_name(wanted.member.server);
        let present = self.registry.get(&name, within)?;
        let revision = present.as_ref().map_or(0, |record| record.revision);
        if let Some((written, at)) = &self.written
            && *at == revision
            && *written == wanted
        {
            return Ok(Step::Kept);
        }
        if let Some(record) = &present
            && self.written.is_some()
            && let Ok(found) = serde_json::from_value::<MemberRecord>(record.value.clone())
            && found.member != wanted.member
        {
            return Ok(Step::Replaced(found));
        }
        let value = serde_json::to_value(&wanted)
            .map_err(|error| RegistryError::Invalid(format!("{name}: {error}")))?;
        let edit = Edit::Put { value, lease: Some(lease) };
        match self.registry.compare_and_set(&name, revision, edit, within) {
            Ok(Outcome::Done(revision)) => {
                self.written = Some((wanted, revision));
                Ok(Step::Kept)
            }
            // Another process was faster: the next step sees it.
            Ok(Outcome::Other(_)) => Ok(Step::Kept),
            Err(RegistryError::LeaseEnded { lease }) => {
                (self.lease, self.written) = (None, None);
                Err(RegistryError::LeaseEnded { lease })
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use sanderling_replica::Member;

    use super::*;
    use crate::memory::MemoryRegistry;

    const TERM: Duration = Duration::from_secs(1);
    const WITHIN: Duration = Duration::from_secs(10);

    fn record(boot: u64) -> MemberRecord {
        let member = Member { server: 4, boot };
        let addresses = vec!["tcp://a:1".to_owned()];
        MemberRecord { member, group: 0, addresses, control: None, speaks: 4 }
    }

    fn present(registry: &dyn Registry) -> Option<MemberRecord> {
        let found = registry.get("members/4", WITHIN).expect("it answers")?;
        Some(serde_json::from_value(found.value).expect("it is a member"))
    }

    #[test]
    fn a_record_lives_as_long_as_its_process() {
        let registry = Arc::new(MemoryRegistry::default());
        let (events, noted) = sync_channel(64);
        let start = |boot| {
            let events = events.clone();
            let registry: Arc<dyn Registry> = Arc::clone(&registry) as Arc<dyn Registry>;
            Presence::start(registry, record(boot), TERM, move |event| {
                events.send(event).expect("it is taken");
            })
            .expect("a thread")
        };
        let first = start(1);
        assert_eq!(noted.recv_timeout(WITHIN), Ok(PresenceEvent::Listed));
        assert_eq!(present(&*registry), Some(record(1)));
        // A changed record is written, and one whose lease has ended is written again.
        first.update(|record| record.group = 7);
        let revision =
            |found: &dyn Registry| found.get("members/4", WITHIN).expect("it answers").map(|r| r.revision);
        let mut seen = revision(&*registry).unwrap_or_default();
        while present(&*registry).is_none_or(|record| record.group != 7) {
            registry.watch("members/4", seen, WITHIN).expect("it answers");
            seen = revision(&*registry).unwrap_or(seen);
        }
        registry.end_leases();
        assert_eq!(present(&*registry), None);
        while present(&*registry).is_none() {
            registry.watch("members/4", seen + 1, WITHIN).expect("it answers");
        }
        // The next process of this number takes over, and the first leaves it alone.
        let second = start(2);
        loop {
            match noted.recv_timeout(WITHIN).expect("it is noted") {
                PresenceEvent::Replaced(by) => {
                    assert_eq!(by, record(2));
                    break;
                }
                PresenceEvent::Listed => {}
                other => panic!("{other:?}"),
            }
        }
        drop(first);
        assert_eq!(present(&*registry), Some(record(2)));
        drop(second);
        assert_eq!(present(&*registry), None);
    }
}
