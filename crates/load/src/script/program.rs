//! A script before it is compiled: where it comes from and what it is given; and what can be said about it without running
//! it. Knows no thread and no port.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::SOURCE_BYTES_MAX;
use super::compile::{Compiled, compile};
use super::errors::ScriptError;
use super::mix::Mix;
use super::params::{Declared, did_you_mean};

/// The workloads that ship.
const BUILTINS: [(&str, &str); 10] = [
    ("serve", include_str!("../../workloads/serve.rn")),
    ("train", include_str!("../../workloads/train.rn")),
    ("ctr", include_str!("../../workloads/ctr.rn")),
    ("churn", include_str!("../../workloads/churn.rn")),
    ("drift", include_str!("../../workloads/drift.rn")),
    ("ycsb_a", include_str!("../../workloads/ycsb_a.rn")),
    ("ycsb_b", include_str!("../../workloads/ycsb_b.rn")),
    ("ycsb_c", include_str!("../../workloads/ycsb_c.rn")),
    ("ycsb_d", include_str!("../../workloads/ycsb_d.rn")),
    ("ycsb_f", include_str!("../../workloads/ycsb_f.rn")),
];

/// Functions that are not workloads.
pub(super) const RESERVED: [&str; 5] = ["schema", "prepare", "load", "load_cycles", "weights"];

/// A script and what it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name in errors: `serve`, or a path.
    pub name: String,
    /// Its text.
    pub source: String,
    /// Parameters that were given, by name, as text.
    pub params: BTreeMap<String, String>,
}

/// Description of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The comment at its top.
    pub about: String,
    /// Its parameters, in order.
    pub params: Vec<Declared>,
    /// Its workload functions, in order: all that are `pub async` but `schema`, `prepare` and `load`.
    pub workloads: Vec<Function>,
    /// How often it wants each called; `None` if there is none to call.
    pub mix: Option<Mix>,
    /// How many cycles `load` has, if there is one.
    pub load_cycles: Option<u64>,
    /// Whether it makes tables.
    pub schema: bool,
}

impl Description {
    /// Names of the workload functions.
    #[must_use]
    pub fn functions(&self) -> Vec<String> {
        self.workloads.iter().map(|function| function.name.clone()).collect()
    }
}

/// A public function of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The `///` above it.
    pub about: String,
    /// Whether it is `async`.
    pub is_async: bool,
    /// How many arguments it takes.
    pub args: usize,
}

impl Program {
    /// Names of the workloads that ship.
    pub fn builtins() -> impl Iterator<Item = &'static str> {
        BUILTINS.iter().map(|(name, _)| *name)
    }

    /// One that ships.
    pub fn builtin(name: &str) -> Result<Program, ScriptError> {
        match BUILTINS.iter().find(|(other, _)| *other == name) {
            Some((name, source)) => Ok(Program::new(*name, *source)),
            None => Err(ScriptError::UnknownWorkload {
                name: name.to_owned(),
                hint: did_you_mean(name, Program::builtins()),
                known: Program::builtins().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// From a file.
    pub fn file(path: &Path) -> Result<Program, ScriptError> {
        let name = path.display().to_string();
        // One byte more than it may have shows that it is too long.
        let read = |path: &Path| {
            let mut source = String::new();
            std::fs::File::open(path)?.take(SOURCE_BYTES_MAX as u64 + 1).read_to_string(&mut source)?;
            Ok::<_, std::io::Error>(source)
        };
        match read(path) {
            Ok(source) => Ok(Program::new(name, source)),
            Err(error) => Err(ScriptError::Read { path: name, reason: error.to_string() }),
        }
    }

    /// A file if the text ends in `.rn` or has a slash, or else one that ships.
    pub fn find(name_or_path: &str) -> Result<Program, ScriptError> {
        Program::path(name_or_path).map_or_else(|| Program::builtin(name_or_path), Program::file)
    }

    /// The file that [`Program::find`] would read.
    pub fn path(name_or_path: &str) -> Option<&Path> {
        let is_path = name_or_path.ends_with(".rn") || name_or_path.contains(['/', '\\']);
        is_path.then(|| Path::new(name_or_path))
    }

    /// From its text.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Program {
        Program { name: name.into(), source: source.into(), params: BTreeMap::new() }
    }

    /// Gives a parameter, as `name=value`. Whether there is one of that name shows when the script is compiled.
    pub fn set(&mut self, given: &str) -> Result<(), ScriptError> {
        match given.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                self.params.insert(name.trim().to_owned(), value.trim().to_owned());
                Ok(())
            }
            _ => Err(ScriptError::ParamForm { given: given.to_owned() }),
        }
    }

    /// Compiles the script and describes it. Sends no request.
    pub fn describe(&self) -> Result<Description, ScriptError> {
        let compiled = compile(self)?;
        let workloads: Vec<Function> = workloads(&compiled).cloned().collect();
        let names: Vec<String> = workloads.iter().map(|function| function.name.clone()).collect();
        Ok(Description {
            about: about(&self.source),
            mix: mix(&compiled, &names)?,
            load_cycles: load_cycles(&compiled)?,
            schema: compiled.function("schema").is_some(),
            params: compiled.params,
            workloads,
        })
    }
}

pub(super) fn workloads(compiled: &Compiled) -> impl Iterator<Item = &Function> {
    compiled
        .functions
        .iter()
        .filter(|function| function.is_async && !RESERVED.contains(&function.name.as_str()))
}

/// How many cycles `load` has: what `load_cycles()` says.
pub(super) fn load_cycles(compiled: &Compiled) -> Result<Option<u64>, ScriptError> {
    let fail =
        |reason: &str| ScriptError::Function { script: compiled.name.clone(), reason: reason.to_owned() };
    match (compiled.function("load"), compiled.function("load_cycles")) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(fail("there is load_cycles(), but no function `load`")),
        (Some(_), None) => Err(fail(
            "there is a function `load`; add `pub fn load_cycles()` that says how often it is called",
        )),
        (Some(_), Some(_)) => match rune::from_value::<i64>(compiled.call("load_cycles")?) {
            Ok(cycles @ 0..) => Ok(Some(cycles.unsigned_abs())),
            _ => Err(fail("load_cycles() must return a whole number that is not negative")),
        },
    }
}

/// Weights from `weights()`, or equal weights.
fn mix(compiled: &Compiled, names: &[String]) -> Result<Option<Mix>, ScriptError> {
    let fail = |reason: String| ScriptError::Function { script: compiled.name.clone(), reason };
    if names.is_empty() {
        return Ok(None);
    }
    if compiled.function("weights").is_none() {
        let parts = names.iter().map(|name| (name.clone(), 1.0)).collect();
        return Mix::new(parts, names).map(Some).map_err(fail);
    }
    let value = compiled.call("weights")?;
    let form = || fail("weights() must return an object of numbers: #{ pull: 98, push: 2 }".to_owned());
    let object = value.borrow_ref::<rune::runtime::Object>().map_err(|_| form())?;
    let mut parts = Vec::new();
    for (name, weight) in object.iter() {
        let weight = super::values::as_f64(weight).ok_or_else(form)?;
        parts.push((name.to_string(), weight));
    }
    // An object has no order of its own.
    parts.sort_by_key(|(name, _)| names.iter().position(|other| other == name));
    Mix::new(parts, names).map(Some).map_err(|reason| fail(format!("weights(): {reason}")))
}

/// The comment at the top, without its slashes.
fn about(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//"));
    let lines: Vec<&str> = lines.map(|line| line.trim_start_matches(['/', '!']).trim()).collect();
    lines.join("\n").trim().to_owned()
}
