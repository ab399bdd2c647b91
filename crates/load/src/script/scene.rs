//! State behind the script values of one thread: its port, its slots and its buffers. One per thread and never beyond it.
//! Knows neither Rune's machines nor what a script looks like.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rune::runtime::VmResult;
use sanderling_client::Call;
use sanderling_store::TableConfig;

use crate::generate::{At, Seeds};
use crate::port::Port;
use crate::request::{Failure, Finished, TableId};

use super::gradients::Gradients;
use super::natives::{RequestFailure, raise};

/// Buffers of one kind that a thread keeps for later; more are given back to the allocator.
const BUFFERS_KEPT_MAX: usize = 4096;

/// State shared by the values of one thread.
pub(super) struct Scene {
    pub(super) port: Rc<RefCell<Port>>,
    pub(super) seeds: Seeds,
    /// The slot whose function runs now; none in `schema` and `prepare`.
    current: Cell<Option<usize>>,
    slots: Box<[Slot]>,
    pub(super) keys: Pool<u64>,
    pub(super) offsets: Pool<u32>,
    pub(super) gradients: RefCell<Gradients>,
    /// Tables that `schema` made.
    pub(super) created: RefCell<Vec<TableConfig>>,
}

/// Where a call stands.
struct Slot {
    at: Cell<At>,
    request: RefCell<State>,
    /// Of requests, so that a future that was kept does not take another's answer.
    number: Cell<u64>,
    /// Misuse by a script whose place is no longer known.
    fault: Cell<Option<&'static str>>,
}

enum State {
    Idle,
    UnderWay,
    Ended(Finished),
}

const NOT_HERE: &str =
    "keys are drawn and requests made by workload functions and `load`, not by `schema` or `prepare`";
const ONE_AT_A_TIME: &str = "a request is under way already: await it before the next";
const NOT_AWAITED: &str = "a request was made and never awaited: write .await";
const KEPT: &str = "this request belongs to a call that has ended: await it in the call that makes it";

impl Scene {
    pub(super) fn new(port: Rc<RefCell<Port>>, seeds: Seeds, slots: usize) -> Scene {
        let slot = || Slot {
            at: Cell::new(At::default()),
            request: RefCell::new(State::Idle),
            number: Cell::new(0),
            fault: Cell::new(None),
        };
        Scene {
            port,
            seeds,
            current: Cell::new(None),
            slots: (0..slots).map(|_| slot()).collect(),
            keys: Pool::default(),
            offsets: Pool::default(),
            gradients: RefCell::new(Gradients::new(&seeds)),
            created: RefCell::new(Vec::new()),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// A cycle begins in a slot.
    pub(super) fn begin_cycle(&self, slot: usize, at: At) {
        self.slots[slot].at.set(at);
    }

    /// Runs something as the function of a slot.
    pub(super) fn within<T>(&self, slot: usize, run: impl FnOnce() -> T) -> T {
        self.current.set(Some(slot));
        let value = run();
        self.current.set(None);
        value
    }

    /// Where the current call stands, without a draw of its own.
    pub(super) fn here(&self) -> VmResult<At> {
        match self.current.get() {
            Some(slot) => VmResult::Ok(self.slots[slot].at.get()),
            None => raise(NOT_HERE),
        }
    }

    /// The place of the next draw.
    pub(super) fn draw(&self) -> VmResult<At> {
        let Some(slot) = self.current.get() else { return raise(NOT_HERE) };
        let at = self.slots[slot].at.get();
        self.slots[slot].at.set(At { draw: at.draw + 1, ..at });
        VmResult::Ok(at)
    }

    /// Begins a request of the current slot at once, so that what it refers to need not outlive this.
    pub(super) fn begin(self: &Rc<Self>, table: TableId, call: &Call<'_>) -> Reply {
        let Some(current) = self.current.get() else { return self.refuse(NOT_HERE) };
        let slot = &self.slots[current];
        let mut state = slot.request.borrow_mut();
        if !matches!(*state, State::Idle) {
            drop(state);
            return self.refuse(ONE_AT_A_TIME);
        }
        *state = State::UnderWay;
        slot.number.set(slot.number.get() + 1);
        self.port.borrow_mut().begin(current, table, call);
        Reply { scene: Rc::clone(self), slot: current, number: slot.number.get(), refused: None }
    }

    /// An answer that is an error of the script, whether it is awaited or not.
    pub(super) fn refuse(self: &Rc<Self>, reason: &'static str) -> Reply {
        if let Some(slot) = self.current.get() {
            self.slots[slot].fault.set(Some(reason));
        }
        Reply { scene: Rc::clone(self), slot: 0, number: 0, refused: Some(reason) }
    }

    pub(super) fn under_way(&self, slot: usize) -> bool {
        matches!(*self.slots[slot].request.borrow(), State::UnderWay)
    }

    /// The slot's request has ended.
    pub(super) fn end(&self, slot: usize, finished: Finished) {
        let before = self.slots[slot].request.replace(State::Ended(finished));
        assert!(matches!(before, State::UnderWay), "slot {slot} has no request under way");
    }

    /// Misuse by a call that ended while its request was in flight.
    pub(super) fn fault(&self, slot: usize) -> &'static str {
        self.slots[slot].fault.take().unwrap_or(NOT_AWAITED)
    }

    /// The slot's call has ended; what it should not have done.
    pub(super) fn leave(&self, slot: usize) -> Option<&'static str> {
        let fault = self.slots[slot].fault.take();
        let before = self.slots[slot].request.replace(State::Idle);
        fault.or((!matches!(before, State::Idle)).then_some(NOT_AWAITED))
    }
}

/// A request's answer, to be awaited.
pub(super) struct Reply {
    scene: Rc<Scene>,
    slot: usize,
    number: u64,
    refused: Option<&'static str>,
}

impl Future for Reply {
    /// The number of keys that had no row.
    type Output = VmResult<Result<i64, RequestFailure>>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(reason) = self.refused {
            return Poll::Ready(raise(reason));
        }
        let slot = &self.scene.slots[self.slot];
        if self.scene.current.get() != Some(self.slot) || slot.number.get() != self.number {
            return Poll::Ready(raise(KEPT));
        }
        match slot.request.replace(State::Idle) {
            State::Idle => Poll::Ready(raise(KEPT)),
            State::UnderWay => {
                slot.request.replace(State::UnderWay);
                Poll::Pending
            }
            State::Ended(finished) => Poll::Ready(VmResult::Ok(match finished.outcome {
                Ok(outcome) => Ok(outcome.missing as i64),
                Err(failure) => Err(RequestFailure { failure }),
            })),
        }
    }
}

/// Buffers that are used again.
pub(super) struct Pool<T> {
    kept: RefCell<Vec<Vec<T>>>,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { kept: RefCell::new(Vec::new()) }
    }
}

impl<T> Pool<T> {
    /// An empty buffer, with room if one was given back.
    pub(super) fn take(&self) -> Vec<T> {
        self.kept.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn give(&self, mut buffer: Vec<T>) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < BUFFERS_KEPT_MAX && buffer.capacity() > 0 {
            buffer.clear();
            kept.push(buffer);
        }
    }
}

/// A failure as a script's error tells it.
pub(super) fn told(failure: &Failure) -> String {
    failure.to_string()
}
