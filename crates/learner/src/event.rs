//! Events of a run for its observer: progress, metrics, files. Knows no terminal.

use std::path::Path;

use sanderling_client::ClientError;
use serde::Serialize;

use crate::known_keys::KnownKeys;
use crate::magnitude::LargeValues;
use crate::measured::MeasuredOn;
use crate::metrics::Metrics;

/// How far a scan over files is.
#[derive(Clone, Copy, Debug)]
pub struct ScanProgress {
    /// Bytes read, as stored.
    pub bytes_read: u64,
    /// Bytes in all, if known.
    pub bytes_total: Option<u64>,
}

/// Metrics of the training rows since the line before, each scored before the pass learned from it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepLine {
    /// Steps of the run so far.
    pub step: u64,
    /// The pass, first is 1.
    pub pass: u64,
    /// Rows of the run so far.
    pub trained_examples: u64,
    /// Whether an earlier pass has learned from these rows.
    pub measured_on: MeasuredOn,
    /// Metrics of the rows since the line before, how many included.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Steps per second of training since the line before: without validation and saving.
    pub steps_per_s: f64,
    /// Rows per second of the same.
    pub examples_per_s: f64,
}

/// A validation after a pass.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ValidLine {
    /// Steps of the run so far.
    pub step: u64,
    /// The pass just ended, first is 1.
    pub pass: u64,
    /// Rows of the run so far.
    pub trained_examples: u64,
    /// Always the validation files.
    pub measured_on: MeasuredOn,
    /// Metrics over the validation files.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Whether it is the best so far.
    pub best: bool,
    /// Time the validation took.
    pub seconds: f64,
}

/// The training files scored before the first pass, by the model that the run begins from (progressive validation).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PredictedFirstLine<'a> {
    /// Always 0: no step is done.
    pub step: u64,
    /// Always 0: no pass is done.
    pub pass: u64,
    /// The files.
    pub data: &'a str,
    /// Always training rows that nothing was learned from yet.
    pub measured_on: MeasuredOn,
    /// Metrics over the files.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Time the scoring took.
    pub seconds: f64,
}

/// The saved model on a test set, at the end of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TestLine<'a> {
    /// Steps of the run.
    pub step: u64,
    /// The pass that the model is from, first is 1.
    pub pass: u64,
    /// Name of the set.
    pub name: &'a str,
    /// Always the test set.
    pub measured_on: MeasuredOn,
    /// Metrics over the set.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// A pass of a job, over all of its workers: each row was scored before the pass learned from it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PassLine {
    /// Steps of the run so far: where each worker goes its own way, the minibatches of all.
    pub step: u64,
    /// The pass just ended, first is 1.
    pub pass: u64,
    /// Rows of the run so far.
    pub trained_examples: u64,
    /// Whether an earlier pass has learned from these rows.
    pub measured_on: MeasuredOn,
    /// Metrics of the pass; the AUC is taken over bins of the logit.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Mean prediction by share of positives, 1 at best.
    pub calibration: Option<f64>,
    /// Time the pass took.
    pub seconds: f64,
    /// Rows per second.
    pub examples_per_s: f64,
    /// Mean number of pushes of others that a push missed; `None` if not counted.
    pub staleness_mean: Option<f64>,
}

/// Something that happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The run begins or goes on.
    Started {
        /// The model in words.
        model: &'a str,
        /// Where its files go.
        run_dir: &'a Path,
        /// Steps done by earlier sessions of the run.
        resumed_step: u64,
    },
    /// A table that outlives the process was created, attached or restored.
    Kept {
        /// The table.
        table: &'a str,
        /// The content of its folder, and the result.
        found: &'a str,
    },
    /// Quantile boundaries are being fitted.
    Fitting {
        /// How many features need them.
        features: usize,
    },
    /// Training goes on.
    Training {
        /// The pass, first is 1.
        pass: u64,
        /// Passes in all.
        passes: u64,
        /// How far the pass is.
        scan: ScanProgress,
    },
    /// Training of a job goes on.
    TrainingRows {
        /// The pass, first is 1.
        pass: u64,
        /// Passes in all.
        passes: u64,
        /// Rows that the workers of this process have trained on in this pass.
        rows: u64,
        /// Rows of the pass before; `None` in the first pass of a session.
        rows_total: Option<u64>,
    },
    /// A line of progressive metrics.
    Step(&'a StepLine),
    /// A pass of a job is over.
    Pass(&'a PassLine),
    /// Validation goes on.
    Validating {
        /// How far it is.
        scan: ScanProgress,
    },
    /// The training files were scored before they are learned from.
    PredictedFirst(&'a PredictedFirstLine<'a>),
    /// A pass was validated.
    Valid(&'a ValidLine),
    /// The saved model was scored on a test set.
    Tested(&'a TestLine<'a>),
    /// The files of `data.train` are not those any more that the run began with, as far as their sizes tell, at the end of a pass.
    InputChanged {
        /// Bytes of all of them when the run began.
        before: u64,
        /// And now.
        now: u64,
    },
    /// A pass could not be validated, which the run ends with; it is saved, and resumed it is validated again.
    Unvalidated {
        /// The pass, first is 1.
        pass: u64,
    },
    /// A server has lost the rows of the run, which goes on from its last save.
    Restoring {
        /// The error that says which server it was.
        error: &'a ClientError,
        /// Which restore it is within the last hour, at most [`RESTORES_MAX`](crate::RESTORES_MAX).
        count: usize,
    },
    /// Something was written.
    Saved {
        /// The model's or checkpoint's directory.
        path: &'a Path,
    },
    /// A job ends before its time, since one of its workers was asked to.
    JobStopped {
        /// Which worker, what is saved, and how to go on, in words.
        words: &'a str,
    },
    /// A job has ended its recording, or its replay of one.
    Recorded {
        /// The file and what it holds, in words.
        words: &'a str,
    },
    /// Bad rows were left out of a pass or a validation.
    BadRows {
        /// How many.
        count: u64,
        /// The errors of the first ones.
        messages: &'a [String],
    },
    /// Values of features swamp the model, as the first rows of a pass tell.
    LargeValues {
        /// These features.
        features: &'a [LargeValues],
    },
    /// The model knows none of the keys that a feature has in the validation files.
    UnknownKeys {
        /// All features.
        known: &'a [KnownKeys],
    },
    /// The folder of the run's name holds a run of another configuration, which is kept.
    Renamed {
        /// The name that the configuration gives.
        from: &'a str,
        /// The run's name.
        to: &'a str,
        /// Whether an earlier run of this configuration has that name, and is replaced.
        replaces: bool,
    },
    /// The run replaces an earlier one of its name, once it has saved something; not after [`Renamed`](Self::Renamed).
    Replacing {
        /// The folder of both.
        run_dir: &'a Path,
    },
    /// Lines that repeat a file's header were passed over in a pass or a validation.
    RepeatedHeaders {
        /// How many.
        count: u64,
    },
    /// A run that is resumed has nothing left to do.
    NothingLeft {
        /// Passes that were done before.
        passes: u64,
        /// Whether it had stopped early.
        early: bool,
    },
    /// Validation has not improved for long enough.
    EarlyStop {
        /// The pass that was best, first is 1.
        best_pass: u64,
    },
}
