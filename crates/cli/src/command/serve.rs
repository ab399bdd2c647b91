//! `sanderling serve`: predictions and rows of a saved model over HTTP and gRPC, until a signal ends it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sanderling_learner::LearnError;
use sanderling_observe::numbers::bytes as bytes_text;
use sanderling_serve::{
    Config, Engines, FollowOptions, Models, RepositoryConfig, ServedModel, Server, is_name, limit,
};
use sanderling_server::raise_limit;
use sanderling_transport::Address;

use crate::command::ps::tell_manager;
use crate::command::serve_from::FromArgs;
use crate::deep::DeepModels;
use crate::failure::Failure;
use crate::flags::CommandLine;
use crate::listening::{SecurityArgs, note_unused_expose};
use crate::log;
use crate::output;
use crate::quantity;
use crate::traces::TraceArgs;

/// Interval between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Options of a folder of models.
#[derive(Debug, clap::Args)]
struct VersionsArgs {
    /// Folder of models to serve: DIR/NAME/VERSION are model directories, links DIR/NAME/live name a version
    #[arg(long, value_name = "DIR", help_heading = "Versions")]
    models: Option<PathBuf>,
    /// Interval of looks at the folder of models; 0s: only on request
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "models", help_heading = "Versions")]
    look_every: String,
    /// Memory for the tables of all loaded versions, or of the replica [default: the memory that is available]
    #[arg(long, value_name = "BYTES", help_heading = "Versions")]
    memory: Option<String>,
}

impl VersionsArgs {
    fn repository(&self) -> Result<Option<RepositoryConfig>, Failure> {
        let Some(folder) = self.models.clone() else { return Ok(None) };
        Ok(Some(RepositoryConfig {
            folder,
            every: quantity::time(&self.look_every).map_err(|error| usage("look-every", error))?,
            memory_bytes: self.memory_bytes()?,
        }))
    }

    fn memory_bytes(&self) -> Result<Option<u64>, Failure> {
        self.memory.as_deref().map(quantity::bytes).transpose().map_err(|error| usage("memory", error))
    }
}

/// Serve predictions and rows of saved models over HTTP and gRPC
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling serve runs/clicks/model
  curl -s http://127.0.0.1:8500/predict \\
      -d '{\"rows\":[{\"user\":\"u17\",\"genres\":[\"a\",\"b\"]}]}'
  # what each feature adds to the logit
  curl -s http://127.0.0.1:8500/predict \\
      -d '{\"rows\":[{\"user\":\"u17\",\"genres\":\"a\"}],\"explain\":true}'
  # the row of a key, and of a value
  curl -s 'http://127.0.0.1:8500/tables/user/rows?key=42&value=u17'
  # the sum of rows
  curl -s 'http://127.0.0.1:8500/tables/user/rows?value=u17&value=u18&pooling=sum'
  # inputs and outputs in the Open Inference Protocol
  curl -s http://127.0.0.1:8500/v2/models/clicks
  # rows for clients of Redis: redis-cli -p 6379 MGET user:u17 user:u18
  sanderling serve runs/clicks/model --resp 127.0.0.1:6379
  # a deep model; requests of 1 ms are scored together
  sanderling export runs/clicks/model --onnx
  sanderling serve runs/clicks/model --batch-window 1ms
  # all models of a folder: models/clicks/12, models/clicks/live -> 12
  sanderling serve --models models
  # rows that follow the servers of a run that trains
  sanderling serve runs/clicks/model --from ps://127.0.0.1:7000
  # rows of the checkpoints and deltas that ps --save-every 1h --delta-every 10s saves, copied to a bucket
  sanderling serve runs/clicks/model --from s3://bucket/latest
  # traces for Jaeger, Tempo or the Collector, of requests with a traceparent and of one in 100 others
  sanderling serve runs/clicks/model --otlp 127.0.0.1:4318 --otlp-every 100
  # for other machines, with TLS and a token
  sanderling serve runs/clicks/model --listen 0.0.0.0:8500 --expose \\
      --token-file token --cert-file cert.pem --key-file key.pem

A web page at / shows the model and has a form to try it. Clients of the Open Inference Protocol (KServe, Triton) work over \
HTTP and gRPC on the same port. Metrics for Prometheus are at /metrics, health is at /health, status pages for a browser or \
curl are at /status. docs/serving.md lists all paths.

Scores equal those of sanderling predict. Models of type lr, fm and ffm can be served as they are, deep models after \
sanderling export MODEL --onnx.

Prints the address when the model is loaded, and notifies systemd. SIGTERM or Ctrl-C drains the server: pending requests are \
answered, exit code 0. A second signal ends the process at once.")]
pub(crate) struct Args {
    /// Model directory, such as runs/clicks/model
    #[arg(required_unless_present = "models", conflicts_with = "models")]
    model: Option<PathBuf>,
    #[command(flatten)]
    from: FromArgs,
    #[command(flatten)]
    versions: VersionsArgs,
    /// Address to listen on, host:port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8500")]
    listen: Address,
    /// Loopback address at which clients of Redis read rows, such as 127.0.0.1:6379 [default: none]
    #[arg(long, value_name = "ADDR")]
    resp: Option<Address>,
    /// Name of the model for clients, with a version or without, such as clicks@12 [default: name of its run, version 1]
    #[arg(long, value_name = "NAME[@VERSION]", conflicts_with = "models")]
    name: Option<String>,
    /// Library of ONNX Runtime for deep models, a file or a directory [default: that of the active Python, or the system]
    #[arg(long, value_name = "PATH", help_heading = "Deep models")]
    onnxruntime: Option<PathBuf>,
    /// Compute dense parts by the engine that is built in, which is slower and needs no library
    #[arg(long, conflicts_with = "onnxruntime", help_heading = "Deep models")]
    built_in_engine: bool,
    /// Time for which a request waits for others, to run the dense part once for all; 0s: no request waits
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Deep models")]
    batch_window: String,
    /// Number of rows of such a batch; a request with more runs alone
    #[arg(long, value_name = "ROWS", default_value_t = limit::BATCH_ROWS_MAX_DEFAULT, help_heading = "Deep models")]
    batch_rows_max: usize,
    /// Number of scoring threads, 1 to 256 [default: one per processor]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    threads: Option<usize>,
    /// Time limit of a request; a slower one fails with 504
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = "Limits")]
    timeout: String,
    /// Wait for a scoring thread that is accepted; while all wait longer, fewer are admitted [default: a tenth of --timeout]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    queue_time: Option<String>,
    /// Number of requests that may wait for a scoring thread; a further one is refused with 503
    #[arg(long, value_name = "N", default_value_t = limit::QUEUE_DEFAULT, help_heading = "Limits")]
    queue: usize,
    /// Number of rows, or keys, of a request; a larger one is refused with 413
    #[arg(long, value_name = "ROWS", default_value_t = limit::BATCH_MAX_DEFAULT, help_heading = "Limits")]
    batch_max: usize,
    /// Size of a request, at most 64MiB; a larger one is refused with 413
    #[arg(long, value_name = "BYTES", default_value = "4MiB", help_heading = "Limits")]
    body_max: String,
    /// Time limit to answer pending requests after SIGTERM or Ctrl-C
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Limits")]
    drain_timeout: String,
    /// File to which a line of JSON is appended for each request, or - [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    access_log: Option<PathBuf>,
    /// Time from which on a request is listed at /slow; 0s: none is
    #[arg(long, value_name = "TIME", default_value = "100ms", help_heading = "Operation")]
    slow: String,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    security: SecurityArgs,
    /// Host names that a server without a token also accepts, comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Security")]
    allow_host: Vec<String>,
    /// Show status pages although other machines reach --listen; they need the token [default: hidden there]
    #[arg(long, help_heading = "Security")]
    status_pages: bool,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

/// Splits NAME or NAME@VERSION.
fn name_and_version(text: &str) -> Result<(&str, u64), Failure> {
    let (name, version) = text.split_once('@').unwrap_or((text, "1"));
    match version.parse() {
        Ok(version) if is_name(name) => Ok((name, version)),
        _ => {
            let expected =
                "a name of letters, digits, '-', '_' and '.', then @ and a whole number or nothing";
            Err(usage("name", format!("{text:?} is not {expected}")))
        }
    }
}

impl Args {
    fn config(&self, line: &CommandLine<'_>, deep: Option<&dyn DeepModels>) -> Result<Config, Failure> {
        let defaults = Config::new(self.listen.clone());
        let body_max = quantity::bytes(&self.body_max).map_err(|error| usage("body-max", error))?;
        Ok(Config {
            expose: self.security.expose,
            insecure: self.security.insecure,
            token: self.security.token()?,
            tls: self.security.tls(),
            hosts: self.allow_host.clone(),
            threads: self.threads.unwrap_or(defaults.threads),
            queue: self.queue,
            timeout: quantity::time_above_0(&self.timeout).map_err(|error| usage("timeout", error))?,
            queue_time: self
                .queue_time
                .as_deref()
                .map(quantity::time_above_0)
                .transpose()
                .map_err(|error| usage("queue-time", error))?,
            access_log: self.access_log.clone(),
            slow: quantity::time(&self.slow).map_err(|error| usage("slow", error))?,
            drain_timeout: quantity::time(&self.drain_timeout)
                .map_err(|error| usage("drain-timeout", error))?,
            batch_max: self.batch_max,
            body_bytes_max: usize::try_from(body_max).unwrap_or(usize::MAX),
            listen: defaults.listen,
            resp: self.resp.clone(),
            batch_window: quantity::time(&self.batch_window).map_err(|error| usage("batch-window", error))?,
            batch_rows_max: self.batch_rows_max,
            engines: self.engines(deep),
            pages: line.pages(&toml::Table::new(), self.status_pages, "sanderling serve"),
            spans: None,
        })
    }

    fn engines(&self, deep: Option<&dyn DeepModels>) -> Engines {
        let package = deep.and_then(DeepModels::onnxruntime);
        Engines { onnxruntime: self.onnxruntime.clone(), package, built_in: self.built_in_engine }
    }
}

pub(crate) fn run(args: &Args, line: &CommandLine<'_>, deep: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    log::start();
    let (name, version) = match args.name.as_deref() {
        Some(text) => name_and_version(text).map(|(name, version)| (Some(name), version))?,
        None => (None, 1),
    };
    if args.versions.memory.is_some() && args.versions.models.is_none() && args.from.address().is_none() {
        return Err(usage("memory", "is the limit of --models DIR or of --from PLACE"));
    }
    let (mut config, repository) = (args.config(line, deep)?, args.versions.repository()?);
    let traces = args.traces.traces()?;
    config.spans = traces.as_ref().map(|traces| Arc::clone(&traces.spans));
    let instance = config.listen.to_string();
    let _exporter = traces.map(|traces| traces.export("sanderling-serve", &instance)).transpose()?;
    raise_limit();
    let stop = crate::stop::flag();
    // Before the model is loaded, which may take long: probes see a server that is live and not ready.
    let server = Server::start(&config)?;
    if config.expose {
        note_unused_expose("--expose", std::slice::from_ref(&config.listen));
    }
    if let Some(path) = &args.model {
        let model = if let Some(from) = args.from.address() {
            let memory = args.versions.memory_bytes()?;
            let options = FollowOptions {
                dtype: args.from.dtype(),
                budget_bytes: memory,
                engines: config.engines.clone(),
            };
            let model = ServedModel::to_follow(path, name, version, &options)?;
            let model = Arc::new(model);
            if let Some(replica) = args.from.replica(memory)? {
                server
                    .follow_source(replica, Arc::clone(&model), |line| note!("{line}"))
                    .map_err(|error| Failure::Usage(format!("--from {from}: {error}")))?;
            }
            while !server.is_ready() && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
            }
            model
        } else {
            args.from.replica(None)?;
            let model = Arc::new(ServedModel::load_by(path, name, version, &config.engines)?);
            // Ready means that the first request is as fast as others.
            let unfit = |reason| LearnError::Model { path: path.clone(), reason };
            server.warm(&model).map_err(unfit)?;
            let mut models = Models::default();
            models.insert(Arc::clone(&model));
            server.publish(models);
            model
        };
        let (rows, bytes) = (output::count(model.rows()), bytes_text(model.table_bytes()));
        let (name, version, what) = (model.name(), model.version(), model.describe());
        note!("serving {name}@{version}: {what}; {rows} rows, {bytes} without optimizer state");
    }
    if let Some(repository) = repository {
        let folder = repository.folder.clone();
        let followed = server.follow(repository, |event| note!("{event}"));
        followed.map_err(|error| Failure::Usage(format!("{}: {error}", folder.display())))?;
    }
    // Earlier notes appear before the ready line.
    log::finish();
    let lines = std::iter::once(format!("listening at {}", server.url()));
    let lines = lines.chain(server.resp_address().map(|address| format!("resp at {address}")));
    output::text(&lines.collect::<Vec<_>>().join("\n"))?;
    tell_manager("READY=1");
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
    }
    tell_manager("STOPPING=1");
    server.stop();
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_version() {
        for (text, expected) in [
            ("clicks", Some(("clicks", 1))),
            ("clicks@12", Some(("clicks", 12))),
            ("a.b-c_1@0", Some(("a.b-c_1", 0))),
            ("@1", None),
            ("", None),
            ("clicks@", None),
            ("clicks@live", None),
            ("a/b", None),
        ] {
            assert_eq!(name_and_version(text).ok(), expected, "{text}");
        }
    }
}
