//! The store's benchmark, tiny: it measures all that was asked for, and its JSON has the promised keys. Says nothing of
//! how fast anything is.

use sanderling_bench::{BenchError, Dist, Ids, Op, RowOptimizer, StoreOptions, StoreReport, store};

fn tiny() -> StoreOptions {
    StoreOptions {
        keys: 3000,
        dim: 5,
        batch: 64,
        samples: 3,
        threads: vec![2, 1],
        rounds: 2,
        batches: 60,
        ..StoreOptions::default()
    }
}

#[test]
fn every_operation_is_measured_under_every_load() {
    for (ids, optimizer) in [
        (Ids::Random, RowOptimizer::Adagrad),
        (Ids::Dense, RowOptimizer::Sgd),
        (Ids::Shifted, RowOptimizer::Adagrad),
    ] {
        let options = StoreOptions { ids, optimizer, ..tiny() };
        let mut steps = Vec::new();
        let report = store::run(&options, &mut |_, done, of| steps.push((done, of))).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(serde_json::from_value::<StoreReport>(json.clone()).unwrap(), report);

        let rows = json["results"].as_array().unwrap();
        assert_eq!(rows.len(), 4 * 3 * 2);
        for row in rows {
            for key in
                ["mkeys_per_s", "limit_mkeys_per_s", "ratio", "ns_per_key", "p50_us", "p99_us", "gb_per_s"]
            {
                assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
            }
            assert!(row["p50_us"].as_f64() <= row["p99_us"].as_f64(), "{row}");
            let given = [&row["keys"], &row["dim"], &row["ids"]];
            assert_eq!(given, [&json["options"]["keys"], &json["options"]["dim"], &json["options"]["ids"]]);
            assert_eq!(row["read_only_mkeys_per_s"].is_f64(), row["op"] == "mix98", "{row}");
        }
        for dist in ["uniform", "zipf0.9", "zipf0.99"] {
            for op in ["pull", "pull_pooled", "push", "mix98"] {
                for threads in [1, 2] {
                    let same = |row: &&serde_json::Value| {
                        row["dist"] == dist && row["op"] == op && row["threads"] == threads
                    };
                    assert_eq!(rows.iter().filter(same).count(), 1, "{op} {dist} {threads}");
                }
            }
        }
        assert_eq!(report.sweep.len() % rows.len(), 0);
        let load: Vec<_> = report.load.iter().map(|load| (load.threads, load.rows)).collect();
        assert_eq!(load, [(2, 3000), (1, 3000)]);
        assert!(steps.is_sorted() && steps.last().is_some_and(|(done, of)| done == of), "{steps:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let run = |options: &StoreOptions| store::run(options, &mut |_, _, _| ()).unwrap_err();
    for (options, part) in [
        (StoreOptions { keys: 0, ..tiny() }, "keys = 0"),
        (StoreOptions { dim: 0, ..tiny() }, "dim = 0"),
        (StoreOptions { batch: 0, ..tiny() }, "batch = 0"),
        (StoreOptions { threads: vec![1, 0], ..tiny() }, "threads = 0"),
        (StoreOptions { ops: Vec::new(), ..tiny() }, "at least one"),
        (StoreOptions { keys: 1 << 31, dim: 1 << 16, ..tiny() }, "2147483648 keys"),
    ] {
        let error = run(&options);
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = run(&StoreOptions { keys: 1 << 31, dim: 1 << 16, ..tiny() });
    assert!(matches!(error, BenchError::Memory { keys, .. } if keys == 1 << 31), "{error}");
}

/// One request more than the smallest: a single key, a single batch.
#[test]
fn the_smallest_is_measured_too() {
    let options = StoreOptions {
        keys: 1,
        dim: 1,
        batch: 1,
        samples: 1,
        threads: vec![1],
        ops: Op::ALL.to_vec(),
        dists: vec![Dist::Zipf(0.99)],
        rounds: 1,
        batches: 50,
        ..tiny()
    };
    assert_eq!(store::run(&options, &mut |_, _, _| ()).unwrap().results.len(), 4);
}
