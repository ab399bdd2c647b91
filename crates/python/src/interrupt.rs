//! Ctrl-C while the main thread waits for servers: the interpreter's handlers run there, and the exception that they raise is
//! what the call ends with. Conversion only; who waits, and what is given up, is the client's business.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use sanderling_client::Stop;

use crate::error::ServerError;

/// How long after an exception threads of the background, which the end of the process waits for, give silent servers up; and
/// how long those may be silent then.
const AFTER: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(1);
/// How long servers may be silent to those threads when the process is about to end. No call waits for pending pushes,
/// and an exception between two calls of this module is not seen here.
const LEAVING_GRACE: Duration = Duration::from_secs(5);

/// How often the thread that hears signals looks whether there was one, while another one works.
const LOOK: Duration = Duration::from_millis(100);

/// The thread that imported the module, the main one as a rule: only that one hears signals.
static MAIN: OnceLock<ThreadId> = OnceLock::new();
static RAISED: Mutex<(Option<PyErr>, Option<Instant>)> = Mutex::new((None, None));
/// Set when a signal handler ends the run in order while servers answer.
static IN_ORDER: AtomicBool = AtomicBool::new(false);
/// The interpreter is about to end.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// To be called when the module is imported.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    MAIN.get_or_init(|| std::thread::current().id());
    let leave = PyCFunction::new_closure(py, None, None, |_, _| LEAVING.store(true, Ordering::Relaxed))?;
    py.import("atexit")?.call_method1("register", (leave,))?;
    // Connections and threads stay the parent's; who uses them in a child of a fork is told so.
    let forked = PyCFunction::new_closure(py, None, None, |_, _| sanderling_client::note_fork())?;
    let arguments = PyDict::new(py);
    arguments.set_item("after_in_child", forked)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&arguments)).map(|_| ())
}

/// Does work on a thread of its own. This one, which hears signals, has a look every now and then meanwhile.
pub(crate) fn while_looking<T: Send>(work: impl FnOnce() -> T + Send, mut look: impl FnMut()) -> T {
    std::thread::scope(|scope| {
        let (ends, ended) = channel::<()>();
        let running = scope.spawn(move || {
            // Closed when it ends, however it ends.
            let _ends = ends;
            work()
        });
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            look();
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Stop flags of waiting calls.
pub(crate) fn stop() -> Stop {
    Stop::new(told)
}

/// Whether calls of all threads give servers up that say nothing for a second: for who ends a run in order at a signal, and
/// has none raised.
#[pyfunction]
pub(crate) fn give_up_silent(told: bool) {
    IN_ORDER.store(told, Ordering::Relaxed);
}

fn told() -> Option<Duration> {
    let in_order = IN_ORDER.load(Ordering::Relaxed).then_some(GRACE);
    if !is_main() {
        let at = RAISED.lock().unwrap_or_else(PoisonError::into_inner).1;
        let leaving = LEAVING.load(Ordering::Relaxed).then_some(LEAVING_GRACE);
        return at.filter(|at| at.elapsed() < AFTER).map(|_| GRACE).or(in_order).or(leaving);
    }
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let mut kept = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(raised) = raised {
        *kept = (Some(raised), Some(Instant::now()));
    }
    kept.0.as_ref().map(|_| Duration::ZERO).or(in_order)
}

/// Reason that ended a wait, for callers without a signal of their own.
pub(crate) fn raised(text: String) -> PyErr {
    let kept = is_main().then(|| RAISED.lock().unwrap_or_else(PoisonError::into_inner).0.take());
    kept.flatten().unwrap_or_else(|| ServerError::new_err(text))
}

fn is_main() -> bool {
    MAIN.get() == Some(&std::thread::current().id())
}

/// Has threads of the background give silent servers up, as after an exception.
pub(crate) fn tell() {
    RAISED.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(Instant::now());
}
