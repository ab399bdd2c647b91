//! Workers that are processes of their own, one per host or several on one: how they connect, their messages, and
//! recovery when one dies. Knows no model, and not which worker owns a row.
//!
//! Every two workers have a connection for rows and collectives ([`peer_links`]). Every worker has another connection
//! to rank 0 ([`control`]), whose coordinator ([`coordinator`]) decides which workers are lost. See
//! `docs/design/0012-*.md`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sanderling_client::{SyncGroup, SyncOptions};
use sanderling_observe::Stages;
use sanderling_transport::{Address, Poller};

use crate::error::JobError;
use crate::mesh::Mesh;
use crate::options::{OnLoss, Options, Tables};
use crate::stages::WAIT;
use crate::worker::Worker;
use crate::worker_hosts::Hosts;

mod acceptor;
mod control;
pub(crate) mod control_msg;
mod coordinator;
mod event_log;
mod gather;
mod handshake;
pub(crate) mod owner;
pub(crate) mod peer_links;
pub(crate) mod peer_status;
pub(crate) mod share_of_lost;
pub(crate) mod survivors;
#[cfg(test)]
pub(crate) mod test_hosts;

use acceptor::Acceptor;
use control::{Control, Line};
use control_msg::ControlMsg;
use coordinator::Coordinator;
use event_log::EventLog;
use peer_status::PeerStatus;
use survivors::Survivors;

/// Runs the worker of this process with a function that gives it back; its result.
pub(crate) fn run<T, E>(
    hosts: &Hosts,
    options: &Options,
    tables: &Tables,
    stages: &Stages,
    work: impl Fn(Worker) -> (Option<Worker>, Result<T, E>),
) -> Result<T, E>
where
    E: From<JobError> + fmt::Display,
{
    let worker = start(hosts, options, tables, stages)?;
    let status = Arc::clone(&worker.links().expect("it is on a host of its own").status);
    let (mut worker, done) = work(worker);
    let done = done.and_then(|done| match &mut worker {
        Some(worker) => Ok(worker.end_job().map(|()| done)?),
        None => Ok(done),
    });
    match done {
        Ok(done) => {
            // Its connections are closed before: the job has ended.
            drop(worker);
            // On rank 0: until all others have heard it.
            status.await_silence(Instant::now() + FAREWELL);
            Ok(done)
        }
        Err(error) => Err(say_why(hosts, &status, error)),
    }
}

/// Tells the others why this worker ends before its time; why it does.
fn say_why<E: From<JobError> + fmt::Display>(hosts: &Hosts, status: &PeerStatus, error: E) -> E {
    // Messages must be sent even if the sending thread is slow; then the others get some time to receive them.
    let stop_farewell = || {
        status.await_sent(Instant::now() + hosts.silence.min(FAREWELL));
        status.await_silence(Instant::now() + hosts.silence.min(STOP_FAREWELL));
    };
    if let Err(failed) = status.check() {
        // Another worker's failure or stop is the reason for this one. Rank 0 waits until all workers know it.
        stop_farewell();
        return failed.into();
    }
    if status.is_told() {
        // Its connections stay open meanwhile: without the reason their end would count as a loss.
        status.say(ControlMsg::Stop { worker: hosts.rank });
        stop_farewell();
        return error;
    }
    // Also while a loss is pending: what comes of one says so itself.
    status.say(ControlMsg::Fail { worker: hosts.rank, reason: error.to_string() });
    status.await_silence(Instant::now() + hosts.silence.min(FAREWELL));
    error
}

/// Tells workers of higher rank that come why this one does not, for a while.
pub(crate) fn reject_workers(hosts: &Hosts, stop: &AtomicBool, reason: &str) {
    // Without a listening socket there is no worker to tell.
    if let Ok(acceptor) = Acceptor::shut(hosts, reason) {
        acceptor.wait_until_told(Instant::now() + TURN_AWAY, stop);
    }
}

/// How long a worker that fails tries to say why.
const FAREWELL: Duration = Duration::from_secs(5);
/// Time that a stopped worker takes to say why. Its message is queued for a worker that does not run at the moment.
const STOP_FAREWELL: Duration = Duration::from_millis(500);
/// How long one that could not start tells it to those that come.
const TURN_AWAY: Duration = Duration::from_secs(15);

fn start(hosts: &Hosts, options: &Options, tables: &Tables, stages: &Stages) -> Result<Worker, JobError> {
    hosts.check(options.workers)?;
    let Tables::Servers(cluster, remote) = tables else {
        let reason = "workers that are processes of their own meet at parameter servers: name some (--ps)";
        return Err(JobError::Options(reason.to_owned()));
    };
    let until = Instant::now() + options.timeout;
    let party = gather::gather(hosts, options, until)?;
    let timer = stages.timer();
    let names: Vec<String> = hosts.hosts.iter().map(Address::to_string).collect();
    let poller = Poller::new(0)?;
    let status = PeerStatus::new(hosts.rank, names.clone(), poller.waker(), &options.stop);
    let start = Instant::now();
    let coordinator = (hosts.rank == 0).then(|| {
        let silence_us = hosts.silence.as_micros() as u64;
        Coordinator::new(options.workers, silence_us, options.on_loss == OnLoss::Redo, WAIT as u32, 0)
    });
    let lines = party.control.into_iter().map(|(rank, peer)| {
        let gather::Peer { connection, agreed, early } = peer;
        Line { rank, connection, agreed, early }
    });
    let stages = stages.totals().into_iter().map(|total| total.name).collect();
    // The others have nothing to tell: rank 0 decides.
    let observer = options.observer.clone().filter(|_| hosts.rank == 0);
    let event_log = EventLog::new(names, stages, observer)?;
    let control = Control::new(
        poller,
        lines.collect(),
        coordinator,
        Arc::clone(&status),
        event_log,
        timer.watch(),
        (start, hosts.silence),
    )?;
    let links = peer_links::PeerLinks::new(hosts.rank, party.rows, &status)?;
    if hosts.rank == 0 {
        let group = sanderling_observe::unique();
        status.say(ControlMsg::Start { group });
    }
    gather::spawn("talk", move || control.run())?;
    let sync = SyncOptions { attempt: 0, timeout: options.timeout };
    let joined = status.await_group(until).and_then(|group| {
        let survivors = Survivors::new(cluster, group, options.workers);
        Ok((survivors, SyncGroup::join(cluster, remote, group, hosts.rank, options.workers, sync)?))
    });
    let (survivors, group) = joined.map_err(|error: JobError| say_why(hosts, &status, error))?;
    let group = group.cancel_with(status.called_off()).cancel_with(&options.stop);
    let mut worker =
        Worker::new(group, Mesh::Remote(Box::new(links)), timer, options, options.shuffle_bytes_max as usize);
    worker.survivors = Some(survivors);
    Ok(worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_workers_own_is_told_also_while_a_loss_is_pending() {
        let dir = tempfile::tempdir().unwrap();
        let own = "rows.csv:7: column 1: expected a number, found nothing";
        let lost = format!(
            "worker 1 at unix:{}/1: it is lost in the middle of something that all do together, which the others cannot do \
             without it",
            dir.path().display()
        );
        let check = |error: &dyn Fn(&Worker) -> JobError, expected: &str| {
            let (mut worker, status) = test_hosts::first(dir.path(), 2);
            let waits = std::thread::scope(|scope| {
                let waits = scope.spawn(|| worker.group().barrier("for the other").unwrap_err());
                status.note(&test_hosts::loss_of(1));
                waits.join().unwrap()
            });
            assert!(waits.to_string().contains("was called off"), "{waits}");
            // No worker is connected.
            status.note_deaf();
            let error = say_why(&test_hosts::hosts(dir.path(), 0, 2), &status, error(&worker));
            assert_eq!(error.to_string(), expected);
            let told = ControlMsg::Fail { worker: 0, reason: expected.to_owned() };
            assert_eq!(Vec::from(status.take_says()), [told]);
        };
        check(&|_| JobError::Options(own.to_owned()), own);
        // The handling of the loss reports itself.
        let called_off = || sanderling_client::ClientError::CalledOff { place: "a".into(), what: "b".into() };
        check(&|worker| worker.called_off(called_off()), &lost);
    }

    #[test]
    fn when_the_first_worker_panics_the_others_hear_it_before_they_cannot_reach_it() {
        let dir = tempfile::tempdir().unwrap();
        let (worker, status) = test_hosts::first(dir.path(), 2);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _worker = worker;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        let told = ControlMsg::Fail { worker: 0, reason: "it has panicked".to_owned() };
        assert_eq!(Vec::from(status.take_says()), [told]);
    }
}
