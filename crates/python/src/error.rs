//! The exception of each kind of error, all below `sanderling.Error`. The texts are those of the Rust errors.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::import_exception;
use pyo3::prelude::*;
use sanderling_client::{ClientError, Fault};
use sanderling_feed::FeedError;
use sanderling_job::JobError;
use sanderling_learner::LearnError;
use sanderling_sample::SampleError;
use sanderling_store::StoreError;

use crate::interrupt;

/// Declares the classes of `python/sanderling/_errors.py`, and a function that adds them to the module.
macro_rules! classes {
    ($($name:ident)*) => {
        $(import_exception!(sanderling._errors, $name);)*

        /// Adds the classes to the module.
        pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            $(module.add(stringify!($name), py.get_type::<$name>())?;)*
            Ok(())
        }
    };
}

classes! {
    Error ConfigError LengthError OffsetsError GradientError
    TableFullError FileError DamagedError VersionError DuplicateNameError
    NotFoundError BadRowError TooManyBadRowsError BadFileError NoRowsError
    ModelError DivergedError ServerError ServerTimeoutError GroupError
    GroupTimeoutError HubError HubTimeoutError StoppedError
}

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
        LearnError::Recording { .. } => BadFileError::new_err(text),
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
        ClientError::Late { .. } => ServerTimeoutError::new_err(text),
        ClientError::Awaited { .. } => GroupTimeoutError::new_err(text),
        ClientError::CalledOff { .. } | ClientError::Group { .. } => GroupError::new_err(text),
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
        FeedError::Hub(sanderling_hub::HubError::Gone { .. }) => HubTimeoutError::new_err(text),
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
        JobError::Awaited { .. } => GroupTimeoutError::new_err(text),
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
        StoreError::Writing { .. } | StoreError::StreamTooLate { .. } | StoreError::NoDelta { .. } => {
            Error::new_err(text)
        }
    }
}
