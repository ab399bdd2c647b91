//! The race against the peers, tiny: all give the same rows, and all are measured. Says nothing of who is faster.

#[path = "../../benches/peers/race.rs"]
mod race;
#[path = "../../benches/peers/rivals.rs"]
mod rivals;

use sanderling_bench::{Dist, Ids, StoreOptions};

#[test]
fn all_give_the_same_rows_and_are_measured() {
    for (ids, dim) in [(Ids::Random, 8), (Ids::Shifted, 1), (Ids::Dense, 33)] {
        let options = StoreOptions {
            keys: 5000,
            dim,
            batch: 1500, // more than one turn of two passes
            samples: 2,
            threads: vec![1, 2],
            dists: vec![Dist::Uniform, Dist::Zipf(0.99)],
            ids,
            rounds: 1,
            batches: 3,
            ..StoreOptions::default()
        };
        let report = race::run(&options, &rivals::NAMES).unwrap();
        for (op, who) in [
            ("pull", &rivals::NAMES[..]),
            ("pull_pooled", &["hashbrown", "hashbrown_two_pass", "sanderling"]),
        ] {
            for name in who {
                let rows: Vec<_> = report
                    .results
                    .iter()
                    .filter(|row| row.op.to_string() == op && row.who == *name)
                    .collect();
                assert_eq!(rows.len(), 4, "{op} {name}");
                assert!(
                    rows.iter().all(|row| row.mkeys_per_s > 0.0 && row.sanderling_ratio > 0.0),
                    "{op} {name}"
                );
                assert!(*name != "sanderling" || rows.iter().all(|row| row.sanderling_ratio == 1.0));
            }
        }
        assert_eq!(report.results.len(), 4 * (rivals::NAMES.len() + 3));
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["results"][0]["who"].is_string() && json["machine"]["cpu"].is_string(), "{json}");
    }
}
