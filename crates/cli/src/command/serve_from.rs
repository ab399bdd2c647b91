//! Options of `sanderling serve --from`: the running servers that a replica follows.

use std::time::Duration;

use sanderling_client::{Cluster, addresses};
use sanderling_serve::ReplicaConfig;
use sanderling_store::Dtype;

use crate::failure::Failure;
use crate::quantity;
use crate::servers::AskArgs;

/// Longest wait for an answer: the lag grows meanwhile, whatever the wait.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Format of the rows of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RowsFormat {
    /// As the servers have them
    Same,
    /// Half precision
    F16,
}

/// Options of a replica.
#[derive(Debug, clap::Args)]
pub(crate) struct FromArgs {
    /// Parameter servers whose tables are followed, comma-separated: ps://host:port,ps://host:port; the model directory
    /// gives the configuration, its rows are not read
    #[arg(long, value_name = "ADDR,...", requires = "model", help_heading = "Replica")]
    from: Option<String>,
    /// Interval at which changed rows are fetched
    #[arg(long, value_name = "TIME", default_value = "200ms", requires = "from", help_heading = "Replica")]
    fresh: String,
    /// Lag behind the servers from which the replica is reported as stale
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "from", help_heading = "Replica")]
    stale_after: String,
    /// Format of rows: same as the servers', or f16 with a relative rounding error of at most 2^-11
    #[arg(long, value_name = "FORMAT", default_value = "same", requires = "from", help_heading = "Replica")]
    rows: RowsFormat,
    #[command(flatten)]
    ask: AskArgs,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

impl FromArgs {
    /// The addresses as given.
    pub(crate) fn address(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// The format of the weights; `None`: that of the servers.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        (self.rows == RowsFormat::F16).then_some(Dtype::F16)
    }

    /// Connects to the servers.
    pub(crate) fn replica(&self, memory_bytes_max: Option<u64>) -> Result<Option<ReplicaConfig>, Failure> {
        let Some(text) = &self.from else {
            if self.ask != AskArgs::default() {
                let text = "the --ps-... options need --from ps://ADDR,..., the servers to follow";
                return Err(Failure::Usage(text.to_owned()));
            }
            return Ok(None);
        };
        let plain = |one: &str| one.trim().strip_prefix("ps://").map(str::to_owned);
        let first = plain(text.split(',').next().unwrap_or_default());
        if first.is_none() {
            return Err(usage(
                "from",
                format!("{text:?}: write ps://host:port, the address of a parameter server"),
            ));
        }
        let all: Vec<String> =
            text.split(',').map(|one| plain(one).unwrap_or_else(|| one.to_owned())).collect();
        let found = addresses(&all.join(",")).map_err(|error| usage("from", error))?;
        let mut options = self.ask.options_until_told()?;
        options.timeout = options.timeout.min(ANSWER_MAX);
        options.f16_rows |= self.rows == RowsFormat::F16;
        // The replica says itself when a server is lost, and repeats what had no answer.
        (options.on_wait, options.hedge) = (None, None);
        Ok(Some(ReplicaConfig {
            cluster: Cluster::connect(&found, options)?,
            fresh: quantity::time_above_0(&self.fresh).map_err(|error| usage("fresh", error))?,
            stale_after: quantity::time_above_0(&self.stale_after)
                .map_err(|error| usage("stale-after", error))?,
            memory_bytes_max,
        }))
    }
}
