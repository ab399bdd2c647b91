//! Latencies as the client sees them: of single RPC calls, retries included, and of all RPC calls of one request,
//! which go to several servers or in several frames. Every thread records its own; a reader adds them up, by command or
//! by server. Knows no connection and reads no clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sanderling_observe::{Latency, LatencySummary, LatencyTable};
use sanderling_wire::Kind;

/// How the two are called in a table.
const SINGLE: &str = "single RPC call";
const ALL: &str = "all RPC calls of one request";

#[derive(Debug, Default)]
struct Noted {
    /// By command, of calls and of requests; nothing for commands that were never used.
    latencies: BTreeMap<(Kind, &'static str), Latency>,
    /// Of calls of any command, by the number of the server.
    servers: BTreeMap<usize, Latency>,
    /// Requests under way, by command: when their first call was begun, and when their last answer came, in us.
    open: Vec<(Kind, u64, u64)>,
}

impl Noted {
    fn note(&mut self, kind: Kind, of: &'static str, took_us: u64) {
        self.latencies.entry((kind, of)).or_default().record(Duration::from_micros(took_us));
    }

    fn add(&mut self, other: &Noted) {
        for (&key, latency) in &other.latencies {
            self.latencies.entry(key).or_default().merge(latency);
        }
        for (&server, latency) in &other.servers {
            self.servers.entry(server).or_default().merge(latency);
        }
    }
}

fn lock(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The records of all threads.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    threads: Mutex<Vec<Weak<Mutex<Noted>>>>,
    /// Of threads that have ended.
    past: Mutex<Noted>,
}

impl CallTimes {
    /// Where one thread notes.
    pub(crate) fn recorder(self: &Arc<CallTimes>) -> Recorder {
        let noted = Arc::new(Mutex::default());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(&noted));
        Recorder { noted, times: Arc::clone(self) }
    }

    fn sum(&self) -> Noted {
        let mut sum = Noted::default();
        sum.add(&lock(&self.past));
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(noted) = thread.upgrade() {
                sum.add(&lock(&noted));
            }
        }
        sum
    }

    /// Of calls of any command, by the number of the server; nothing for servers that were never asked.
    pub(crate) fn by_server(&self) -> BTreeMap<usize, LatencySummary> {
        self.sum().servers.iter().map(|(&server, latency)| (server, latency.summary())).collect()
    }

    /// Added up, by command.
    pub(crate) fn table(&self) -> LatencyTable {
        let sum = self.sum();
        let mut table = LatencyTable::new(&["command", "of"]);
        for kind in Kind::ALL {
            for of in [SINGLE, ALL] {
                if let Some(latency) = sum.latencies.get(&(kind, of)) {
                    table.row(&[kind.name(), of], latency.summary());
                }
            }
        }
        table
    }
}

/// The records of one thread. Its lock is contended only during a read.
#[derive(Debug)]
pub(crate) struct Recorder {
    noted: Arc<Mutex<Noted>>,
    times: Arc<CallTimes>,
}

impl Recorder {
    /// A call is taken up; it belongs to the request of its command that is under way, if there is one.
    pub(crate) fn begun(&self, kind: Kind, now_us: u64) {
        let open = &mut lock(&self.noted).open;
        if !open.iter().any(|(of, ..)| *of == kind) {
            open.push((kind, now_us, now_us));
        }
    }

    /// A call has the answer of the server with this number.
    pub(crate) fn answered(&self, kind: Kind, server: usize, began_us: u64, now_us: u64) {
        let mut noted = lock(&self.noted);
        let took_us = now_us.saturating_sub(began_us);
        noted.note(kind, SINGLE, took_us);
        noted.servers.entry(server).or_default().record(Duration::from_micros(took_us));
        if let Some((_, _, last_us)) = noted.open.iter_mut().find(|(of, ..)| *of == kind) {
            *last_us = now_us;
        }
    }

    /// All calls have been answered or have failed: so have their requests.
    pub(crate) fn settled(&self) {
        let mut noted = lock(&self.noted);
        while let Some((kind, began_us, last_us)) = noted.open.pop() {
            // One without any answer says nothing of how long answers take.
            if last_us > began_us {
                noted.note(kind, ALL, last_us - began_us);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        lock(&self.times.past).add(&lock(&self.noted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_requests_of_all_threads_are_added_up() {
        let times = Arc::new(CallTimes::default());
        let (one, other) = (times.recorder(), times.recorder());
        // Two servers are asked at once; a push is under way meanwhile.
        one.begun(Kind::Push, 0);
        one.begun(Kind::Pull, 100);
        one.begun(Kind::Pull, 110);
        one.answered(Kind::Push, 0, 0, 150);
        one.answered(Kind::Pull, 0, 110, 200);
        one.answered(Kind::Pull, 1, 100, 400);
        one.settled();
        one.settled();
        other.begun(Kind::Pull, 10);
        other.answered(Kind::Pull, 1, 10, 510);
        other.settled();
        // A request that failed.
        other.begun(Kind::Save, 1000);
        other.settled();
        let expected = [
            ("pull", SINGLE, 3, 90_000, 500_000),
            ("pull", ALL, 2, 300_000, 500_000),
            ("push", SINGLE, 1, 150_000, 150_000),
            ("push", ALL, 1, 150_000, 150_000),
        ];
        let check = || {
            let rows = serde_json::to_value(times.table()).expect("it becomes JSON");
            let found = rows.as_array().expect("a list").iter().map(|row| {
                (
                    row["command"].clone(),
                    row["of"].clone(),
                    row["count"].clone(),
                    row["min_ns"].clone(),
                    row["max_ns"].clone(),
                )
            });
            let expected = expected.map(|(command, of, count, min, max)| {
                (command.into(), of.into(), count.into(), min.into(), max.into())
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
            let servers = times.by_server().into_iter().map(|(server, sum)| (server, sum.count, sum.max_ns));
            assert_eq!(servers.collect::<Vec<_>>(), [(0, 2, 150_000), (1, 2, 500_000)]);
        };
        check();
        drop((one, other));
        check();
    }
}
