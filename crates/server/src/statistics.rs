//! Request latencies per command and per peer. Each worker records its own; a reader adds them up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_observe::{Latency, LatencySummary};
use sanderling_wire::{Kind, StatsScope};

use crate::limit::PEERS_MAX;

/// Name of the common entry for further peers.
const OTHERS: &str = "others";

/// The latency of a command, from the start of the work until the reply is ready. Background jobs count from arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLatency {
    /// Name or address of the peer. None: all peers.
    pub peer: Option<String>,
    /// Name of the command.
    pub command: &'static str,
    /// The distribution.
    pub summary: LatencySummary,
}

/// Latencies by command. Unused commands take no memory.
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

/// The latencies of one worker. Only readers of the statistics take its lock besides the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Noted>>);

/// Index of a peer in a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSlot(usize);

impl Recorder {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a peer, which is added if there is room.
    pub(crate) fn peer_slot(&self, peer: &str) -> PeerSlot {
        let mut noted = self.noted();
        let peer = match noted.peers.iter().position(|(name, _)| name == peer) {
            Some(at) => return PeerSlot(at),
            None if noted.peers.len() + 1 < PEERS_MAX => peer,
            None => OTHERS,
        };
        if let Some(at) = noted.peers.iter().position(|(name, _)| name == peer) {
            return PeerSlot(at);
        }
        noted.peers.push((peer.to_owned(), ByKind::default()));
        PeerSlot(noted.peers.len() - 1)
    }

    /// Records one request.
    pub(crate) fn record(&self, kind: Kind, peer_slot: Option<PeerSlot>, took: Duration) {
        let mut noted = self.noted();
        noted.commands.at(kind).record(took);
        if let Some(PeerSlot(at)) = peer_slot {
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

    /// The sums over all workers, by command or by peer and command, in order of peer names and command numbers.
    pub(crate) fn latencies(&self, scope: StatsScope) -> Vec<CommandLatency> {
        let recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut sums = Sums::new();
        for recorder in &recorders {
            match scope {
                StatsScope::Commands => add(&mut sums, None, &recorder.noted().commands),
                // Locking once per peer lets the worker continue in between.
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
        let peer_slot = one.peer_slot("a");
        assert_eq!(one.peer_slot("a"), peer_slot);
        one.record(Kind::Pull, Some(peer_slot), ms(1));
        other.record(Kind::Pull, Some(other.peer_slot("a")), ms(3));
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
            one.record(Kind::Ping, Some(one.peer_slot(&format!("peer {peer}"))), ms(1));
        }
        assert_eq!(one.noted().peers.len(), PEERS_MAX);
        assert_eq!(one.peer_slot("new"), one.peer_slot(OTHERS));
    }
}
