//! A registry in memory, for tests: the keeper's state machine without its disk and its port.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::history::History;
use crate::name::{check_prefix, check_record};
use crate::protocol::{JsonText, check_delete, term_s};
use crate::registry::{Change, Edit, Listing, Outcome, Record, Registry, RegistryError, Watched};
use crate::state_machine::{Entry, Held, PastChange, Reply, Request, StateMachine};

const URL: &str = "memory";

/// A registry in the memory of this process. Its leases end by the time of the calls.
#[derive(Debug)]
pub struct MemoryRegistry {
    state: Mutex<State>,
    changed: Condvar,
    start: Instant,
}

#[derive(Debug, Default)]
struct State {
    machine: StateMachine,
    history: History,
    /// Number of the last lease.
    lease: u64,
}

impl Default for MemoryRegistry {
    fn default() -> MemoryRegistry {
        MemoryRegistry { state: Mutex::default(), changed: Condvar::new(), start: Instant::now() }
    }
}

impl MemoryRegistry {
    /// Ends all leases now, as if their terms were over.
    pub fn end_leases(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let leases = state.machine.ended(Duration::MAX);
        leases.into_iter().for_each(|lease| state.end(lease, self.start.elapsed()));
        self.changed.notify_all();
    }

    /// Forgets past changes, so that watches from before are told to begin again.
    pub fn forget_changes(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.history = History::after(state.machine.revision());
        self.changed.notify_all();
    }

    /// The state, without the leases that have ended.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.start.elapsed();
        for lease in state.machine.ended(now) {
            state.end(lease, now);
            self.changed.notify_all();
        }
        state
    }

    fn ask(&self, request: &Request) -> Result<Reply, RegistryError> {
        let mut state = self.state();
        let reply = state.decide(request, self.start.elapsed());
        self.changed.notify_all();
        match reply {
            Reply::Full(reason) => Err(RegistryError::Refused { url: URL.to_owned(), reason }),
            Reply::LeaseEnded(lease) => Err(RegistryError::LeaseEnded { lease }),
            reply => Ok(reply),
        }
    }
}

impl State {
    fn decide(&mut self, request: &Request, now: Duration) -> Reply {
        let (entries, reply) = self.machine.decide(request, now);
        self.apply(&entries, now);
        reply
    }

    fn end(&mut self, lease: u64, now: Duration) {
        self.decide(&Request::Revoke { lease }, now);
    }

    fn apply(&mut self, entries: &[Entry], now: Duration) {
        for entry in entries {
            let applied = self.machine.apply(entry, now).expect("it was decided on this machine");
            applied.into_iter().for_each(|change| self.history.push(change));
        }
    }
}

fn record(name: &str, held: &Held) -> Record {
    Record { name: name.to_owned(), revision: held.revision, lease: held.lease, value: held.value.value() }
}

impl Registry for MemoryRegistry {
    fn url(&self) -> String {
        URL.to_owned()
    }

    fn get(&self, name: &str, _within: Duration) -> Result<Option<Record>, RegistryError> {
        check_record(name)?;
        Ok(self.state().machine.get(name).map(|held| record(name, held)))
    }

    fn list(&self, prefix: &str, _within: Duration) -> Result<Listing, RegistryError> {
        check_prefix(prefix)?;
        let state = self.state();
        let records = state.machine.list(prefix).map(|(name, held)| record(name, held)).collect();
        Ok(Listing { revision: state.machine.revision(), records })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: u64,
        edit: Edit,
        _within: Duration,
    ) -> Result<Outcome, RegistryError> {
        check_record(name)?;
        let named = Arc::from(name);
        let request = match edit {
            Edit::Put { value, lease } => {
                Request::Put { name: named, expected, value: JsonText::new(name, &value)?, lease }
            }
            Edit::Delete => {
                check_delete(name, expected)?;
                Request::Delete { name: named, expected }
            }
        };
        Ok(match self.ask(&request)? {
            Reply::Done(revision) => Outcome::Done(revision),
            Reply::Other(held) => Outcome::Other(held.map(|held| record(name, &held))),
            reply => unreachable!("{reply:?} is no answer to a compare-and-set"),
        })
    }

    fn watch(&self, prefix: &str, after: u64, within: Duration) -> Result<Watched, RegistryError> {
        check_prefix(prefix)?;
        let deadline = Instant::now() + within;
        let mut state = self.state();
        loop {
            let Some((changes, upto)) = state.history.since(prefix, after, state.machine.revision()) else {
                return Ok(Watched::BeginAgain);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !changes.is_empty() || left.is_zero() {
                let change = |change: &PastChange| Change {
                    name: change.name.to_string(),
                    revision: change.revision,
                    record: change.held.as_ref().map(|held| record(&change.name, held)),
                };
                return Ok(Watched::Changes {
                    changes: changes.into_iter().map(change).collect(),
                    after: upto,
                });
            }
            // Leases end by the calls, so a watch looks after them, too.
            let pause = left.min(Duration::from_millis(50));
            drop(self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
            state = self.state();
        }
    }

    fn grant(&self, term: Duration, _within: Duration) -> Result<u64, RegistryError> {
        let term_s = term_s(term)?;
        let lease = {
            let mut state = self.state();
            state.lease += 1;
            state.lease
        };
        self.ask(&Request::Grant { lease, term_s }).map(|_| lease)
    }

    fn keep_alive(&self, lease: u64, _within: Duration) -> Result<bool, RegistryError> {
        self.ask(&Request::KeepAlive { lease }).map(|reply| reply == Reply::Kept(true))
    }

    fn revoke(&self, lease: u64, _within: Duration) -> Result<(), RegistryError> {
        self.ask(&Request::Revoke { lease }).map(|_| ())
    }
}
