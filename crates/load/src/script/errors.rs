//! Errors of scripts, with file, line and a caret under the place. Knows no request.

use sanderling_observe::numbers::bytes as in_units;
use std::ops::Range;

use rune::runtime::VmError;
use rune::termcolor::NoColor;
use rune::{Diagnostics, Sources};

use super::compile::Compiled;

/// Why a script cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The file could not be read.
    #[error("{path}: {reason}")]
    Read {
        /// As it was given.
        path: String,
        /// The operating system's words.
        reason: String,
    },
    /// There is no such workload among those that ship.
    #[error("there is no workload {name:?}{hint}; built in: {known}; give a script by its path")]
    UnknownWorkload {
        /// As it was given.
        name: String,
        /// `; did you mean ..?` or nothing.
        hint: String,
        /// All, with commas.
        known: String,
    },
    /// It does not compile, or what it declares makes no sense. The text has places and carets.
    #[error("{script} does not compile:\n{text}")]
    Compile {
        /// The script's name.
        script: String,
        /// Message of the compiler.
        text: String,
    },
    /// A parameter was given that the script does not have.
    #[error("{script} has no parameter {name:?}{hint}; it has {known}")]
    UnknownParam {
        /// The script's name.
        script: String,
        /// As it was given.
        name: String,
        /// `; did you mean ..?` or nothing.
        hint: String,
        /// All with their defaults, with commas.
        known: String,
    },
    /// A parameter was not given as `name=value`.
    #[error("parameter {given:?}: write name=value, such as keys=1e6")]
    ParamForm {
        /// As it was given.
        given: String,
    },
    /// A function is missing, or is not one that can be called this way.
    #[error("{script}: {reason}")]
    Function {
        /// The script's name.
        script: String,
        /// Which, and what there is.
        reason: String,
    },
    /// It failed while `schema`, `prepare` or another function of the set-up ran. The text has places and carets.
    #[error("{script}, in {function}:\n{text}")]
    Run {
        /// The script's name.
        script: String,
        /// Which function was called.
        function: String,
        /// The error.
        text: String,
    },
}

/// Prefix that Rune puts before the errors of native functions.
const PANICKED: &str = "Panicked: ";

/// Everything that the compiler has to say, as text.
pub(super) fn of_compiler(diagnostics: &Diagnostics, sources: &Sources) -> String {
    let mut out = NoColor::new(Vec::new());
    let told = diagnostics.emit(&mut out, sources);
    text(out, told.err().map(|error| error.to_string()))
}

/// An error of a running script.
pub(super) struct Failed {
    pub(super) error: VmError,
    /// Where the machine stood; Rune forgets that when a limit ends a call.
    pub(super) ip: usize,
}

/// The error with its place and the calls that led there.
pub(super) fn of_machine(failed: &Failed, compiled: &Compiled) -> String {
    let mut text = if failed.error.first_location().is_some() {
        let mut out = NoColor::new(Vec::new());
        let told = failed.error.emit(&mut out, &compiled.sources);
        text(out, told.err().map(|error| error.to_string())).replace(PANICKED, "")
    } else {
        format!("error: {}{}", failed.error, drawn(failed, compiled).unwrap_or_default())
    };
    // Before the calls that led there, which may be very many.
    if let Some(hint) = hint(&failed.error) {
        let head = text.find('\n').unwrap_or(text.len());
        text.insert_str(head, &format!("\n  = {hint}"));
    }
    text
}

/// The error in one line: `file:line:column: message`.
pub(super) fn short(failed: &Failed, compiled: &Compiled) -> String {
    let told = failed.error.to_string().replace(PANICKED, "");
    let hint = hint(&failed.error).map_or(String::new(), |hint| format!(": {hint}"));
    match place(failed, compiled) {
        Some((line, column, _)) => format!("{}:{line}:{column}: {told}{hint}", compiled.name),
        None => format!("{}: {told}{hint}", compiled.name),
    }
}

/// Line and column, counted from 1, and the bytes of the source.
fn place(failed: &Failed, compiled: &Compiled) -> Option<(usize, usize, Range<usize>)> {
    let ip = failed.error.first_location().map_or(failed.ip, |at| at.ip);
    let inst = compiled.unit.debug_info()?.instruction_at(ip)?;
    let range = inst.span.range();
    let (line, column) = compiled.sources.get(inst.source_id)?.pos_to_utf8_linecol(range.start);
    Some((line + 1, column + 1, range))
}

/// A place as the compiler would draw it.
fn drawn(failed: &Failed, compiled: &Compiled) -> Option<String> {
    let (line, column, range) = place(failed, compiled)?;
    let text = compiled.source.lines().nth(line - 1)?;
    let width = compiled.source.get(range)?.lines().next().map_or(1, |part| part.chars().count().max(1));
    let (name, digits, at) = (&compiled.name, line.to_string().len(), column - 1);
    let (bar, carets) = (" ".repeat(digits), "^".repeat(width));
    Some(format!("\n{bar} ┌─ {name}:{line}:{column}\n{bar} │\n{line} │ {text}\n{bar} │ {:at$}{carets}", ""))
}

/// Is it what Rune says when memory is beyond a limit?
pub(super) fn is_out_of_memory(message: &str) -> bool {
    message.contains("Failed to allocate") || message.contains("allocation failed")
}

/// Limits that the message of Rune leaves out.
fn hint(error: &VmError) -> Option<String> {
    let message = error.to_string();
    if message.contains("Halted for unexpected reason `limited`") {
        let most = super::INSTRUCTIONS_PER_CALL_MAX;
        return Some(format!("one call may run {most} instructions: is there a loop without end?"));
    }
    if is_out_of_memory(&message) {
        let most = in_units(super::BYTES_PER_CALL_MAX as u64);
        return Some(format!("one call may hold {most} of script values: is there a recursion without end?"));
    }
    None
}

fn text(out: NoColor<Vec<u8>>, more: Option<String>) -> String {
    let mut text = String::from_utf8_lossy(&out.into_inner()).trim_end().to_owned();
    if let Some(more) = more {
        text.push_str(&more);
    }
    text
}
