//! How fast scripts can be called at all: an empty function, on threads that share nothing, and on threads that share a
//! context, which is what this crate avoids. Knows no table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rune::runtime::{RuntimeContext, Unit, budget};
use rune::{Hash, Vm};

use super::INSTRUCTIONS_PER_CALL_MAX;
use super::compile::compile;
use super::errors::ScriptError;
use super::program::Program;

/// Calls between two looks at the clock's flag.
const CALLS_PER_LOOK: u64 = 256;

const EMPTY: &str = "pub fn empty() {}";

/// Calls per second of each of so many threads that call an empty function for so long, each with its own context and unit.
pub fn empty_calls_per_s(threads: usize, duration: Duration) -> Result<Vec<f64>, ScriptError> {
    let each = (0..threads).map(|_| parts()).collect::<Result<Vec<_>, _>>()?;
    Ok(measure(each, duration))
}

/// Rate of threads that share one context and one unit: the cost of shared reference counts.
pub fn empty_calls_per_s_shared(threads: usize, duration: Duration) -> Result<Vec<f64>, ScriptError> {
    let shared = parts()?;
    Ok(measure(vec![shared; threads], duration))
}

type Parts = (Arc<RuntimeContext>, Arc<Unit>);

fn parts() -> Result<Parts, ScriptError> {
    let compiled = compile(&Program::new("empty", EMPTY))?;
    Ok((compiled.context, compiled.unit))
}

fn measure(each: Vec<Parts>, duration: Duration) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    let function = Hash::type_hash(["empty"]);
    thread::scope(|scope| {
        let count = |(context, unit): Parts| {
            let mut vm = Vm::new(context, unit);
            let mut calls = 0_u64;
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..CALLS_PER_LOOK {
                    let called = budget::with(INSTRUCTIONS_PER_CALL_MAX, || vm.call(function, ())).call();
                    calls += u64::from(called.is_ok());
                }
            }
            calls as f64 / start.elapsed().as_secs_f64()
        };
        let threads: Vec<_> = each.into_iter().map(|parts| scope.spawn(move || count(parts))).collect();
        thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).collect()
    })
}
