//! Learning-rate schedules: a factor on the optimizer's rate, from the step, the pass and past validations alone.

use serde::{Deserialize, Serialize};

/// However long it has decayed, a rate is above zero, and its inverse (FTRL) finite.
const FACTOR_MIN: f32 = 1e-12;

/// How the learning rate changes over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[serde(
    expecting = "a table, such as { type = \"exponential\", factor = 0.9 }; its types are constant, exponential (factor), inverse_sqrt (steps) and plateau (factor, min)"
)]
pub enum Schedule {
    /// It does not.
    #[default]
    Constant,
    /// Multiplied by `factor` after every pass.
    Exponential {
        /// Factor per pass, above 0.
        factor: f32,
    },
    /// `sqrt(steps / (steps + step))`: halved after `3 * steps` steps.
    InverseSqrt {
        /// Steps after which the decay sets in.
        steps: u64,
    },
    /// Multiplied by `factor` after every pass whose validation did not improve.
    Plateau {
        /// Factor, above 0.
        factor: f32,
        /// The rate is not reduced below this share of its first value.
        #[serde(default)]
        min: f32,
    },
}

impl Schedule {
    /// The factor at a step (counted over the run) of a pass, after this many plateaus.
    ///
    /// The first `warmup_steps` steps warm up linearly.
    #[must_use]
    pub fn factor(&self, step: u64, pass: u64, plateaus: u32, warmup_steps: u64) -> f32 {
        let factor = match *self {
            Schedule::Constant => 1.0,
            Schedule::Exponential { factor } => factor.powi(pass as i32),
            Schedule::InverseSqrt { steps } => {
                let steps = steps.max(1) as f64;
                (steps / (steps + step as f64)).sqrt() as f32
            }
            Schedule::Plateau { factor, min } => factor.powi(plateaus as i32).max(min),
        };
        let warm = if step < warmup_steps { (step + 1) as f32 / warmup_steps as f32 } else { 1.0 };
        (factor * warm).max(FACTOR_MIN)
    }

    /// Is the factor the same at all steps of a pass from this one on?
    pub(crate) fn is_steady(&self, step: u64, warmup_steps: u64) -> bool {
        !matches!(self, Schedule::InverseSqrt { .. }) && step >= warmup_steps
    }

    /// Why the schedule is invalid, if it is.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = |factor: f32| factor > 0.0 && factor.is_finite();
        match *self {
            Schedule::Exponential { factor } | Schedule::Plateau { factor, .. } if !positive(factor) => {
                Err(format!("schedule factor = {factor}: must be above 0"))
            }
            Schedule::Plateau { min, .. } if !(0.0..=1.0).contains(&min) => {
                Err(format!("schedule min = {min}: must be 0 to 1"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors() {
        let plateau = Schedule::Plateau { factor: 0.1, min: 0.05 };
        for (schedule, step, pass, plateaus, warmup, expected) in [
            (Schedule::Constant, 9, 3, 2, 0, 1.0),
            (Schedule::Constant, 0, 0, 0, 4, 0.25),
            (Schedule::Constant, 4, 0, 0, 4, 1.0),
            (Schedule::Exponential { factor: 0.5 }, 0, 3, 0, 0, 0.125),
            (Schedule::InverseSqrt { steps: 100 }, 300, 0, 0, 0, 0.5),
            (plateau, 0, 9, 0, 0, 1.0),
            (plateau, 0, 9, 1, 0, 0.1),
            (plateau, 0, 9, 5, 0, 0.05),
            (Schedule::Exponential { factor: 0.1 }, 0, 100, 0, 0, FACTOR_MIN),
        ] {
            let got = schedule.factor(step, pass, plateaus, warmup);
            assert!(
                (got - expected).abs() <= 1e-6 * expected,
                "{schedule:?} {step} {pass} {plateaus}: {got}"
            );
        }
        assert!(Schedule::Exponential { factor: 0.0 }.check().is_err());
        for (schedule, step, warmup, steady) in [
            (Schedule::Constant, 0, 0, true),
            (Schedule::Exponential { factor: 0.5 }, 2, 4, false),
            (plateau, 4, 4, true),
            (Schedule::InverseSqrt { steps: 100 }, 9, 0, false),
        ] {
            let is_same = (step..step + 9)
                .all(|later| schedule.factor(later, 1, 1, warmup) == schedule.factor(step, 1, 1, warmup));
            assert_eq!((schedule.is_steady(step, warmup), is_same), (steady, steady), "{schedule:?}");
        }
    }
}
