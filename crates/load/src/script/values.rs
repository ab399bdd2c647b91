//! The native values of scripts that say what is asked for: laws of keys, sizes and arities, and the keys drawn from them.
//! Their contents are Rust's; a script only hands them on. Knows no request.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rune::compile::meta::DocType;
use rune::runtime::{FromValue, MaybeTypeOf, Ref, RuntimeError, Value, VmResult};
use rune::{Any, ContextError, Module, TypeHash};

use crate::generate::{Arity, GenerateError, KeyLaw, KeySource, Sizes, Spread};

use super::KEYS_PER_DRAW_MAX;
use super::gradients::Kind;
use super::natives::raise;
use super::scene::Scene;

/// Keys of a request; their buffer goes back to the thread when they are dropped.
#[derive(Any)]
#[rune(item = ::load)]
pub(super) struct Keys {
    pub(super) keys: Vec<u64>,
    scene: Rc<Scene>,
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.scene.keys.give(std::mem::take(&mut self.keys));
    }
}

/// Keys of several samples: where each sample's keys start.
#[derive(Any)]
#[rune(item = ::load)]
pub(super) struct Bags {
    pub(super) keys: Vec<u64>,
    pub(super) offsets: Vec<u32>,
    scene: Rc<Scene>,
}

impl Drop for Bags {
    fn drop(&mut self) {
        self.scene.keys.give(std::mem::take(&mut self.keys));
        self.scene.offsets.give(std::mem::take(&mut self.offsets));
    }
}

/// How keys are drawn, before a thread has a source of them.
#[derive(Any, Debug, Clone)]
#[rune(item = ::load)]
pub(super) struct Law {
    law: KeyLaw,
    keys: i64,
    drift: Option<(f64, f64)>,
    fresh: Option<f64>,
    grow: Option<f64>,
    spread: Spread,
}

/// A law at work on one thread.
#[derive(Any)]
#[rune(item = ::load)]
pub(super) struct Source {
    source: KeySource,
    scene: Rc<Scene>,
}

/// A law of the size of batches.
#[derive(Any, Debug, Clone, Copy)]
#[rune(item = ::load)]
pub(super) struct SizeLaw {
    pub(super) sizes: Sizes,
}

/// A law of the number of keys per sample.
#[derive(Any, Debug, Clone, Copy)]
#[rune(item = ::load)]
pub(super) struct ArityLaw {
    arity: Arity,
}

/// Gradients of a push, as `grads::constant` and `grads::random` make them.
#[derive(Any, Debug, Clone, Copy)]
#[rune(item = ::load)]
struct Slopes {
    kind: Kind,
}

/// An argument that says what gradients are: these, or a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grads {
    pub(super) kind: Kind,
}

/// An argument that has keys.
pub(super) enum Asked {
    Keys(Ref<Keys>),
    Bags(Ref<Bags>),
}

/// The modules `keys`, `sizes`, `arity` and `grads`.
pub(super) fn modules() -> Result<Vec<Module>, ContextError> {
    let mut types = Module::with_crate("load")?;
    types.ty::<Keys>()?;
    types.ty::<Bags>()?;
    types.ty::<Law>()?;
    types.ty::<Source>()?;
    types.ty::<SizeLaw>()?;
    types.ty::<ArityLaw>()?;
    types.ty::<Slopes>()?;
    types.associated_function("drift", |mut law: Law, share: Number, seconds: Number| {
        law.drift = Some((share.0, seconds.0));
        law
    })?;
    types.associated_function("fresh", |mut law: Law, share: Number| {
        law.fresh = Some(share.0);
        law
    })?;
    types.associated_function("grow", |mut law: Law, keys_per_cycle: Number| {
        law.grow = Some(keys_per_cycle.0);
        law
    })?;
    types.associated_function("spread", spread)?;
    types.associated_function("draw", Source::draw)?;
    types.associated_function("newest", Source::newest)?;
    types.associated_function("replay", Source::replay)?;
    types.associated_function("bags", Source::bags)?;
    types.associated_function("len", |source: &Source| source.source.keys() as i64)?;
    types.associated_function("len", |keys: &Keys| keys.keys.len() as i64)?;
    types.associated_function("get", |keys: &Keys, at: i64| keys.get(at))?;
    types.associated_function("len", |bags: &Bags| bags.keys.len() as i64)?;
    types.associated_function("samples", |bags: &Bags| bags.offsets.len() as i64 - 1)?;

    let mut keys = Module::with_crate("keys")?;
    keys.function("uniform", |keys: i64| Law::new(KeyLaw::Uniform, keys)).build()?;
    keys.function("zipf", |keys: i64, theta: Number| Law::new(KeyLaw::Zipf { theta: theta.0 }, keys))
        .build()?;
    keys.function("hotspot", |keys: i64, hot_keys: Number, hot_draws: Number| {
        Law::new(KeyLaw::Hotspot { hot_keys: hot_keys.0, hot_draws: hot_draws.0 }, keys)
    })
    .build()?;
    keys.function("latest", |keys: i64, theta: Number| Law::new(KeyLaw::Latest { theta: theta.0 }, keys))
        .build()?;
    keys.function("sequential", |keys: i64| Law::new(KeyLaw::Sequential, keys)).build()?;
    keys.function("trace", |path: &str| Law::new(KeyLaw::Trace(PathBuf::from(path)), 1)).build()?;

    let mut sizes = Module::with_crate("sizes")?;
    sizes.function("fixed", |size: i64| SizeLaw::checked(Sizes::Fixed(count(size)))).build()?;
    sizes
        .function("uniform", |min: i64, max: i64| {
            SizeLaw::checked(Sizes::Uniform { min: count(min), max: count(max) })
        })
        .build()?;
    sizes
        .function("lognormal", |median: Number, sigma: Number, max: i64| {
            SizeLaw::checked(Sizes::Lognormal { median: median.0, sigma: sigma.0, max: count(max) })
        })
        .build()?;

    let mut arity = Module::with_crate("arity")?;
    arity.function("fixed", |keys: i64| ArityLaw::checked(Arity::Fixed(count(keys)))).build()?;
    arity
        .function("geometric", |mean: Number, max: i64| {
            ArityLaw::checked(Arity::Geometric { mean: mean.0, max: count(max) })
        })
        .build()?;

    let mut grads = Module::with_crate("grads")?;
    grads.function("constant", |value: Number| Slopes { kind: Kind::Constant(value.0 as f32) }).build()?;
    grads.function("random", |scale: Number| Slopes { kind: Kind::Random(scale.0 as f32) }).build()?;
    Ok(vec![types, keys, sizes, arity, grads])
}

/// A size from a script; what is negative becomes too large for any law.
fn count(size: i64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn made<T>(checked: Result<(), GenerateError>, value: T) -> VmResult<T> {
    match checked {
        Ok(()) => VmResult::Ok(value),
        Err(error) => raise(error.to_string()),
    }
}

impl SizeLaw {
    fn checked(sizes: Sizes) -> VmResult<SizeLaw> {
        made(sizes.check(), SizeLaw { sizes })
    }
}

impl ArityLaw {
    fn checked(arity: Arity) -> VmResult<ArityLaw> {
        made(arity.check(), ArityLaw { arity })
    }
}

fn spread(mut law: Law, spread: &str) -> VmResult<Law> {
    law.spread = match spread {
        "scrambled" => Spread::Scrambled,
        "dense" => Spread::Dense,
        _ => match spread.strip_prefix("shifted:").and_then(|bits| bits.parse().ok()) {
            Some(bits @ 0..64) => Spread::Shifted(bits),
            _ => {
                return raise(format!(
                    "there is no spread {spread:?}; there are \"scrambled\", \"dense\" and \"shifted:16\""
                ));
            }
        },
    };
    VmResult::Ok(law)
}

impl Law {
    fn new(law: KeyLaw, keys: i64) -> Law {
        Law { law, keys, drift: None, fresh: None, grow: None, spread: Spread::default() }
    }

    /// A source of this thread.
    pub(super) fn source(&self, scene: &Rc<Scene>) -> VmResult<Source> {
        let make = || {
            let keys =
                u64::try_from(self.keys).map_err(|_| GenerateError::Keys { keys: i128::from(self.keys) })?;
            let mut source = KeySource::new(&self.law, keys, &scene.seeds)?;
            source.spread(self.spread);
            if let Some((share, seconds)) = self.drift {
                source.drift(share, Duration::try_from_secs_f64(seconds).unwrap_or_default())?;
            }
            if let Some(share) = self.fresh {
                source.fresh(share)?;
            }
            if let Some(keys_per_cycle) = self.grow {
                source.grow(keys_per_cycle)?;
            }
            Ok::<_, GenerateError>(source)
        };
        match make() {
            Ok(source) => VmResult::Ok(Source { source, scene: Rc::clone(scene) }),
            Err(error) => raise(error.to_string()),
        }
    }
}

fn at_most(count: i64, most: usize) -> VmResult<usize> {
    match usize::try_from(count) {
        Ok(count) if count <= most => VmResult::Ok(count),
        _ => raise(format!("{count} keys cannot be drawn at once; 0 to {most} can")),
    }
}

impl Source {
    fn fill(&self, count: usize) -> VmResult<Keys> {
        let at = rune::vm_try!(self.scene.draw());
        let mut keys = self.scene.keys.take();
        let filled = self.source.fill(&at, count, &mut keys);
        made(filled, Keys { keys, scene: Rc::clone(&self.scene) })
    }

    /// So many keys by the law.
    fn draw(&self, count: i64) -> VmResult<Keys> {
        self.fill(rune::vm_try!(at_most(count, KEYS_PER_DRAW_MAX)))
    }

    /// Of a trace whose lines are requests, the keys of this cycle's line.
    fn replay(&self) -> VmResult<Keys> {
        let at = rune::vm_try!(self.scene.here());
        match self.source.request_keys(&at) {
            Some(count) => self.fill(count),
            None => raise("only a trace whose lines are requests can be replayed; use draw(count)"),
        }
    }

    /// The keys that were added last, of the law `latest`.
    fn newest(&self, count: i64) -> VmResult<Keys> {
        let count = rune::vm_try!(at_most(count, KEYS_PER_DRAW_MAX));
        let at = rune::vm_try!(self.scene.draw());
        let mut keys = self.scene.keys.take();
        self.source.fill_newest(&at, count, &mut keys);
        VmResult::Ok(Keys { keys, scene: Rc::clone(&self.scene) })
    }

    /// Keys of so many samples, each with as many as the arity says.
    fn bags(&self, arity: &ArityLaw, samples: i64) -> VmResult<Bags> {
        let samples = rune::vm_try!(at_most(samples, KEYS_PER_DRAW_MAX));
        let at = rune::vm_try!(self.scene.draw());
        let scene = Rc::clone(&self.scene);
        let mut bags = Bags { keys: scene.keys.take(), offsets: scene.offsets.take(), scene };
        let count = arity.arity.offsets(&self.scene.seeds, &at, samples, &mut bags.offsets);
        rune::vm_try!(at_most(count as i64, KEYS_PER_DRAW_MAX));
        let filled = self.source.fill(&at, count, &mut bags.keys);
        made(filled, bags)
    }
}

impl Keys {
    /// As a script's number has a sign, the same 64 bits.
    fn get(&self, at: i64) -> VmResult<i64> {
        match usize::try_from(at).ok().and_then(|at| self.keys.get(at)) {
            Some(key) => VmResult::Ok(*key as i64),
            None => raise(format!("there is no key {at} among {}", self.keys.len())),
        }
    }
}

/// A number, whole or not.
pub(super) fn as_f64(value: &Value) -> Option<f64> {
    let hash = value.type_hash();
    if hash == f64::HASH {
        value.as_float().ok()
    } else if hash == i64::HASH {
        value.as_signed().ok().map(|value| value as f64)
    } else {
        None
    }
}

/// An argument that may be whole or not; Rune itself takes the one for the other nowhere.
struct Number(f64);

impl FromValue for Number {
    fn from_value(value: Value) -> Result<Number, RuntimeError> {
        match as_f64(&value) {
            Some(number) => Ok(Number(number)),
            None => Err(RuntimeError::panic(format!(
                "a number is wanted, not a value of the type {}",
                value.type_info()
            ))),
        }
    }
}

impl MaybeTypeOf for Number {
    fn maybe_type_of() -> rune::alloc::Result<DocType> {
        f64::maybe_type_of()
    }
}

impl Asked {
    pub(super) fn with<T>(self, then: impl FnOnce(&[u64]) -> T) -> T {
        match self {
            Asked::Keys(keys) => then(&keys.keys),
            Asked::Bags(bags) => then(&bags.keys),
        }
    }
}

impl FromValue for Asked {
    fn from_value(value: Value) -> Result<Asked, RuntimeError> {
        let hash = value.type_hash();
        if hash == Keys::HASH {
            value.into_ref().map(Asked::Keys)
        } else if hash == Bags::HASH {
            value.into_ref().map(Asked::Bags)
        } else {
            Err(RuntimeError::panic("keys are what a source drew, with draw(..) or bags(..)"))
        }
    }
}

impl MaybeTypeOf for Asked {
    fn maybe_type_of() -> rune::alloc::Result<DocType> {
        Keys::maybe_type_of()
    }
}

impl FromValue for Grads {
    fn from_value(value: Value) -> Result<Grads, RuntimeError> {
        if let Some(number) = as_f64(&value) {
            return Ok(Grads { kind: Kind::Constant(number as f32) });
        }
        match value.borrow_ref::<Slopes>() {
            Ok(slopes) => Ok(Grads { kind: slopes.kind }),
            Err(_) => {
                Err(RuntimeError::panic("gradients are a number, grads::constant(..) or grads::random(..)"))
            }
        }
    }
}

impl MaybeTypeOf for Grads {
    fn maybe_type_of() -> rune::alloc::Result<DocType> {
        f64::maybe_type_of()
    }
}
