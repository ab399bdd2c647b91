//! A client whose tables live in this process. Knows nothing of what the rows mean.

use std::sync::Arc;

use sanderling_sample::Rows;
use sanderling_store::{Absent, PushScale, StoreError, Table};

use crate::lookup::Lookup;

/// What a pull or push can fail with.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The table refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A feature names a table that the client does not have.
    #[error("feature {feature:?} reads table {table:?}, which is not there")]
    UnknownTable {
        /// The feature.
        feature: String,
        /// Its table.
        table: String,
    },
}

/// The tables of a model, and which feature reads which. Cheap to share: workers bring their own [`Lookup`].
#[derive(Debug)]
pub struct Client {
    tables: Vec<Arc<Table>>,
    column_tables: Vec<usize>,
    constant: Option<usize>,
}

impl Client {
    /// A client over these tables. `features` are `(feature, table)` names in the order of a batch's columns;
    /// `constant` names a table whose row [`crate::CONSTANT_KEY`] every minibatch gets (a bias).
    pub fn embedded<'a>(
        tables: Vec<Arc<Table>>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let find = |feature: &str, name: &str| {
            tables.iter().position(|table| table.name() == name).ok_or_else(|| ClientError::UnknownTable {
                feature: feature.to_string(),
                table: name.to_string(),
            })
        };
        let column_tables =
            features.into_iter().map(|(feature, name)| find(feature, name)).collect::<Result<_, _>>()?;
        let constant = constant.map(|name| find("(constant)", name)).transpose()?;
        Ok(Client { tables, column_tables, constant })
    }

    /// The tables, in the order given.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Per feature, its table.
    pub(crate) fn column_tables(&self) -> &[usize] {
        &self.column_tables
    }

    /// The table of the constant.
    pub(crate) fn constant_table(&self) -> Option<usize> {
        self.constant
    }

    /// Room for one minibatch at a time.
    #[must_use]
    pub fn lookup(&self) -> Lookup {
        Lookup::new(self.tables.iter().map(|table| table.dim()), &self.column_tables, self.constant)
    }

    /// Pulls the rows of a minibatch's distinct keys into `lookup`. Returns how many of them have no row yet.
    pub fn pull(&self, rows: &Rows<'_>, absent: Absent, lookup: &mut Lookup) -> Result<usize, ClientError> {
        lookup.assign(rows);
        let mut missing = 0;
        for (table, part) in self.tables.iter().zip(&mut lookup.tables) {
            missing += table.pull(&part.dedup.unique, absent, &mut part.rows, None)?;
        }
        Ok(missing)
    }

    /// Pushes the gradients that were added up in `lookup` since the pull: one update per distinct key.
    pub fn push(&self, lookup: &Lookup, scale: PushScale) -> Result<(), ClientError> {
        for (table, part) in self.tables.iter().zip(&lookup.tables) {
            if !part.dedup.unique.is_empty() {
                table.push_unique(&part.dedup.unique, &part.dedup.counts, &part.grads, scale)?;
            }
        }
        Ok(())
    }
}
