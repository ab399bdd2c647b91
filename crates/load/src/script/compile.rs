//! From a script's text to what runs: Rune's context with our functions in it, and the unit. Knows no request.

use sanderling_observe::numbers::bytes as in_units;
use std::sync::{Arc, Mutex, PoisonError};

use rune::alloc::limit;
use rune::ast;
use rune::runtime::budget;
use rune::runtime::{RuntimeContext, Unit, Value};
use rune::{Context, ContextError, Diagnostics, Options, Source, SourceId, Sources, Vm};

use super::errors::{self, Failed, ScriptError};
use super::params::{Declared, Params, did_you_mean};
use super::program::{Function, Program};
use super::{
    BYTES_PER_CALL_MAX, COMPILE_BYTES_MAX, COMPILE_STACK_BYTES, INSTRUCTIONS_PER_CALL_MAX, SOURCE_BYTES_MAX,
    depth, natives, printing,
};

/// A script that can run, on one thread.
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) context: Arc<RuntimeContext>,
    pub(super) unit: Arc<Unit>,
    pub(super) sources: Sources,
    /// All public functions, in order.
    pub(super) functions: Vec<Function>,
    pub(super) params: Vec<Declared>,
}

impl Compiled {
    pub(super) fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Calls a function that takes nothing and asks nothing.
    pub(super) fn call(&self, name: &str) -> Result<Value, ScriptError> {
        let mut vm = Vm::new(Arc::clone(&self.context), Arc::clone(&self.unit));
        let limited = limit::with(BYTES_PER_CALL_MAX, || vm.call([name], ()));
        let called = budget::with(INSTRUCTIONS_PER_CALL_MAX, || limited.call()).call();
        let ip = vm.ip();
        called.map_err(|error| self.failed(name, &Failed { error, ip }))
    }

    pub(super) fn failed(&self, function: &str, failed: &Failed) -> ScriptError {
        ScriptError::Run {
            script: self.name.clone(),
            function: function.to_owned(),
            text: errors::of_machine(failed, self),
        }
    }
}

/// Compiles a script, and checks that it has all parameters that are given. What a hostile one costs is bounded: its bytes, how
/// deep it goes, and the memory of all steps.
pub(super) fn compile(program: &Program) -> Result<Compiled, ScriptError> {
    let fail = |text: String| ScriptError::Compile { script: program.name.clone(), text };
    check_size(program)?;
    // A stack of a known size, whichever thread asks.
    let compiled = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("compile".to_owned()).stack_size(COMPILE_STACK_BYTES);
        let bounded = || limit::with(COMPILE_BYTES_MAX, || compile_here(program)).call();
        let spawned = thread.spawn_scoped(scope, bounded);
        let spawned = spawned.map_err(|error| fail(format!("no thread to compile it: {error}")))?;
        // Rune panics where a function has more blocks, or a script more functions, than it can number.
        spawned.join().unwrap_or_else(|_| {
            let text =
                "it has more functions, or a function more blocks, than can be compiled; make it shorter";
            Err(fail(text.to_owned()))
        })
    });
    compiled.map_err(|error| match error {
        ScriptError::Compile { text, .. } if errors::is_out_of_memory(&text) => fail(format!(
            "compiling it takes more than {}; make it shorter",
            in_units(COMPILE_BYTES_MAX as u64)
        )),
        error => error,
    })
}

/// Refuses what is too long, or goes too deep.
fn check_size(program: &Program) -> Result<(), ScriptError> {
    let fail = |text: String| ScriptError::Compile { script: program.name.clone(), text };
    if program.source.len() > SOURCE_BYTES_MAX {
        return Err(fail(format!(
            "it is longer than {}; make it shorter",
            in_units(SOURCE_BYTES_MAX as u64)
        )));
    }
    if let Some(line) = depth::too_deep(&program.source) {
        return Err(fail(format!(
            "line {line}: more than {} brackets, operators or calls within each other; put parts of it into variables or functions",
            depth::DEPTH_MAX
        )));
    }
    Ok(())
}

fn compile_here(program: &Program) -> Result<Compiled, ScriptError> {
    let fail = |text: String| ScriptError::Compile { script: program.name.clone(), text };
    let given = program.params.clone();
    let params = Arc::new(Mutex::new(Params { given, declared: Vec::new() }));
    let context = context(&params).map_err(|error| fail(error.to_string()))?;
    let mut sources = Sources::new();
    let source = Source::new(&program.name, &program.source).map_err(|error| fail(error.to_string()))?;
    sources.insert(source).map_err(|error| fail(error.to_string()))?;
    let mut diagnostics = Diagnostics::without_warnings();
    let options = Options::default(); // not what RUNEFLAGS says
    let built = rune::prepare(&mut sources)
        .with_context(&context)
        .with_diagnostics(&mut diagnostics)
        .with_options(&options)
        .build();
    let unit = match built {
        Ok(unit) => Arc::new(unit),
        Err(error) if diagnostics.is_empty() => return Err(fail(error.to_string())),
        Err(_) => return Err(fail(errors::of_compiler(&diagnostics, &sources))),
    };
    let context = Arc::new(context.runtime().map_err(|error| fail(error.to_string()))?);
    let params = std::mem::take(&mut params.lock().unwrap_or_else(PoisonError::into_inner).declared);
    check_params(program, &params)?;
    let functions = functions(&program.source).map_err(|error| fail(error.to_string()))?;
    let (name, source) = (program.name.clone(), program.source.clone());
    Ok(Compiled { name, source, context, unit, sources, functions, params })
}

fn context(params: &Arc<Mutex<Params>>) -> Result<Context, ContextError> {
    // Without what prints to standard output.
    let mut context = Context::with_config(false)?;
    context.install(printing::module()?)?;
    for module in natives::modules(params)? {
        context.install(module)?;
    }
    Ok(context)
}

fn check_params(program: &Program, declared: &[Declared]) -> Result<(), ScriptError> {
    let names = || declared.iter().map(|param| param.name.as_str());
    let Some(name) = program.params.keys().find(|name| !names().any(|other| other == name.as_str())) else {
        return Ok(());
    };
    let known: Vec<String> =
        declared.iter().map(|param| format!("{}={}", param.name, param.default)).collect();
    Err(ScriptError::UnknownParam {
        script: program.name.clone(),
        name: name.clone(),
        hint: did_you_mean(name, names()),
        known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
    })
}

/// All public functions of a script that compiles.
fn functions(source: &str) -> rune::compile::Result<Vec<Function>> {
    let file = rune::parse::parse_all::<ast::File>(source, SourceId::EMPTY, true)?;
    let mut functions = Vec::new();
    for (item, _) in &file.items {
        let ast::Item::Fn(function) = item else { continue };
        if !matches!(function.visibility, ast::Visibility::Public(_)) {
            continue;
        }
        let range = function.name.span.range();
        functions.push(Function {
            name: source[range.clone()].to_owned(),
            about: above(source, range.start),
            is_async: function.async_token.is_some(),
            args: function.args.len(),
        });
    }
    Ok(functions)
}

/// The `///` right above the line of a place.
fn above(source: &str, at: usize) -> String {
    let start = source[..at].rfind('\n').unwrap_or(0);
    let lines = source[..start].lines().rev().map_while(|line| line.trim().strip_prefix("///"));
    let mut lines: Vec<&str> = lines.map(str::trim).collect();
    lines.reverse();
    lines.join(" ")
}
