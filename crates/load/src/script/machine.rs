//! One thread's script at work: a machine per slot, which runs until its function awaits a request and goes on when that has
//! ended. No executor: a slot is polled when there is something new for it, and never otherwise. Knows no clock.
//!
//! Cost of a call beside the script's own instructions: nothing is allocated for the call itself, since a slot's machine and
//! its stack live as long as the slot. An awaited request costs three small allocations of Rune's (the future, the value
//! that holds it, the result), and a native value such as `Keys` one; their contents come from the thread's buffers.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rune::alloc::limit;
use rune::runtime::{Value, VmError, budget};
use rune::{Hash, TypeHash, Vm};
use sanderling_store::TableConfig;

use crate::generate::{At, Seeds};
use crate::port::Port;
use crate::request::Finished;

use super::compile::{Compiled, compile};
use super::errors::{self, Failed, ScriptError};
use super::natives::{Ctx, RequestFailure};
use super::program::{self, Program};
use super::scene::Scene;
use super::{BYTES_PER_CALL_MAX, FAILURES_DRAWN_MAX, INSTRUCTIONS_PER_CALL_MAX};

/// A function of a script, found once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionId {
    hash: Hash,
    args: usize,
}

/// Where a slot's call stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Its request is under way: hand over what it becomes.
    Waiting,
    /// It has ended, and the slot is free.
    Done(Result<(), CallFailure>),
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct CallFailure {
    /// Kind of the request's failure that the script passed on, or `script`.
    pub kind: &'static str,
    /// The whole message; for an error of the script with its place, and for the first of them with a caret.
    pub message: String,
}

/// The kind of failures that are the script's own.
pub const SCRIPT_KIND: &str = "script";

type Outcome = Result<Value, Failed>;
type Driver = Pin<Box<dyn Future<Output = Infallible>>>;

/// How a slot's machine is told what to do, and tells what came of it.
#[derive(Default)]
struct Desk {
    call: Cell<Option<FunctionId>>,
    outcome: Cell<Option<Outcome>>,
}

struct Machine {
    desk: Rc<Desk>,
    driver: Driver,
    /// Result of the call, while a request that the call never awaited is in flight.
    draining: Option<Result<(), CallFailure>>,
}

/// One thread's script: its own context and unit, its own generators.
pub struct ThreadScript {
    compiled: Compiled,
    scene: Rc<Scene>,
    ctx: Value,
    /// The value that `prepare` returned.
    state: Value,
    /// One per slot, once prepared.
    machines: Vec<Machine>,
    failures: u64,
    load_cycles: Option<u64>,
}

impl std::fmt::Debug for ThreadScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadScript").field("name", &self.compiled.name).finish_non_exhaustive()
    }
}

impl ThreadScript {
    /// Compiles a script for this thread. Runs none of it but `load_cycles`.
    pub fn new(
        program: &Program,
        seeds: &Seeds,
        port: Rc<RefCell<Port>>,
        slots: usize,
    ) -> Result<ThreadScript, ScriptError> {
        let compiled = compile(program)?;
        let load_cycles = program::load_cycles(&compiled)?;
        let scene = Rc::new(Scene::new(port, *seeds, slots));
        let ctx = Value::new(Ctx { scene: Rc::clone(&scene) }).map_err(|error| ScriptError::Function {
            script: compiled.name.clone(),
            reason: error.to_string(),
        })?;
        let machines = Vec::new();
        Ok(ThreadScript { compiled, scene, ctx, state: Value::from(()), machines, failures: 0, load_cycles })
    }

    /// Runs `schema`, if there is one, which makes tables and waits for them; these are returned.
    pub fn schema(&mut self) -> Result<Vec<TableConfig>, ScriptError> {
        self.scene.created.borrow_mut().clear();
        self.set_up("schema")?;
        Ok(self.scene.created.borrow().clone())
    }

    /// Runs `prepare`, which opens tables and sets up generators. Must come before the first call.
    pub fn prepare(&mut self) -> Result<(), ScriptError> {
        self.state = self.set_up("prepare")?;
        self.machines = (0..self.scene.slots()).map(|_| self.machine()).collect();
        Ok(())
    }

    /// The next failures are the first ones, which are told with place and caret.
    pub fn draw_failures_anew(&mut self) {
        self.failures = 0;
    }

    /// How many cycles `load` has; `None` if there is no such function.
    #[must_use]
    pub fn load_cycles(&self) -> Option<u64> {
        self.load_cycles
    }

    /// A workload function, or `load`.
    pub fn function(&self, name: &str) -> Result<FunctionId, ScriptError> {
        let fail = |reason: String| ScriptError::Function { script: self.compiled.name.clone(), reason };
        let names = || program::workloads(&self.compiled).map(|function| function.name.as_str());
        match self.compiled.function(name) {
            Some(function) if function.args <= 2 => {
                Ok(FunctionId { hash: Hash::type_hash([name]), args: function.args })
            }
            Some(function) => Err(fail(format!(
                "the function {name} takes {} arguments; there are two, the context and what `prepare` returned",
                function.args
            ))),
            None => {
                let hint = super::params::did_you_mean(name, names());
                let known = names().collect::<Vec<_>>().join(", ");
                Err(fail(format!("there is no `pub async fn {name}`{hint}; there is {known}")))
            }
        }
    }

    /// Calls a function for a cycle in a free slot. `now` is the intended time since the run's start.
    ///
    /// # Panics
    /// If [`ThreadScript::prepare`] was not called, or the slot is not free.
    pub fn start(&mut self, slot: usize, function: FunctionId, cycle: u64, now: Duration) -> Step {
        assert!(slot < self.machines.len(), "there is no slot {slot}, or the script was not prepared");
        self.scene.begin_cycle(slot, At { cycle, draw: 0, now });
        let before = self.machines[slot].desk.call.replace(Some(function));
        assert!(before.is_none() && !self.scene.under_way(slot), "slot {slot} is not free");
        self.go_on(slot)
    }

    /// The request of a slot has ended.
    ///
    /// # Panics
    /// If the slot has none under way.
    pub fn resume(&mut self, slot: usize, finished: Finished) -> Step {
        self.scene.end(slot, finished);
        if let Some(result) = self.machines[slot].draining.take() {
            let _ = self.scene.leave(slot);
            return Step::Done(result);
        }
        self.go_on(slot)
    }

    fn go_on(&mut self, slot: usize) -> Step {
        let machine = &mut self.machines[slot];
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Pending = self.scene.within(slot, || machine.driver.as_mut().poll(&mut context));
        let Some(outcome) = machine.desk.outcome.take() else {
            if self.scene.under_way(slot) {
                return Step::Waiting;
            }
            // It waits for something that will never come.
            let _ = self.scene.leave(slot);
            self.machines[slot] = self.machine();
            return Step::Done(Err(self.own("the function awaits something that is no request")));
        };
        let waiting = self.scene.under_way(slot);
        let fault = if waiting { Some(self.scene.fault(slot)) } else { self.scene.leave(slot) };
        let result = match (self.judge(outcome), fault) {
            (Ok(()), Some(fault)) => Err(self.own(fault)),
            (result, _) => result,
        };
        if waiting {
            self.machines[slot].draining = Some(result);
            return Step::Waiting;
        }
        Step::Done(result)
    }

    /// Outcome of a call, from the value that its function returned.
    fn judge(&mut self, outcome: Outcome) -> Result<(), CallFailure> {
        let mut value = match outcome {
            Ok(value) => value,
            Err(failed) => {
                self.failures += 1;
                let drawn = self.failures <= FAILURES_DRAWN_MAX;
                let tell = if drawn { errors::of_machine } else { errors::short };
                return Err(CallFailure { kind: SCRIPT_KIND, message: tell(&failed, &self.compiled) });
            }
        };
        loop {
            let hash = value.type_hash();
            if hash == <() as TypeHash>::HASH || hash == i64::HASH {
                return Ok(());
            }
            if hash != <Result<Value, Value> as TypeHash>::HASH {
                let what = value.type_info().to_string();
                let wanted = if what == "::std::future::Future" {
                    "this request was never awaited: write .await"
                } else {
                    "it must return nothing, what a request came to, or a Result"
                };
                return Err(self.own(&format!("the function returned {what}; {wanted}")));
            }
            let inner = match value.borrow_ref::<Result<Value, Value>>() {
                Ok(result) => (*result).clone(),
                Err(_) => return Err(self.own("the function returned a value that is in use")),
            };
            match inner {
                Ok(inner) => value = inner,
                Err(error) => return Err(self.passed_on(&error)),
            }
        }
    }

    /// An `Err` that a function returned.
    fn passed_on(&self, error: &Value) -> CallFailure {
        if let Ok(failed) = error.borrow_ref::<RequestFailure>() {
            return CallFailure { kind: failed.failure.kind, message: failed.failure.reason.clone() };
        }
        match error.borrow_string_ref() {
            Ok(text) => self.own(&text),
            Err(_) => self.own(&format!("the function returned an Err of {}", error.type_info())),
        }
    }

    fn own(&self, reason: &str) -> CallFailure {
        CallFailure { kind: SCRIPT_KIND, message: format!("{}: {reason}", self.compiled.name) }
    }

    /// Calls a function of the set-up, if there is one, which may wait inside of native functions, but not await.
    fn set_up(&self, name: &str) -> Result<Value, ScriptError> {
        let fail = |reason: String| ScriptError::Function { script: self.compiled.name.clone(), reason };
        let args = match self.compiled.function(name) {
            Some(function) if function.args <= 1 => function.args,
            Some(_) => return Err(fail(format!("the function {name} takes one argument, the context"))),
            None => return Ok(Value::from(())),
        };
        let function = FunctionId { hash: Hash::type_hash([name]), args };
        let mut vm = Vm::new(Arc::clone(&self.compiled.context), Arc::clone(&self.compiled.unit));
        let mut called = Box::pin(run(&mut vm, function, &self.ctx, &self.state));
        match called.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(value)) => Ok(value),
            Poll::Ready(Err(failed)) => Err(self.compiled.failed(name, &failed)),
            Poll::Pending => Err(fail(format!("the function {name} may not await"))),
        }
    }

    fn machine(&self) -> Machine {
        let desk = Rc::new(Desk::default());
        let vm = Vm::new(Arc::clone(&self.compiled.context), Arc::clone(&self.compiled.unit));
        let driver = Box::pin(drive(Rc::clone(&desk), vm, self.ctx.clone(), self.state.clone()));
        Machine { desk, driver, draining: None }
    }

    #[cfg(test)]
    pub(super) fn compiled(&self) -> &Compiled {
        &self.compiled
    }
}

/// A slot's machine: one call after the other, for as long as the slot lives.
async fn drive(desk: Rc<Desk>, mut vm: Vm, ctx: Value, state: Value) -> Infallible {
    loop {
        let function = poll_fn(|_| desk.call.take().map_or(Poll::Pending, Poll::Ready)).await;
        let outcome = run(&mut vm, function, &ctx, &state).await;
        vm.clear(); // gives buffers back now, not with the next call
        desk.outcome.set(Some(outcome));
    }
}

async fn run(vm: &mut Vm, function: FunctionId, ctx: &Value, state: &Value) -> Outcome {
    let called = call(vm, function, ctx, state).await;
    let ip = vm.ip();
    called.map_err(|error| Failed { error, ip })
}

async fn call(vm: &mut Vm, function: FunctionId, ctx: &Value, state: &Value) -> Result<Value, VmError> {
    let mut execution = match function.args {
        0 => vm.execute(function.hash, ())?,
        1 => vm.execute(function.hash, (ctx.clone(),))?,
        _ => vm.execute(function.hash, (ctx.clone(), state.clone()))?,
    };
    let limited = limit::with(BYTES_PER_CALL_MAX, execution.async_complete());
    budget::with(INSTRUCTIONS_PER_CALL_MAX, limited).await.into_result()
}
