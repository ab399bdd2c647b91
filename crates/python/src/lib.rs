//! `sanderling._native`: the other crates as Python sees them. Conversion only: numpy arrays to slices, dictionaries to
//! configurations, errors to exceptions. It decides nothing, and it holds the interpreter only while it converts.

#![expect(clippy::needless_pass_by_value, reason = "arguments that come from Python are owned")]

mod error;

mod value;
mod warnings;

mod arrays;
mod requests;

mod table;
mod table_config;

mod rates;
mod remote;
mod renamed;
mod report;
mod whole_tables;

mod batch;

mod lookup;

mod feed_spec;
mod hubs;
mod key_names;
mod queue;
mod sources;

mod quantity;

mod interrupt;

mod job;

mod step_push;
mod steps;

mod traces;

mod view;

mod frames;
mod inputs;
mod keys;
mod rows;

mod served_rows;

mod model;

mod train;

mod command;
mod cores;
mod deep;

use pyo3::prelude::*;

/// The native part of the package `sanderling`; import that instead.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use crate::batch::PyBatch;
    #[pymodule_export]
    use crate::command::cli_main;
    #[pymodule_export]
    use crate::cores::cores_usable;
    #[pymodule_export]
    use crate::hubs::PyHubs;
    #[pymodule_export]
    use crate::interrupt::give_up_silent;
    #[pymodule_export]
    use crate::job::{PyBatches, PyJob, PyWorker};
    #[pymodule_export]
    use crate::key_names::{PyKeyNames, save_reading_of, saved_names};
    #[pymodule_export]
    use crate::keys::key;
    #[pymodule_export]
    use crate::lookup::{PyEmbedding, PyLookup};
    #[pymodule_export]
    use crate::model::{PyModel, load, metrics, remarks_of};
    #[pymodule_export]
    use crate::quantity::{parse_duration_s, parse_size_bytes};
    #[pymodule_export]
    use crate::queue::{PyFeedQueue, read_once, value_key};
    #[pymodule_export]
    use crate::remote::{PyConnection, PyRemoteTable, connect};
    #[pymodule_export]
    use crate::report::{PyRunStatus, render_report};
    #[pymodule_export]
    use crate::served_rows::PyRowsClient;
    #[pymodule_export]
    use crate::steps::{PyMeeting, PySyncGroup};
    #[pymodule_export]
    use crate::table::{PyTable, checkpoint_tables, save_tables};
    #[pymodule_export]
    use crate::traces::export_traces;
    #[pymodule_export]
    use crate::train::{PyTrainResult, train};
    #[pymodule_export]
    use crate::value::set_entries;
    #[pymodule_export]
    use crate::whole_tables::{download_tables, upload_tables};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("RENAMED_OPTIONS", sanderling_cli::RENAMED_OPTIONS.to_vec())?;
        module.add("RENAMED_ENTRIES", sanderling_learner::config::RENAMED.to_vec())?;
        module.add("DEEP_MODELS", PyTuple::new(module.py(), sanderling_cli::DEEP_MODELS)?)?;
        module.add("RETRIEVAL_MODELS", PyTuple::new(module.py(), sanderling_cli::RETRIEVAL_MODELS)?)?;
        crate::interrupt::register(module.py())?;
        crate::error::register(module)
    }
}
