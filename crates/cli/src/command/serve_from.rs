//! Options of `sanderling serve --from`: the running servers or published checkpoints that a replica follows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sanderling_client::{ClientError, Cluster};
use sanderling_registry::RegistryUrl;
use sanderling_serve::{CheckpointPlace, ReplicaConfig, ReplicaSource};
use sanderling_store::Dtype;

use crate::failure::Failure;
use crate::quantity;
use crate::servers::AskArgs;

/// Longest wait for an answer: the lag grows meanwhile, whatever the wait.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Default intervals and lags: of servers, of folders, of URLs.
const FRESH: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(2), Duration::from_secs(10)];
const STALE_AFTER: [Duration; 3] =
    [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(60)];
/// Bounds of the interval of looks for checkpoints.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// Format of the rows of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RowsFormat {
    /// As the servers have them
    Same,
    /// Half precision
    F16,
}

/// Whether the source is running servers.
fn is_of_servers(from: &str) -> bool {
    from.starts_with("ps://") || RegistryUrl::is_url(from)
}

/// Options of a replica.
#[derive(Debug, clap::Args)]
pub(crate) struct FromArgs {
    /// Source of the rows: parameter servers, ps://host:port,ps://host:port or keeper://host:port/CLUSTER, or the folder or URL of a checkpoint that they
    /// save, such as s3://bucket/latest; the model directory gives the configuration, its rows are not read
    #[arg(
        long,
        value_name = "PLACE",
        requires = "model",
        conflicts_with = "models",
        help_heading = "Replica"
    )]
    from: Option<String>,
    /// Checkpoint of the followed servers, a folder or URL: its rows are served until those of the servers are here
    #[arg(long, value_name = "PLACE", requires = "from", help_heading = "Replica")]
    start: Option<String>,
    /// Interval at which changed rows are fetched, or a newer checkpoint is looked for [default: 200ms, of a folder 2s, of
    /// a URL 10s]
    #[arg(long, value_name = "TIME", requires = "from", help_heading = "Replica")]
    fresh: Option<String>,
    /// Lag from which the replica is reported as stale [default: 10s, of checkpoints 60s]
    #[arg(long, value_name = "TIME", requires = "from", help_heading = "Replica")]
    stale_after: Option<String>,
    /// Format of rows: as they are saved or sent, or f16 with a relative rounding error of at most 2^-11
    #[arg(long, value_name = "FORMAT", default_value = "same", requires = "from", help_heading = "Replica")]
    rows: RowsFormat,
    /// Folder into which files of a URL are fetched before they are read [default: that for temporary files]
    #[arg(long, value_name = "DIR", requires = "from", help_heading = "Replica")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    ask: AskArgs,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

impl FromArgs {
    /// The source, as given.
    pub(crate) fn address(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// The format of the weights; `None`: as they are.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        (self.rows == RowsFormat::F16).then_some(Dtype::F16)
    }

    /// Connects to the servers, or finds the checkpoint.
    pub(crate) fn replica(&self, memory_bytes_max: Option<u64>) -> Result<Option<ReplicaConfig>, Failure> {
        let is_of_servers = self.from.as_deref().is_some_and(is_of_servers);
        if !is_of_servers && self.ask != AskArgs::default() {
            let text = "the --ps-... options need --from ps://ADDR,..., the servers to follow";
            return Err(Failure::Usage(text.to_owned()));
        }
        let Some(from) = &self.from else { return Ok(None) };
        if !is_of_servers && self.start.is_some() {
            return Err(usage("start", "needs --from ps://ADDR,..., the servers that saved the checkpoint"));
        }
        let (kind, source) = if is_of_servers {
            (0, self.servers(from)?)
        } else {
            let kind = if from.contains("://") { 2 } else { 1 };
            (kind, ReplicaSource::Checkpoints(self.place("from", from)?))
        };
        let time = |what: &str, given: &Option<String>, default: Duration| {
            let given = given.as_deref().map(quantity::time_above_0).transpose();
            Ok::<_, Failure>(given.map_err(|error| usage(what, error))?.unwrap_or(default))
        };
        let fresh = time("fresh", &self.fresh, FRESH[kind])?;
        if kind > 0 && !(LOOK_MIN..=LOOK_MAX).contains(&fresh) {
            return Err(usage("fresh", "of checkpoints must be 50ms to 1h"));
        }
        Ok(Some(ReplicaConfig {
            source,
            fresh,
            stale_after: time("stale-after", &self.stale_after, STALE_AFTER[kind])?,
            memory_bytes_max,
        }))
    }

    fn servers(&self, from: &str) -> Result<ReplicaSource, Failure> {
        let plain = |one: &str| one.trim().strip_prefix("ps://").unwrap_or(one).to_owned();
        let all: Vec<String> = from.split(',').map(plain).collect();
        let start = self.start.as_deref().map(|place| self.place("start", place)).transpose()?;
        let mut options = self.ask.options_until_told()?;
        options.timeout = options.timeout.min(ANSWER_MAX);
        options.f16_rows |= self.rows == RowsFormat::F16;
        // The replica says itself when a server is lost, and repeats what had no answer.
        (options.on_wait, options.hedge) = (None, None);
        match Cluster::of(&all.join(","), options) {
            Err(ClientError::Address(error)) => Err(usage("from", error)),
            cluster => Ok(ReplicaSource::Servers { cluster: cluster?, start }),
        }
    }

    /// A folder, which must exist, or a URL.
    fn place(&self, what: &str, text: &str) -> Result<CheckpointPlace, Failure> {
        if text.contains("://") {
            let spool = self.spool.clone().unwrap_or_else(std::env::temp_dir);
            return CheckpointPlace::url(text, spool).map_err(|error| usage(what, error));
        }
        if !Path::new(text).is_dir() {
            let expected =
                "no such folder; write ps://host:port for a server, or the folder or URL of a checkpoint";
            return Err(usage(what, format!("{text:?}: {expected}")));
        }
        Ok(CheckpointPlace::folder(PathBuf::from(text)))
    }
}
