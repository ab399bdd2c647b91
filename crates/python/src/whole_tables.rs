//! Whole tables between servers and checkpoints of this process: rows with optimizer state and metadata, a block at a
//! time, so that a table may be larger than this process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use sanderling_client::{Client, ClientError, RemoteTable};
use sanderling_store::{Checkpoint, CheckpointWriter, TableConfig};

use crate::error::of_client;
use crate::remote::PyRemoteTable;

/// A table on servers, its name in a checkpoint, and its configuration there.
type Whole = (String, RemoteTable, TableConfig);

fn whole(tables: &BTreeMap<String, PyRef<'_, PyRemoteTable>>) -> PyResult<Vec<Whole>> {
    let of = |(name, table): (&String, &PyRef<'_, PyRemoteTable>)| {
        Ok((name.clone(), table.table.clone(), table.made_from()?.config(name)))
    };
    tables.iter().map(of).collect()
}

fn client(tables: &[Whole]) -> Result<Client, ClientError> {
    Client::remote(tables.iter().map(|(name, table, _)| (name.clone(), table.clone())).collect(), [], None)
}

/// Writes tables of servers to a checkpoint, each with the name that it is to have there. No one may push meanwhile.
#[pyfunction]
pub(crate) fn download_tables(
    py: Python<'_>,
    directory: PathBuf,
    tables: BTreeMap<String, PyRef<'_, PyRemoteTable>>,
) -> PyResult<()> {
    let tables = whole(&tables)?;
    let work = || {
        let client = client(&tables)?;
        let mut writer = CheckpointWriter::create(&directory)?;
        for (number, (_, _, config)) in tables.iter().enumerate() {
            client.save_table(number, Some(config), &mut writer)?;
        }
        writer.commit()?;
        Ok(())
    };
    py.detach(work).map_err(of_client)
}

/// Adds the rows of a checkpoint to tables on servers, given by their names in the checkpoint.
#[pyfunction]
pub(crate) fn upload_tables(
    py: Python<'_>,
    directory: PathBuf,
    tables: BTreeMap<String, PyRef<'_, PyRemoteTable>>,
) -> PyResult<()> {
    let tables = whole(&tables)?;
    let work = || {
        let (client, checkpoint) = (client(&tables)?, Checkpoint::open(&directory)?);
        for (number, (name, _, _)) in tables.iter().enumerate() {
            client.import_table(number, &checkpoint, name)?;
        }
        Ok(())
    };
    py.detach(work).map_err(of_client)
}
