//! `sanderling.FileSource`, `HubSource`, `Holdout` and `Tls` (`python/sanderling/_sources.py`) by their attributes.
//! Conversion only.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use sanderling_client::TlsClient;
use sanderling_feed::FileOptions;
use sanderling_hub::SubscribeOptions;
use sanderling_learner::config::SHUFFLE_ROWS_MAX;
use sanderling_sample::{Holdout, NoteName, Side};

use crate::error::{ConfigError, FileError};
use crate::key_names::PyKeyNames;
use crate::quantity::seconds;
use crate::traces;
use crate::value::from_json;

/// Minibatches that a trainer may have in its hands and on their way to the tables, beyond those in the queue.
const HELD: usize = 16;
/// The most that a hub is asked to leave unacknowledged.
const WINDOW_MAX: usize = 1024;
/// Beginning of the addresses of hubs.
const HUBS: &str = "hub://";

/// A `sanderling.FileSource`.
#[derive(FromPyObject)]
pub(crate) struct FileSource<'py> {
    pub(crate) inputs: Bound<'py, PyAny>,
    pub(crate) spec: Option<Bound<'py, PyDict>>,
    pub(crate) batch_size: usize,
    pub(crate) passes: u64,
    pub(crate) threads: usize,
    pub(crate) ordered: bool,
    pub(crate) shuffle_rows: usize,
    pub(crate) seed: u64,
    pub(crate) rank: u64,
    pub(crate) ranks: u64,
    pub(crate) used_rows: u64,
    pub(crate) train: bool,
    pub(crate) holdout: Option<Bound<'py, PyAny>>,
    pub(crate) held_out: bool,
    pub(crate) name: String,
    key_names: Option<Bound<'py, PyKeyNames>>,
}

/// A `sanderling.Holdout`.
#[derive(FromPyObject)]
struct HoldoutSettings {
    by: String,
    column: Option<String>,
    fraction: f64,
    after: Option<f64>,
    seed: u64,
}

/// A `sanderling.HubSource`.
#[derive(FromPyObject)]
pub(crate) struct HubSource<'py> {
    pub(crate) address: String,
    pub(crate) spec: Option<Bound<'py, PyDict>>,
    pub(crate) name: String,
    pub(crate) threads: usize,
    rank: u64,
    ranks: u64,
    timeout_s: f64,
    compression: Option<String>,
    token: Option<String>,
    tls: Option<Bound<'py, PyAny>>,
}

/// A `sanderling.Tls`.
#[derive(FromPyObject)]
pub(crate) struct Tls {
    pub(crate) ca: PathBuf,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    token: Option<String>,
}

/// The input of a queue or a job.
pub(crate) enum Given<'py> {
    Files(FileSource<'py>),
    Hubs(HubSource<'py>),
}

impl<'py> Given<'py> {
    /// A source object, or its inputs alone: an address of hubs, a path, rows in memory, or a list of these.
    pub(crate) fn of(source: &Bound<'py, PyAny>) -> PyResult<Given<'py>> {
        let module = source.py().import("sanderling._sources")?;
        let (files, hubs) = (module.getattr("FileSource")?, module.getattr("HubSource")?);
        if source.is_instance(&hubs)? {
            return Ok(Given::Hubs(source.extract()?));
        }
        if source.is_instance(&files)? {
            return Ok(Given::Files(source.extract()?));
        }
        match source.cast::<PyString>() {
            Ok(text) if text.to_cow()?.starts_with(HUBS) => {
                Ok(Given::Hubs(hubs.call1((source,))?.extract()?))
            }
            _ => Ok(Given::Files(files.call1((source,))?.extract()?)),
        }
    }
}

impl FileSource<'_> {
    /// Refuses entries that the minibatches of a job's workers decide on.
    pub(crate) fn check_for_job(&self) -> PyResult<()> {
        let entries = [
            ("batch_size", self.batch_size != 1024),
            ("passes", self.passes != 1),
            ("threads", self.threads != 2),
            ("ordered", !self.ordered),
            ("shuffle_rows", self.shuffle_rows != 0),
            ("rank", self.rank != 0),
            ("ranks", self.ranks != 1),
            ("used_rows", self.used_rows != 0),
        ];
        match entries.iter().find(|(_, is_given)| *is_given) {
            Some((entry, _)) => Err(ConfigError::new_err(format!(
                "FileSource: {entry} is not used by a Job, whose workers ask for minibatches; leave it out"
            ))),
            None => Ok(()),
        }
    }

    /// The rows to read, and who is told the names of their keys.
    pub(crate) fn options(&self) -> PyResult<FileOptions> {
        if self.shuffle_rows > SHUFFLE_ROWS_MAX {
            let reason = format!("shuffle_rows: {} rows; at most {SHUFFLE_ROWS_MAX}", self.shuffle_rows);
            return Err(ConfigError::new_err(reason));
        }
        let side = if self.held_out { Side::Valid } else { Side::Train };
        let holdout = self.holdout.as_ref().map(holdout_of).transpose()?;
        let names = self.key_names.as_ref().map(|names| Arc::clone(&names.get().names) as Arc<dyn NoteName>);
        Ok(FileOptions {
            train: self.train,
            side: holdout.map(|(holdout, seed)| (holdout, seed, side)),
            names,
        })
    }
}

fn holdout_of(given: &Bound<'_, PyAny>) -> PyResult<(Holdout, u64)> {
    let class = given.py().import("sanderling._sources")?.getattr("Holdout")?;
    if !given.is_instance(&class)? {
        return Err(not_a("holdout", "Holdout", given)?);
    }
    let HoldoutSettings { by, column, fraction, after, seed } = given.extract()?;
    let entries = serde_json::json!({"by": by, "column": column, "fraction": fraction, "after": after});
    let holdout: Holdout = from_json("Holdout", &entries)?;
    holdout.check().map_err(|reason| ConfigError::new_err(format!("Holdout: {reason}")))?;
    Ok((holdout, seed))
}

/// A fitted holdout as the object that was given, with its moment.
pub(crate) fn fitted<'py>(given: &Bound<'py, PyAny>, holdout: &Holdout) -> PyResult<Bound<'py, PyAny>> {
    let changes = PyDict::new(given.py());
    changes.set_item("after", holdout.after)?;
    given.py().import("dataclasses")?.call_method("replace", (given,), Some(&changes))
}

impl HubSource<'_> {
    /// The subscription of a queue with so many minibatches ready.
    pub(crate) fn options(&self, depth: usize) -> PyResult<SubscribeOptions> {
        let compression = self.compression.as_deref().map(sanderling_client::compression).transpose();
        let tls = Tls::of(self.tls.as_ref())?;
        Ok(SubscribeOptions {
            compression: compression.map_err(|error| ConfigError::new_err(format!("compression {error}")))?,
            // Minibatches that a hub is asked to leave unacknowledged.
            window: depth.saturating_add(self.threads).saturating_add(HELD).min(WINDOW_MAX) as u32,
            rank: (self.ranks > 1).then_some(self.rank as u32),
            token: token_of(self.token.clone(), tls.as_ref())?.unwrap_or_default(),
            tls: tls.as_ref().map(Tls::client).transpose()?,
            patience: seconds("timeout_s", self.timeout_s)?,
            spans: traces::spans(),
            ..SubscribeOptions::default()
        })
    }
}

impl Tls {
    pub(crate) fn of(given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Tls>> {
        let Some(given) = given else { return Ok(None) };
        let class = given.py().import("sanderling._sources")?.getattr("Tls")?;
        if given.is_instance(&class)? { given.extract().map(Some) } else { Err(not_a("tls", "Tls", given)?) }
    }

    /// Trust in the other side, for a connection that shows no certificate of its own.
    pub(crate) fn client(&self) -> PyResult<TlsClient> {
        if self.cert.is_some() || self.key.is_some() {
            let reason =
                "tls: only workers of a Job on several hosts show a certificate; leave out cert and key";
            return Err(ConfigError::new_err(reason));
        }
        TlsClient::from_ca_file(&self.ca).map_err(|error| FileError::new_err(error.to_string()))
    }
}

/// The auth token, which is an argument or a part of the TLS settings.
pub(crate) fn token_of(argument: Option<String>, tls: Option<&Tls>) -> PyResult<Option<String>> {
    match (argument, tls.and_then(|tls| tls.token.clone())) {
        (Some(_), Some(_)) => Err(ConfigError::new_err("token: given twice, as argument and in Tls")),
        (argument, in_tls) => Ok(argument.or(in_tls)),
    }
}

fn not_a(argument: &str, class: &str, found: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let found = found.get_type().name()?;
    Ok(PyTypeError::new_err(format!("{argument}: must be a sanderling.{class}, not {found}")))
}
