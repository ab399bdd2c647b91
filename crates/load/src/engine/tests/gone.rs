//! Runs against servers that fall silent or are gone: they end in time, and say that they are not valid.

use super::*;
use crate::campaign::{self, Search, WatchRuns};

/// A server that is gone: one call of many fails, and takes all of the time.
#[test]
fn a_run_whose_server_was_gone_is_not_valid() {
    let check = |timeout_ms: u64, expected: &str| {
        let pause = Arc::new(Mutex::new(()));
        let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
        let null = NullServer::start_with_pause(&listen, 4, 0, Arc::clone(&pause)).unwrap();
        let options = ConnectOptions { timeout: Duration::from_millis(timeout_ms), ..Default::default() };
        let target = Target::connect(&null.addresses()[0].to_string(), options).unwrap();
        // One of a few calls is no more than may fail; the time that it takes is.
        let length = Length::Time(Duration::from_secs(1));
        let plan = Plan { length, failures_max: 0.5, ..plan("pull") };
        schema(&target, &plan).unwrap();
        let (mut held, mut since) = (None, None);
        let run = run(&target, &plan, &mut |progress| {
            if since.is_none() && progress.calls >= 10 {
                held = Some(pause.lock().unwrap());
                since = Some(Instant::now());
            }
            // Longer than the first timeout, and than a run of a second may take until its last call has ended.
            if since.is_some_and(|since: Instant| since.elapsed() >= Duration::from_millis(2700)) {
                held = None;
            }
            true
        })
        .unwrap();
        let Validity { valid, reasons, by_client, .. } = &run.validity;
        assert!(!valid && !by_client && reasons.iter().any(|one| one.contains(expected)), "{reasons:?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check(1000, "of the time; at most 50.00 % may"));
        check(20_000, "s in place of 1.0 s");
    });
}

/// Told to stop while the server says nothing, and as much is under way as there can be.
#[test]
fn a_silent_server_keeps_no_run_from_its_end() {
    let pause = Arc::new(Mutex::new(()));
    let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
    let null = NullServer::start_with_pause(&listen, 4, 0, Arc::clone(&pause)).unwrap();
    let target = Target::connect(&null.addresses()[0].to_string(), Default::default()).unwrap();
    let plan =
        Plan { length: Length::Time(Duration::from_secs(600)), concurrency: Some(100), ..plan("pull") };
    schema(&target, &plan).unwrap();
    let (mut held, mut looks) = (None, 0);
    let stopped = run(&target, &plan, &mut |progress| {
        if progress.calls > 0 && held.is_none() {
            held = Some(pause.lock().unwrap());
        }
        looks += u32::from(held.is_some());
        looks < 3
    });
    let Err(EngineError::Stopped(Some(part))) = stopped else { panic!("{stopped:?}") };
    // Nothing was waited for until it failed, or for a minute.
    let reasons = &part.validity.reasons;
    assert!(part.measured.failed() == 0 && part.measured.failures.is_empty(), "{:?}", part.measured.failures);
    assert!(!reasons.iter().any(|one| one.contains("given up")), "{reasons:?}");
    assert!(reasons.iter().any(|one| one.contains("at most 64 requests at a time")), "{reasons:?}");
    drop(held);
}

/// A server that answers nothing from some time on: what is run against it ends within a time-out of a request of its own end,
/// and campaigns make no further run.
#[test]
fn a_run_ends_within_a_time_out_of_its_end_when_its_server_is_gone() {
    type Check<'a> = &'a dyn Fn(&Target, &mut dyn FnMut(Progress) -> bool);
    let timeout = Duration::from_secs(2);
    let open = Schedule::Open { per_s: 500.0, arrivals: Arrivals::Uniform };
    let gone = |check: Check<'_>, calls: u64| {
        let pause = Arc::new(Mutex::new(()));
        let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
        let null = NullServer::start_with_pause(&listen, 4, 0, Arc::clone(&pause)).unwrap();
        let options = ConnectOptions { timeout, ..Default::default() };
        let target = Target::connect(&null.addresses()[0].to_string(), options).unwrap();
        schema(&target, &plan("pull")).unwrap();
        let mut held = None;
        check(&target, &mut |progress| {
            if progress.calls >= calls && held.is_none() {
                held = Some(pause.lock().unwrap());
            }
            true
        });
        drop(held);
    };
    let second = Length::Time(Duration::from_secs(1));
    // The longest that it may take, with some to spare for a busy machine.
    let ends = |schedule, length, own_end: Duration| {
        let plan = Plan { schedule, length, concurrency: Some(8), ..plan("pull") };
        gone(
            &|target, watch| {
                let start = Instant::now();
                let run = run(target, &plan, watch).unwrap();
                let took = start.elapsed();
                assert!(took < own_end + timeout + Duration::from_millis(1500), "{schedule:?}: {took:?}");
                let Validity { valid, reasons, gone, .. } = &run.validity;
                assert!(!valid && *gone, "{schedule:?}: {reasons:?}");
                assert!(reasons.iter().any(|one| one.contains("the target is gone")), "{reasons:?}");
            },
            100,
        );
    };
    let campaign = |what: &str, of: &dyn Fn(&Target, &Plan, &mut WatchRuns<'_>) -> (usize, bool)| {
        gone(
            &|target, watch| {
                let plan = Plan { length: second, concurrency: Some(8), ..plan("pull") };
                let told: &mut WatchRuns<'_> = &mut |_, progress| watch(progress);
                assert_eq!(of(target, &plan, told), (1, true), "{what}");
            },
            100,
        );
    };
    let rates = "500,510,520".parse().unwrap();
    let uniform = Arrivals::Uniform;
    let search =
        Search { objectives: Vec::new(), arrivals: uniform, trial: Duration::from_secs(1), precision: 0.05 };
    std::thread::scope(|scope| {
        scope.spawn(|| ends(open, second, Duration::from_secs(1)));
        scope.spawn(|| ends(Schedule::Closed, second, Duration::from_secs(1)));
        // A run of a number of calls has no end in time: it ends with the first failures.
        scope.spawn(|| ends(Schedule::Closed, Length::Calls(1 << 40), Duration::from_secs(1)));
        scope.spawn(|| {
            campaign("sweep", &|target, plan, told| {
                let made = campaign::sweep(target, plan, &rates, uniform, told).unwrap();
                (made.runs.len(), made.cut && made.gone)
            });
        });
        scope.spawn(|| {
            campaign("ab", &|target, plan, told| {
                let made = campaign::ab(target, target, plan, 5, told).unwrap();
                (made.runs.len(), made.cut && made.gone)
            });
        });
        scope.spawn(|| {
            campaign("search", &|target, plan, told| {
                let found = campaign::search(target, plan, &search, told).unwrap();
                (found.runs.len(), found.cut && found.gone && found.per_s.is_none())
            });
        });
    });
}
