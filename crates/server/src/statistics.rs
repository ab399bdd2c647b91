//! How long requests took, per command and per peer: every worker notes its own, and they are added up when somebody
//! reads. Knows commands by their kind, and peers by their name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_observe::{Latency, LatencySummary};
use sanderling_wire::Kind;

use crate::limit::PEERS_MAX;

/// Who is counted when there are too many peers.
const OTHERS: &str = "others";

/// Durations by command; those of commands that were never used take no memory.
#[derive(Debug, Default)]
struct ByKind([Option<Box<Latency>>; Kind::ALL.len()]);

impl ByKind {
    fn at(&mut self, kind: Kind) -> &mut Latency {
        self.0[kind as usize - 1].get_or_insert_default()
    }

    fn used(&self) -> impl Iterator<Item = (Kind, &Latency)> {
        Kind::ALL.into_iter().zip(&self.0).filter_map(|(kind, latency)| Some((kind, latency.as_deref()?)))
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

    fn sum(
        &self,
        mut visit: impl FnMut(&Noted, &mut BTreeMap<String, Latency>),
    ) -> Vec<(String, LatencySummary)> {
        let mut sums = BTreeMap::new();
        for recorder in self.recorders.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            visit(&recorder.noted(), &mut sums);
        }
        sums.into_iter().map(|(name, latency)| (name, latency.summary())).collect()
    }

    /// Per command, by its name.
    pub(crate) fn commands(&self) -> Vec<(String, LatencySummary)> {
        self.sum(|noted, sums| {
            for (kind, latency) in noted.commands.used() {
                sums.entry(kind.name().to_owned()).or_default().merge(latency);
            }
        })
    }

    /// Per peer and command, as "peer command".
    pub(crate) fn peers(&self) -> Vec<(String, LatencySummary)> {
        self.sum(|noted, sums| {
            for (peer, by_kind) in &noted.peers {
                for (kind, latency) in by_kind.used() {
                    sums.entry(format!("{peer} {kind}")).or_default().merge(latency);
                }
            }
        })
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
        let names = |rows: Vec<(String, LatencySummary)>| {
            rows.into_iter().map(|(name, row)| (name, row.count, row.average_ns)).collect::<Vec<_>>()
        };
        assert_eq!(
            names(statistics.commands()),
            [("pull".to_owned(), 2, 2_000_000), ("push".to_owned(), 1, 5_000_000)]
        );
        assert_eq!(names(statistics.peers()), [("a pull".to_owned(), 2, 2_000_000)]);
        for peer in 0..3 * PEERS_MAX {
            one.record(Kind::Ping, Some(one.seat(&format!("peer {peer}"))), ms(1));
        }
        assert_eq!(one.noted().peers.len(), PEERS_MAX);
        assert_eq!(one.seat("new"), one.seat(OTHERS));
    }
}
