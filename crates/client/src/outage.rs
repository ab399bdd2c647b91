//! Outages of servers, shared by all connections of a cluster: one time limit holds for all requests to a server that
//! is away, and waits are reported. Opens nothing.
//!
//! A server is away from the first failed attempt until it answers any connection. An outage without attempts for a
//! minute, or for the time limit if that is longer, has ended: the next request may wait for the whole limit again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::by_server::ByServer;
use crate::rpc_state::Peer;

/// A request to a server that has been away for longer than the bound gets this long: one that is back answers sooner.
pub(crate) const LAST_TRY: Duration = Duration::from_secs(2);
/// An outage without attempts for this long, and for longer than the limit, has ended.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// After which a wait is told, the first time.
pub const NOTICE_AFTER: Duration = Duration::from_secs(1);
/// Each wait until the next notice is so many times as long as the one before.
const NOTICE_BACKOFF: u32 = 2;

/// An event of a server that a client needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// It is waited for.
    Away {
        /// Address of the server.
        server: String,
        /// How long it has been waited for.
        waited: Duration,
        /// When it is given up, counted as `waited` is.
        limit: Duration,
        /// The reason.
        cause: String,
    },
    /// It answers again.
    Back {
        /// Address of the server.
        server: String,
        /// How long it was waited for.
        waited: Duration,
        /// It was started anew, and its tables have every acknowledged change.
        restarted: bool,
    },
    /// Another replica has become the primary of a group, with every acknowledged change.
    TakenOver {
        /// The group.
        group: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Slots of keys are on their way between the groups of a cluster, and a save or its restore waits for them.
    Moving {
        /// The cluster.
        cluster: String,
        /// Moves that are under way.
        moves: usize,
        /// How long they have been waited for.
        waited: Duration,
        /// When the wait is given up.
        limit: Duration,
    },
    /// A push was under way when the server ended, so whether it was applied is unknown. It is not repeated.
    UnknownPush {
        /// Address of the server.
        server: String,
        /// How many such pushes there were so far, over all servers.
        count: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Away { server, waited, limit, cause } => {
                let (waited, limit) = (waited.as_secs_f64(), limit.as_secs_f64());
                write!(
                    out,
                    "server {server} has not answered for {waited:.0} s (limit {limit:.0} s): {cause}"
                )
            }
            Notice::Back { server, waited, restarted } => {
                let how =
                    if *restarted { ": it was started anew, and has every acknowledged change" } else { "" };
                write!(out, "server {server} answers again after {:.1} s{how}", waited.as_secs_f64())
            }
            Notice::TakenOver { group, waited } => {
                let waited = waited.as_secs_f64();
                write!(
                    out,
                    "{group} answers after {waited:.1} s: another replica is its primary, with every acknowledged change"
                )
            }
            Notice::Moving { cluster, moves, waited, limit } => {
                let (waited, limit) = (waited.as_secs_f64(), limit.as_secs_f64());
                write!(
                    out,
                    "cluster {cluster}: waited {waited:.0} s (limit {limit:.0} s) for {moves} moves of slots to end"
                )
            }
            Notice::UnknownPush { server, count } => {
                let count = if *count > 1 { format!(" ({count} so far)") } else { String::new() };
                write!(
                    out,
                    "server {server}: a push was under way when the server ended; whether it was applied is unknown, and it is \
                     not repeated{count}"
                )
            }
        }
    }
}

/// A callback for notices of servers, called by the thread that waits. Clones share the callback.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&Notice) + Send + Sync>);

impl OnWait {
    /// Tells a function, which must not wait for anything itself.
    pub fn new(tell: impl Fn(&Notice) + Send + Sync + 'static) -> OnWait {
        OnWait(Arc::new(tell))
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OnWait")
    }
}

/// One server; times are microseconds since the epoch of [`Outages`], 0 for none.
#[derive(Debug, Default)]
struct Outage {
    since_us: AtomicU64,
    /// The latest attempt that came to nothing.
    failed_us: AtomicU64,
    /// When to report next; 0: not reported yet.
    notice_us: AtomicU64,
    /// Since when those wait who told first.
    waited_since_us: AtomicU64,
    /// The start and the history of the server that answered last; 0: none did.
    boot_id: AtomicU64,
    history_id: AtomicU64,
}

impl Outage {
    /// Notes who answers; whether it was started anew, within the history that answered last. Of all who ask, one is told.
    fn is_survived(&self, peer: &Peer) -> bool {
        let before = self.boot_id.swap(peer.boot_id, Ordering::Relaxed);
        if before == peer.boot_id {
            return false;
        }
        let history_id = self.history_id.swap(peer.history_id, Ordering::Relaxed);
        before != 0 && peer.history_id != 0 && history_id == peer.history_id
    }
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Outages {
    epoch: Instant,
    bound: Duration,
    servers: ByServer<Outage>,
    /// Pushes of unknown outcome.
    unknown: AtomicU64,
    on_wait: Option<OnWait>,
    /// Whether each server is the primary of a group, and another one may take its place.
    of_groups: bool,
}

impl Outages {
    pub(crate) fn new(bound: Duration, on_wait: Option<OnWait>, of_groups: bool) -> Arc<Outages> {
        Arc::new(Outages {
            epoch: Instant::now(),
            bound,
            servers: ByServer::default(),
            unknown: AtomicU64::new(0),
            on_wait,
            of_groups,
        })
    }

    /// Within which a server that is away must be back.
    pub(crate) fn bound(&self) -> Duration {
        self.bound
    }

    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64 + 1
    }

    /// Since when a server is away.
    pub(crate) fn since(&self, server: usize) -> Option<Instant> {
        let since_us = self.servers.at(server).since_us.load(Ordering::Relaxed);
        (since_us > 0).then(|| self.epoch + Duration::from_micros(since_us - 1))
    }

    /// Something was asked of a server, and an attempt that began `since` has come to nothing.
    pub(crate) fn failed(&self, server: usize, since: Instant) {
        self.failed_at(server, since, Instant::now());
    }

    fn failed_at(&self, server: usize, since: Instant, now: Instant) {
        let outage = self.servers.at(server);
        let now_us = self.us(now);
        let failed_us = outage.failed_us.swap(now_us, Ordering::Relaxed);
        let forgotten_us = self.bound.max(FORGOTTEN_AFTER).as_micros() as u64;
        let begun_us = outage.since_us.load(Ordering::Relaxed);
        if begun_us == 0 || now_us.saturating_sub(failed_us) > forgotten_us {
            outage.since_us.store(self.us(since), Ordering::Relaxed);
            outage.notice_us.store(0, Ordering::Relaxed);
        }
    }

    /// A server has answered.
    pub(crate) fn ended(&self, server: usize, name: &str, peer: &Peer) {
        let outage = self.servers.at(server);
        let is_away = outage.since_us.load(Ordering::Relaxed) > 0;
        let is_known = outage.boot_id.load(Ordering::Relaxed) == peer.boot_id;
        if !is_away && is_known && outage.notice_us.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since_us = outage.since_us.swap(0, Ordering::Relaxed);
        let was_told = outage.notice_us.swap(0, Ordering::Relaxed) > 0;
        let restarted = !is_known && outage.is_survived(peer);
        if was_told || restarted {
            let now_us = self.us(Instant::now());
            let since_us = match was_told {
                true => outage.waited_since_us.load(Ordering::Relaxed),
                false if since_us == 0 => now_us,
                false => since_us,
            };
            let waited = Duration::from_micros(now_us.saturating_sub(since_us));
            let server = name.to_owned();
            self.tell(&match restarted && self.of_groups {
                true => Notice::TakenOver { group: server, waited },
                false => Notice::Back { server, waited, restarted },
            });
        }
    }

    /// Counts a push of unknown outcome, and tells of it.
    pub(crate) fn push_unknown(&self, name: &str) {
        let count = self.unknown.fetch_add(1, Ordering::Relaxed) + 1;
        self.tell(&Notice::UnknownPush { server: name.to_owned(), count });
    }

    /// Pushes of unknown outcome, over all servers.
    pub(crate) fn unknown_pushes(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Is anybody told of waits?
    pub(crate) fn is_told(&self) -> bool {
        self.on_wait.is_some()
    }

    /// Reports a wait for a server that is away or silent since `asked`, if it is time to; one of all waiting threads
    /// does.
    pub(crate) fn notice(&self, server: usize, name: &str, asked: Instant, is_silent: bool, cause: &str) {
        let Some(since) = self.since(server).or(is_silent.then_some(asked)) else { return };
        let (since, now) = (since.max(asked), Instant::now());
        let waited = now.saturating_duration_since(since);
        let outage = self.servers.at(server);
        let next_us = outage.notice_us.load(Ordering::Relaxed);
        if self.on_wait.is_none() || waited < NOTICE_AFTER || self.us(now) < next_us {
            return;
        }
        let later_us = self.us(now + waited * (NOTICE_BACKOFF - 1));
        let won = outage.notice_us.compare_exchange(next_us, later_us, Ordering::Relaxed, Ordering::Relaxed);
        if won.is_ok() {
            if next_us == 0 {
                outage.waited_since_us.store(self.us(since), Ordering::Relaxed);
            }
            let limit = self.bound.max(waited);
            self.tell(&Notice::Away { server: name.to_owned(), waited, limit, cause: cause.to_owned() });
        }
    }

    /// Tells of something, if anybody is told.
    pub(crate) fn tell(&self, notice: &Notice) {
        if let Some(OnWait(tell)) = &self.on_wait {
            tell(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn peer(boot_id: u64, history_id: u64) -> Peer {
        let (name, local_url) = <_>::default();
        let (shard, shards, server_id, host_id, placement_version) = (0, 1, 0, 0, 0);
        let (in_flight_max, frame_bytes_max) = (1, 1);
        Peer {
            shard,
            shards,
            server_id,
            boot_id,
            history_id,
            host_id,
            placement_version,
            in_flight_max,
            frame_bytes_max,
            name,
            local_url,
        }
    }

    #[test]
    fn an_outage_lasts_from_the_first_failure_to_the_next_answer() {
        let outages = Outages::new(Duration::from_secs(20), None, false);
        let start = Instant::now();
        assert_eq!(outages.since(0), None);
        outages.failed(0, start);
        let since = outages.since(0).unwrap();
        assert!(since.duration_since(start) < Duration::from_millis(1));
        // A later failure, or an answer of another server, changes nothing.
        outages.failed(0, Instant::now() + Duration::from_secs(1));
        outages.ended(1, "b", &peer(1, 0));
        assert_eq!((outages.since(0), outages.since(1)), (Some(since), None));
        outages.ended(0, "a", &peer(1, 0));
        assert_eq!(outages.since(0), None);
    }

    #[test]
    fn what_nobody_has_noticed_for_long_is_no_outage() {
        for (bound, forgotten_after) in [(1, FORGOTTEN_AFTER), (600, Duration::from_secs(600))] {
            let outages = Outages::new(Duration::from_secs(bound), None, false);
            let (start, moment) = (Instant::now(), Duration::from_secs(1));
            outages.failed_at(0, start, start);
            let soon = start + forgotten_after - moment;
            outages.failed_at(0, soon, soon);
            assert!(outages.since(0).unwrap() < start + moment);
            let late = soon + forgotten_after + moment;
            outages.failed_at(0, late, late);
            assert!(outages.since(0).unwrap() > late - moment);
        }
    }

    #[test]
    fn of_all_who_wait_one_says_so_later_and_later() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let on_wait = OnWait::new(move |notice| tell.lock().unwrap().push(notice.clone()));
        let outages = Outages::new(Duration::from_secs(20), Some(on_wait), false);
        let begun = |ago_ms: u64| Instant::now() - Duration::from_millis(ago_ms);
        outages.notice(0, "a", begun(5000), false, "refused");
        // The epoch is now: an outage cannot have begun before.
        outages.failed(0, Instant::now());
        let count = || told.lock().unwrap().len();
        outages.notice(0, "a", begun(0), false, "refused");
        assert_eq!(count(), 0);
        std::thread::sleep(NOTICE_AFTER + Duration::from_millis(50));
        // A new request has not waited yet.
        outages.notice(0, "a", begun(0), false, "refused");
        assert_eq!(count(), 0);
        (0..3).for_each(|_| outages.notice(0, "a", begun(1050), false, "refused"));
        assert_eq!(count(), 1);
        std::thread::sleep(NOTICE_AFTER + Duration::from_millis(100));
        (0..3).for_each(|_| outages.notice(0, "a", begun(2150), false, "refused"));
        assert_eq!(count(), 2);
        outages.ended(0, "a", &peer(1, 0));
        let told = told.lock().unwrap();
        let lines: Vec<String> = told.iter().map(Notice::to_string).collect();
        assert_eq!(lines[0], "server a has not answered for 1 s (limit 20 s): refused");
        assert_eq!(lines[1], "server a has not answered for 2 s (limit 20 s): refused");
        assert_eq!(lines[2], "server a answers again after 2.2 s");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_start_within_a_history_is_told_once_even_if_nobody_waited() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let on_wait = OnWait::new(move |notice| tell.lock().unwrap().push(notice.to_string()));
        let outages = Outages::new(Duration::from_secs(20), Some(on_wait), false);
        // No history, the first of one, a start within it, and another history.
        for (boot_id, history_id, expected) in
            [(1, 0, 0), (2, 0, 0), (3, 7, 0), (4, 7, 1), (5, 8, 1), (6, 8, 2)]
        {
            outages.failed(0, Instant::now());
            (0..2).for_each(|_| outages.ended(0, "a", &peer(boot_id, history_id)));
            assert_eq!(told.lock().unwrap().len(), expected, "{boot_id} {history_id}");
        }
        let expected =
            "server a answers again after 0.0 s: it was started anew, and has every acknowledged change";
        assert_eq!(told.lock().unwrap()[0], expected);
        outages.push_unknown("a");
        assert!(told.lock().unwrap()[2].contains("whether it was applied is unknown"));
        assert_eq!(outages.unknown_pushes(), 1);
    }

    #[test]
    fn a_server_that_is_silent_is_told_too() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let on_wait = OnWait::new(move |notice| tell.lock().unwrap().push(notice.to_string()));
        let outages = Outages::new(Duration::from_secs(20), Some(on_wait), false);
        let asked = Instant::now();
        std::thread::sleep(NOTICE_AFTER + Duration::from_millis(10));
        outages.notice(0, "a", asked, false, "it does not answer");
        outages.notice(0, "a", asked, true, "it does not answer");
        assert_eq!(outages.since(0), None);
        (0..2).for_each(|_| outages.ended(0, "a", &peer(1, 0)));
        let expected = [
            "server a has not answered for 1 s (limit 20 s): it does not answer",
            "server a answers again after 1.0 s",
        ];
        assert_eq!(*told.lock().unwrap(), expected);
    }
}
