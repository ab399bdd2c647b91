//! A server that is asked for more than it can do: what it answers in time stays what it can do.

use std::time::Duration;

use sanderling_client::ConnectOptions;
use sanderling_server::{Config, Server};

use super::*;

/// Large answers to small requests: to make one, and to refuse it, costs little beside answering it.
const SCRIPT: &str = r#"
pub fn schema(ctx) { ctx.create("t", #{ dim: 16384, optimizer: "sgd" }); }
pub fn prepare(ctx) { #{ rows: ctx.table("t"), keys: ctx.keys(keys::uniform(64)) } }
pub async fn pull(ctx, my) { ctx.pull(my.rows, my.keys.draw(48)).await }
"#;
/// How many times what it can do the server is asked for.
const OVERLOAD: f64 = 3.5;
const DEADLINE: Duration = Duration::from_millis(200);
const GOODPUT_MIN: f64 = 0.9;
/// Other programs of this machine may take the processors away; a server that works in vain does so every time.
const ROUNDS_MAX: usize = 6;

#[test]
#[ignore = "compares rates: needs processors for itself"]
fn what_is_answered_in_time_stays_at_capacity_beyond_it() {
    let config = Config {
        listen: vec!["tcp://127.0.0.1:0".parse().expect("an address")],
        workers: 1,
        spin_us: 0,
        ..Config::default()
    };
    let server = Server::start(&config, |_| ()).expect("a port");
    let options = ConnectOptions { spin_us: 0, ..ConnectOptions::default() };
    let target = Target::connect(&server.addresses()[0].to_string(), options);
    let target = target.expect("it listens");
    let program = Program::new("test.rn", SCRIPT);
    let known = program.describe().expect("it compiles").functions();
    let closed = Plan {
        threads: 2,
        concurrency: Some(4),
        warmup: Duration::from_millis(200),
        length: Length::Time(Duration::from_secs(1)),
        ..Plan::new(program, Mix::parse("pull", &known).expect("there is one"))
    };
    schema(&target, &closed).expect("a table");
    let mut found = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let capacity = run(&target, &closed, &mut |_| true).expect("it runs").measured.calls_per_s();
        // More under way than it answers within half of the deadline: they would wait in the server.
        let open = Plan {
            threads: 16,
            concurrency: Some(64),
            schedule: Schedule::Open { per_s: OVERLOAD * capacity, arrivals: Arrivals::Poisson },
            deadline: Some(DEADLINE),
            failures_max: 1.0,
            length: Length::Time(Duration::from_secs(2)),
            ..closed.clone()
        };
        let measured = run(&target, &open, &mut |_| true).expect("it runs").measured;
        let (goodput, p99) = (measured.calls_per_s(), measured.response().quantile_of_any_ns(0.99));
        // Requests that cannot be answered in time are refused early, so that the others wait for little more than half of it.
        let refused = measured.failures.iter().any(|failure| failure.kind == "busy");
        found.push((capacity, goodput, p99, measured.failures));
        if refused && goodput >= GOODPUT_MIN * capacity && Duration::from_nanos(p99) <= DEADLINE * 3 / 4 {
            return;
        }
    }
    panic!("{found:?}");
}
