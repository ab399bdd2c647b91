//! A run's time: in all, by stage, by call of the parameter servers, and by pass. The trainer fills it in; it is
//! written to `summary.json`. Measures nothing itself.

use sanderling_client::Cluster;
use sanderling_observe::{LatencyTable, StageTotal};
use serde::Serialize;

use crate::measured::MeasuredOn;
use crate::metrics::Metrics;

/// How tables in this process are reached.
const EMBEDDED: &str = "embedded";

/// The time of a run, of this session of it where it was resumed.
#[derive(Clone, Debug, Serialize)]
pub struct Timing {
    /// The value of `--algorithm`; `None` if the configuration decides.
    pub algorithm: Option<String>,
    /// Workers of the whole job: threads, or processes.
    pub workers: u32,
    /// Rows per step: of each worker where each goes its own way, of all together where they go in step.
    pub batch_size: u64,
    /// How the tables were really reached: `embedded`, or what [`Cluster::transport`] says.
    pub transport: String,
    /// From the start of the run to its end, validation and saving included.
    pub total_s: f64,
    /// By stage, added up over the threads, in the order of the stages.
    pub stages: Vec<StageTotal>,
    /// By command, of a *single RPC call* and of *all RPC calls of one request*; no rows without servers.
    pub calls: LatencyTable,
    /// Number of steps by how many steps of others their rows lacked. `None` if not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Vec<u64>>,
    /// By pass that this session ended.
    pub passes: Vec<PassTotal>,
}

/// A pass over the training data: its duration and its progressive metrics.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PassTotal {
    /// The pass, first is 1.
    pub pass: u64,
    /// Seconds of training in this session; validation and saving after the pass are left out.
    pub seconds: f64,
    /// Whether an earlier pass has learned from these rows.
    pub measured_on: MeasuredOn,
    /// Metrics of the pass.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Mean prediction by share of positives, 1 at best; null without positives, and of a regression.
    pub calibration: Option<f64>,
}

impl Timing {
    /// The timing of a run that has not begun.
    #[must_use]
    pub fn new(workers: u32, batch_size: u64, servers: Option<&Cluster>) -> Timing {
        Timing {
            algorithm: None,
            workers,
            batch_size,
            transport: servers.map_or_else(|| EMBEDDED.to_owned(), Cluster::transport),
            total_s: 0.0,
            stages: Vec::new(),
            calls: LatencyTable::new(&[]),
            staleness: None,
            passes: Vec::new(),
        }
    }
}

impl PassTotal {
    /// With what follows from the metrics.
    #[must_use]
    pub fn new(pass: u64, seconds: f64, metrics: Metrics) -> PassTotal {
        let share = metrics.real_mean;
        let finite = |value: f64| value.is_finite().then_some(value);
        let measured_on = MeasuredOn::of_pass(pass);
        let calibration = finite(metrics.prob_mean / share).filter(|_| metrics.numbers.is_none());
        PassTotal { pass, seconds, measured_on, metrics, calibration }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Scores;

    #[test]
    fn a_pass_is_compared_with_the_share_of_positives() {
        let metrics = Metrics { prob_mean: 0.3, real_mean: 0.25, ..Scores::new().metrics() };
        let pass = PassTotal::new(1, 2.0, metrics);
        assert!((pass.calibration.unwrap_or(0.0) - 1.2).abs() < 1e-12, "{pass:?}");
        assert_eq!(PassTotal::new(1, 2.0, Metrics { real_mean: 0.0, ..metrics }).calibration, None);
    }
}
