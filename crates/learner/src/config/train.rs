//! The `[train]` table of a configuration. Knows no training.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::quantity::duration_text;
use crate::schedule::Schedule;

/// The `[train]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Train {
    /// Rows per minibatch. At 1 learning is online: every row sees what the row before it taught.
    pub batch_size: usize,
    /// Passes over the training data.
    pub passes: u64,
    /// Worker threads. One gives the same model every time; more are faster and update asynchronously.
    pub threads: usize,
    /// Whether a second thread reads and decodes ahead of a single worker. The result is the same.
    pub decode_ahead: bool,
    /// Rows of the shuffle buffer; 0: the order of the input.
    pub shuffle_rows: usize,
    /// How a minibatch's gradients become one; default: `sum` for FTRL, `mean` for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// Weight of a positive row's gradient; metrics are not touched by it.
    pub class_weight: f32,
    /// Learning-rate schedule.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises to its full value.
    pub warmup_steps: u64,
    /// Stop after this many passes whose validation did not improve; 0: never.
    pub early_stop: u32,
    /// The loss that training minimises.
    pub loss: Loss,
    /// The metric that validation compares; default: `auc`, of a regression `rmse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor: Option<Monitor>,
    /// Whether the training files are scored before the first pass, by the model that the run begins from.
    pub predict_first: bool,
    /// Steps between two lines of progressive metrics; 0: about 256,000 rows.
    pub print_every_steps: u64,
    /// Steps between two checkpoints within a pass; 0: only after passes.
    pub save_every_steps: u64,
    /// Stop after this many steps, as if interrupted; 0: do not.
    pub max_steps: u64,
    /// Request timeout of parameter servers, also while one of them is unreachable; `None`: the client's default.
    #[serde(skip_serializing_if = "Option::is_none", with = "super::quantity::duration")]
    pub ps_timeout: Option<Duration>,
}

/// Bounds of [`Train::ps_timeout`].
const PS_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(86_400);

impl Default for Train {
    fn default() -> Self {
        Train {
            batch_size: 256,
            passes: 1,
            threads: 1,
            decode_ahead: true,
            shuffle_rows: 100_000,
            reduction: None,
            class_weight: 1.0,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            early_stop: 0,
            loss: Loss::Logloss,
            monitor: None,
            predict_first: false,
            print_every_steps: 0,
            save_every_steps: 0,
            max_steps: 0,
            ps_timeout: None,
        }
    }
}

impl Train {
    /// Whether a second thread decodes: for a single worker, where there is a processor for it.
    pub(crate) fn decodes_ahead(&self) -> bool {
        self.decode_ahead
            && self.threads == 1
            && std::thread::available_parallelism().is_ok_and(|n| n.get() > 1)
    }

    /// The metric in force.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.unwrap_or(match self.loss {
            Loss::Logloss => Monitor::Auc,
            Loss::Mse => Monitor::Rmse,
        })
    }

    /// Checks that the settings around the loss fit it.
    pub(super) fn check_loss(&self) -> Result<(), String> {
        let of_numbers = matches!(self.monitor(), Monitor::Mse | Monitor::Rmse | Monitor::Mae);
        match self.loss {
            Loss::Logloss if of_numbers => {
                Err("train.monitor: auc or logloss; mse, rmse and mae are for train.loss = \"mse\""
                    .to_owned())
            }
            Loss::Mse if !of_numbers => {
                Err("train.monitor: rmse, mae or mse, since train.loss = \"mse\" predicts numbers".to_owned())
            }
            Loss::Mse if self.class_weight != 1.0 => {
                Err("train.class_weight: train.loss = \"mse\" has no classes; leave it out".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_ps_timeout(&self) -> Result<(), String> {
        match self.ps_timeout.filter(|timeout| !PS_TIMEOUT.contains(timeout)) {
            Some(timeout) => {
                Err(format!("train.ps_timeout = \"{}\": must be 10ms to 24h", duration_text(timeout)))
            }
            None => Ok(()),
        }
    }

    /// Steps between two lines of progressive metrics.
    #[must_use]
    pub fn print_steps(&self) -> u64 {
        if self.print_every_steps > 0 {
            self.print_every_steps
        } else {
            (PRINT_ROWS / self.batch_size as u64).max(1)
        }
    }
}

/// Rows between two lines of progressive metrics, where the configuration does not say.
const PRINT_ROWS: u64 = 256_000;

/// How the gradients of a minibatch become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// Their sum: a step of `n` rows is about `n` steps of one.
    Sum,
    /// Their mean, as deep-learning frameworks do.
    Mean,
}

/// The validation metric for early stopping, the plateau schedule and the best pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Monitor {
    /// Area under the ROC curve, larger is better.
    Auc,
    /// Mean logistic loss, smaller is better.
    Logloss,
    /// Mean squared error of numbers.
    Mse,
    /// Its root.
    Rmse,
    /// Mean absolute error of numbers.
    Mae,
}

/// The loss that training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Logistic loss: labels are 0 or 1, predictions probabilities.
    #[default]
    Logloss,
    /// Mean squared error (regression): labels and predictions are numbers.
    Mse,
}
