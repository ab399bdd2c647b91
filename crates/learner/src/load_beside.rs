//! Loading of a model beside others that are in memory, as a server does that changes versions.

use std::path::Path;
use std::sync::Arc;

use sanderling_store::{Checkpoint, Dtype, StoreError, Table, TableConfig, TableEntry, Writes};

use crate::error::LearnError;
use crate::model::{Model, check_tables, config_of, table_configs};
use crate::model_diagnostics::explain_no_model;

impl Model {
    /// Loads like [`Model::load`], but takes a table of `loaded` where it has exactly the saved keys and weights.
    ///
    /// Rows are compared one by one with the verified file. The tables have no optimizer state: the model is for
    /// predictions. `admit` gets the bytes that the other tables need in memory, before any of them is loaded.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and the reason of `admit`.
    pub fn load_beside(
        path: &Path,
        loaded: &[Arc<Table>],
        admit: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_no_model(error, path))?;
        let config = config_of(&checkpoint, path)?;
        check_tables(&checkpoint, &config, path)?;
        let mut bytes = 0_u64;
        let mut shared = Vec::new();
        for entry in checkpoint.tables() {
            let mut found = None;
            for table in loaded {
                if found.is_none() && has_rows_of(table, &checkpoint, entry)? {
                    found = Some(Arc::clone(table));
                }
            }
            if found.is_none() {
                bytes = bytes.saturating_add(entry.config.weights_only().bytes_of_rows(entry.rows));
            }
            shared.push(found);
        }
        admit(bytes).map_err(|reason| LearnError::Model { path: path.into(), reason })?;
        let table = |(entry, shared): (&TableEntry, Option<Arc<Table>>)| match shared {
            Some(table) => Ok(table),
            None => checkpoint.load_weights(&entry.name).map(Arc::new),
        };
        let tables = checkpoint.tables().iter().zip(shared).map(table).collect::<Result<_, _>>()?;
        Self::from_shared_tables(config, tables)?.served(&checkpoint, path)
    }

    /// A model with the configuration of a saved one and empty tables of weights without optimizer state.
    ///
    /// A follower fills them. They are copy-on-write, so that readers find whole rows at no cost. `dtype` is that of the
    /// weights, by default the saved one.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and [`LearnError::Store`] for a memory limit below that of an empty table.
    pub fn to_follow(
        path: &Path,
        dtype: Option<Dtype>,
        budget_bytes: Option<u64>,
    ) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_no_model(error, path))?;
        let config = config_of(&checkpoint, path)?;
        let table = |needed: TableConfig| {
            let dtype = dtype.unwrap_or(needed.dtype);
            let writes = Writes::CopyOnWrite;
            Table::new(TableConfig { dtype, writes, budget_bytes, ..needed.weights_only() }).map(Arc::new)
        };
        let tables = table_configs(&config).into_iter().map(table).collect::<Result<_, _>>()?;
        Self::from_shared_tables(config, tables)?.served(&checkpoint, path)
    }
}

/// The end of a comparison.
enum Stop {
    Differs,
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Failed(error)
    }
}

/// Whether a table has the name, the keys and the weights, bit for bit, of a saved one.
fn has_rows_of(table: &Table, checkpoint: &Checkpoint, entry: &TableEntry) -> Result<bool, StoreError> {
    let config = table.config();
    let is_alike = table.name() == entry.name
        && table.len() as u64 == entry.rows
        && table.dim() == entry.dim
        && config.dtype == entry.config.dtype;
    if !is_alike {
        return Ok(false);
    }
    let compared = checkpoint.for_each_row(&entry.name, |row| {
        let is_equal = table.get(row.key).is_some_and(|loaded| {
            loaded
                .weights
                .iter()
                .map(|weight| weight.to_bits())
                .eq(row.weights.iter().map(|weight| weight.to_bits()))
        });
        if is_equal { Ok(()) } else { Err(Stop::Differs) }
    });
    match compared {
        Ok(()) => Ok(true),
        Err(Stop::Differs) => Ok(false),
        Err(Stop::Failed(error)) => Err(error),
    }
}
