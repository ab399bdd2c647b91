//! How long requests took, per command and per peer: every worker notes its own, and they are added up when somebody
//! reads. Knows commands by their kind, and peers by their name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_observe::{Latency, LatencySummary};
use sanderling_wire::{Kind, StatsScope};

use crate::limit::PEERS_MAX;

/// Who is counted when there are too many peers.
const OTHERS: &str = "others";

/// How long a command took, from when a worker took it up until its reply was ready; for slow ones, which another thread
/// carries out, from when it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLatency {
    /// For this peer: as it calls itself, or where it is. None: for all of them.
    pub peer: Option<String>,
    /// The command's name.
    pub command: &'static str,
    /// The numbers.
    pub summary: LatencySummary,
}

/// Durations by command; those of commands that were never used take no memory.
#[derive(Debug)]
struct ByKind([Option<Box<Latency>>; Kind::ALL[Kind::ALL.len() - 1] as usize]);

impl Default for ByKind {
    fn default() -> ByKind {
        ByKind([const { None }; Kind::ALL[Kind::ALL.len() - 1] as usize])
    }
}

impl ByKind {
    fn at(&mut self, kind: Kind) -> &mut Latency {
        self.0[kind as usize - 1].get_or_insert_default()
    }

    fn used(&self) -> impl Iterator<Item = (Kind, &Latency)> {
        Kind::ALL.into_iter().filter_map(|kind| Some((kind, self.0[kind as usize - 1].as_deref()?)))
    }
}

#[derive(Debug, Default)]
struct Noted {
    commands: ByKind,
    peers: Vec<(String, ByKind)>,
}

/// What one worker notes. Nobody else takes its lock but for the moment of a reading.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Noted>>);

/// Where a peer is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat(usize);

impl Recorder {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a peer.
    pub(crate) fn seat(&self, peer: &str) -> Seat {
        let mut noted = self.noted();
        let peer = match noted.peers.iter().position(|(name, _)| name == peer) {
            Some(at) => return Seat(at),
            None if noted.peers.len() + 1 < PEERS_MAX => peer,
            None => OTHERS,
        };
        if let Some(at) = noted.peers.iter().position(|(name, _)| name == peer) {
            return Seat(at);
        }
        noted.peers.push((peer.to_owned(), ByKind::default()));
        Seat(noted.peers.len() - 1)
    }

    /// Notes one request.
    pub(crate) fn record(&self, kind: Kind, seat: Option<Seat>, took: Duration) {
        let mut noted = self.noted();
        noted.commands.at(kind).record(took);
        if let Some(Seat(at)) = seat {
            noted.peers[at].1.at(kind).record(took);
        }
    }
}

/// The recorders of all workers.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    recorders: Mutex<Vec<Recorder>>,
}

impl Statistics {
    pub(crate) fn recorder(&self) -> Recorder {
        let recorder = Recorder::default();
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner).push(recorder.clone());
        recorder
    }

    /// Added up over the workers, by command, or by peer and command; in the order of the peers' names and the commands'
    /// numbers.
    pub(crate) fn latencies(&self, scope: StatsScope) -> Vec<CommandLatency> {
        let recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut sums = Sums::new();
        for recorder in &recorders {
            match scope {
                StatsScope::Commands => add(&mut sums, None, &recorder.noted().commands),
                // A lock per peer: the worker goes on between two of them.
                StatsScope::Peers => {
                    let peers = recorder.noted().peers.len();
                    for at in 0..peers {
                        let noted = recorder.noted();
                        let (peer, by_kind) = &noted.peers[at];
                        add(&mut sums, Some(peer), by_kind);
                    }
                }
            }
        }
        let latency = |((peer, kind), latency): ((Option<String>, Kind), Latency)| CommandLatency {
            peer,
            command: kind.name(),
            summary: latency.summary(),
        };
        sums.into_iter().map(latency).collect()
    }
}

type Sums = BTreeMap<(Option<String>, Kind), Latency>;

fn add(sums: &mut Sums, peer: Option<&String>, by_kind: &ByKind) {
    for (kind, latency) in by_kind.used() {
        sums.entry((peer.cloned(), kind)).or_default().merge(latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up_and_peers_are_bounded() {
        let statistics = Statistics::default();
        let (one, other) = (statistics.recorder(), statistics.recorder());
        let ms = Duration::from_millis;
        let seat = one.seat("a");
        assert_eq!(one.seat("a"), seat);
        one.record(Kind::Pull, Some(seat), ms(1));
        other.record(Kind::Pull, Some(other.seat("a")), ms(3));
        other.record(Kind::Push, None, ms(5));
        let rows = |scope| {
            let row =
                |row: CommandLatency| (row.peer, row.command, row.summary.count, row.summary.average_ns);
            statistics.latencies(scope).into_iter().map(row).collect::<Vec<_>>()
        };
        let expected = [(None, "pull", 2, 2_000_000), (None, "push", 1, 5_000_000)];
        assert_eq!(rows(StatsScope::Commands), expected);
        assert_eq!(rows(StatsScope::Peers), [(Some("a".to_owned()), "pull", 2, 2_000_000)]);
        for peer in 0..3 * PEERS_MAX {
            one.record(Kind::Ping, Some(one.seat(&format!("peer {peer}"))), ms(1));
        }
        assert_eq!(one.noted().peers.len(), PEERS_MAX);
        assert_eq!(one.seat("new"), one.seat(OTHERS));
    }
}
