//! Runs a job: one thread per worker of this process. Does not know what workers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sanderling_client::{ClientError, Meeting, SyncGroup, SyncOptions};
use sanderling_observe::Stages;

use crate::error::JobError;
use crate::hosts;
use crate::mesh::{Mesh, local};
use crate::options::{Options, Place, Tables};
use crate::stages::STAGES;
use crate::worker::{SharedWorker, Worker};

/// No worker has failed.
const NOBODY: u32 = u32::MAX;

/// Says who was the first to fail, also by a panic, and with that stops all.
struct Failing<'a> {
    first: &'a AtomicU32,
    stopped: &'a AtomicBool,
    rank: u32,
    is_done: bool,
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = self.first.compare_exchange(NOBODY, self.rank, Ordering::AcqRel, Ordering::Acquire);
            self.stopped.store(true, Ordering::Release);
        }
    }
}

/// Runs `work` on the workers of this process; returns their results in the order of ranks.
///
/// On several hosts this process is one worker. The first error stops all workers and is returned; a panic continues
/// here.
pub fn run<T, E>(
    options: &Options,
    tables: &Tables,
    stages: &Stages,
    work: impl Fn(&mut Worker) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<JobError> + std::fmt::Display + Send,
{
    run_owned(options, tables, stages, |mut worker| {
        let done = work(&mut worker);
        (Some(worker), done)
    })
}

/// [`run`] for an interpreter that keeps references to its workers.
pub fn run_shared<T, E>(
    options: &Options,
    tables: &Tables,
    stages: &Stages,
    work: impl Fn(SharedWorker) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<JobError> + std::fmt::Display + Send,
{
    run_owned(options, tables, stages, |worker| {
        let lent = SharedWorker::new(worker);
        let done = work(lent.clone());
        (lent.take_back(), done)
    })
}

/// Runs `work`, which gives the worker back and must leave no step open.
fn run_owned<T, E>(
    options: &Options,
    tables: &Tables,
    stages: &Stages,
    work: impl Fn(Worker) -> (Option<Worker>, Result<T, E>) + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<JobError> + std::fmt::Display + Send,
{
    check(options, stages)?;
    let work = |worker: Worker| {
        let (worker, done) = work(worker);
        let done = done.and_then(|done| {
            worker.as_ref().map_or(Ok(()), Worker::check_step_ended)?;
            Ok(done)
        });
        (worker, done)
    };
    match &options.place {
        Place::Here => run_here(options, tables, stages, |worker| work(worker).1),
        Place::Hosts(hosts) => Ok(vec![hosts::run(hosts, options, tables, stages, work)?]),
    }
}

/// Tells workers of higher rank why this one fails before [`run`].
///
/// Returns once all know it, after four seconds if none comes, or after fifteen. They end with [`JobError::Worker`];
/// workers that come later keep waiting.
pub fn reject_workers(options: &Options, reason: &str) {
    if let Place::Hosts(hosts) = &options.place {
        hosts::reject_workers(hosts, &options.stop, reason);
    }
}

fn check(options: &Options, stages: &Stages) -> Result<(), JobError> {
    options.check()?;
    let names = stages.totals();
    if !names.iter().map(|total| &*total.name).take(STAGES.len()).eq(STAGES) {
        return Err(JobError::Options(format!("the list of stages must begin with {STAGES:?}")));
    }
    Ok(())
}

fn run_here<T, E>(
    options: &Options,
    tables: &Tables,
    stages: &Stages,
    work: impl Fn(Worker) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<JobError> + Send,
{
    let workers = options.workers;
    let stopped = Arc::new(AtomicBool::new(false));
    let first = AtomicU32::new(NOBODY);
    let meeting = match tables {
        Tables::Embedded(tables) => Some(
            Meeting::new(tables.clone(), workers)
                .map_err(|error| E::from(ClientError::from(error).into()))?,
        ),
        Tables::Servers(..) => None,
    };
    let number = sanderling_observe::unique();
    let join = |rank: u32| -> Result<SyncGroup, JobError> {
        let sync = SyncOptions { attempt: 0, timeout: options.timeout };
        let group = match (tables, &meeting) {
            (Tables::Servers(cluster, tables), _) => {
                SyncGroup::join(cluster, tables, number, rank, workers, sync)?
            }
            (Tables::Embedded(_), Some(meeting)) => SyncGroup::join_here(meeting, rank, sync)?,
            (Tables::Embedded(_), None) => unreachable!("made above"),
        };
        Ok(group.cancel_with(&stopped).cancel_with(&options.stop))
    };
    let one = |rank: u32, mesh: local::LocalMesh| -> Result<T, E> {
        let mut failing = Failing { first: &first, stopped: &stopped, rank, is_done: false };
        let share = (options.shuffle_bytes_max / u64::from(workers)) as usize;
        let worker = Worker::new(join(rank)?, Mesh::Local(mesh), stages.timer(), options, share);
        let done = work(worker);
        failing.is_done = done.is_ok();
        done
    };
    let mut ends: Vec<std::thread::Result<Result<T, E>>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut ends = Vec::new();
        for (rank, mesh) in (0..).zip(local::meshes(workers, &stopped, &options.stop)) {
            let one = &one;
            let thread = std::thread::Builder::new().name(format!("worker {rank}"));
            match thread.spawn_scoped(scope, move || one(rank, mesh)) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    drop(Failing { first: &first, stopped: &stopped, rank, is_done: false });
                    let what = format!("worker {rank} of {workers} cannot be started");
                    ends.push(Ok(Err(JobError::Io { what, source }.into())));
                    break;
                }
            }
        }
        let joined: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        joined.into_iter().chain(ends).collect()
    });
    let first = first.load(Ordering::Acquire) as usize;
    if first < ends.len() {
        let failed = ends.swap_remove(first);
        drop(ends);
        return match failed {
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => unreachable!("a worker that is done has not failed"),
            Err(panic) => std::panic::resume_unwind(panic),
        };
    }
    ends.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}
