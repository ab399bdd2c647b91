//! Inputs in the memory of this process: record batches and encoded rows, read like files under a name that is valid
//! while the input is registered. Knows no encoder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{Array, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};

use sanderling_sample::{Batch, Column, Encoder, SampleError};

/// The beginning of names of inputs in memory; a number and the kind of the input follow.
const PREFIX: &str = "memory:";

/// The rows of an input in memory.
pub enum Content {
    /// Record batches, which can be read any number of times.
    Batches {
        /// Their columns.
        schema: SchemaRef,
        /// The rows.
        batches: Vec<RecordBatch>,
    },
    /// Record batches that come once.
    Stream(Box<dyn RecordBatchReader + Send>),
    /// Rows that are encoded already.
    Encoded {
        /// Names of the features, in the order of the columns.
        names: Vec<String>,
        /// The rows.
        batch: Batch,
    },
}

/// A registered input; dropping it ends the registration. Passes under way keep the rows.
#[derive(Debug)]
pub struct InMemory {
    number: u64,
    name: String,
}

impl InMemory {
    /// Registers an input of a kind such as `polars.DataFrame`, which errors name.
    #[must_use]
    pub fn register(kind: &str, content: Content) -> InMemory {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{number}:{kind}");
        registered().insert(number, Arc::new(Registered::new(kind, content)));
        InMemory { number, name }
    }

    /// The name under which readers find it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let gone = registered().remove(&self.number);
        // Its owner may run other code when it is released, so not under the lock.
        drop(gone);
    }
}

/// A registered input, which readers find by its name.
pub(crate) struct Registered {
    /// Its name in errors.
    pub(crate) path: PathBuf,
    /// Bytes of its rows, unless it can be read only once.
    pub(crate) bytes: Option<u64>,
    rows: Rows,
}

enum Rows {
    Batches(SchemaRef, Arc<[RecordBatch]>),
    Stream(Mutex<Option<Box<dyn RecordBatchReader + Send>>>),
    Encoded(Vec<String>, Arc<Batch>),
}

/// An opened input in memory.
pub(crate) enum OpenedInMemory {
    Batches(SchemaRef, RecordBatches),
    Encoded(Arc<Batch>),
}

/// Record batches in order.
pub(crate) type RecordBatches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

impl Registered {
    fn new(kind: &str, content: Content) -> Registered {
        let (bytes, rows) = match content {
            Content::Batches { schema, batches } => {
                let bytes = batches.iter().map(bytes_of).sum();
                (Some(bytes), Rows::Batches(schema, batches.into()))
            }
            Content::Stream(reader) => (None, Rows::Stream(Mutex::new(Some(reader)))),
            Content::Encoded { names, batch } => {
                let keys = batch.columns.iter().map(|column| column.keys.len() as u64).sum::<u64>();
                (Some(keys * size_of::<u64>() as u64), Rows::Encoded(names, Arc::new(batch)))
            }
        };
        Registered { path: PathBuf::from(kind), bytes, rows }
    }

    /// The rows; encoded ones with one column per feature of the encoder.
    pub(crate) fn open(&self, encoder: &Encoder) -> Result<OpenedInMemory, SampleError> {
        let failed = |reason| SampleError::BadFile { path: self.path.clone(), reason };
        match &self.rows {
            Rows::Batches(schema, batches) => {
                let batches = Arc::clone(batches);
                let rows = (0..batches.len()).map(move |at| Ok(batches[at].clone()));
                Ok(OpenedInMemory::Batches(Arc::clone(schema), Box::new(rows)))
            }
            Rows::Stream(reader) => {
                let reader = reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                let once = || "can be read only once; collect it into a table to read it again".to_owned();
                let reader = reader.ok_or_else(|| failed(once()))?;
                Ok(OpenedInMemory::Batches(reader.schema(), Box::new(reader)))
            }
            Rows::Encoded(names, batch) => {
                agreeing(names, batch, encoder).map(OpenedInMemory::Encoded).map_err(failed)
            }
        }
    }
}

/// Bytes of the rows of a record batch; of a slice, its share of the memory.
fn bytes_of(batch: &RecordBatch) -> u64 {
    let of_column = |column: &arrow_array::ArrayRef| {
        column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_buffer_memory_size()) as u64
    };
    batch.columns().iter().map(of_column).sum()
}

/// The batch with the columns that an encoder makes.
fn agreeing(names: &[String], batch: &Arc<Batch>, encoder: &Encoder) -> Result<Arc<Batch>, String> {
    let features = encoder.spec().feature.iter().map(|feature| feature.name.as_str());
    let same_values = batch
        .columns
        .iter()
        .zip(encoder.weighted())
        .all(|(column, weighted)| column.is_weighted() == *weighted);
    if same_values && names.iter().map(String::as_str).eq(features.clone()) {
        return Ok(Arc::clone(batch));
    }
    let column = |(feature, weighted): (&str, &bool)| {
        let at = names.iter().position(|name| name == feature);
        let column = at.map(|at| &batch.columns[at]);
        let column = column.ok_or_else(|| format!("has no feature {feature:?}, but {}", names.join(", ")))?;
        if column.is_weighted() && !weighted {
            return Err(format!("feature {feature:?} has values; this spec takes keys without values"));
        }
        let mut found = Column::new(*weighted);
        found.keys.clone_from(&column.keys);
        found.offsets.clone_from(&column.offsets);
        found.values = match (weighted, column.is_weighted()) {
            (false, _) => Vec::new(),
            (true, true) => column.values.clone(),
            (true, false) => vec![1.0; column.keys.len()],
        };
        Ok(found)
    };
    let columns = features.zip(encoder.weighted()).map(column).collect::<Result<_, _>>()?;
    Ok(Arc::new(Batch { labels: batch.labels.clone(), weights: batch.weights.clone(), columns }))
}

/// Whether a name is that of an input in memory, registered or not.
#[must_use]
pub fn is_in_memory(name: impl AsRef<Path>) -> bool {
    name.as_ref().to_str().is_some_and(|name| name.starts_with(PREFIX))
}

/// The name of an input without the number of its registration, which differs from run to run.
#[must_use]
pub fn lasting_name(name: &str) -> &str {
    match name.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')) {
        Some((_, kind)) => kind,
        None => name,
    }
}

/// The input of a name; `None` if the name is of another kind of input.
pub(crate) fn find(name: &Path) -> Option<Result<Arc<Registered>, SampleError>> {
    let name = name.to_str()?;
    let (number, kind) = name.strip_prefix(PREFIX)?.split_once(':')?;
    let number: u64 = number.parse().ok()?;
    Some(registered().get(&number).cloned().ok_or_else(|| SampleError::BadFile {
        path: PathBuf::from(kind),
        reason:
            "these rows were in the memory of a Python program; pass them again, or name a file".to_owned(),
    }))
}

fn registered() -> MutexGuard<'static, BTreeMap<u64, Arc<Registered>>> {
    static REGISTERED: Mutex<BTreeMap<u64, Arc<Registered>>> = Mutex::new(BTreeMap::new());
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}
