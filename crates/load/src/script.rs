//! Scripts: what a workload asks, in Rune. Knows no connection, no clock and no statistics: it says what is to be asked,
//! cycle by cycle, and takes what came of it.
//!
//! Work of the engine, per thread (`docs/load-scripts.md` describes scripts):
//!
//! ```ignore
//! let mut program = Program::find("serve")?; // or Program::file(path)
//! program.set("keys=1e6")?;
//! let about = program.describe()?; // parameters, functions, weights, load cycles: for lists and errors
//! let mix = Mix::parse("pull:98,push:2", &about.functions())?; // or about.mix
//!
//! // on every thread, with its own port:
//! let mut script = ThreadScript::new(&program, &seeds, port, slots)?; // compiles
//! let tables = script.schema()?; // makes the tables; or not, if they are there
//! script.prepare()?; // opens tables, sets up generators
//! let pull = script.function("pull")?;
//! let step = script.start(slot, pull, cycle, now); // at most one request is begun at the port
//! let step = script.resume(slot, finished); // for every `Finished` of that slot, while the step before was `Waiting`
//! ```
//!
//! Every thread compiles the script for itself: Rune counts references to its context and unit atomically and per call, and
//! two threads that shared those would do together a fifth of what one does alone.

mod compile;
mod depth;
mod errors;
mod gradients;
mod machine;
mod mix;
mod natives;
mod params;
mod printing;
mod program;
mod scene;
pub mod speed;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use errors::ScriptError;
pub use machine::{CallFailure, FunctionId, SCRIPT_KIND, Step, ThreadScript};
pub use mix::{FUNCTIONS_MAX, Mix, MixError};
pub use params::{Declared, Param};
pub use program::{Description, Function, Program};

/// Largest script.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Most memory that compiling one takes, in all its steps.
pub const COMPILE_BYTES_MAX: usize = 256 << 20;
/// Stack of the thread that compiles: enough for scripts that go as deep as they may.
const COMPILE_STACK_BYTES: usize = 64 << 20;
/// Most instructions that one call of a script may run.
pub const INSTRUCTIONS_PER_CALL_MAX: usize = 1_000_000;
/// Most bytes of script values that one call may hold. Keys and gradients are not among them. It also bounds how deep
/// functions may call each other through native ones, which takes the thread's own stack: about 7 times as many bytes.
pub const BYTES_PER_CALL_MAX: usize = 128 << 10;
/// Most keys that may be drawn at once.
pub const KEYS_PER_DRAW_MAX: usize = 1 << 22;
/// Most gradients, counted by value, that one push may have.
pub const GRADIENTS_PER_PUSH_MAX: usize = 1 << 26;
/// Failures of scripts that a thread draws with place and caret, from when it counts them; the others are told in one line.
pub const FAILURES_DRAWN_MAX: u64 = 8;
