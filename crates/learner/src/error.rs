//! Errors of a run. What readers and tables report passes through unchanged: it names file, line, table and key.

use std::path::PathBuf;

use sanderling_client::ClientError;
use sanderling_formats::in_memory::lasting_name;
use sanderling_formats::{BadRows, all_bad};
use sanderling_job::JobError;
use sanderling_sample::SampleError;
use sanderling_store::StoreError;

/// An error of training, evaluation or prediction.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The configuration does not parse or contradicts itself.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The configuration file, or `config` when it came as a value.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// The data could not be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A table refused a pull or push.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Workers could not go on together, or not read their input.
    #[error(transparent)]
    Job(JobError),
    /// A table or a checkpoint failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the run could not be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The system gives no further thread.
    #[error("a thread could not be started: {0}; is there a limit to memory or processes (ulimit -v, -u)?")]
    Thread(#[source] std::io::Error),
    /// The input had no rows.
    #[error("{input}: no rows to work on{}", all_bad(*bad_rows, first_bad.as_deref()))]
    NoRows {
        /// The files.
        input: String,
        /// How many rows were skipped as bad.
        bad_rows: u64,
        /// The error of the first one.
        first_bad: Option<String>,
    },
    /// A saved model is there but cannot be used.
    #[error("{}: {reason}", path.display())]
    Model {
        /// The model's directory.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// A recording is damaged, of another run, or cannot be followed.
    #[error("{}: {reason}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// A prediction became infinite or undefined.
    #[error("training diverged at step {step}: {}", cause.as_deref().unwrap_or("lower the learning rate or bound the features (type = \"log\")"))]
    Diverged {
        /// The step.
        step: u64,
        /// The value that most likely made it diverge and what to do; none if no value is large.
        cause: Option<String>,
    },
    /// A prediction over files is infinite or undefined.
    #[error("{input}: the prediction of {which} is no finite number: {}", cause.as_deref().unwrap_or("the model has diverged; train it with a lower learning rate"))]
    Prediction {
        /// The files.
        input: String,
        /// The row, in words.
        which: String,
        /// The value that most likely did it and what to do; none if no value is large.
        cause: Option<String>,
    },
    /// A worker's part is too large for the exact sums of a step.
    #[error(
        "step {step}: gradients of one weight add up to 8 million or more ({gradient:e} is one) and would not be exact: {}",
        cause.as_deref().unwrap_or("bound the features (type = \"log\"), the weights of samples, or the batch")
    )]
    GradientRange {
        /// The step.
        step: u64,
        /// The gradient with which it was noticed.
        gradient: f32,
        /// The value that it most likely comes from and what to do; none if no value is large.
        cause: Option<String>,
    },
    /// A worker of a job was asked to stop, and with it the job, which goes back to the end of a pass.
    #[error("{who}; {}", job_left(*pass))]
    JobStopped {
        /// Which worker, in words.
        who: JobError,
        /// The last pass, from 1, of which worker 0 has said that it is saved; 0: it has said so of none.
        pass: u64,
    },
    /// A job was asked to stop before it had saved a pass, and what an earlier run of its name has saved is left as it was.
    #[error(
        "{by}; it had saved no pass, so the earlier run of this name is as it was: start all workers without --resume to \
         begin anew"
    )]
    JobUnsaved {
        /// By whose word, in words.
        by: String,
    },
    /// The first worker of a job could not validate or save.
    #[error("after pass {pass} worker 0 could not go on: {reason}")]
    Unjudged {
        /// The pass, from 1.
        pass: u64,
        /// Worker 0's reason.
        reason: String,
    },
    /// The caller asked to stop, and a server did not answer.
    #[error("{0}; nothing more was saved: --resume goes on from the last save, if there was one")]
    Unsaved(ClientError),
    /// The servers do not have the rows of a run any more, or cannot be asked for them; it has saved them.
    #[error("{0}; --resume goes on from what the run has saved, and puts its rows back on the servers")]
    RowsLost(ClientError),
    /// The caller asked to stop before there was a result.
    #[error("stopped before there was a result")]
    Stopped,
}

impl From<JobError> for LearnError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Sample(error) => LearnError::Sample(error),
            JobError::Client(error) => LearnError::Client(error),
            JobError::Halted { .. } => LearnError::Stopped,
            error => LearnError::Job(error),
        }
    }
}

/// The saved state of a stopped job, and how to continue.
fn job_saved(pass: u64, or: &str) -> String {
    let at = if pass == 0 { "before the first pass".to_owned() } else { format!("after pass {pass}") };
    format!("it is saved as it was {at}{or}: start all workers with --resume to go on")
}

/// The saved state as a worker that does not save knows it. Without a finished pass it depends on the run before.
fn job_left(pass: u64) -> String {
    match pass {
        0 => "it had saved no pass that this worker knows of: worker 0 says how to go on".to_owned(),
        pass => job_saved(pass, " or later"),
    }
}

/// The message of a stopped job, from the process that saves.
pub(crate) fn job_stopped(by: &str, pass: u64) -> String {
    format!("{by}; {}", job_saved(pass, ""))
}

impl LearnError {
    /// Of files that were read to their end.
    #[must_use]
    pub fn no_rows(inputs: &[String], bad_rows: &BadRows) -> Self {
        Self::no_rows_of(inputs, bad_rows.count(), &bad_rows.messages())
    }

    pub(crate) fn no_rows_of(inputs: &[String], bad_rows: u64, messages: &[String]) -> Self {
        LearnError::NoRows { input: names(inputs), bad_rows, first_bad: messages.first().cloned() }
    }

    /// Whether a job ended because one of its workers was asked to stop.
    pub(crate) fn is_stop(&self) -> bool {
        matches!(self, LearnError::Stopped | LearnError::Job(JobError::HaltedBy { .. }))
    }

    /// An I/O error with its path.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| LearnError::Io { path, source }
    }
}

/// Inputs as an error names them.
pub(crate) fn names(inputs: &[String]) -> String {
    inputs.iter().map(|input| lasting_name(input)).collect::<Vec<_>>().join(", ")
}
