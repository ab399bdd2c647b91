//! `sanderling hub`: serve minibatches until the input or a signal ends it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sanderling_client::Address;
use sanderling_control::MetricsPage;
use sanderling_formats::fit::fit;
use sanderling_formats::{DataConfig, Format, input};
use sanderling_hub::service::{Ended, Service, ServiceConfig, ServiceError, limit};
use sanderling_learner::Config;
use sanderling_sample::Spec;
use serde_json::Value;

use crate::command::hub_feed::FeedArgs;
use crate::command::hub_pages;
use crate::command::train::DEEP_MODELS;
use crate::failure::Failure;
use crate::flags::CommandLine;
use crate::listening::{SecurityArgs, note_unused_expose};
use crate::log;
use crate::output;
use crate::quantity;
use crate::reading::ReadArgs;
use crate::traces::Traces;

/// Default address.
const LISTEN_DEFAULT: &str = "127.0.0.1:7200";
/// Default rows per minibatch.
const BATCH_DEFAULT: usize = 1024;

/// Serve minibatches to any number of trainers: read, decode, shuffle and batch once
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # data, features and batch size from a run configuration
  sanderling hub --config clicks.toml
  sanderling hub --spec features.toml --batch-size 512 --passes 3 \\
      --shuffle-rows 100000 'day_*.csv'
  # the second of two hubs
  sanderling hub --listen 127.0.0.1:7201 --share 1/2 --config clicks.toml
  # continue at the saved position
  sanderling hub --position hub.position --config clicks.toml
  # feed the keys of one feature to the servers
  sanderling hub --config clicks.toml --ps 127.0.0.1:7000 \\
      --feed history=run/history:mean
  # traces of minibatches for Jaeger, Tempo or the Collector, below the steps that trainers trace
  sanderling hub --config clicks.toml --otlp 127.0.0.1:4318

Each minibatch goes to one trainer, which acknowledges it. Unacknowledged minibatches go to the same trainer again when it \
restarts, or to other trainers after --trainer-timeout.

With --feed, trainers get minibatches without the keys of the feature, and ask the servers for its pooled rows by the \
number of the minibatch. No other feature may read that table.

Addresses: host:port, tcp://host:port, unix:PATH, shm:NAME. Prints a line per address when ready. Exit code 0 when all passes \
are acknowledged, or after SIGTERM or Ctrl-C with the position saved. An input error ends the hub with the exit code of that \
error; trainers get it, too.")]
pub(crate) struct Args {
    /// Input files or patterns; - for standard input [default: data.train of --config]
    #[arg(value_name = "DATA")]
    data: Vec<String>,
    /// Run configuration (TOML): data, features, batch size, passes, shuffle buffer, seed [default: none]
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    config: Option<PathBuf>,
    /// Label and features (TOML); not needed for libsvm, criteo and batch files
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Addresses to listen on, comma-separated: host:port, unix:PATH or shm:NAME [default: 127.0.0.1:7200]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Hub name in lists and logs [default: the first address]
    #[arg(long)]
    name: Option<String>,
    /// Rows per minibatch [default: train.batch_size of --config, or 1024]
    #[arg(long, value_name = "ROWS", value_parser = quantity::length)]
    batch_size: Option<usize>,
    /// Number of passes over the input [default: train.passes of --config, or 1]
    #[arg(long)]
    passes: Option<u64>,
    /// Rows in the shuffle buffer; 0: input order [default: train.shuffle_rows of --config, or 0]
    #[arg(long, value_name = "ROWS", value_parser = quantity::length)]
    shuffle_rows: Option<usize>,
    /// Random seed of the shuffle [default: seed of --config, or 42]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of decoding threads, 1 to 256; the order of rows does not depend on it
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Shard of the input: index of this hub, from 0, and number of hubs; by file, or by block of few files
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    share: String,
    /// Assignment of minibatches: any (next free trainer) or strided:N (minibatch s to rank s modulo N)
    #[arg(long, value_name = "POLICY", default_value = "any")]
    assign: String,
    /// File for the acknowledged position; a restarted hub continues from it [default: none]
    #[arg(long, value_name = "FILE")]
    position: Option<PathBuf>,
    /// Interval between saves of --position
    #[arg(long, value_name = "TIME", default_value = "10s")]
    save_every: String,
    /// Interval between status lines on standard error, such as 10s [default: none]
    #[arg(long, value_name = "TIME")]
    print_every: Option<String>,
    /// Loopback address of /metrics (Prometheus), /healthz and status pages, such as 127.0.0.1:9100 [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Collector of OpenTelemetry (OTLP over HTTP) for traces of minibatches, such as 127.0.0.1:4318 [default: none]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Time until minibatches of a disconnected trainer go to other trainers
    #[arg(long, value_name = "TIME", default_value = "60s")]
    trainer_timeout: String,
    /// Maximum wait at the end for trainers to close their connections
    #[arg(long, value_name = "TIME", default_value = "10s")]
    linger: String,
    #[command(flatten)]
    feeding: FeedArgs,
    #[command(flatten)]
    resources: Resources,
    #[command(flatten)]
    security: SecurityArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

/// Memory and thread limits.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Resources")]
struct Resources {
    /// Queue depth: maximum number of minibatches encoded ahead
    #[arg(long, value_name = "N", default_value_t = limit::QUEUE_BATCHES_DEFAULT)]
    depth: usize,
    /// Queue size: maximum bytes of minibatches encoded ahead
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    depth_bytes: String,
    /// Maximum unacknowledged minibatches per trainer, 1 to 2048
    #[arg(long, value_name = "N", default_value_t = limit::WINDOW_DEFAULT)]
    window: u32,
    /// Maximum unacknowledged bytes of all trainers; above it a trainer gets one minibatch at a time
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    unacknowledged_bytes: String,
    /// Maximum frame size, 64KiB to 64MiB; a minibatch must fit into a frame
    #[arg(long, value_name = "BYTES", default_value = "16MiB")]
    frame_max: String,
    /// Disconnect a trainer whose send buffer stays full this long
    #[arg(long, value_name = "TIME", default_value = "5m")]
    write_timeout: String,
    /// Busy-poll time before a thread blocks, such as 100us; 50us if not given, always 0s on one processor
    #[arg(long, value_name = "TIME")]
    spin: Option<String>,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

impl Args {
    /// Configuration of the input.
    fn run_config(&self) -> Result<Config, Failure> {
        if let Some(path) = &self.config {
            // Of the configuration of a deep model a hub takes what it needs.
            let config = Config::read_data(path, &self.reading.set, &DEEP_MODELS, |config| {
                if !self.data.is_empty() {
                    config.data.train.0.clone_from(&self.data);
                }
                self.reading.apply(&mut config.data.reading);
            })?;
            if config.data.holdout.is_some() {
                // The position of a row, which may decide, is of one reader's files.
                return Err(Failure::Usage(format!(
                    "{}: a hub serves whole files and holds no rows out; name files of held-out rows in data.valid",
                    path.display()
                )));
            }
            return Ok(config);
        }
        if self.data.is_empty() {
            return Err(Failure::Usage(
                "no input: name files, or a run configuration with --config".to_owned(),
            ));
        }
        // A file that is not there is not one whose features are not known.
        input::expand(&self.data)?;
        let mut reading = DataConfig::default();
        self.reading.apply_all(&mut reading)?;
        let json = |error: serde_json::Error| Failure::Usage(error.to_string());
        let mut config = match &self.spec {
            Some(path) => serde_json::to_value(read_spec(path)?).map_err(json)?,
            None => {
                let format = reading.format_of(&self.data[0]);
                let names_its_features = [Format::Libsvm, Format::Libffm, Format::Criteo, Format::Batch];
                if !format.is_some_and(|format| names_its_features.contains(&format)) {
                    let what = format!(
                        "{}: only libsvm, libffm, criteo and batch files imply their features; name them with \
                         --spec or --config (`sanderling inspect --suggest` proposes some)",
                        self.data[0]
                    );
                    return Err(Failure::Usage(what));
                }
                Value::Object(serde_json::Map::new())
            }
        };
        config["data"] = serde_json::to_value(&reading).map_err(json)?;
        config["data"]["train"] = self.data.clone().into();
        config["train"]["batch_size"] = BATCH_DEFAULT.into();
        config["train"]["passes"] = 1.into();
        config["train"]["shuffle_rows"] = 0.into();
        Ok(Config::from_json(&config.to_string(), |config| config.name = "hub".to_owned())?)
    }

    fn service_config(&self) -> Result<ServiceConfig, Failure> {
        let run = self.run_config()?;
        let time = |what: &str, text: &str| quantity::time(text).map_err(|error| usage(what, error));
        let above_0 =
            |what: &str, text: &str| quantity::time_above_0(text).map_err(|error| usage(what, error));
        let bytes = |what: &str, text: &str| {
            quantity::bytes(text).map(|bytes| bytes as usize).map_err(|error| usage(what, error))
        };
        let listen = match &self.listen[..] {
            [] => vec![LISTEN_DEFAULT.to_owned()],
            given => given.to_vec(),
        };
        let listen =
            listen.iter().map(|text| text.parse::<Address>().map_err(|error| usage("listen", error)));
        let share = self.share.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let stride = match self.assign.strip_prefix("strided:").map(str::parse) {
            None if self.assign == "any" => 0,
            Some(Ok(stride)) if stride > 0 => stride,
            _ => {
                return Err(usage(
                    "assign",
                    format!("{:?} is neither any nor strided:N with N at least 1", self.assign),
                ));
            }
        };
        let (resources, security, defaults) = (&self.resources, &self.security, ServiceConfig::default());
        let frame_max = bytes("frame-max", &resources.frame_max)?;
        Ok(ServiceConfig {
            listen: listen.collect::<Result<_, _>>()?,
            name: self.name.clone().unwrap_or_default(),
            token: security.token()?,
            tls: security.tls(),
            expose: security.expose,
            insecure: security.insecure,
            write_timeout: above_0("write-timeout", &resources.write_timeout)?,
            spin_us: match &resources.spin {
                Some(text) => quantity::spin_us(time("spin", text)?),
                None => defaults.spin_us,
            },
            frame_bytes_max: u32::try_from(frame_max).unwrap_or(u32::MAX),
            // Over the whole input, so that all hubs come to the same.
            spec: fit(&run.spec(), &run.data.train.0, &run.data.reading)?,
            inputs: run.data.train.0,
            reading: run.data.reading,
            batch: self.batch_size.unwrap_or(run.train.batch_size),
            passes: self.passes.unwrap_or(run.train.passes),
            shuffle: self.shuffle_rows.unwrap_or(run.train.shuffle_rows),
            seed: self.seed.unwrap_or(run.seed),
            threads: self.threads,
            share: share
                .ok_or_else(|| usage("share", format!("{:?} is not INDEX/COUNT, such as 0/2", self.share)))?,
            position: self.position.clone(),
            save_every: above_0("save-every", &self.save_every)?,
            stride,
            queue_batches: resources.depth,
            queue_bytes: bytes("depth-bytes", &resources.depth_bytes)?,
            unacknowledged_bytes: bytes("unacknowledged-bytes", &resources.unacknowledged_bytes)?,
            window: resources.window,
            trainer_timeout: time("trainer-timeout", &self.trainer_timeout)?,
            linger: time("linger", &self.linger)?,
            feeds: Vec::new(),
            spans: None,
        })
    }
}

fn read_spec(path: &Path) -> Result<Spec, Failure> {
    let failed = |error: &dyn std::fmt::Display| usage("spec", format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    toml::from_str(&text).map_err(|error| failed(&error))
}

pub(crate) fn run(args: &Args, line: &CommandLine<'_>) -> Result<u8, Failure> {
    log::start();
    let print_every = args.print_every.as_deref().map(quantity::time_above_0).transpose();
    let print_every = print_every.map_err(|error| usage("print-every", error))?;
    args.position.as_deref().map_or(Ok(()), |path| output::not_a_url("--position", path))?;
    let mut config = args.service_config()?;
    let traces = args.otlp.as_deref().map(|url| Traces::new(url, 0)).transpose()?;
    config.spans = traces.as_ref().map(|traces| Arc::clone(&traces.spans));
    let instance = args.name.clone().unwrap_or_else(|| config.listen[0].to_string());
    let _exporter = traces.map(|traces| traces.export("sanderling-hub", &instance)).transpose()?;
    let stop = crate::stop::flag();
    let feeder = args.feeding.feeder(&mut config)?;
    let service = Service::start_feeding(&config, feeder, |event| note_line!("{event}"))?;
    let page = args.metrics.as_ref().map(|address| {
        let status = Arc::new(service.watch());
        let watched = Arc::clone(&status);
        let options = line.pages(&toml::Table::new(), true, "sanderling hub");
        let pages = hub_pages::pages(move || watched(), options);
        let pages = pages.map_err(|error| Failure::Run(format!("status pages: {error}")))?;
        MetricsPage::start_with(address, move || status().exposition(), Some(pages))
            .map_err(|error| usage("metrics", error))
    });
    let page = page.transpose()?;
    if args.security.expose {
        note_unused_expose("--expose", &config.listen);
    }
    let lines = service.addresses().iter().map(|address| format!("listening at {address}"));
    let lines = lines.chain(page.iter().map(|page| format!("metrics at {}", page.url())));
    output::text(&lines.collect::<Vec<_>>().join("\n"))?;
    let mut print_at = print_every.map(|every| Instant::now() + every);
    let (ended, status) = service.run(&stop, |service| {
        if print_at.is_some_and(|at| at <= Instant::now()) {
            print_at = print_every.map(|every| Instant::now() + every);
            note_line!("{}", service.status());
        }
    });
    note_line!("{status}");
    match ended? {
        Ended::Over => note!("all minibatches were used"),
        Ended::Stopped => note!("stopped before the end"),
    }
    Ok(0)
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Failure {
        match error {
            ServiceError::Config(reason) => Failure::Usage(reason),
            ServiceError::Sample(error) => Failure::Sample(error),
            other => Failure::Hub(other),
        }
    }
}
