//! For tests: workers on hosts of their own, in one process and without rank 0's desk. What the others say, a test says.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_client::{Meeting, SyncGroup, SyncOptions};
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_transport::Poller;

use super::Hosts;
use super::gather::{Joint, Party, gather};
use super::said::{Loss, Said};
use super::seen::Seen;
use super::ways::Far;
use crate::input::Input;
use crate::job::{Options, STAGES};
use crate::mesh::Mesh;
use crate::worker::Worker;

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

pub(crate) fn seen(hosts: &Hosts) -> Arc<Seen> {
    let names = hosts.hosts.iter().map(ToString::to_string).collect();
    Seen::new(hosts.rank, names, Poller::new(0).unwrap().waker(), &Arc::default())
}

fn worker(hosts: &Hosts, rows: BTreeMap<u32, Joint>, meeting: &Arc<Meeting>, place: u32) -> Worker {
    let seen = seen(hosts);
    let sync = SyncOptions { attempt: 0, timeout: LONG };
    let group = SyncGroup::join_here(meeting, place, sync).unwrap().call_off_with(seen.called_off());
    let far = Far::new(hosts.rank, rows, &seen).unwrap();
    let options = Options { timeout: LONG, ..Options::default() };
    Worker::new(group, Mesh::Far(Box::new(far)), Stages::new(&STAGES).timer(), &options, 1 << 20)
}

/// The first of so many workers, whose group the others do not come to.
pub(crate) fn first(dir: &Path, workers: u32) -> (Worker, Arc<Seen>) {
    let hosts = hosts(dir, 0, workers);
    let meeting = Meeting::new(Vec::new(), workers).unwrap();
    let worker = worker(&hosts, BTreeMap::new(), &meeting, 0);
    let seen = Arc::clone(&worker.far().unwrap().seen);
    (worker, seen)
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
            if let Mesh::Far(far) = &mut worker.mesh {
                far.set_members(living.clone());
            }
            found.push(worker);
        }
    }
    found
}

/// What rank 0 says of the first loss.
pub(crate) fn loss_of(worker: u32) -> Said {
    let loss = Loss { worker, turn: 0, settled: 0 };
    Said::Lost { losses: 1, loss, reason: "its connection has ended".to_owned() }
}
