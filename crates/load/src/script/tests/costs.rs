//! Cost of calls. Measures time, and is run by hand:
//! `cargo test -p sanderling-load --release --lib script::tests::costs -- --ignored --nocapture --test-threads 1`.

use std::io::Write;

use sanderling_client::Call;
use sanderling_store::Absent;

use super::*;

const CALLS: u64 = 100_000;
const SOURCE: &str = "pub fn prepare(ctx) {
    #{ rows: ctx.table(\"t\"), keys: ctx.keys(keys::zipf(10_000_000, 0.99)), grads: grads::random(0.01) }
}
pub fn plain(ctx, my) {}
pub async fn empty(ctx, my) {}
pub async fn count(ctx, my) { let n = 0; while n < 100 { n += 1; } }
pub async fn draw0(ctx, my) { my.keys.draw(0); }
pub async fn pull0(ctx, my) { ctx.pull(my.rows, my.keys.draw(0)).await }
pub async fn pull512(ctx, my) { ctx.pull(my.rows, my.keys.draw(512)).await }
pub async fn step0(ctx, my) { let k = my.keys.draw(0); ctx.pull(my.rows, k).await?; ctx.push(my.rows, k, my.grads).await }
";

/// This thread's time on a processor: on a busy machine, the clock on the wall says nothing.
fn on_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// The least time per call of five rounds, in ns.
fn call_ns(script: &mut ThreadScript, port: &Rc<RefCell<Port>>, function: &str) -> f64 {
    let function = script.function(function).unwrap();
    let mut finished = Vec::new();
    let rounds = (0..5).map(|_| {
        let start = on_cpu();
        for cycle in 0..CALLS {
            let mut step = script.start(0, function, cycle, Duration::ZERO);
            while step == Step::Waiting {
                port.borrow_mut().poll(None, &mut finished);
                step = script.resume(0, finished.pop().unwrap());
            }
            assert_eq!(step, Step::Done(Ok(())));
        }
        (on_cpu() - start).as_secs_f64() * 1e9 / CALLS as f64
    });
    rounds.fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "measures time"]
fn what_a_call_costs() {
    let target = target("nowhere:");
    let port = Rc::new(RefCell::new(target.port().unwrap()));
    let program = Program::new("costs", SOURCE);
    let mut script = ThreadScript::new(&program, &Seeds::new(1), Rc::clone(&port), 1).unwrap();
    script.prepare().unwrap();
    let mut out = std::io::stdout();
    for function in ["plain", "empty", "count", "draw0", "pull0", "step0", "pull512"] {
        writeln!(out, "{function:8} {:7.1} ns", call_ns(&mut script, &port, function)).unwrap();
    }
    // The part of the port: a request that is begun and ended.
    let table = port.borrow_mut().open("t").unwrap();
    let mut finished = Vec::new();
    let start = on_cpu();
    for _ in 0..CALLS {
        port.borrow_mut().begin(0, table, &Call::Pull { keys: &[], absent: Absent::Zero });
        port.borrow_mut().poll(None, &mut finished);
        finished.clear();
    }
    writeln!(out, "port     {:7.1} ns", (on_cpu() - start).as_secs_f64() * 1e9 / CALLS as f64).unwrap();
    let start = on_cpu();
    ThreadScript::new(&small("serve"), &Seeds::new(1), port, 1).unwrap();
    writeln!(out, "compile  {:7.1} ms", (on_cpu() - start).as_secs_f64() * 1e3).unwrap();
}

/// On two free cores.
#[test]
#[ignore = "measures time"]
fn two_threads_call_twice_as_often_as_one() {
    let second = Duration::from_secs(1);
    let one = speed::empty_calls_per_s(1, second).unwrap()[0];
    let two: f64 = speed::empty_calls_per_s(2, second).unwrap().iter().sum();
    let shared: f64 = speed::empty_calls_per_s_shared(2, second).unwrap().iter().sum();
    assert!(
        two >= 1.95 * one && one >= 8e6,
        "{one:.3e}/s on one, {two:.3e}/s on two, {shared:.3e}/s on two that share"
    );
}
