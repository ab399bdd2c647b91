//! Options about jobs: how several workers train together. Knows not what an algorithm does.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sanderling_learner::Config;
use sanderling_learner::distributed::{Algorithm, JobOptions};

use crate::failure::Failure;

/// How long workers wait for each other, each time, before one of them is given up.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Who trains, and how they go about it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Workers")]
pub(crate) struct JobArgs {
    /// Train by several workers together: ftrl is logistic regression, fm a factorization machine; each worker goes its own
    /// way, or with -sync all go in step and rows are shuffled over all workers before each pass; see docs/learners.md
    #[arg(long, value_name = "NAME", value_parser = algorithms())]
    algorithm: Option<Algorithm>,
    /// Workers of the job; train.threads of the configuration unless given
    #[arg(long, value_name = "N", requires = "algorithm", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// ftrl and fm: no worker is more than so many minibatches ahead of the slowest
    #[arg(long, value_name = "MINIBATCHES", requires = "algorithm")]
    staleness: Option<u64>,
}

/// Names that the shell completes and --help lists.
fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::names()).try_map(|name| name.parse::<Algorithm>())
}

impl JobArgs {
    /// Makes the model of a configuration that which the algorithm trains.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(algorithm) = self.algorithm {
            algorithm.preset(config);
        }
    }

    /// The job, if there is one.
    pub(crate) fn options(&self, config: &Config) -> Result<Option<JobOptions>, Failure> {
        let Some(algorithm) = self.algorithm else { return Ok(None) };
        let workers = self.workers.unwrap_or(config.train.threads as u32);
        let job = sanderling_job::Options { workers, timeout: TIMEOUT, ..sanderling_job::Options::default() };
        Ok(Some(JobOptions { algorithm, staleness: self.staleness, job }))
    }
}
