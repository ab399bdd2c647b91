//! Admission, eviction, their counters, and maintenance.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{Draw, Stop, always};
use sanderling_store::{
    Absent, Admission, Eviction, Init, Maintenance, Optimizer, PushScale, StoreError, Table, TableConfig,
    Writes,
};

const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };

fn config(dim: usize) -> TableConfig {
    TableConfig::single("t", dim, Init::Zero, SGD)
}

fn push(t: &Table, keys: &[u64]) -> Result<(), StoreError> {
    t.push(keys, &vec![1.0; keys.len() * t.dim()], PushScale::default())
}

fn present(t: &Table, keys: &[u64]) -> usize {
    let mut out = vec![0.0; keys.len() * t.dim()];
    keys.len() - t.pull(keys, Absent::Zero, &mut out, None).unwrap()
}

#[test]
fn a_key_gets_its_row_at_its_nth_pushing_request() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        for sightings in [2, 3, 255] {
            let admission = Admission::Sightings { sightings, filter_bytes: 1 << 16 };
            let t = Table::new(TableConfig { admission, writes, ..config(2) }).unwrap();
            for request in 1..u64::from(sightings) {
                // Repeats within a request count once.
                push(&t, &[7, 7, 8]).unwrap();
                assert_eq!((t.len(), t.stats().rejected), (0, 2 * request));
            }
            push(&t, &[7]).unwrap();
            let row = t.get(7).unwrap();
            assert_eq!(
                (row.weights, row.version, t.get(8)),
                (vec![-1.0; 2], 1, None),
                "earlier gradients are gone"
            );
            assert_eq!((t.stats().admitted, t.stats().rejected), (1, 2 * u64::from(sightings) - 2));
            // Sightings outlive a removed row, but not a clear.
            assert!(t.remove(7));
            push(&t, &[7]).unwrap();
            assert_eq!(t.len(), 1);
            t.clear();
            push(&t, &[7]).unwrap();
            assert_eq!(t.len(), 0);
        }
    }
}

#[test]
fn sightings_are_forgotten() {
    let seen = |filter_bytes: u64| {
        let admission = Admission::Sightings { sightings: 200, filter_bytes };
        let t = Table::new(TableConfig { admission, ..config(1) }).unwrap();
        for key in 1..=11 {
            (0..199).for_each(|_| push(&t, &[key]).unwrap());
        }
        assert_eq!((t.len(), t.stats().rejected), (0, 11 * 199));
        push(&t, &[1]).unwrap();
        t.len()
    };
    assert_eq!((seen(1024), seen(1 << 16)), (0, 1), "2189 sightings halve the counts of 1024 counters only");
}

#[test]
fn a_share_of_the_keys_is_admitted_the_same_for_the_same_seed() {
    let n = 20_000_u64;
    let keys: Vec<u64> = (0..n).map(|i| i << 20).collect();
    let admitted = |probability: f32, seed: u64, rounds: u64| -> HashSet<u64> {
        let admission = Admission::Probability { probability };
        let t = Table::new(TableConfig { admission, seed, ..config(1) }).unwrap();
        let mut sightings = 0;
        for _ in 0..rounds {
            sightings += n - t.len() as u64;
            push(&t, &keys).unwrap();
        }
        let stats = t.stats();
        assert_eq!((stats.rows, stats.admitted + stats.rejected), (stats.admitted, sightings));
        keys.iter().copied().filter(|&key| t.get(key).is_some()).collect()
    };
    for (probability, rounds) in [(0.01_f32, 1), (0.3, 1), (0.3, 3), (1.0, 1)] {
        let expected = 1.0 - (1.0 - f64::from(probability)).powi(rounds as i32);
        let rows = admitted(probability, 5, rounds);
        let deviation = (n as f64 * expected * (1.0 - expected)).sqrt();
        assert!(
            (rows.len() as f64 - n as f64 * expected).abs() <= 5.0 * deviation,
            "{} of {n} at {probability} in {rounds} rounds",
            rows.len()
        );
        assert_eq!(rows, admitted(probability, 5, rounds));
        assert!(probability == 1.0 || rows != admitted(probability, 6, rounds));
    }
}

/// Steady state: one key in ten is new, for ten times the capacity; the others come from half the capacity.
#[test]
fn churn_keeps_the_hot_keys_and_the_memory() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let budget_bytes = Some(2 << 20);
        let t =
            Table::new(TableConfig { eviction: Eviction::Clock, writes, budget_bytes, ..config(8) }).unwrap();
        let mut capacity = 0_u64;
        while t.stats().evicted == 0 {
            push(&t, &(capacity..capacity + 500).collect::<Vec<_>>()).unwrap();
            capacity += 500;
        }
        let bytes = t.bytes();
        let (mut draw, mut new, hot) = (Draw(1), 1 << 40, capacity / 2);
        while new < (1 << 40) + 10 * capacity {
            let mut request: Vec<u64> = (0..460).map(|_| draw.below(hot) << 20).collect();
            request.extend(new..new + 51);
            new += 51;
            push(&t, &request).unwrap();
            assert!(budget_bytes.is_some_and(|budget| t.bytes() <= budget));
        }
        let stats = t.stats();
        assert!(stats.admitted - stats.evicted == stats.rows && stats.rejected_full == 0, "{stats:?}");
        assert!(t.bytes() <= bytes + bytes / 10, "{bytes} bytes, then {}", t.bytes());
        assert!(stats.rows > capacity * 3 / 4, "{} of {capacity} rows", stats.rows);
        let found = present(&t, &(0..hot).map(|key| key << 20).collect::<Vec<_>>()) as u64;
        assert!(found > hot * 9 / 10, "{writes:?}: {found} of {hot} hot keys");
    }
}

/// In tables of any size, whether index or rows run out first, eviction by use makes room.
#[test]
fn clock_finds_room_in_tables_of_every_size() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        for dim in [1, 40] {
            for step in 0..40 {
                let budget_bytes = Some((200 << 10) + step * (37 << 10));
                let eviction = Eviction::Clock;
                let t = Table::new(TableConfig { eviction, writes, budget_bytes, ..config(dim) }).unwrap();
                let mut key = 0;
                while t.stats().evicted < 3000 {
                    push(&t, &(key..key + 600).collect::<Vec<_>>()).unwrap_or_else(|error| {
                        panic!("{writes:?}, dim {dim}, {budget_bytes:?}: {error}, {:?}", t.stats())
                    });
                    key += 600;
                }
                assert!(budget_bytes.is_some_and(|budget| t.bytes() <= budget));
            }
        }
    }
}

/// More new keys in a request than the table has rows: each gets its turn.
#[test]
fn a_request_may_be_larger_than_the_table() {
    check_large_requests(Writes::InPlace);
}

#[test]
fn a_request_may_be_larger_than_a_table_that_copies() {
    check_large_requests(Writes::CopyOnWrite);
}

fn check_large_requests(writes: Writes) {
    for new in [300, 2000, 20_000] {
        let budget_bytes = Some(250 << 10);
        let t = Table::new(TableConfig { eviction: Eviction::Clock, writes, budget_bytes, ..config(30) })
            .unwrap();
        for first in 0..5 {
            push(&t, &(first * new..(first + 1) * new).collect::<Vec<_>>()).unwrap();
        }
        let stats = t.stats();
        assert_eq!((stats.admitted, stats.rejected_full), (5 * new, 0));
        assert_eq!(stats.admitted - stats.evicted, t.len() as u64);
    }
}

/// Keys that are only pulled stay, unused ones are evicted.
#[test]
fn pulls_count_as_use() {
    for maintained in [false, true] {
        let budget_bytes = Some(2 << 20);
        let t = Table::new(TableConfig { eviction: Eviction::Clock, budget_bytes, ..config(8) }).unwrap();
        let pulled: Vec<u64> = (0..40).collect();
        let idle: Vec<u64> = (1000..1040).collect();
        push(&t, &pulled).unwrap();
        push(&t, &idle).unwrap();
        let (mut draw, mut new) = (Draw(3), 1 << 40);
        let mut out = vec![0.0; 500 * 8];
        while t.stats().evicted < 40_000 {
            push(&t, &(new..new + 100).collect::<Vec<_>>()).unwrap();
            new += 100;
            let request: Vec<u64> = (0..500).map(|_| draw.below(40)).collect();
            t.pull(&request, Absent::Zero, &mut out, None).unwrap();
            if maintained {
                t.maintain(100);
            }
        }
        let found = (present(&t, &pulled), present(&t, &idle));
        // Without maintenance, only the last samples are known when the table is first full.
        let least = if maintained { 36 } else { 8 };
        assert!(found.0 >= least && found.1 < 4, "of 40: {} pulled, {} idle", found.0, found.1);
    }
}

/// Maintenance of a full table evicts ahead of pushes.
#[test]
fn a_full_table_has_rows_in_reserve() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let (eviction, budget_bytes) = (Eviction::Clock, Some(4 << 20));
        let t = Table::new(TableConfig { writes, eviction, budget_bytes, ..config(8) }).unwrap();
        let mut new = 0..;
        let mut push_new = |n: usize| push(&t, &new.by_ref().take(n).collect::<Vec<u64>>()).unwrap();
        // A table with room is left alone.
        push_new(1000);
        assert_eq!((t.maintain(100_000).evicted, t.len()), (0, 1000));
        while t.stats().evicted == 0 {
            push_new(100);
        }
        let rows = t.len();
        t.maintain(100_000);
        let (reserve, stats) = (t.maintain(100_000), t.stats());
        assert_eq!(reserve.evicted, 0, "{writes:?}: it is full by now");
        assert!((500..2000).contains(&stats.free_rows) && t.len() + 2000 > rows, "{writes:?}: {stats:?}");
        (0..8).for_each(|_| push_new(100));
        assert_eq!(t.stats().evicted, stats.evicted, "{writes:?}");
        // The reserve is refilled, except for an incomplete turn, and not beyond the request.
        let refilled = t.maintain(100_000).evicted;
        assert!((200..1000).contains(&refilled), "{writes:?}: {refilled}");
        push_new(1000);
        assert_eq!(t.maintain(7).evicted, 7, "{writes:?}");
        // Removed rows are room too.
        assert!((0..u64::MAX).filter(|&key| t.remove(key)).take(rows / 8).count() > 0);
        assert_eq!(t.maintain(100_000).evicted, 0, "{writes:?}");
    }
}

#[test]
fn rows_that_are_too_old_make_room_and_others_do_not() {
    let budget_bytes = Some(6 << 20);
    let eviction = Eviction::Age { pushes: 50 };
    let t = Table::new(TableConfig { eviction, budget_bytes, ..config(1) }).unwrap();
    let all: Vec<u64> = (0..1 << 20).collect();
    assert!(matches!(push(&t, &all), Err(StoreError::TableFull { .. })));
    let rows = t.len();
    assert!(rows > 70_000 && t.stats().evicted == 0, "nothing is old yet: {:?}", t.stats());
    // All but the last are used repeatedly.
    let mut there: Vec<u64> = all.into_iter().filter(|&key| t.get(key).is_some()).collect();
    let old = there.split_off(rows - 300);
    (0..60).for_each(|_| push(&t, &there).unwrap());
    push(&t, &(1 << 30..(1 << 30) + 300).collect::<Vec<_>>()).unwrap();
    assert_eq!((present(&t, &there), present(&t, &old), t.stats().evicted), (rows - 300, 0, 300));
    assert!(matches!(
        push(&t, &(1 << 40..(1 << 40) + 300).collect::<Vec<_>>()),
        Err(StoreError::TableFull { .. })
    ));
    // Maintenance does not wait until the table is full.
    (0..60).for_each(|_| push(&t, &there[..100]).unwrap());
    let evicted: usize = (0..100).map(|_| t.maintain(10_000).evicted).sum();
    assert_eq!((evicted, t.len(), present(&t, &there)), (rows - 100, 100, 100));
}

#[test]
fn rows_without_weight_make_room() {
    let optimizer = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 2.0, l2: 0.0 };
    let eviction = Eviction::Norm { below: 1e-3 };
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let mut config = TableConfig::single("t", 1, Init::Zero, optimizer);
        config = TableConfig { eviction, writes, budget_bytes: Some(1 << 20), ..config };
        let t = Table::new(config).unwrap();
        let heavy: Vec<u64> = (0..1000).collect();
        t.push(&heavy, &[3.0; 1000], PushScale::default()).unwrap();
        // Below l1 the weights are zeros, so that one batch makes room for the next.
        for first in 1..200_u64 {
            let light: Vec<u64> = (first * 1000..first * 1000 + 1000).collect();
            t.push(&light, &[1.0; 1000], PushScale::default()).unwrap();
        }
        let stats = t.stats();
        assert!(stats.evicted > 100_000 && stats.rejected_full == 0, "{stats:?}");
        assert_eq!(present(&t, &heavy), 1000);
        (0..20).for_each(|_| _ = t.maintain(10_000));
        assert_eq!((t.len(), present(&t, &heavy)), (1000, 1000));
    }
}

/// A scan that found nothing says nothing about rows created after a clear.
#[test]
fn rows_after_a_clear_make_room_at_once() {
    let eviction = Eviction::Norm { below: 1.0 };
    let t = Table::new(TableConfig { eviction, budget_bytes: Some(1 << 22), ..config(1) }).unwrap();
    let fill = |first: u64, weight: f32| {
        let keys: Vec<u64> = (first..first + 200_000).collect();
        t.push(&keys, &vec![-weight; keys.len()], PushScale::default())
    };
    assert!(matches!(fill(0, 3.0), Err(StoreError::TableFull { .. })));
    t.clear();
    // In one push, so that the next ones follow soon.
    let _ = fill(0, 0.5);
    for first in 2..5 {
        t.push(&[first << 40], &[-0.5], PushScale::default()).unwrap();
    }
}

#[test]
fn counters_add_up_with_removals() {
    for eviction in [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 5 }] {
        let config = TableConfig { eviction, budget_bytes: Some(1 << 20), ..config(4) };
        let (t, mut draw, mut removed, mut failed) = (Table::new(config).unwrap(), Draw(7), 0, 0);
        for _ in 0..300 {
            let request: Vec<u64> = (0..400).map(|_| draw.below(40_000)).collect();
            if let Err(error) = push(&t, &request) {
                let StoreError::TableFull { rejected, .. } = error else { panic!("{error}") };
                failed += rejected;
            }
            removed += (0..100).filter(|_| t.remove(draw.below(40_000))).count() as u64;
        }
        let stats = t.stats();
        assert_eq!((stats.admitted - stats.evicted - removed, stats.rejected_full), (stats.rows, failed));
        let mut rows = 0;
        t.for_each_row(|_| rows += 1);
        assert_eq!(rows, stats.rows);
    }
}

/// Keys with a Zipf distribution, exponent .99, and their expected frequencies.
fn zipf(n: u64, draw: &mut Draw) -> u64 {
    // The inverse of the continuous distribution function.
    let s = 0.01_f64;
    ((1.0 + draw.unit() * ((n as f64).powf(s) - 1.0)).powf(1.0 / s) as u64).min(n - 1)
}

#[test]
fn hot_keys_move_home_and_none_is_missed_meanwhile() {
    // The budget of a table with this many keys at the default fill; then more keys are added.
    let (n, dim) = (60_000_u64, 2);
    let sized = Table::new(config(dim)).unwrap();
    assert!(sized.reserve(n * 60 / 85));
    let index_bytes = sized.bytes();
    // Enough for rows, versions and the sketch; too little for a larger index.
    let rows_bytes = (2 << 20) + (228 << 10);
    let t = Table::new(TableConfig { budget_bytes: Some(index_bytes + rows_bytes), ..config(dim) }).unwrap();
    assert!(t.reserve(n * 60 / 85));
    // No table has that many rows, because row numbers have 32 bits.
    for rows in [u64::from(u32::MAX), 1 << 40, 1 << 60, u64::MAX] {
        assert!(!t.reserve(rows) && !sized.reserve(rows), "{rows}");
    }
    // The sketch is allocated before rows use the whole budget.
    t.maintain(1);
    let keys: Vec<u64> = (0..n).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    // The hottest keys come last and find the index full.
    for keys in keys.rchunks(1000) {
        push(&t, keys).unwrap();
    }
    let mut draw = Draw(11);
    let requests: Vec<Vec<u64>> =
        (0..200).map(|_| (0..512).map(|_| keys[zipf(n, &mut draw) as usize]).collect()).collect();
    let lines = |t: &Table| {
        let sum: f64 = requests.iter().map(|request| t.lines_per_search(request)).sum();
        sum / requests.len() as f64
    };
    let (before, t) = (lines(&t), Arc::new(t));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (t, stop, requests) = (&t, &stop, &requests);
            scope.spawn(move || {
                let (mut at, mut out) = (thread, vec![0.0; 512 * dim]);
                while !stop.load(Relaxed) {
                    let request = &requests[at % requests.len()];
                    assert_eq!(t.pull(request, Absent::Zero, &mut out, None).unwrap(), 0);
                    at += 1;
                }
            });
        }
        let _stop = Stop(&stop);
        let maintenance = Maintenance::start(always(&t)).unwrap();
        let start = Instant::now();
        // As long as keys can be promoted, within reason.
        while t.stats().promoted < 1000 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(maintenance);
    });
    let after = lines(&t);
    assert!(t.stats().index_bytes < index_bytes + (1 << 20), "the index has not grown");
    assert!(before > 1.25 && after < before - (before - 1.0) * 0.3, "{before} lines, then {after}");
    assert_eq!(present(&t, &keys) as u64, n);
}

#[test]
fn writers_are_refused_where_rows_do_not_stay() {
    let check = |config: TableConfig, ok: bool| {
        let t = Table::new(config).unwrap();
        match t.writer(PushScale::default()) {
            Ok(_) => assert!(ok),
            Err(error) => {
                assert!(!ok && matches!(error, StoreError::Config { .. }), "{error:?}");
                assert!(
                    error.to_string().contains("\"t\"") && error.to_string().contains("in_place"),
                    "{error}"
                );
            }
        }
        // Accepted or not, the table remains usable.
        push(&t, &[1]).unwrap();
        t.clear();
    };
    check(config(1), true);
    check(TableConfig { eviction: Eviction::Clock, ..config(1) }, true);
    check(TableConfig { writes: Writes::CopyOnWrite, ..config(1) }, false);
    check(TableConfig { admission: Admission::Probability { probability: 1.0 }, ..config(1) }, false);
    let admission = Admission::Sightings { sightings: 2, filter_bytes: 64 };
    check(TableConfig { admission, ..config(1) }, false);
    assert!(Table::new(config(1)).unwrap().writer(PushScale { lr_scale: f32::NAN }).is_err());
}

/// A writer does not evict, but a later push does.
#[test]
fn a_writer_in_a_full_table_says_so() {
    let config = TableConfig { eviction: Eviction::Clock, budget_bytes: Some(300 << 10), ..config(4) };
    let (t, mut handles) = (Table::new(config).unwrap(), Vec::new());
    let mut writer = t.writer(PushScale::default()).unwrap();
    let error = writer.resolve(&(0..100_000).collect::<Vec<_>>(), &mut handles).unwrap_err();
    assert!(matches!(error, StoreError::TableFull { .. }), "{error:?}");
    assert!(handles.is_empty(), "{} handles of earlier chunks", handles.len());
    drop(writer);
    push(&t, &(1 << 30..(1 << 30) + 3000).collect::<Vec<_>>()).unwrap();
    assert!(t.stats().evicted >= 256 && t.stats().rejected_full > 0);
}
