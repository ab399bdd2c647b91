//! The replicas of a user, the first choice first, by rendezvous hashing: a replica that leaves moves only its own users.

use sanderling_random::mix;

/// Hash of a replica's name (FNV-1a, mixed).
pub(crate) fn replica_hash(name: &str) -> u64 {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

/// All replicas by number in the order in which a user's requests prefer them.
pub(crate) fn order(replicas: &[u64], user: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..replicas.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(mix(replicas[*at] ^ mix(user))));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_spread_evenly_and_only_those_of_a_lost_replica_move() {
        let replicas: Vec<u64> = ["a:1", "b:1", "c:1", "d:1"].map(replica_hash).to_vec();
        let mut counts = [0; 4];
        for user in 0..10_000 {
            let all = order(&replicas, user);
            counts[all[0]] += 1;
            let fewer = order(&replicas[..3], user);
            let expected: Vec<usize> = all.into_iter().filter(|at| *at < 3).collect();
            assert_eq!(fewer, expected, "{user}");
        }
        assert!(counts.iter().all(|count| (2300..=2700).contains(count)), "{counts:?}");
    }
}
