//! Options of commands that export traces by OTLP. Posts nothing itself.

use std::sync::Arc;

use clap::Args;
use sanderling_observe::SpanQueue;
use sanderling_otlp::{Endpoint, Exporter, Resource};

use crate::failure::Failure;

/// Traces of requests of this process, for a collector of OpenTelemetry.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// Collector of OpenTelemetry (OTLP over HTTP) for traces of sampled requests, such as 127.0.0.1:4318
    /// [default: none]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Trace one in so many requests, for example 100
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "otlp")]
    otlp_every: u32,
}

impl TraceArgs {
    /// The traces of this process, if the options ask for some.
    pub(crate) fn traces(&self) -> Result<Option<Traces>, Failure> {
        self.otlp.as_deref().map(|url| Traces::new(url, self.otlp_every)).transpose()
    }
}

/// The spans of this process, and where they go.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) spans: Arc<SpanQueue>,
    endpoint: Endpoint,
}

impl Traces {
    /// `every`: a client traces one in so many of its requests.
    pub(crate) fn new(url: &str, every: u32) -> Result<Traces, Failure> {
        let endpoint = url.parse().map_err(|error| Failure::Usage(format!("--otlp: {error}")))?;
        Ok(Traces { spans: SpanQueue::new(every), endpoint })
    }

    /// Exports the spans until the result is dropped. `service` and `instance` say which process it is.
    pub(crate) fn export(&self, service: &str, instance: &str) -> Result<Exporter, Failure> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (service, instance) = (service.to_owned(), instance.to_owned());
        let resource = Resource { service, instance, host: host.trim().to_owned() };
        let note = |line: &str| note_line!("{line}");
        Exporter::start(self.endpoint.clone(), resource, Arc::clone(&self.spans), note)
            .map_err(|error| Failure::Run(format!("--otlp: {error}")))
    }
}
