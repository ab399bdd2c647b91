//! The simulator: a group of replicas under random faults, by a seed that reproduces a run.
//!
//! `SEEDS=1000000 cargo test -p sanderling-replica --release simulator` runs more seeds, `SEED=7` one of them.

mod breaks;
mod check;
mod clients;
mod cluster;
mod routing;
mod weather;
mod world;

use crate::fault::Fault;
use cluster::Cluster;
use world::World;

/// Seeds of a test run by default.
const SEEDS: u64 = 2000;
/// Seeds within which a planted fault must be found.
const SEEDS_PER_FAULT: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_the_replicas() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let mut total = world::Counts::default();
    for seed in seeds {
        match World::run(seed, Fault::None) {
            Ok(counts) => total.add(&counts),
            Err(problem) => panic!("SEED={seed}: {problem}"),
        }
    }
    // The runs reach what they are for.
    assert!(total.is_varied() || number("SEED").is_some(), "{total:?}");
}

#[test]
fn a_seed_reproduces_its_run() {
    for seed in 0..10 {
        assert_eq!(World::run(seed, Fault::None), World::run(seed, Fault::None));
    }
}

#[test]
fn no_seed_breaks_the_moves() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS) / 4,
    };
    let mut total = cluster::Counts::default();
    for seed in seeds {
        match Cluster::run(seed, Fault::None) {
            Ok(counts) => total.add(&counts),
            Err(problem) => panic!("SEED={seed}: {problem}"),
        }
    }
    assert!(total.is_varied() || number("SEED").is_some(), "{total:?}");
}

/// The seed that finds a fault, and what it finds.
fn find(fault: Fault) -> Option<(u64, String)> {
    let run = |seed| match fault {
        Fault::PlacesBeforeMarks
        | Fault::TakenAgainAfterTimeout
        | Fault::CommitWithoutClosed
        | Fault::PinnedStaysOpen => Cluster::run(seed, fault).err(),
        _ => World::run(seed, fault).err(),
    };
    (0..number("SEEDS").unwrap_or(SEEDS_PER_FAULT)).find_map(|seed| Some((seed, run(seed)?)))
}

#[test]
fn planted_faults_are_found() {
    find_all(&[
        Fault::AcknowledgeBeforeBackup,
        Fault::MemberWithoutBoot,
        Fault::MarksNotSent,
        Fault::PromoteWithoutCompareAndSet,
        Fault::RepeatAnsweredEarly,
        Fault::SkipInsteadOfWait,
        Fault::RemovalsUnnumbered,
        Fault::BarrierNotAwaited,
        Fault::AddedTooEarly,
        Fault::PullsWithoutLease,
    ]);
}

#[test]
fn planted_faults_of_moves_are_found() {
    find_all(&[
        Fault::PlacesBeforeMarks,
        Fault::TakenAgainAfterTimeout,
        Fault::CommitWithoutClosed,
        Fault::PinnedStaysOpen,
    ]);
}

#[expect(clippy::print_stdout, reason = "the seeds, with --nocapture")]
fn find_all(faults: &[Fault]) {
    for &fault in faults {
        let found = find(fault);
        assert!(found.is_some(), "{fault:?} was not found");
        if let Some((seed, problem)) = found {
            println!("{fault:?}: seed {seed}: {}", problem.lines().next().unwrap_or_default());
        }
    }
}
