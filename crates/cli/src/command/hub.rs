//! `sanderling hub`: minibatches for trainers, from the command line to the end of the input or a signal.

use std::path::{Path, PathBuf};
use std::time::Instant;

use sanderling_client::Address;
use sanderling_control::MetricsPage;
use sanderling_hub::service::{Ended, Service, ServiceConfig, ServiceError, limit};
use sanderling_learner::Config;
use sanderling_sample::fit::fit;
use sanderling_sample::{DataConfig, Format, Spec, input};
use serde_json::Value;

use crate::command::hub_feed::FeedArgs;
use crate::command::train::DEEP_MODELS;
use crate::failure::Failure;
use crate::log;
use crate::output;
use crate::quantity;
use crate::reading::ReadArgs;
use crate::token::read_server_token;

/// Where a hub listens unless told otherwise.
const LISTEN_DEFAULT: &str = "127.0.0.1:7200";
/// Rows of a minibatch unless something says otherwise.
const BATCH_DEFAULT: usize = 1024;

/// Serve minibatches: read, decode, shuffle and batch once, for any number of trainers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # the data, features and batch size of a training configuration
  sanderling hub --config clicks.toml
  sanderling hub --spec features.toml --batch 512 --passes 3 \\
      --shuffle 100000 'day_*.csv'
  # the second of two hubs
  sanderling hub --listen 127.0.0.1:7201 --share 1/2 --config clicks.toml
  # goes on where it stopped
  sanderling hub --position hub.position --config clicks.toml
  # feeds keys to the servers
  sanderling hub --config clicks.toml --ps 127.0.0.1:7000 \\
      --feed history=run/history:mean

Each minibatch goes to one trainer, and is done once that trainer acknowledges it. What a trainer that is started anew had \
not acknowledged is handed to it again; what one that stays away had, to the others.

Addresses: host:port, tcp://host:port, unix:PATH, shm:NAME. Prints one line per address when ready. Ends when all passes have \
ended and all trainers know, with exit code 0; by SIGTERM or Ctrl-C, saving its position, with exit code 0; and when the input \
cannot be read, which trainers are told too, with the exit code of that.")]
pub(crate) struct Args {
    /// Input: files, patterns, - for standard input [default: data.train of --config]
    #[arg(value_name = "DATA")]
    data: Vec<String>,
    /// Take data, features, batch, passes, shuffle and seed from a training configuration, TOML
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    config: Option<PathBuf>,
    /// Take the label and the features from this file, TOML; libsvm, criteo and batch files need none
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Addresses to listen at [default: 127.0.0.1:7200]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Name in lists and logs [default: the first address]
    #[arg(long)]
    name: Option<String>,
    /// Rows per minibatch [default: train.batch of --config, or 1024]
    #[arg(long)]
    batch: Option<usize>,
    /// Passes over the input [default: train.passes of --config, or 1]
    #[arg(long)]
    passes: Option<u64>,
    /// Rows that are shuffled at a time, 0 for none [default: train.shuffle of --config, or 0]
    #[arg(long, value_name = "ROWS")]
    shuffle: Option<usize>,
    /// Seed of the shuffle [default: seed of --config, or 42]
    #[arg(long)]
    seed: Option<u64>,
    /// Threads that decode; the order of rows does not depend on it
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Which hub this is, and of how many that share the input: files, or blocks of files if there are fewer files
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    share: String,
    /// Which trainer gets a minibatch: any, or strided:N, by which number s is for the trainer of rank s modulo N
    #[arg(long, value_name = "HOW", default_value = "any")]
    assign: String,
    /// Save there what was acknowledged, and go on from it
    #[arg(long, value_name = "FILE")]
    position: Option<PathBuf>,
    /// Save it so often
    #[arg(long, value_name = "TIME", default_value = "10s")]
    save_every: String,
    /// Say so often what was done, on standard error, such as 10s
    #[arg(long, value_name = "TIME")]
    print_every: Option<String>,
    /// Answer GET /metrics (Prometheus) and /healthz at this address of this machine, such as 127.0.0.1:9100; port 0 for any
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// A trainer that is gone for longer loses what it has to the others
    #[arg(long, value_name = "TIME", default_value = "60s")]
    trainer_timeout: String,
    /// How long to wait for trainers that know that it is over to close their connections
    #[arg(long, value_name = "TIME", default_value = "10s")]
    linger: String,
    #[command(flatten)]
    feeding: FeedArgs,
    #[command(flatten)]
    resources: Resources,
    #[command(flatten)]
    security: Security,
    #[command(flatten)]
    reading: ReadArgs,
}

/// How much the hub holds.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Resources")]
struct Resources {
    /// Most minibatches that are ready; then reading waits
    #[arg(long, value_name = "N", default_value_t = limit::QUEUE_BATCHES_DEFAULT)]
    queue: usize,
    /// Most bytes of them
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    queue_bytes: String,
    /// Most minibatches that one trainer has and has not acknowledged
    #[arg(long, value_name = "N", default_value_t = limit::WINDOW_DEFAULT)]
    window: u32,
    /// Most bytes that all trainers have and have not acknowledged; then each gets one minibatch at a time
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    unacknowledged_bytes: String,
    /// Longest frame; a minibatch must fit into one
    #[arg(long, value_name = "BYTES", default_value = "16MiB")]
    frame_max: String,
    /// A trainer that takes nothing for so long, though answers wait for it, is closed
    #[arg(long, value_name = "TIME", default_value = "5m")]
    write_timeout: String,
    /// How long waits stay awake before they sleep, in microseconds
    #[arg(long, value_name = "N")]
    spin_us: Option<u32>,
}

/// Who may connect.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Security")]
struct Security {
    /// File with the shared auth token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept a token file that other users can read, such as a mounted secret
    #[arg(long)]
    open_token_file: bool,
    /// Certificate chain, PEM; TCP is then TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let other machines connect; needs TLS and a token
    #[arg(long)]
    expose: bool,
    /// Let them connect without TLS and token: whoever reaches the port can take minibatches
    #[arg(long)]
    insecure: bool,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

impl Args {
    /// What is read, and how.
    fn run_config(&self) -> Result<Config, Failure> {
        if let Some(path) = &self.config {
            // Of the configuration of a deep model a hub takes what it needs.
            return Ok(Config::read_data(path, &DEEP_MODELS, |config| {
                if !self.data.is_empty() {
                    config.data.train.0.clone_from(&self.data);
                }
                self.reading.apply(&mut config.data.reading);
            })?);
        }
        if self.data.is_empty() {
            return Err(Failure::Usage(
                "name some input, or a configuration that does (--config)".to_owned(),
            ));
        }
        // A file that is not there is not one whose features are not known.
        input::expand(&self.data)?;
        let mut reading = DataConfig::default();
        self.reading.apply(&mut reading);
        let json = |error: serde_json::Error| Failure::Usage(error.to_string());
        let mut config = match &self.spec {
            Some(path) => serde_json::to_value(read_spec(path)?).map_err(json)?,
            None => {
                let format = reading.format_of(&self.data[0]);
                let names_its_features = [Format::Libsvm, Format::Libffm, Format::Criteo, Format::Batch];
                if !format.is_some_and(|format| names_its_features.contains(&format)) {
                    let what = format!(
                        "{}: only libsvm, libffm, criteo and batch files say what their features are; name them with --spec or \
                         --config (`sanderling inspect --suggest` proposes some)",
                        self.data[0]
                    );
                    return Err(Failure::Usage(what));
                }
                Value::Object(serde_json::Map::new())
            }
        };
        config["data"] = serde_json::to_value(&reading).map_err(json)?;
        config["data"]["train"] = self.data.clone().into();
        config["train"]["batch"] = BATCH_DEFAULT.into();
        config["train"]["passes"] = 1.into();
        config["train"]["shuffle"] = 0.into();
        Ok(Config::from_json(&config.to_string(), |config| config.name = "hub".to_owned())?)
    }

    fn service_config(&self) -> Result<ServiceConfig, Failure> {
        let run = self.run_config()?;
        let time = |what: &str, text: &str| quantity::time(text).map_err(|error| usage(what, error));
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
                    format!("{:?} is neither any nor strided:N, N from 1 on", self.assign),
                ));
            }
        };
        let token = self.security.token_file.as_ref().map(|path| {
            read_server_token(path, self.security.open_token_file).map_err(|error| usage("token-file", error))
        });
        let (resources, security, defaults) = (&self.resources, &self.security, ServiceConfig::default());
        let frame_max = bytes("frame-max", &resources.frame_max)?;
        Ok(ServiceConfig {
            listen: listen.collect::<Result<_, _>>()?,
            name: self.name.clone().unwrap_or_default(),
            token: token.transpose()?,
            tls: security.tls_cert.clone().zip(security.tls_key.clone()),
            expose: security.expose,
            insecure: security.insecure,
            write_timeout: time("write-timeout", &resources.write_timeout)?,
            spin_us: resources.spin_us.unwrap_or(defaults.spin_us),
            frame_bytes_max: u32::try_from(frame_max).unwrap_or(u32::MAX),
            // Over the whole input, so that all hubs come to the same.
            spec: fit(&run.spec(), &run.data.train.0, &run.data.reading)?,
            inputs: run.data.train.0,
            reading: run.data.reading,
            batch: self.batch.unwrap_or(run.train.batch),
            passes: self.passes.unwrap_or(run.train.passes),
            shuffle: self.shuffle.unwrap_or(run.train.shuffle),
            seed: self.seed.unwrap_or(run.seed),
            threads: self.threads,
            share: share.ok_or_else(|| usage("share", format!("{:?} is not of the form 0/2", self.share)))?,
            position: self.position.clone(),
            save_every: time("save-every", &self.save_every)?,
            stride,
            queue_batches: resources.queue,
            queue_bytes: bytes("queue-bytes", &resources.queue_bytes)?,
            unacknowledged_bytes: bytes("unacknowledged-bytes", &resources.unacknowledged_bytes)?,
            window: resources.window,
            trainer_timeout: time("trainer-timeout", &self.trainer_timeout)?,
            linger: time("linger", &self.linger)?,
            feeds: Vec::new(),
        })
    }
}

fn read_spec(path: &Path) -> Result<Spec, Failure> {
    let failed = |error: &dyn std::fmt::Display| usage("spec", format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    toml::from_str(&text).map_err(|error| failed(&error))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    log::start();
    let print_every = args.print_every.as_deref().map(quantity::time).transpose();
    let print_every = print_every.map_err(|error| usage("print-every", error))?;
    if print_every.is_some_and(|every| every.is_zero()) {
        return Err(usage("print-every", "must be more than 0"));
    }
    args.position.as_deref().map_or(Ok(()), |path| output::not_a_url("--position", path))?;
    let mut config = args.service_config()?;
    let stop = crate::stop::flag();
    let feeder = args.feeding.feeder(&mut config)?;
    let service = Service::start_feeding(&config, feeder, |event| note_line!("{event}"))?;
    let page = args.metrics.as_ref().map(|address| {
        let status = service.watch();
        MetricsPage::start(address, move || status().exposition()).map_err(|error| usage("metrics", error))
    });
    let page = page.transpose()?;
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
