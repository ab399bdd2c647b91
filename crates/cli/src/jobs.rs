//! Options of jobs: several workers that train one model together.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sanderling_learner::Config;
use sanderling_learner::distributed::{Algorithm, JobOptions};

use crate::failure::Failure;

/// Longest wait of workers for each other before the job fails.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Algorithm and number of workers.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Workers")]
pub(crate) struct JobArgs {
    /// Distributed algorithm: ftrl (logistic regression) or fm (factorization machine, fm or ffm), asynchronous or -sync
    #[arg(long, value_name = "NAME", value_parser = algorithms())]
    algorithm: Option<Algorithm>,
    /// Number of workers, threads of this process without --hosts; train.threads must be equal, or 1 [default:
    /// train.threads]
    #[arg(long, value_name = "N", requires = "algorithm", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// Maximum lead over the slowest worker, in minibatches; ftrl and fm only [default: unbounded]
    #[arg(long, value_name = "MINIBATCHES", requires = "algorithm")]
    staleness: Option<u64>,
}

/// Names for --help and shell completion.
fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::names()).try_map(|name| name.parse::<Algorithm>())
}

impl JobArgs {
    /// Sets the model type of the configuration to the one that the algorithm trains.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(algorithm) = self.algorithm {
            algorithm.preset(config);
        }
    }

    /// Options of the job; `None` without --algorithm.
    pub(crate) fn options(&self, config: &Config) -> Result<Option<JobOptions>, Failure> {
        let Some(algorithm) = self.algorithm else { return Ok(None) };
        let workers = self.workers.unwrap_or(config.train.threads as u32);
        let job = sanderling_job::Options { workers, timeout: TIMEOUT, ..sanderling_job::Options::default() };
        Ok(Some(JobOptions { algorithm, staleness: self.staleness, job }))
    }
}
