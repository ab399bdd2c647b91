//! Where scripts print: to standard error, since standard output is the result's. Knows nothing of tables and requests.

use rune::runtime::{InstAddress, Memory, Output, VmResult};
use rune::{ContextError, Module};
use sanderling_terminal::log;

/// Implementation of `print!`, `println!` and `dbg!`, in place of Rune's own.
pub(super) fn module() -> Result<Module, ContextError> {
    let mut io = Module::with_crate_item("std", ["io"])?;
    io.function("print", |text: &str| tell(format_args!("{text}"))).build()?;
    io.function("println", |text: &str| tell(format_args!("{text}\n"))).build()?;
    io.raw_function("dbg", dbg).build()?;
    Ok(io)
}

/// With standard error closed or unread the text is dropped, and the call goes on.
fn tell(text: std::fmt::Arguments<'_>) {
    log::part(text.to_string());
}

fn dbg(stack: &mut dyn Memory, at: InstAddress, count: usize, out: Output) -> VmResult<()> {
    for value in rune::vm_try!(stack.slice_at(at, count)) {
        tell(format_args!("{value:?}\n"));
    }
    rune::vm_try!(out.store(stack, ()));
    VmResult::Ok(())
}
