//! Optimizers and initializations of a block: their settings and validation.

use serde::{Deserialize, Serialize};

/// Update rule: how a push turns a gradient `g` into new weights. Only pushed rows change.
///
/// For all but FTRL, `l2` adds `l2 * w` to the gradient of pushed rows (lazy weight decay).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Optimizer {
    /// `w -= lr * g`.
    Sgd {
        /// Learning rate.
        #[serde(default = "default_rate")]
        lr: f32,
        /// Weight decay.
        #[serde(default)]
        l2: f32,
    },
    /// Polyak 1964, lazy: `v = momentum * v + g; w -= lr * v`. The velocity of a row changes only when it is
    /// pushed.
    Momentum {
        /// Learning rate.
        #[serde(default = "default_rate")]
        lr: f32,
        /// Decay of the velocity.
        #[serde(default = "default_beta1")]
        momentum: f32,
        /// Weight decay.
        #[serde(default)]
        l2: f32,
    },
    /// Duchi et al. 2011: `a += g^2; w -= lr * g / (sqrt(a) + eps)`.
    Adagrad {
        /// Learning rate.
        #[serde(default = "default_rate")]
        lr: f32,
        /// Added to the root; 0 is raised to 1e-23.
        #[serde(default = "default_adagrad_eps")]
        eps: f32,
        /// Initial value of the accumulator.
        #[serde(default)]
        initial: f32,
        /// Weight decay.
        #[serde(default)]
        l2: f32,
    },
    /// Adagrad with one accumulator per row: `a += mean(g^2); w -= lr * g / (sqrt(a) + eps)`, the mean over the
    /// block's coordinates (Naumov et al. 2019). Four bytes of state per row.
    RowAdagrad {
        /// Learning rate.
        #[serde(default = "default_rate")]
        lr: f32,
        /// Added to the root; 0 is raised to 1e-23.
        #[serde(default = "default_adagrad_eps")]
        eps: f32,
        /// Initial value of the accumulator.
        #[serde(default)]
        initial: f32,
        /// Weight decay.
        #[serde(default)]
        l2: f32,
    },
    /// Kingma & Ba 2015, lazy: the moments of a row change only when it is pushed, and the bias correction counts
    /// the row's own pushes.
    Adam {
        /// Learning rate.
        #[serde(default = "default_adam_rate")]
        lr: f32,
        /// Decay of the first moment.
        #[serde(default = "default_beta1")]
        beta1: f32,
        /// Decay of the second moment.
        #[serde(default = "default_beta2")]
        beta2: f32,
        /// Added to the root of the second moment; smaller values are raised to 1e-21.
        #[serde(default = "default_adam_eps")]
        eps: f32,
        /// Weight decay.
        #[serde(default)]
        l2: f32,
    },
    /// Loshchilov & Hutter 2019: Adam with decoupled weight decay, `w -= lr * decay * w`.
    #[serde(rename = "adamw")]
    AdamW {
        /// Learning rate.
        #[serde(default = "default_adam_rate")]
        lr: f32,
        /// Decay of the first moment.
        #[serde(default = "default_beta1")]
        beta1: f32,
        /// Decay of the second moment.
        #[serde(default = "default_beta2")]
        beta2: f32,
        /// Added to the root of the second moment; smaller values are raised to 1e-21.
        #[serde(default = "default_adam_eps")]
        eps: f32,
        /// Decoupled weight decay.
        #[serde(default = "default_rate")]
        decay: f32,
    },
    /// FTRL-proximal, McMahan et al. 2013, algorithm 1, per coordinate.
    Ftrl {
        /// Scale of the per-coordinate learning rate.
        #[serde(default = "default_alpha")]
        alpha: f32,
        /// Smoothing of the per-coordinate learning rate; 0 is raised to 1e-23.
        #[serde(default = "default_beta")]
        beta: f32,
        /// L1 strength: a weight is exactly zero while `|z| <= l1`.
        #[serde(default)]
        l1: f32,
        /// L2 strength.
        #[serde(default)]
        l2: f32,
    },
}

const fn default_rate() -> f32 {
    0.01
}
const fn default_adagrad_eps() -> f32 {
    1e-10
}
const fn default_adam_rate() -> f32 {
    0.001
}
const fn default_beta1() -> f32 {
    0.9
}
const fn default_beta2() -> f32 {
    0.999
}
const fn default_adam_eps() -> f32 {
    1e-8
}
const fn default_alpha() -> f32 {
    0.1
}
const fn default_beta() -> f32 {
    1.0
}

/// Initial weights of a row: a function of (table seed, key, coordinate), independent of time and thread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Init {
    /// All zero.
    Zero,
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Largest magnitude.
        bound: f32,
    },
}

fn at_least_zero(name: &str, value: f32) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!("{name} = {value} must be finite and >= 0"))
    }
}

pub(crate) fn above_zero(name: &str, value: f32) -> Result<(), String> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(format!("{name} = {value} must be finite and > 0"))
    }
}

fn decay(name: &str, value: f32) -> Result<(), String> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { Err(format!("{name} = {value} must be in [0, 1)")) }
}

/// The largest standard normal number that [`crate::update::init`] generates: the root of 2 ln 2^32, rounded up.
const NORMAL_MAX: f32 = 6.67;

impl Init {
    /// Rejects settings that could produce an infinite weight.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Init::Zero => Ok(()),
            Init::Normal { std } if std > f32::MAX / NORMAL_MAX => {
                Err(format!("init std = {std:e} could produce infinite weights: at most 5e37 is valid"))
            }
            Init::Normal { std } => at_least_zero("init std", std),
            Init::Uniform { bound } => at_least_zero("init bound", bound),
        }
    }

    /// The largest magnitude of an initial weight.
    fn largest(self) -> f32 {
        match self {
            Init::Zero => 0.0,
            Init::Normal { std } => std * NORMAL_MAX,
            Init::Uniform { bound } => bound,
        }
    }
}

impl Optimizer {
    /// The learning rate `lr`; `None` for FTRL, which has none and ignores [`crate::PushScale`].
    #[must_use]
    pub fn lr(&self) -> Option<f32> {
        match *self {
            Optimizer::Sgd { lr, .. }
            | Optimizer::Momentum { lr, .. }
            | Optimizer::Adagrad { lr, .. }
            | Optimizer::RowAdagrad { lr, .. }
            | Optimizer::Adam { lr, .. }
            | Optimizer::AdamW { lr, .. } => Some(lr),
            Optimizer::Ftrl { .. } => None,
        }
    }

    /// Optimizer state values of a block of `dims` coordinates, in the order of [`RowRef`](crate::RowRef).
    #[must_use]
    pub fn state_len(self, dims: usize) -> usize {
        match self {
            Optimizer::Sgd { .. } => 0,
            Optimizer::RowAdagrad { .. } => 1,
            Optimizer::Momentum { .. } | Optimizer::Adagrad { .. } => dims,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Ftrl { .. } => {
                dims.saturating_mul(2)
            }
        }
    }

    /// Identifies the meaning of the state: optimizers with the same name have interchangeable states.
    pub(crate) fn state_name(self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Momentum { .. } => "momentum",
            Optimizer::Adagrad { .. } => "adagrad",
            Optimizer::RowAdagrad { .. } => "row_adagrad",
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => "adam",
            Optimizer::Ftrl { .. } => "ftrl",
        }
    }

    /// Checks the settings, alone and for rows with this initialization.
    ///
    /// # Errors
    ///
    /// The invalid number and the valid ones.
    pub fn check(self, init: Init) -> Result<(), String> {
        match self {
            Optimizer::Sgd { lr, l2 } => above_zero("lr", lr).and(at_least_zero("l2", l2)),
            Optimizer::Momentum { lr, momentum, l2 } => {
                above_zero("lr", lr).and(decay("momentum", momentum)).and(at_least_zero("l2", l2))
            }
            Optimizer::Adagrad { lr, eps, initial, l2 } | Optimizer::RowAdagrad { lr, eps, initial, l2 } => {
                above_zero("lr", lr)
                    .and(at_least_zero("eps", eps))
                    .and(at_least_zero("initial", initial))
                    .and(at_least_zero("l2", l2))
            }
            Optimizer::Adam { lr, beta1, beta2, eps, l2 } => above_zero("lr", lr)
                .and(decay("beta1", beta1))
                .and(decay("beta2", beta2))
                .and(above_zero("eps", eps))
                .and(at_least_zero("l2", l2)),
            Optimizer::AdamW { lr, beta1, beta2, eps, decay: weight_decay } => above_zero("lr", lr)
                .and(decay("beta1", beta1))
                .and(decay("beta2", beta2))
                .and(above_zero("eps", eps))
                .and(at_least_zero("decay", weight_decay)),
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                above_zero("alpha", alpha)
                    .and(at_least_zero("beta", beta))
                    .and(at_least_zero("l1", l1))
                    .and(at_least_zero("l2", l2))?;
                // Numerators that alpha divides: the root of a sum of squares, and `beta`.
                if !(f32::MAX.sqrt() / alpha).is_finite() || !(beta / alpha + l2).is_finite() {
                    return Err(format!(
                        "ftrl with alpha = {alpha}, beta = {beta}, l2 = {l2}: a larger alpha is needed"
                    ));
                }
                // The state that yields the initial weight.
                if !(init.largest() * (beta / alpha + l2) + l1).is_finite() {
                    return Err(format!("ftrl with {init:?}, alpha = {alpha}: a smaller init is needed"));
                }
                if init != Init::Zero && beta / alpha + l2 <= 0.0 {
                    return Err("ftrl with a non-zero init needs beta > 0 or l2 > 0".to_string());
                }
                Ok(())
            }
        }
    }
}
