//! The configuration of a hub, and the values derived from it. Opens nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sanderling_formats::{BadRows, DataConfig, Format, input};
use sanderling_observe::SpanQueue;
use sanderling_sample::key::hash;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_transport::{Address, SPIN_US_DEFAULT};
use sanderling_wire::{HEADER_BYTES, limit as wire_limit};

use crate::description::{Description, FedFeature};

use super::error::ServiceError;
use super::leases::LeaseLimits;
use super::limit;
use super::making::Plan;
use super::position::Fingerprint;
use super::session::HubFacts;
use super::units::Share;

/// Bytes of a minibatch's frame beside its payload, with the longest list of late acknowledgements.
const FRAME_BYTES_MORE: usize = HEADER_BYTES + 64 + 8 * wire_limit::UNACKNOWLEDGED_MAX;

/// The configuration of a hub.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// The hub's name in lists and logs.
    pub name: String,
    /// The token that trainers must present; `None`: no token.
    pub token: Option<String>,
    /// Certificate and key (PEM files); enables TLS on TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether to listen on addresses that other machines can reach.
    pub expose: bool,
    /// Whether other machines may connect without TLS and token.
    pub insecure: bool,
    /// A connection is closed when the trainer accepts no bytes for this long.
    pub write_timeout: Duration,
    /// Busy-poll time before blocking, in microseconds.
    pub spin_us: u32,
    /// Longest frame; a minibatch must fit into one.
    pub frame_bytes_max: u32,
    /// Input files, patterns or `-`.
    pub inputs: Vec<String>,
    /// The format of the inputs.
    pub reading: DataConfig,
    /// The features of a row.
    pub spec: Spec,
    /// Rows of a minibatch.
    pub batch: usize,
    /// Passes over the input.
    pub passes: u64,
    /// Rows of the shuffle buffer; 0 keeps the order of the input.
    pub shuffle: usize,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Threads that decode.
    pub threads: usize,
    /// This hub's index, and the number of hubs that share the input.
    pub share: (u64, u64),
    /// The position file.
    pub position: Option<PathBuf>,
    /// Interval at which the position is saved.
    pub save_every: Duration,
    /// Assigns minibatch `s` to the trainer of rank `s % stride`; 0: to any trainer.
    pub stride: u32,
    /// Most minibatches that are ready at a time.
    pub queue_batches: usize,
    /// Most bytes of them.
    pub queue_bytes: usize,
    /// Most bytes that are leased and not acknowledged.
    pub unacknowledged_bytes: usize,
    /// Most minibatches that one trainer may hold.
    pub window: u32,
    /// A trainer that stays away for longer loses its leases.
    pub trainer_timeout: Duration,
    /// How long the hub waits at the end for informed trainers to disconnect.
    pub linger: Duration,
    /// Features whose keys are fed to servers; see [`Service::start_feeding`](super::Service::start_feeding).
    pub feeds: Vec<FedFeature>,
    /// Where the spans of minibatches go that a trainer traces; `None`: nowhere.
    pub spans: Option<Arc<SpanQueue>>,
}

impl Default for ServiceConfig {
    fn default() -> ServiceConfig {
        ServiceConfig {
            listen: Vec::new(),
            name: String::new(),
            token: None,
            tls: None,
            expose: false,
            insecure: false,
            write_timeout: limit::WRITE_TIMEOUT_DEFAULT,
            spin_us: SPIN_US_DEFAULT,
            frame_bytes_max: limit::FRAME_BYTES_MAX_DEFAULT,
            inputs: Vec::new(),
            reading: DataConfig::default(),
            spec: Spec::default(),
            batch: 1024,
            passes: 1,
            shuffle: 0,
            seed: 42,
            threads: 1,
            share: (0, 1),
            position: None,
            save_every: limit::SAVE_EVERY_DEFAULT,
            stride: 0,
            queue_batches: limit::QUEUE_BATCHES_DEFAULT,
            queue_bytes: limit::QUEUE_BYTES_DEFAULT,
            unacknowledged_bytes: limit::UNACKNOWLEDGED_BYTES_DEFAULT,
            window: limit::WINDOW_DEFAULT,
            trainer_timeout: limit::TRAINER_TIMEOUT_DEFAULT,
            linger: limit::LINGER_DEFAULT,
            feeds: Vec::new(),
            spans: None,
        }
    }
}

impl ServiceConfig {
    /// A pattern is left to the reader, which sees the files that it matches.
    fn has_no_format(&self, name: &str) -> bool {
        input::read_once(name) && self.reading.format_of(name).is_none()
    }

    pub(super) fn check(&self) -> Result<(), ServiceError> {
        let frames = wire_limit::FRAME_BYTES_MIN..=wire_limit::FRAME_BYTES_MAX;
        let (index, of) = self.share;
        let wrong = if self.listen.is_empty() {
            "listen: no address".to_owned()
        } else if self.inputs.is_empty() {
            "no input".to_owned()
        } else if !(1..=limit::BATCH_MAX).contains(&self.batch) {
            format!("batch_size: {} rows; 1 to {} are possible", self.batch, limit::BATCH_MAX)
        } else if self.passes == 0 {
            "passes: 0; at least 1".to_owned()
        } else if let Some(name) = self.inputs.iter().find(|name| self.passes > 1 && input::read_once(name)) {
            format!("passes: {} need files: {name} can be read only once", self.passes)
        } else if let Some(name) = self.inputs.iter().find(|name| self.has_no_format(name)) {
            format!("format: the name of {name} does not tell it; it is one of {}", Format::names())
        } else if !(1..=limit::THREADS_MAX).contains(&self.threads) {
            format!("threads: {}; 1 to {} are possible", self.threads, limit::THREADS_MAX)
        } else if self.shuffle > limit::SHUFFLE_MAX {
            format!("shuffle_rows: {}; at most {} are possible", self.shuffle, limit::SHUFFLE_MAX)
        } else if of == 0 || index >= of {
            format!("share: {index}/{of}; the index must be below the number of hubs")
        } else if !frames.contains(&(self.frame_bytes_max as usize)) {
            format!(
                "frame_max: {} bytes; {} to {} are possible",
                self.frame_bytes_max,
                frames.start(),
                frames.end()
            )
        } else if let Some((what, _)) = [
            ("depth", self.queue_batches),
            ("depth_bytes", self.queue_bytes),
            ("unacknowledged_bytes", self.unacknowledged_bytes),
        ]
        .into_iter()
        .find(|(_, most)| *most == 0)
        {
            format!("{what}: 0; at least 1 is needed")
        } else if let Some(token) =
            self.token.as_ref().filter(|token| !(1..=wire_limit::TOKEN_BYTES_MAX).contains(&token.len()))
        {
            format!("token: {} bytes; 1 to {} are possible", token.len(), wire_limit::TOKEN_BYTES_MAX)
        } else if !(1..=wire_limit::UNACKNOWLEDGED_MAX as u32 / 2).contains(&self.window) {
            format!("window: {}; 1 to {} are possible", self.window, wire_limit::UNACKNOWLEDGED_MAX / 2)
        } else if self.stride as usize > limit::TRAINERS_MAX {
            format!("assign: strided:{}; at most {} trainers", self.stride, limit::TRAINERS_MAX)
        } else {
            return Ok(());
        };
        Err(ServiceError::Config(wrong))
    }

    /// Checks that each fed feature exists, is named once and has a table of its own: a row that two features read
    /// gets one update from both.
    fn check_feeds(&self, spec: &Spec) -> Result<(), ServiceError> {
        for (at, fed) in self.feeds.iter().enumerate() {
            let FedFeature { feature, table, .. } = fed;
            let wrong = |reason: String| {
                Err(ServiceError::Config(format!("--feed: feature {feature:?} cannot be fed: {reason}")))
            };
            let Some(of_spec) = spec.feature.iter().find(|it| it.name == *feature) else {
                let names: Vec<&str> = spec.feature.iter().map(|it| it.name.as_str()).collect();
                return wrong(format!("there is none of this name; there are {}", names.join(", ")));
            };
            if self.feeds[..at].iter().any(|other| other.feature == *feature) {
                return wrong("it is named twice".to_owned());
            }
            if let Some(other) = self.feeds[..at].iter().find(|other| other.table == *table) {
                let other = &other.feature;
                return wrong(format!(
                    "feature {other:?} also reads table {table:?}, whose rows get one update from both"
                ));
            }
            let table_of =
                |it: &sanderling_sample::spec::Feature| it.table.clone().unwrap_or(it.name.clone());
            let table = table_of(of_spec);
            if let Some(other) = spec.feature.iter().find(|it| it.name != *feature && table_of(it) == table) {
                let other = &other.name;
                return wrong(format!(
                    "feature {other:?} of the configuration also has table {table:?}, whose rows get one update from both"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn plan(&self) -> Result<Plan, ServiceError> {
        let options =
            EncodeOptions { missing: &self.reading.missing, label: LabelUse::Required, down_sample: true };
        let files = input::expand(&self.inputs)?;
        let (index, of) = self.share;
        let mut inputs: Vec<String> =
            files.iter().map(|file| file.path.to_string_lossy().into_owned()).collect();
        let all = inputs.clone();
        let mut share = Share { index, of };
        if inputs.len() as u64 >= of {
            let mine = |at: &usize| *at as u64 % of == index;
            inputs =
                inputs.into_iter().enumerate().filter(|(at, _)| mine(at)).map(|(_, file)| file).collect();
            share = Share { index: 0, of: 1 };
        }
        Ok(Plan {
            hub: self.share,
            all,
            inputs,
            reading: self.reading.clone(),
            encoder: Arc::new(Encoder::new(&self.spec, &options)?),
            bad_rows: Arc::new(BadRows::new(self.reading.on_bad_row)),
            share,
            batch: self.batch,
            shuffle: self.shuffle,
            seed: self.seed,
            passes: self.passes,
            threads: self.threads,
            payload_bytes_max: self.frame_bytes_max as usize - FRAME_BYTES_MORE,
        })
    }

    /// The settings that decide which rows are in which minibatch.
    pub(super) fn fingerprint(&self, plan: &Plan) -> Result<Fingerprint, ServiceError> {
        let sum = |text: &str| format!("{:016x}", hash(text.as_bytes(), 0));
        let json = |spec: &Spec| serde_json::to_string(spec).map_err(|error| error.to_string());
        let spec = json(&self.spec).map_err(ServiceError::Config)?;
        let reading = serde_json::to_string(&plan.reading);
        let reading = reading.map_err(|error| ServiceError::Config(error.to_string()))?;
        let files = input::expand(&plan.inputs)?;
        let mut inputs = String::new();
        for file in &files {
            inputs += &format!("{} {:?}\n", file.path.display(), file.bytes);
        }
        let (index, of) = self.share;
        Ok(vec![
            ("inputs", sum(&inputs)),
            ("reading", sum(&reading)),
            ("spec", sum(&spec)),
            ("share", format!("{index}/{of}")),
            ("batch", self.batch.to_string()),
            ("shuffle", self.shuffle.to_string()),
            ("seed", self.seed.to_string()),
        ])
    }

    pub(super) fn lease_limits(&self) -> LeaseLimits {
        LeaseLimits {
            queue_batches: self.queue_batches,
            queue_bytes: self.queue_bytes,
            unacknowledged_bytes: self.unacknowledged_bytes,
            window: self.window,
            trainer_timeout: self.trainer_timeout,
            stride: self.stride,
            feeds: !self.feeds.is_empty(),
            logs: self.position.is_some(),
        }
    }

    pub(super) fn facts(&self, plan: &Plan, address: &Address) -> Result<HubFacts, ServiceError> {
        let spec = self.spec.expand()?;
        self.check_feeds(&spec)?;
        let described =
            Description { data: plan.reading.clone(), spec: spec.clone(), fed: self.feeds.clone() };
        let description = described.to_json(wire_limit::DESCRIPTION_BYTES_MAX);
        if description.is_none() && !self.feeds.is_empty() {
            let reason =
                "the description of the rows is too long to be sent, so trainers cannot know what is fed";
            return Err(ServiceError::Feed { reason: reason.to_owned() });
        }
        let columns = plan.encoder.new_batch().columns;
        let name = if self.name.is_empty() { address.to_string() } else { self.name.clone() };
        Ok(HubFacts {
            name: name.chars().take(wire_limit::NAME_BYTES_MAX / 4).collect(),
            token: self.token.clone(),
            frame_bytes_max: self.frame_bytes_max,
            boot_id: sanderling_observe::unique(),
            host_id: sanderling_observe::machine::host_id(),
            passes: self.passes,
            rows: self.batch as u32,
            stride: self.stride,
            spans: self.spans.clone(),
            description,
            feeds: self.feeds.iter().map(|fed| fed.feature.as_str()).collect::<Vec<_>>().join(", "),
            columns: spec
                .feature
                .into_iter()
                .zip(&columns)
                .map(|(feature, column)| (feature.name, column.is_weighted()))
                .collect(),
        })
    }
}
