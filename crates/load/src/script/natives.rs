//! Functions for scripts: the context `ctx`, which creates and opens tables and begins requests, and `param!`.
//! Knows nothing of machines.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use rune::alloc::fmt::TryWrite;
use rune::runtime::{Formatter, Object, Protocol, VmResult};
use rune::{Any, ContextError, Module};
use sanderling_client::Call;
use sanderling_random::splitmix;
use sanderling_store::{Absent, Pooling, PushScale};

use crate::request::{Failure, TableId};

use super::params::{self, Params};
use super::scene::{Reply, Scene, told};
use super::values::{self, Asked, Bags, Grads, Keys, Law, SizeLaw};
use super::{GRADIENTS_PER_PUSH_MAX, table};

/// Keys without a row are as zero: a serving process makes none up.
const ABSENT: Absent = Absent::Zero;

/// The first argument of every function.
#[derive(Any)]
#[rune(item = ::load)]
pub(super) struct Ctx {
    pub(super) scene: Rc<Scene>,
}

/// A table that is open.
#[derive(Any, Debug, Clone, Copy)]
#[rune(item = ::load)]
struct Table {
    id: TableId,
    dim: usize,
}

/// Why a request came to nothing, as a script sees it.
#[derive(Any, Debug, Clone)]
#[rune(item = ::load)]
pub(super) struct RequestFailure {
    pub(super) failure: Failure,
}

/// Ends a call with an error at the place in the script that called.
pub(super) fn raise<T>(reason: impl Into<String>) -> VmResult<T> {
    VmResult::panic(reason.into())
}

/// All that a context has beside Rune's own modules.
pub(super) fn modules(params: &Arc<Mutex<Params>>) -> Result<Vec<Module>, ContextError> {
    let mut root = Module::new();
    let params = Arc::clone(params);
    root.macro_("param", move |cx, stream| params::declare(&params, cx, stream))?;

    let mut ctx = Module::with_crate("load")?;
    ctx.ty::<Ctx>()?;
    ctx.ty::<Table>()?;
    ctx.ty::<RequestFailure>()?;
    ctx.associated_function("create", Ctx::create)?;
    ctx.associated_function("table", Ctx::table)?;
    ctx.associated_function("keys", |ctx: &Ctx, law: &Law| law.source(&ctx.scene))?;
    ctx.associated_function("size", Ctx::size)?;
    ctx.associated_function("cycle", Ctx::cycle)?;
    ctx.associated_function("seconds", Ctx::seconds)?;
    ctx.associated_function("random", Ctx::random)?;
    ctx.associated_function("pull", Ctx::pull)?;
    ctx.associated_function("pull_pooled", Ctx::pull_pooled)?;
    ctx.associated_function("push", Ctx::push)?;
    ctx.associated_function("delete", Ctx::delete)?;
    ctx.associated_function("dim", |table: &Table| table.dim as i64)?;
    ctx.associated_function("kind", |failed: &RequestFailure| failed.failure.kind)?;
    ctx.associated_function("reason", |failed: &RequestFailure| failed.reason())?;
    ctx.associated_function(&Protocol::DISPLAY_FMT, RequestFailure::display)?;
    ctx.associated_function(&Protocol::DEBUG_FMT, RequestFailure::display)?;
    let mut modules = vec![root, ctx];
    modules.extend(values::modules()?);
    Ok(modules)
}

impl RequestFailure {
    fn reason(&self) -> VmResult<rune::alloc::String> {
        VmResult::Ok(rune::vm_try!(rune::alloc::String::try_from(self.failure.reason.as_str())))
    }

    fn display(&self, f: &mut Formatter) -> VmResult<()> {
        rune::vm_write!(f, "{}", self.failure)
    }
}

impl Ctx {
    /// Makes a table, or opens the one that is there with the same options.
    fn create(&self, name: &str, options: &Object) -> VmResult<Table> {
        let config = match table::config(name, options) {
            Ok(config) => config,
            Err(reason) => return raise(format!("table {name:?}: {reason}")),
        };
        let made = self.scene.port.borrow_mut().create(&config);
        match made {
            Ok(id) => {
                let dim = config.dim();
                self.scene.created.borrow_mut().push(config);
                VmResult::Ok(Table { id, dim })
            }
            Err(failure) => raise(told(&failure)),
        }
    }

    /// Opens a table that is there.
    fn table(&self, name: &str) -> VmResult<Table> {
        let mut port = self.scene.port.borrow_mut();
        match port.open(name) {
            Ok(id) => VmResult::Ok(Table { id, dim: port.shape(id).map_or(0, |shape| shape.dim) }),
            Err(failure) => raise(told(&failure)),
        }
    }

    /// The size of a batch.
    fn size(&self, law: &SizeLaw) -> VmResult<i64> {
        let at = rune::vm_try!(self.scene.draw());
        VmResult::Ok(law.sizes.draw(&self.scene.seeds, &at) as i64)
    }

    /// The number of the cycle.
    fn cycle(&self) -> VmResult<i64> {
        VmResult::Ok(rune::vm_try!(self.scene.here()).cycle as i64)
    }

    /// The intended time of the cycle, in seconds since the run's start.
    fn seconds(&self) -> VmResult<f64> {
        VmResult::Ok(rune::vm_try!(self.scene.here()).now.as_secs_f64())
    }

    /// A whole number from 0 to below `n`.
    fn random(&self, n: i64) -> VmResult<i64> {
        if n <= 0 {
            return raise(format!("random({n}): there is no number from 0 to below {n}"));
        }
        let at = rune::vm_try!(self.scene.draw());
        let seed = splitmix(self.scene.seeds.keys ^ 0x7261_6e64);
        let bits = splitmix(seed ^ splitmix(at.cycle) ^ (u64::from(at.draw) << 40));
        VmResult::Ok(((u128::from(bits) * u128::from(n.unsigned_abs())) >> 64) as i64)
    }

    fn pull(&self, table: &Table, keys: &Keys) -> Reply {
        self.scene.begin(table.id, &Call::Pull { keys: &keys.keys, absent: ABSENT })
    }

    fn pull_pooled(&self, table: &Table, bags: &Bags, pooling: &str) -> Reply {
        let Some(pooling) = Pooling::named(pooling) else {
            return self.scene.refuse("rows are pooled by \"sum\" or \"mean\"");
        };
        let Bags { keys, offsets, .. } = bags;
        self.scene.begin(table.id, &Call::PullPooled { keys, offsets, pooling, absent: ABSENT })
    }

    fn push(&self, table: &Table, asked: Asked, grads: Grads) -> Reply {
        let at = self.scene.here().into_result().unwrap_or_default();
        let mut gradients = self.scene.gradients.borrow_mut();
        asked.with(|keys| {
            let values = keys.len().saturating_mul(table.dim);
            if values > GRADIENTS_PER_PUSH_MAX {
                return self.scene.refuse("a push may have 67 108 864 values of gradients: draw fewer keys");
            }
            let grads = gradients.of(grads.kind, &at, values);
            self.scene.begin(table.id, &Call::Push { keys, grads, scale: PushScale::default() })
        })
    }

    fn delete(&self, table: &Table, asked: Asked) -> Reply {
        asked.with(|keys| self.scene.begin(table.id, &Call::Delete { keys }))
    }
}
