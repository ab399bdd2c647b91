//! All-to-all exchanges when some workers are lost.

use super::*;
use crate::hosts::test_hosts;

const WORKERS: u32 = 4;

/// The parts that each live worker receives, by rank, when all send to these ranks.
fn exchanged(lost: &[u32], to: &[u32]) -> Vec<Result<Vec<Vec<u8>>, String>> {
    let dir = tempfile::tempdir().unwrap();
    let workers = test_hosts::without(dir.path(), WORKERS, lost);
    let exchange = |mut worker: Worker| {
        assert_eq!(worker.workers(), WORKERS);
        let rank = worker.rank();
        let part = |other: u32| if to.contains(&other) { vec![rank as u8, other as u8] } else { Vec::new() };
        let given = worker.all_to_all("counts", (0..WORKERS).map(part).collect());
        given.map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| exchange(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn parts_are_for_ranks_whoever_is_lost_and_none_is_lost_without_a_word() {
    for lost in [&[][..], &[1], &[3], &[1, 2]] {
        let living: Vec<u32> = (0..WORKERS).filter(|rank| !lost.contains(rank)).collect();
        for (given, &rank) in exchanged(lost, &living).into_iter().zip(&living) {
            let from = |other| if lost.contains(&other) { vec![] } else { vec![other as u8, rank as u8] };
            assert_eq!(given, Ok((0..WORKERS).map(from).collect()), "worker {rank} without {lost:?}");
        }
        if !lost.is_empty() {
            let all: Vec<u32> = (0..WORKERS).collect();
            for given in exchanged(lost, &all) {
                let error = given.unwrap_err();
                let expected = format!("all_to_all \"counts\": bytes for workers {lost:?}, which are lost");
                assert!(error.contains(&expected), "{error}");
            }
        }
    }
}
