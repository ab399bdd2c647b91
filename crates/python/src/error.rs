//! One exception class per kind of error, all below `sanderling.Error`. The texts are those of the Rust errors.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use sanderling_store::StoreError;

create_exception!(sanderling, Error, PyException, "Whatever Sanderling refuses or fails to do.");
create_exception!(
    sanderling,
    ConfigError,
    Error,
    "A configuration contradicts itself or has an unknown or impossible entry."
);
create_exception!(
    sanderling,
    LengthError,
    Error,
    "Arrays of one request do not fit each other; nothing was read or applied."
);
create_exception!(
    sanderling,
    OffsetsError,
    Error,
    "Offsets of a pooled pull do not ascend from 0 to the number of keys."
);
create_exception!(
    sanderling,
    GradientError,
    Error,
    "A gradient or its scale is not a finite, sane number; nothing was applied."
);
create_exception!(
    sanderling,
    TableFullError,
    Error,
    "New keys found no room within the table's budget; the message counts them."
);
create_exception!(sanderling, FileError, Error, "A file could not be opened, read or written.");
create_exception!(sanderling, DamagedError, Error, "A file of a checkpoint is cut, changed, or not ours.");
create_exception!(sanderling, VersionError, Error, "A file of a checkpoint was written by a newer version.");
create_exception!(sanderling, DuplicateNameError, Error, "Two tables of one checkpoint have the same name.");
create_exception!(sanderling, NotFoundError, Error, "A checkpoint does not hold what was asked for.");

/// The exception for an error of the store.
pub(crate) fn of_store(error: StoreError) -> PyErr {
    let text = error.to_string();
    match error {
        StoreError::Config { .. } => ConfigError::new_err(text),
        StoreError::Length { .. } => LengthError::new_err(text),
        StoreError::Offsets { .. } => OffsetsError::new_err(text),
        StoreError::BadGradient { .. } | StoreError::BadScale { .. } => GradientError::new_err(text),
        StoreError::TableFull { .. } => TableFullError::new_err(text),
        StoreError::Io { .. } => FileError::new_err(text),
        StoreError::Damaged { .. } => DamagedError::new_err(text),
        StoreError::Version { .. } => VersionError::new_err(text),
        StoreError::DuplicateName { .. } => DuplicateNameError::new_err(text),
        StoreError::NotFound { .. } => NotFoundError::new_err(text),
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for class in [
        py.get_type::<Error>(),
        py.get_type::<ConfigError>(),
        py.get_type::<LengthError>(),
        py.get_type::<OffsetsError>(),
        py.get_type::<GradientError>(),
        py.get_type::<TableFullError>(),
        py.get_type::<FileError>(),
        py.get_type::<DamagedError>(),
        py.get_type::<VersionError>(),
        py.get_type::<DuplicateNameError>(),
        py.get_type::<NotFoundError>(),
    ] {
        module.add(class.name()?, class)?;
    }
    Ok(())
}
