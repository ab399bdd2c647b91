//! Records, against an exact sort and exact counts of the same trace, by one thread and by several
//! merged.

use std::collections::HashSet;
use std::time::Instant;

use proptest::prelude::*;
use sanderling_random::Rng;

use super::distribution::{DIGITS, NS_MAX};
use super::series::INTERVALS_MAX;
use super::*;
use crate::request::{Failure, Operation, Outcome};

/// When a call was due, how late it began, how long it took, and whether it failed.
#[derive(Debug, Clone, Copy)]
struct Traced {
    at_ns: u64,
    lag_ns: u64,
    service_ns: u64,
    failed: bool,
}

impl Traced {
    fn response_ns(&self) -> u64 {
        self.lag_ns + self.service_ns
    }
}

/// Heavy-tailed service times (Pareto with an infinite variance), some late calls, some failures.
fn trace(seed: u64, calls: usize) -> Vec<Traced> {
    let mut rng = Rng::new(seed, 0, 0);
    let call = |number: usize| Traced {
        at_ns: number as u64 * 1_000_000,
        lag_ns: if rng.unit() < 0.5 { 0 } else { (1e5 * rng.unit()) as u64 },
        service_ns: (20_000.0 * (1.0 - rng.unit()).powf(-1.0 / 1.5)) as u64,
        failed: rng.unit() < 0.01,
    };
    (0..calls).map(call).collect()
}

fn note(observed: &mut Observed, call: Traced) {
    let of = Duration::from_nanos;
    observed.call(
        usize::from(call.service_ns.is_multiple_of(2)),
        of(call.at_ns),
        of(call.response_ns()),
        of(call.service_ns),
        of(call.lag_ns),
        call.failed,
    );
}

fn functions() -> Vec<String> {
    vec!["pull".to_owned(), "push".to_owned()]
}

/// Every percentile within the precision that is stated, of an exact sort.
fn check(what: &str, found: &Distribution, exact: impl Iterator<Item = u64>) {
    let mut exact: Vec<u64> = exact.collect();
    exact.sort_unstable();
    assert_eq!(found.count(), exact.len() as u64, "{what}");
    assert_eq!(
        found.min_ns().zip(found.max_ns()),
        exact.first().copied().zip(exact.last().copied()),
        "{what}"
    );
    let mean = exact.iter().map(|&ns| ns as f64).sum::<f64>() / exact.len() as f64;
    assert!((found.mean_ns().expect("there are some") / mean - 1.0).abs() < 1e-12, "{what}");
    let precision = 10f64.powi(-i32::from(DIGITS));
    for quantile in [0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999] {
        let rank = ((quantile * exact.len() as f64).ceil() as usize).max(1);
        let wanted = exact[rank - 1].min(NS_MAX) as f64;
        let enough = (1.0 - quantile) * exact.len() as f64 >= 9.999_999;
        match found.quantile_ns(quantile) {
            Some(ns) => {
                assert!(
                    (ns as f64 - wanted).abs() <= precision * wanted + 1.0,
                    "{what} {quantile}: {ns} is not {wanted}"
                );
                assert!(enough, "{what} {quantile} of {} samples", exact.len());
            }
            None => assert!(!enough, "{what} {quantile}: none, of {} samples", exact.len()),
        }
    }
}

#[test]
fn percentiles_are_those_of_an_exact_sort_on_a_trace_of_several_threads() {
    for (threads, calls) in [(1, 50), (3, 20_000), (4, 200_000)] {
        let trace = trace(calls as u64, calls);
        let mut notes: Vec<Observed> =
            (0..threads).map(|_| Observed::new(&functions(), Duration::from_secs(200))).collect();
        trace.iter().enumerate().for_each(|(number, &call)| note(&mut notes[number % threads], call));
        let mut all = notes.pop().expect("there is a thread");
        notes.iter().for_each(|notes| all.merge(notes));
        let measured = all.measured(Duration::from_secs(200));

        let good = || trace.iter().filter(|call| !call.failed);
        check("response", &measured.response(), good().map(Traced::response_ns));
        check("service", &measured.service(), good().map(|call| call.service_ns));
        let lags = measured.lag();
        let most = trace.iter().map(|call| call.lag_ns).max();
        assert_eq!((lags.count(), lags.max_ns()), (calls as u64, most));
        let failed = trace.iter().filter(|call| call.failed).count() as u64;
        assert_eq!((measured.calls(), measured.failed()), (calls as u64, failed));
        for (number, function) in measured.functions.iter().enumerate() {
            let mine = good().filter(|call| usize::from(call.service_ns.is_multiple_of(2)) == number);
            check(&function.name, &function.response, mine.map(Traced::response_ns));
        }
    }
}

#[test]
fn nothing_is_told_of_nothing() {
    let measured = Observed::new(&functions(), Duration::ZERO).measured(Duration::from_secs(1));
    let response = measured.response();
    assert_eq!((response.quantile_ns(0.5), response.mean_ns(), response.max_ns()), (None, None, None));
    assert_eq!((measured.calls(), measured.distinct, measured.requests.len()), (0, None, 0));
    assert_eq!(measured.series.intervals().len(), 10, "a second has ten intervals, though nothing happened");
}

proptest! {
    /// Calls, failures, keys and latencies of every interval, however the threads' intervals have grown.
    #[test]
    fn intervals_are_those_of_a_plain_count(
        calls in prop::collection::vec((0_u64..200_000_000_000, 1_u64..3_000_000_000, any::<bool>()), 1..60),
        threads in 1_usize..4,
    ) {
        let mut notes: Vec<Series> = (0..threads).map(|_| Series::new(Duration::from_secs(3))).collect();
        for (number, &(at, response, failed)) in calls.iter().enumerate() {
            let series = &mut notes[number % threads];
            series.call(at, response, failed);
            series.keys(at + response, 7);
        }
        let mut all = notes.pop().expect("there is one");
        notes.iter().for_each(|notes| all.merge(notes));
        let length = all.interval_ns;
        prop_assert!(all.intervals().len() <= INTERVALS_MAX);
        for (place, interval) in all.intervals().iter().enumerate() {
            let inside = |ns: u64| ns / length == place as u64;
            let ended = |failed: bool| {
                calls.iter().filter(|call| inside(call.0 + call.1) && call.2 == failed).count() as u64
            };
            let due = calls.iter().filter(|call| inside(call.0) && !call.2).count() as u64;
            prop_assert_eq!((interval.calls, interval.failed), (ended(false), ended(true)));
            prop_assert_eq!(interval.keys, 7 * (ended(false) + ended(true)));
            prop_assert_eq!(interval.response.len(), due);
        }
        let total: u64 = all.intervals().iter().map(|interval| interval.calls + interval.failed).sum();
        prop_assert_eq!(total, calls.len() as u64);
    }

    /// Exact for few keys; within seven standard errors for many, whoever saw them: the error that is told is that of an
    /// average sample, and one that has just been halved is off by a sixth more.
    #[test]
    fn distinct_keys_are_counted(
        seed: u64,
        range in prop_oneof![1_u64..4000, 5_000_u64..200_000],
        asked in 1_usize..60_000,
        threads in 1_usize..4,
    ) {
        let mut rng = Rng::new(seed, 0, 0);
        let keys: Vec<u64> = (0..asked).map(|_| rng.next() % range).collect();
        let mut notes: Vec<DistinctKeys> = (0..threads).map(|_| DistinctKeys::new()).collect();
        keys.chunks(512).enumerate().for_each(|(number, keys)| notes[number % threads].note(keys));
        let mut all = notes.pop().expect("there is one");
        notes.iter().for_each(|notes| all.merge(notes));
        let found = all.summary().expect("keys were asked");
        let exact = keys.iter().collect::<HashSet<_>>().len() as f64;
        prop_assert_eq!(found.asked, asked as u64);
        prop_assert!((found.distinct - exact).abs() <= 7.0 * found.error * exact, "{:?} {}", found, exact);
        prop_assert!(found.error > 0.0 || exact <= 4097.0);
    }
}

fn finished(operation: Operation, keys: usize, outcome: Result<Outcome, Failure>) -> Finished {
    let sent = Instant::now();
    Finished { slot: 0, operation, keys, sent, done: sent + Duration::from_micros(keys as u64), outcome }
}

#[test]
fn requests_are_counted_by_operation_and_size() {
    let good = |missing, bytes| Ok(Outcome { missing, bytes });
    let late = || Failure { kind: "late", reason: "no answer in 60 s".to_owned() };
    let (mut one, mut other) = (Observed::new(&[], Duration::ZERO), Observed::new(&[], Duration::ZERO));
    one.request(Duration::ZERO, &finished(Operation::Pull, 512, good(3, 1000)));
    one.request(Duration::ZERO, &finished(Operation::Pull, 600, good(0, 1200)));
    other.request(Duration::from_secs(2), &finished(Operation::Pull, 700, Err(late())));
    other.request(Duration::ZERO, &finished(Operation::Push, 1, good(0, 136)));
    other.request(Duration::ZERO, &finished(Operation::Delete, 0, good(0, 0)));
    other.failure("script", "line 3: no such function");
    one.merge(&other);
    let measured = one.measured(Duration::from_secs(3));
    let of = |count: &RequestCount| {
        (count.operation.clone(), count.batch_min, count.batch_max, count.requests, count.failed, count.keys)
    };
    let found: Vec<_> = measured.requests.iter().map(of).collect();
    let expected = [("pull", 512, 700, 3, 1, 1112), ("push", 1, 1, 1, 0, 1), ("delete", 0, 0, 1, 0, 0)];
    assert_eq!(
        found,
        expected.map(|(name, min, max, all, failed, keys)| (name.to_owned(), min, max, all, failed, keys))
    );
    assert_eq!((measured.keys(), measured.missing(), measured.bytes()), (1113, 3, 2336));
    assert_eq!(measured.requests[0].service.max_ns, 600_000);
    let kinds: Vec<_> =
        measured.failures.iter().map(|failure| (failure.kind.as_str(), failure.count)).collect();
    assert_eq!(kinds, [("late", 1), ("script", 1)]);
    assert_eq!(measured.failures[0].first, "no answer in 60 s");
    assert_eq!(measured.series.intervals()[0].keys, 1113);
}

#[test]
fn failures_stay_bounded() {
    let mut failures = Failures::new();
    for number in 0..1000 {
        failures.note(&format!("kind {number}"), &"ü".repeat(5000));
    }
    let counts = failures.counts();
    assert_eq!(counts.iter().map(|count| count.count).sum::<u64>(), 1000);
    assert!(counts.len() <= 64 && counts.iter().all(|count| count.first.len() <= 2000));
    assert_eq!(counts[0].kind, "other");
}
