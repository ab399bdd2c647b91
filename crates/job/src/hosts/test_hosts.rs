//! For tests: workers on several hosts, in one process and without rank 0's coordinator. The test sends the others'
//! messages.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_client::{Meeting, SyncGroup, SyncOptions};
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_transport::Poller;

use super::control_msg::{ControlMsg, Loss};
use super::gather::{Party, Peer, gather};
use super::peer_links::PeerLinks;
use super::peer_status::PeerStatus;
use crate::input::Input;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::stages::STAGES;
use crate::worker::Worker;
use crate::worker_hosts::Hosts;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Rows of libsvm text; bad ones are left out.
pub(crate) fn input(dir: &Path, text: &str) -> Input {
    let path = dir.join("rows.libsvm");
    std::fs::write(&path, text).unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
    Input {
        inputs: vec![path.to_string_lossy().into_owned()],
        reading: DataConfig::default(),
        encoder: Arc::new(Encoder::new(&Spec::libsvm(), &options).unwrap()),
        bad_rows: Arc::new(BadRows::new(BadRowPolicy::Skip { max: u64::MAX })),
    }
}

/// Hosts of so many workers, on sockets in this directory.
pub(crate) fn hosts(dir: &Path, rank: u32, workers: u32) -> Hosts {
    let address = |rank| format!("unix:{}/{rank}", dir.display()).parse().unwrap();
    Hosts::new(rank, (0..workers).map(address).collect(), 7)
}

pub(crate) fn status(hosts: &Hosts) -> Arc<PeerStatus> {
    let names = hosts.hosts.iter().map(ToString::to_string).collect();
    PeerStatus::new(hosts.rank, names, Poller::new(0).unwrap().waker(), &Arc::default())
}

fn worker(hosts: &Hosts, rows: BTreeMap<u32, Peer>, meeting: &Arc<Meeting>, place: u32) -> Worker {
    let status = status(hosts);
    let sync = SyncOptions { attempt: 0, timeout: LONG };
    let group = SyncGroup::join_here(meeting, place, sync).unwrap().cancel_with(status.called_off());
    let links = PeerLinks::new(hosts.rank, rows, &status).unwrap();
    let options = Options { timeout: LONG, ..Options::default() };
    Worker::new(group, Mesh::Remote(Box::new(links)), Stages::new(&STAGES).timer(), &options, 1 << 20)
}

/// The first of so many workers, whose group the others do not come to.
pub(crate) fn first(dir: &Path, workers: u32) -> (Worker, Arc<PeerStatus>) {
    let hosts = hosts(dir, 0, workers);
    let meeting = Meeting::new(Vec::new(), workers).unwrap();
    let worker = worker(&hosts, BTreeMap::new(), &meeting, 0);
    let status = Arc::clone(&worker.links().unwrap().status);
    (worker, status)
}

/// So many workers that have found each other, without those that were lost since.
pub(crate) fn without(dir: &Path, workers: u32, lost: &[u32]) -> Vec<Worker> {
    let until = Instant::now() + LONG;
    let gathered = |rank: u32| gather(&hosts(dir, rank, workers), &Options::default(), until).unwrap();
    let parties: Vec<Party> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|rank| scope.spawn(move || gathered(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let living: Vec<u32> = (0..workers).filter(|rank| !lost.contains(rank)).collect();
    let meeting = Meeting::new(Vec::new(), living.len() as u32).unwrap();
    let mut found = Vec::new();
    for (rank, Party { rows, .. }) in (0..).zip(parties) {
        if let Some(place) = living.iter().position(|&other| other == rank) {
            let mut worker = worker(&hosts(dir, rank, workers), rows, &meeting, place as u32);
            worker.is_of(rank, workers);
            if let Mesh::Remote(links) = &mut worker.mesh {
                links.set_members(living.clone());
            }
            found.push(worker);
        }
    }
    found
}

/// Rank 0's message about the first loss.
pub(crate) fn loss_of(worker: u32) -> ControlMsg {
    let loss = Loss { worker, turn: 0, settled: 0 };
    ControlMsg::Lost { losses: 1, loss, reason: "its connection has ended".to_owned() }
}
