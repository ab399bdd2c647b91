//! Scripts at work, against tables in this process or against nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod bounded;
mod costs;
mod failures;
mod given;

use super::*;
use crate::generate::Seeds;
use crate::port::Port;
use crate::request::Finished;
use crate::target::Target;

fn target(address: &str) -> Target {
    Target::connect(address, Default::default()).unwrap()
}

/// A thread's script and its port, as the engine has them.
struct Thread {
    script: ThreadScript,
    port: Rc<RefCell<Port>>,
    slots: usize,
    ended: Vec<Finished>,
}

impl Thread {
    fn new(program: &Program, seed: u64, target: &Target, slots: usize) -> Result<Thread, ScriptError> {
        let port = Rc::new(RefCell::new(target.port().unwrap()));
        let script = ThreadScript::new(program, &Seeds::new(seed), Rc::clone(&port), slots)?;
        Ok(Thread { script, port, slots, ended: Vec::new() })
    }

    /// Calls a function for these cycles, in all slots at once; what came of each.
    fn run(
        &mut self,
        function: &str,
        cycles: impl IntoIterator<Item = u64>,
    ) -> Vec<(u64, Result<(), CallFailure>)> {
        let function = self.script.function(function).unwrap();
        let mut cycles = cycles.into_iter();
        let mut free: Vec<usize> = (0..self.slots).collect();
        let mut cycle_of = vec![0; self.slots];
        let mut results = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            while let Some(slot) = free.last().copied() {
                let Some(cycle) = cycles.next() else { break };
                free.pop();
                cycle_of[slot] = cycle;
                match self.script.start(slot, function, cycle, Duration::from_millis(cycle)) {
                    Step::Done(result) => {
                        results.push((cycle, result));
                        free.push(slot);
                    }
                    Step::Waiting => {}
                }
            }
            if free.len() == self.slots {
                return results;
            }
            let mut finished = Vec::new();
            self.port.borrow_mut().poll(Some(deadline), &mut finished);
            assert!(!finished.is_empty(), "a request has no end");
            for finished in finished {
                let slot = finished.slot;
                self.ended.push(finished.clone());
                if let Step::Done(result) = self.script.resume(slot, finished) {
                    results.push((cycle_of[slot], result));
                    free.push(slot);
                }
            }
        }
    }
}

fn small(name: &str) -> Program {
    let mut program = Program::builtin(name).unwrap();
    let params: BTreeMap<String, String> =
        program.describe().unwrap().params.into_iter().map(|p| (p.name, p.default.to_string())).collect();
    for (name, value) in
        [("keys", "20k"), ("batch", "16"), ("samples", "8"), ("budget", "3MiB"), ("dim", "8")]
    {
        if params.contains_key(name) {
            program.set(&format!("{name}={value}")).unwrap();
        }
    }
    program
}

#[test]
fn every_workload_makes_loads_and_asks_its_tables() {
    for name in Program::builtins() {
        let program = small(name);
        let about = program.describe().unwrap();
        assert!(about.about.len() > 60 && about.schema, "{name}: {about:?}");
        let mix = about.mix.as_ref().unwrap();
        assert_eq!(mix.parts().len(), about.workloads.len(), "{name}");
        assert!(about.workloads.iter().all(|function| !function.about.is_empty()), "{name}: {about:?}");
        assert!(about.params.iter().all(|param| !param.help.is_empty()), "{name}: {about:?}");
        let target = target("embedded:");
        let mut thread = Thread::new(&program, 1, &target, 3).unwrap();
        let tables = thread.script.schema().unwrap();
        assert!(!tables.is_empty());
        thread.script.prepare().unwrap();
        let loaded = thread.run("load", 0..about.load_cycles.unwrap());
        assert!(loaded.iter().all(|(_, result)| result.is_ok()), "{name}: {loaded:?}");
        let rows: u64 = tables.iter().map(|table| target.rows(&table.name).unwrap().unwrap()).sum();
        assert!(rows >= 20_000, "{name}: {rows} rows");
        // The last first: what YCSB D reads was inserted.
        for function in about.workloads.iter().rev() {
            thread.ended.clear();
            let called = thread.run(&function.name, 0..20);
            assert_eq!(called.len(), 20);
            assert!(called.iter().all(|(_, result)| result.is_ok()), "{name}.{}: {called:?}", function.name);
            assert!(thread.ended.len() >= 20 && thread.ended.iter().all(|ended| ended.outcome.is_ok()));
            // All keys have rows, but for those that are made to have none.
            let missing: usize =
                thread.ended.iter().map(|ended| ended.outcome.as_ref().unwrap().missing).sum();
            assert!((missing > 0) == (name == "churn"), "{name}.{}: {missing} missing", function.name);
        }
    }
}

#[test]
fn the_example_of_the_documentation_runs() {
    let text = include_str!("../../../../docs/load-scripts.md");
    let example = text.split("```rune\n").nth(1).unwrap().split("```").next().unwrap();
    let mut program = Program::new("example.rn", example);
    program.set("keys=10k").unwrap();
    let mut thread = Thread::new(&program, 1, &target("embedded:"), 2).unwrap();
    thread.script.schema().unwrap();
    thread.script.prepare().unwrap();
    for (function, cycles) in [("load", thread.script.load_cycles().unwrap()), ("read", 50), ("train", 50)] {
        let results = thread.run(function, 0..cycles);
        assert!(results.iter().all(|(_, result)| result.is_ok()), "{function}: {results:?}");
    }
}

/// A script whose calls fail with what they drew, so that it can be seen.
const TELLING: &str = r#"
const KEYS = param!("keys", 1000);
pub fn prepare(ctx) {
    #{
        zipf: ctx.keys(keys::zipf(KEYS, 0.99).fresh(0.1)),
        spot: ctx.keys(keys::hotspot(KEYS, 0.1, 0.9).drift(0.2, 0.005).spread("dense")),
        sizes: sizes::lognormal(20.0, 0.5, 100),
        arity: arity::geometric(3.0, 9),
        rows: ctx.table("t"),
    }
}
pub async fn tell(ctx, my) {
    let count = ctx.size(my.sizes);
    let zipf = my.zipf.draw(count);
    let bags = my.spot.bags(my.arity, 5);
    ctx.pull(my.rows, zipf).await?;
    let spot = my.spot.draw(3);
    let drawn = [count, zipf.get(0), zipf.get(count - 1), bags.len(), spot.get(2), ctx.random(100), ctx.cycle()];
    Err(format!("{:?} {}", drawn, ctx.seconds()))
}
"#;

#[test]
fn the_same_seed_asks_the_same_whatever_the_slots() {
    let told = |seed, slots, cycles: Vec<u64>| {
        let mut thread = Thread::new(&Program::new("t", TELLING), seed, &target("nowhere:"), slots).unwrap();
        thread.script.prepare().unwrap();
        let told = thread.run("tell", cycles).into_iter();
        told.map(|(cycle, result)| (cycle, result.unwrap_err().message)).collect::<BTreeMap<_, _>>()
    };
    let one = told(7, 1, (0..200).collect());
    let many = told(7, 9, (0..200).rev().collect());
    assert_eq!(one.len(), 200);
    assert_eq!(one, many);
    let other = told(8, 1, (0..200).collect());
    assert!(one.iter().all(|(cycle, told)| other[cycle] != *told));
    assert!(one[&3].contains(", 3] 0.003"), "{}", one[&3]);
}

/// Two threads that shared a count would do together a fifth of what one does alone.
#[test]
fn threads_share_no_reference_count() {
    let counts = |slots: usize| {
        let mut thread = Thread::new(&small("serve"), 1, &target("nowhere:"), slots).unwrap();
        thread.script.prepare().unwrap();
        let _ = thread.run("pull", 0..10);
        let compiled = thread.script.compiled();
        let counts = (Arc::strong_count(&compiled.context), Arc::strong_count(&compiled.unit));
        let places = (Arc::as_ptr(&compiled.context) as usize, Arc::as_ptr(&compiled.unit) as usize);
        (thread.script, counts, places)
    };
    // All there are belong to the thread itself and to its slots.
    let (first, counts_of_first, places_of_first) = counts(3);
    let (second, counts_of_second, places_of_second) = counts(5);
    assert_eq!((counts_of_first, counts_of_second), ((4, 4), (6, 6)));
    assert!(places_of_first.0 != places_of_second.0 && places_of_first.1 != places_of_second.1);
    assert_eq!(Arc::strong_count(&first.compiled().context), 4);
    drop(second);
}
