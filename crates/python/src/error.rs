//! One exception class per kind of error, all below `sanderling.Error`. The texts are those of the Rust errors.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use sanderling_client::{ClientError, Fault};
use sanderling_feed::FeedError;
use sanderling_job::JobError;
use sanderling_learner::LearnError;
use sanderling_sample::SampleError;
use sanderling_store::StoreError;

use crate::interrupt;

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
create_exception!(
    sanderling,
    NotFoundError,
    Error,
    "A checkpoint or a model does not hold what was asked for."
);

create_exception!(
    sanderling,
    BadRowError,
    Error,
    "A row does not read as the format or the spec demand; the message names file, line and column."
);
create_exception!(sanderling, TooManyBadRowsError, Error, "More rows were bad than `on_bad_row` allows.");
create_exception!(sanderling, BadFileError, Error, "A data file as a whole is not what its format says.");
create_exception!(sanderling, NoRowsError, Error, "The input had no rows.");
create_exception!(sanderling, ModelError, Error, "A saved model is there but cannot be used.");
create_exception!(
    sanderling,
    DivergedError,
    Error,
    "Training diverged: a prediction became infinite or undefined, or a weight, so that its table cannot be saved."
);
create_exception!(
    sanderling,
    ServerError,
    Error,
    "A parameter server refused, did not answer in time, or was started anew; the message names it."
);
create_exception!(
    sanderling,
    GroupError,
    Error,
    "Workers that go in step did not come in time, which the message names, or do not agree."
);
create_exception!(
    sanderling,
    HubError,
    Error,
    "A hub refused, was not there in time, or could not read its input; the message names it."
);
create_exception!(
    sanderling,
    StoppedError,
    Error,
    "Work was stopped before there was anything to save, or a worker of a job elsewhere, and with it the job."
);

/// The exception for an error of a run.
pub(crate) fn of_learner(error: LearnError) -> PyErr {
    let text = error.to_string();
    match error {
        LearnError::Sample(error) => of_sample(&error),
        LearnError::Client(error) | LearnError::Unsaved(error) => of_client(error),
        LearnError::RowsLost(error) => saying(&error, text),
        LearnError::Store(error) => of_store(error),
        LearnError::Config { .. } => ConfigError::new_err(text),
        LearnError::Io { .. } => FileError::new_err(text),
        LearnError::Thread(_) => Error::new_err(text),
        LearnError::NoRows { .. } => NoRowsError::new_err(text),
        LearnError::Model { .. } => ModelError::new_err(text),
        LearnError::Diverged { .. } | LearnError::GradientRange { .. } | LearnError::Prediction { .. } => {
            DivergedError::new_err(text)
        }
        LearnError::Unjudged { .. } => GroupError::new_err(text),
        LearnError::Job(error) => of_job(error),
        LearnError::JobStopped { .. } | LearnError::JobUnsaved { .. } | LearnError::Stopped => {
            StoppedError::new_err(text)
        }
    }
}

/// The exception for an error of a client. What a server refuses has the class that it has in one process.
pub(crate) fn of_client(error: ClientError) -> PyErr {
    let text = error.to_string();
    saying(&error, text)
}

/// The exception for an error of a client, with a text that says more.
fn saying(error: &ClientError, text: String) -> PyErr {
    match error {
        ClientError::Store(error) => of_store_saying(error, text),
        ClientError::Partly { error, .. } => saying(error, text),
        ClientError::TwinTables { .. }
        | ClientError::UnknownTable { .. }
        | ClientError::NotHere
        | ClientError::Address(_) => ConfigError::new_err(text),
        ClientError::Refused { fault, .. } => match fault {
            Fault::TableExists | Fault::BadConfig | Fault::DimensionMismatch { .. } => {
                ConfigError::new_err(text)
            }
            Fault::TableFull { .. } => TableFullError::new_err(text),
            Fault::BadGradient { .. } => GradientError::new_err(text),
            Fault::UnknownTable | Fault::UnknownCheckpoint => NotFoundError::new_err(text),
            Fault::Damaged => DamagedError::new_err(text),
            Fault::Io { .. } => FileError::new_err(text),
            _ => ServerError::new_err(text),
        },
        ClientError::BadGradient { .. } => GradientError::new_err(text),
        ClientError::Stopped { .. } => interrupt::raised(text),
        ClientError::Awaited { .. } | ClientError::CalledOff { .. } | ClientError::Group { .. } => {
            GroupError::new_err(text)
        }
        _ => ServerError::new_err(text),
    }
}

/// The exception for an error of the feed path.
pub(crate) fn of_feed(error: FeedError) -> PyErr {
    let text = error.to_string();
    match error {
        FeedError::Sample(error) => of_sample(&error),
        FeedError::Client(error) => of_client(error),
        FeedError::Push(error) | FeedError::Unpushed { refused: Some(error), .. } => saying(&error, text),
        FeedError::Hub(_) | FeedError::Late { .. } | FeedError::Unpushed { .. } => HubError::new_err(text),
        FeedError::UnknownFeature { .. }
        | FeedError::HubSpec { .. }
        | FeedError::FedByHub { .. }
        | FeedError::Option { .. } => ConfigError::new_err(text),
        FeedError::Length { .. } => LengthError::new_err(text),
        FeedError::Stopped(_) => interrupt::raised(text),
        FeedError::Pushed | FeedError::Died(_) | FeedError::Forked => Error::new_err(text),
    }
}

/// The exception for an error of a job.
pub(crate) fn of_job(error: JobError) -> PyErr {
    let text = error.to_string();
    match error {
        JobError::Sample(error) => of_sample(&error),
        JobError::Client(error) => of_client(error),
        JobError::Options(_) | JobError::OpenStep { .. } => ConfigError::new_err(text),
        JobError::Halted { .. } => PyKeyboardInterrupt::new_err(text),
        JobError::HaltedBy { .. } => StoppedError::new_err(text),
        JobError::Io { .. } | JobError::Scratch { .. } => FileError::new_err(text),
        _ => GroupError::new_err(text),
    }
}

/// The exception for an error of reading.
fn of_sample(error: &SampleError) -> PyErr {
    let text = error.to_string();
    match error {
        SampleError::Spec(_) | SampleError::Settings(_) => ConfigError::new_err(text),
        SampleError::Io { .. } | SampleError::Unwanted => FileError::new_err(text),
        SampleError::BadRow { .. } => BadRowError::new_err(text),
        SampleError::BadFile { .. } => BadFileError::new_err(text),
        SampleError::TooManyBadRows { .. } => TooManyBadRowsError::new_err(text),
    }
}

/// The exception for an error of the store.
pub(crate) fn of_store(error: StoreError) -> PyErr {
    let text = error.to_string();
    of_store_saying(&error, text)
}

fn of_store_saying(error: &StoreError, text: String) -> PyErr {
    match error {
        StoreError::Config { .. } => ConfigError::new_err(text),
        StoreError::Length { .. } => LengthError::new_err(text),
        StoreError::Offsets { .. } => OffsetsError::new_err(text),
        StoreError::BadGradient { .. } | StoreError::NotFinite { .. } | StoreError::BadScale { .. } => {
            GradientError::new_err(text)
        }
        StoreError::BadRow { .. } => BadRowError::new_err(text),
        StoreError::Diverged { .. } => DivergedError::new_err(text),
        StoreError::TableFull { .. } => TableFullError::new_err(text),
        StoreError::Io { .. } => FileError::new_err(text),
        StoreError::Damaged { .. } => DamagedError::new_err(text),
        StoreError::Version { .. } => VersionError::new_err(text),
        StoreError::DuplicateName { .. } => DuplicateNameError::new_err(text),
        StoreError::NotFound { .. } => NotFoundError::new_err(text),
        StoreError::Writing { .. } => Error::new_err(text),
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
        py.get_type::<BadRowError>(),
        py.get_type::<TooManyBadRowsError>(),
        py.get_type::<BadFileError>(),
        py.get_type::<NoRowsError>(),
        py.get_type::<ModelError>(),
        py.get_type::<DivergedError>(),
        py.get_type::<ServerError>(),
        py.get_type::<HubError>(),
        py.get_type::<GroupError>(),
        py.get_type::<StoppedError>(),
    ] {
        module.add(class.name()?, class)?;
    }
    Ok(())
}
