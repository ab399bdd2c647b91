//! Runs against tables in this process and against servers: what is asked, noted and called valid.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sanderling_client::ConnectOptions;
use sanderling_server::{Config, Server};

use super::*;
use crate::null::NullServer;
use crate::result::{RunResult, Validity};

mod gone;

const SCRIPT: &str = r#"
const KEYS = param!("keys", 1000, "rows");

pub fn schema(ctx) {
    ctx.create("t", #{ dim: 4, optimizer: "sgd", lr: 0.5 });
}

pub fn prepare(ctx) {
    #{
        rows: ctx.table("t"),
        keys: ctx.keys(keys::zipf(KEYS, 0.9)),
        all: ctx.keys(keys::sequential(KEYS)),
        grads: grads::random(0.01),
    }
}

pub fn load_cycles() { KEYS / 100 }
pub async fn load(ctx, my) { ctx.push(my.rows, my.all.draw(100), my.grads).await }
pub async fn pull(ctx, my) { ctx.pull(my.rows, my.keys.draw(16)).await }
pub async fn push(ctx, my) { ctx.push(my.rows, my.keys.draw(8), my.grads).await }
pub async fn both(ctx, my) {
    ctx.pull(my.rows, my.keys.draw(4)).await?;
    ctx.push(my.rows, my.keys.draw(4), my.grads).await
}
pub async fn idle(ctx, my) { }
pub async fn wrong(ctx, my) { ctx.pull(my.nothing, my.keys.draw(4)).await }
"#;

fn plan(mix: &str) -> Plan {
    let program = Program::new("test.rn", SCRIPT);
    let known = program.describe().unwrap().functions();
    Plan {
        warmup: Duration::ZERO,
        length: Length::Calls(200),
        ..Plan::new(program, Mix::parse(mix, &known).unwrap())
    }
}

fn server() -> (Server, Target) {
    let config = Config { listen: vec!["tcp://127.0.0.1:0".parse().unwrap()], ..Config::default() };
    let server = Server::start(&config, |_| ()).unwrap();
    let target = Target::connect(&server.addresses()[0].to_string(), Default::default()).unwrap();
    (server, target)
}

fn prepared(target: &Target, plan: &Plan) -> RunResult {
    let prepared = prepare(target, plan, &mut |_| true).unwrap();
    assert_eq!((prepared.tables, prepared.load_calls), (vec!["t".to_owned()], 10));
    assert_eq!(target.rows("t").unwrap(), Some(1000));
    // The second time there are rows, but not for more keys than the first time.
    assert_eq!(prepare(target, plan, &mut |_| true).unwrap().load_calls, 0);
    run(target, plan, &mut |_| true).unwrap()
}

#[test]
fn calls_are_counted_wherever_the_tables_are() {
    let (_server, served) = server();
    let embedded = Target::connect("embedded:", Default::default()).unwrap();
    for target in [&embedded, &served] {
        for (threads, concurrency) in [(1, 1), (3, 5)] {
            let plan = Plan { threads, concurrency: Some(concurrency), ..plan("pull:3,push:1,both:1") };
            let run = if threads == 1 {
                prepared(target, &plan)
            } else {
                run(target, &plan, &mut |_| true).unwrap()
            };
            // In this process calls are never under way beside each other.
            let under_way = if target.cluster().is_none() { threads } else { threads * concurrency };
            assert_eq!(run.asked.concurrency, under_way);
            let measured = &run.measured;
            let of = |name: &str| measured.functions.iter().find(|one| one.name == name).unwrap().calls;
            assert_eq!((measured.calls(), measured.failed(), measured.missing()), (200, 0, 0));
            // Which function a cycle calls is a function of the seed alone.
            let known = plan.program.describe().unwrap().functions();
            let mix = Mix::parse("pull:3,push:1,both:1", &known).unwrap();
            let expected = (0..200).filter(|&cycle| mix.pick(&plan.seeds, cycle) == 0).count() as u64;
            assert_eq!(of("pull"), expected);
            assert_eq!(measured.keys(), 16 * of("pull") + 8 * of("push") + 8 * of("both"));
            assert!(measured.response().count() == 200 && measured.seconds > 0.0);
            assert!(measured.distinct.as_ref().unwrap().ratio() <= 1.0);
        }
    }
}

/// The multiset of rows' versions says which keys were pushed how often: with the same seed it is the same on any number of
/// threads and connections.
#[test]
fn the_same_seed_asks_the_same_on_any_number_of_threads() {
    let mut found: Vec<(u64, u64, u64)> = Vec::new();
    for threads in [1, 2, 5] {
        let target = Target::connect("embedded:", Default::default()).unwrap();
        let plan = Plan { threads, ..plan("push,pull,both") };
        let run = prepared(&target, &plan);
        let distinct = run.measured.distinct.as_ref().unwrap();
        found.push((run.measured.keys(), run.measured.bytes(), (distinct.ratio() * 1e9) as u64));
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    let other = Plan { seeds: Seeds::new(2), ..plan("push,pull,both") };
    let target = Target::connect("embedded:", Default::default()).unwrap();
    let run = prepared(&target, &other);
    assert_ne!((run.measured.keys(), run.measured.bytes()), (found[0].0, found[0].1));
}

#[test]
fn an_open_loop_makes_every_call_that_is_due() {
    let (_server, target) = server();
    let arrivals = Arrivals::Uniform;
    let open = Plan {
        schedule: Schedule::Open { per_s: 2000.0, arrivals },
        length: Length::Time(Duration::from_millis(500)),
        warmup: Duration::from_millis(100),
        concurrency: Some(8),
        threads: 2,
        ..plan("pull")
    };
    let run = prepared(&target, &open);
    assert_eq!((run.measured.calls(), run.measured.failed()), (1000, 0));
    let (response, service) = (run.measured.response(), run.measured.service());
    assert!(response.mean_ns().unwrap() >= service.mean_ns().unwrap());
}

/// One call at a time is what an open loop does, too, if that was asked for.
#[test]
fn calls_under_way_are_as_many_as_asked_for() {
    let open = Schedule::Open { per_s: 1.0, arrivals: Arrivals::Uniform };
    for (schedule, asked, under_way) in [
        (Schedule::Closed, None, 1),
        (open, None, OPEN_CONCURRENCY),
        (Schedule::Closed, Some(1), 1),
        (open, Some(1), 1),
        (open, Some(7), 7),
    ] {
        let plan = Plan { schedule, concurrency: asked, ..plan("pull") };
        assert_eq!(plan.under_way(), under_way, "{schedule:?}, asked for {asked:?}");
    }
}

/// The server stands still for a while: whoever was due meanwhile has waited, though the client sent nothing.
#[test]
fn a_server_that_freezes_shows_in_the_tail() {
    let pause = Arc::new(Mutex::new(()));
    let null =
        NullServer::start_with_pause(&["tcp://127.0.0.1:0".parse().unwrap()], 4, 0, Arc::clone(&pause))
            .unwrap();
    let target = Target::connect(&null.addresses()[0].to_string(), Default::default()).unwrap();
    let frozen = |schedule, concurrency, length, freeze: Duration| {
        let length = Length::Time(length);
        let plan = Plan { schedule, concurrency: Some(concurrency), length, ..plan("pull") };
        schema(&target, &plan).unwrap();
        let mut held = None;
        let mut since = None;
        run(&target, &plan, &mut |progress| {
            if held.is_none() && since.is_none() && progress.elapsed > Duration::from_millis(100) {
                held = Some(pause.lock().unwrap());
                since = Some(Instant::now());
            }
            if since.is_some_and(|since: Instant| since.elapsed() >= freeze) {
                held = None;
            }
            true
        })
        .unwrap()
    };
    let [long, short, length] = [1000, 600, 2000].map(Duration::from_millis);
    let per_s = 1000.0;
    let run = frozen(Schedule::Open { per_s, arrivals: Arrivals::Uniform }, 4, length, long);
    let (response, service) = (run.measured.response(), run.measured.service());
    assert_eq!(run.measured.calls(), 2000);
    // About half of the calls were due while it stood still; they waited half a second on average, and only four were sent.
    let half_s = Duration::from_millis(400).as_nanos() as u64;
    let (response_ns, service_ns) = (response.quantile_of_any_ns(0.9), service.quantile_of_any_ns(0.9));
    assert!(response_ns > half_s && service_ns < half_s, "p90 {response_ns}, of the service {service_ns}");
    assert!(response.max_ns().unwrap() >= 950_000_000);
    // A closed loop asks nothing meanwhile, and has one slow call to show for it, which may have begun a little later.
    let run = frozen(Schedule::Closed, 1, length / 2, short);
    assert!(run.measured.response().quantile_of_any_ns(0.9) < half_s);
    assert!(run.measured.response().max_ns().unwrap() >= half_s);
}

/// A server that stands still until nothing is due any more: what it works off first are calls of the warm-up.
#[test]
fn rates_leave_out_the_queue_of_the_warm_up() {
    let pause = Arc::new(Mutex::new(()));
    let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
    let null = NullServer::start_with_pause(&listen, 4, 0, Arc::clone(&pause)).unwrap();
    let target = Target::connect(&null.addresses()[0].to_string(), Default::default()).unwrap();
    let [warmup, window, still] = [2000, 300, 2500].map(Duration::from_millis);
    let plan = Plan {
        schedule: Schedule::Open { per_s: 1000.0, arrivals: Arrivals::Uniform },
        concurrency: Some(4),
        warmup,
        length: Length::Time(window),
        ..plan("pull")
    };
    schema(&target, &plan).unwrap();
    // Not before: whoever begins must be answered. It may be a second late.
    let (mut held, mut looks) = (None, 0);
    let run = run(&target, &plan, &mut |progress| {
        if looks == 0 {
            held = Some(pause.lock().unwrap());
        }
        looks += 1;
        if progress.elapsed >= still {
            held = None;
        }
        true
    })
    .unwrap();
    let Measured { seconds, due_s, backlog_s, .. } = run.measured;
    assert_eq!((run.measured.calls(), due_s), (300, Some(0.3)));
    assert!(backlog_s > 0.19 && seconds - backlog_s > 0.299, "{backlog_s} of {seconds} s");
    let rates = [run.measured.calls_per_s(), run.measured.keys_per_s() / 16.0];
    assert!(rates.iter().all(|rate| (rate * (seconds - backlog_s) / 300.0 - 1.0).abs() < 1e-9), "{rates:?}");
    let note = "the warm-up left a queue";
    assert!(run.validity.reasons.iter().any(|one| one.contains(note)), "{:?}", run.validity.reasons);
}

/// Milliseconds: of the measured part, in which calls were due, and until when each thread began calls of the warm-up.
#[test]
fn a_queue_that_was_caught_up_with_is_not_left_out() {
    let check = |length: u64, due: u64, threads: &[(u64, u64)], expected: u64| {
        let of = Duration::from_millis;
        let end = |&(calls, backlog)| ThreadEnd { calls, backlog: of(backlog), ..ThreadEnd::default() };
        let ends: Vec<ThreadEnd> = threads.iter().map(end).collect();
        assert_eq!(backlog(of(length), of(due), &ends), of(expected), "{length} {due} {threads:?}");
    };
    check(1000, 1000, &[(9, 0)], 0);
    check(1000, 1000, &[(9, 700)], 0);
    check(2400, 1000, &[(9, 1400)], 1400);
    check(2400, 1000, &[(9, 1600)], 1400);
    check(2400, 1000, &[(9, 300), (9, 500), (0, 9000)], 400);
    check(100, 110, &[(9, 50)], 0);
    check(100, 50, &[], 0);
}

/// Random arrivals of a number of calls are not those of an average.
#[test]
fn calls_were_due_until_one_more_would_have_been() {
    let target = Target::connect("nowhere:", Default::default()).unwrap();
    for seed in 1..5 {
        let (per_s, arrivals) = (2000.0, Arrivals::Poisson);
        let schedule = Schedule::Open { per_s, arrivals };
        let plan = Plan { schedule, seeds: Seeds::new(seed), threads: 2, ..plan("idle") };
        let mut times = crate::generate::ArrivalTimes::new(&arrivals, per_s, plan.seeds.arrivals, 0).unwrap();
        let last = (0..200).map(|_| times.next()).max().unwrap();
        let measured = run_again(&target, &plan).measured;
        assert_eq!(measured.due_s, Some((last + Duration::from_micros(500)).as_secs_f64()), "seed {seed}");
    }
    assert_eq!(run_again(&target, &plan("idle")).measured.due_s, None);
}

#[test]
fn failures_are_counted_by_kind_and_make_a_run_invalid() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    let run = prepared(&target, &plan("pull:1,wrong:1"));
    let failed = run.measured.failed();
    assert!(failed > 50 && !run.validity.valid, "{:?}", run.validity);
    let failures = &run.measured.failures;
    assert_eq!((failures.len(), &failures[0].kind[..], failures[0].count), (1, "script", failed));
    assert!(failures[0].first.contains("test.rn:") && run.validity.reasons[0].contains("calls failed"));
    // As many are within another limit, which also holds for their part of the time: of so many calls, none that was
    // interrupted takes most of it.
    let length = Length::Calls(5000);
    let lenient = Plan { failures_max: 0.99, length, ..plan("pull:1,wrong:1") };
    let run = run_again(&target, &lenient);
    assert!(run.validity.valid && run.measured.failed() > 0);
    // None may fail: all are made nevertheless.
    let strict = Plan { failures_max: 0.0, ..plan("pull:9,wrong:1") };
    let run = run_again(&target, &strict);
    assert!(Length::Calls(run.measured.calls()) == strict.length && run.measured.failed() > 0);
    assert_eq!(run.validity.reasons.len(), 1, "{:?}", run.validity);
}

fn run_again(target: &Target, plan: &Plan) -> RunResult {
    run(target, plan, &mut |_| true).unwrap()
}

#[test]
fn what_cannot_run_says_why() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    let check = |plan: Plan, expected: &str| {
        let error = run(&target, &plan, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(Plan { threads: 0, ..plan("pull") }, "threads is 0: it must be 1 to 1024");
    check(Plan { concurrency: Some(1 << 20), ..plan("pull") }, "concurrency is 1048576");
    check(Plan { cycles: 5..5, ..plan("pull") }, "the first cycle is 5");
    // The table was not made.
    check(plan("pull"), "\"t\"");
    let open = Schedule::Open { per_s: 0.0, arrivals: Arrivals::Poisson };
    prepare(&target, &plan("pull"), &mut |_| true).unwrap();
    check(Plan { schedule: open, ..plan("pull") }, "rate");
    // Stopped by who watches it.
    let long = Plan { length: Length::Time(Duration::from_secs(600)), ..plan("pull") };
    let stopped = run(&target, &long, &mut |progress| progress.calls < 100);
    let Err(EngineError::Stopped(Some(part))) = stopped else { panic!("{stopped:?}") };
    assert!(part.measured.calls() >= 100 && part.measured.seconds < 500.0 && !part.validity.valid);
    assert!(part.validity.reasons[0].contains("stopped before its end"), "{:?}", part.validity.reasons);
    let nothing = run(&target, &Plan { warmup: Duration::from_secs(60), ..long }, &mut |_| false);
    assert!(matches!(nothing, Err(EngineError::Stopped(None))), "{nothing:?}");
    // A stop after the end is too late.
    let whole = run(&target, &plan("pull"), &mut |progress| progress.share < 1.0).unwrap();
    assert!(whole.measured.calls() == 200 && whole.validity.valid, "{:?}", whole.validity);
}

#[test]
fn tables_that_lack_rows_are_filled_again() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    let check = |keys: u64, expected: u64, rows: u64| {
        let mut plan = plan("pull");
        plan.program.set(&format!("keys={keys}")).unwrap();
        let before = shortage(&target, &plan, &["t".to_owned()]).unwrap();
        assert_eq!(before.is_some(), expected > 0, "{keys}: {before:?}");
        let prepared = prepare(&target, &plan, &mut |_| true).unwrap();
        assert_eq!((prepared.load_calls, prepared.shortage), (expected, None), "{keys}");
        assert_eq!(target.rows("t").unwrap(), Some(rows), "{keys}");
    };
    schema(&target, &plan("pull")).unwrap();
    check(500, 5, 500);
    check(500, 0, 500);
    check(2000, 20, 2000);
    check(1000, 0, 2000);
    // A `load` that leaves keys out, here the last 50.
    let mut part = plan("pull");
    part.program.set("keys=2050").unwrap();
    let expected = Some(Shortage { rows: 2000, keys: 2050 });
    assert_eq!(prepare(&target, &part, &mut |_| true).unwrap().shortage, expected);
}

#[test]
fn cycles_that_are_over_are_said() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    prepared(&target, &plan("pull"));
    let check = |warmup_ms: u64, length: Length, valid: bool, expected: &str| {
        let warmup = Duration::from_millis(warmup_ms);
        let run = run_again(&target, &Plan { cycles: 0..70, warmup, length, ..plan("pull") });
        let Validity { valid: found, reasons, .. } = &run.validity;
        assert!(*found == valid && reasons[0].contains(expected), "{reasons:?}");
        // Rates are those of the time that it took.
        assert!(run.measured.seconds < 10.0, "{}", run.measured.seconds);
    };
    let minute = Length::Time(Duration::from_secs(60));
    check(0, Length::Calls(1000), true, "0 to 70, were over before its end: 70 calls were measured");
    check(0, minute, true, "0 to 70, were over before its end: 70 calls were measured");
    check(60_000, minute, false, "0 to 70, were over within the warm-up; give it more, or a shorter warm-up");
}

#[test]
fn cycles_are_shared_out_between_clients() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    let all = prepared(&target, &plan("pull"));
    let of = |cycles| {
        let part = Plan { cycles, length: Length::Calls(1000), ..plan("pull") };
        run_again(&target, &part).measured.calls()
    };
    assert_eq!((all.measured.calls(), of(0..70), of(70..200)), (200, 70, 130));
}

/// The checks between calls, such as for a stop, run although no call makes a request.
#[test]
fn calls_without_a_request_leave_a_run_its_turn() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    schema(&target, &plan("pull")).unwrap();
    let long = Length::Time(Duration::from_secs(20));
    let stopped = run(&target, &Plan { length: long, ..plan("idle") }, &mut |progress| progress.calls < 100);
    assert!(matches!(stopped, Err(EngineError::Stopped(Some(_)))), "{stopped:?}");
    // Too many failures: it gives up, and its rates are those of the time until then.
    for warmup_s in [0, 20] {
        let warmup = Duration::from_secs(warmup_s);
        let run = run_again(&target, &Plan { length: long, warmup, ..plan("wrong") });
        let Measured { failures, seconds, .. } = &run.measured;
        assert_eq!(run.measured.calls(), if warmup_s == 0 { 1001 } else { 0 });
        assert_eq!((failures.len(), failures[0].count), (1, 1001));
        assert!(failures[0].first.contains('^') && *seconds < 20.0, "{seconds} s: {failures:?}");
        let reasons = &run.validity.reasons;
        assert!(reasons.iter().any(|one| one.contains("it was cut short")), "{reasons:?}");
        assert!(!reasons.iter().any(|one| one.contains("make it longer")), "{reasons:?}");
    }
    // Loading stops at the first one.
    let mut failing = plan("pull");
    failing.program.source = SCRIPT.replace("ctx.push(my.rows, my.all", "ctx.push(my.nothing, my.all");
    let error = load(&target, &failing, &mut |_| true).unwrap_err().to_string();
    assert!(error.starts_with("loading stopped after 1 of 10 calls"), "{error}");
}

#[test]
fn failures_of_the_measured_part_are_told_with_their_place() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    schema(&target, &plan("pull")).unwrap();
    let warmup = Duration::from_millis(300);
    let run = run_again(&target, &Plan { warmup, length: Length::Calls(1000), ..plan("pull:9,wrong:1") });
    let failures = &run.measured.failures;
    assert!(failures[0].first.contains('^'), "{failures:?}");
}

#[test]
fn processor_time_is_that_of_the_measured_part() {
    let target = Target::connect("embedded:", Default::default()).unwrap();
    schema(&target, &plan("pull")).unwrap();
    let warmup = Duration::from_secs(3);
    let length = Length::Time(Duration::from_millis(300));
    let before = cpu::Times::now();
    let run = run_again(&target, &Plan { warmup, length, ..plan("pull") });
    // Whatever other tests of this process used meanwhile: most of it was in the warm-up.
    let all = cpu::Times::now().since(before);
    let (client, all) = (run.client.user_s + run.client.system_s, all.user_s + all.system_s);
    assert!(client < 0.75 * all && run.client.busiest_thread.unwrap() <= 1.0, "{client} s of {all} s");
}
