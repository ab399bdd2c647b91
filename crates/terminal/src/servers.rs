//! Options of parameter servers, shared by the commands that connect to them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sanderling_client::{
    Address, ClientError, Cluster, Compression, ConnectOptions, Hedge, OnWait, PullFrom, Stop, TlsClient,
    compression,
};
use sanderling_observe::SpanQueue;

use crate::failure::Failure;
use crate::token::read_token;

/// Bounds of `--ps-timeout`: a busy machine needs a few milliseconds, and a day is longer than any repair.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Addresses of the parameter servers, and connection options.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Parameter servers")]
pub struct ServerArgs {
    /// Addresses of all servers, comma-separated: host:port, tcp://host:port, unix:PATH or shm:NAME; or a cluster in its
    /// registry, such as keeper://127.0.0.1:7400/ads [default: none]
    #[arg(long, value_name = "ADDR,...")]
    ps: Option<String>,
    #[command(flatten)]
    ask: AskArgs,
}

/// Connection options of parameter servers.
#[derive(Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Parameter servers")]
pub struct AskArgs {
    /// File with the auth token of the servers [default: the generated token of this user]
    #[arg(long, value_name = "FILE")]
    ps_token_file: Option<PathBuf>,
    /// CA bundle (PEM) to verify servers; enables TLS
    #[arg(long, value_name = "FILE")]
    ps_ca_file: Option<PathBuf>,
    /// Use the addresses as given, without switching to shared memory or a unix socket on this host
    #[arg(long)]
    ps_no_local: bool,
    /// Send pulled rows in half precision: half the bytes, relative rounding error at most 2^-11
    #[arg(long)]
    ps_f16_rows: bool,
    /// Compression codec of requests and replies, for slow links: lz4 or zstd [default: none]
    #[arg(long, value_name = "CODEC", value_parser = compression)]
    ps_compression: Option<Compression>,
    /// Delay before a hedged second pull, such as 500us or p95 (95th percentile); at most 5 % of pulls [default: off]
    #[arg(long, value_name = "TIME|p95")]
    ps_hedge: Option<Hedge>,
    /// Replicas of a cluster that answer pulls, for example any; with any, rows may be a little old (ps --pull-staleness)
    /// [default: primary]
    #[arg(long, value_name = "primary|any")]
    ps_pull_from: Option<PullFrom>,
    /// Request timeout, also of an unreachable server, 10ms to 24h; overrides train.ps_timeout; if neither is given, the
    /// first connection has 5s [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    ps_timeout: Option<Duration>,
}

/// Parses a timeout and checks its bounds.
fn timeout(text: &str) -> Result<Duration, String> {
    let time = crate::quantity::time(text)?;
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&time) {
        return Err("must be 10ms to 24h".to_owned());
    }
    Ok(time)
}

impl ServerArgs {
    /// Connects to the servers of --ps. A signal ends the wait for servers that do not answer.
    pub fn connect(&self) -> Result<Option<Arc<Cluster>>, Failure> {
        self.connect_within(None)
    }

    /// Connects with the configuration's `timeout` unless `--ps-timeout` is given; otherwise like [`connect`](Self::connect).
    pub fn connect_within(&self, timeout: Option<Duration>) -> Result<Option<Arc<Cluster>>, Failure> {
        self.connect_traced(timeout, None)
    }

    /// [`connect_within`](Self::connect_within), with spans of sampled requests going to `spans`.
    pub fn connect_traced(
        &self,
        timeout: Option<Duration>,
        spans: Option<Arc<SpanQueue>>,
    ) -> Result<Option<Arc<Cluster>>, Failure> {
        let Some(text) = self.address()? else { return Ok(None) };
        if text.parse() == Ok(Address::Embedded) {
            return Ok(None);
        }
        let mut options = ConnectOptions { spans, ..self.ask.options_until_told()? };
        if let Some(timeout) = timeout.filter(|_| self.ask.ps_timeout.is_none()) {
            (options.timeout, options.connect_timeout) = (timeout, timeout);
        }
        match Cluster::of(text, options) {
            Err(ClientError::Address(error)) => Err(Failure::Usage(format!("--ps: {error}"))),
            cluster => Ok(Some(cluster?)),
        }
    }

    /// The addresses as given.
    pub fn address(&self) -> Result<Option<&str>, Failure> {
        if self.ps.is_none() && self.ask != AskArgs::default() {
            return Err(Failure::Usage(
                "the --ps-... options need --ps ADDR,..., the addresses of the servers".to_owned(),
            ));
        }
        Ok(self.ps.as_deref())
    }

    /// Connection options.
    pub fn ask(&self) -> &AskArgs {
        &self.ask
    }
}

impl AskArgs {
    /// Client options that end waiting for servers when the process gets a signal.
    pub fn options_until_told(&self) -> Result<ConnectOptions, Failure> {
        let stop = Some(Stop::flag(&crate::stop::told()));
        Ok(ConnectOptions { stop, ..self.options()? })
    }

    /// Client options.
    pub fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions {
            prefer_local: !self.ps_no_local,
            f16_rows: self.ps_f16_rows,
            compression: self.ps_compression,
            hedge: self.ps_hedge,
            pull_from: self.ps_pull_from.unwrap_or_default(),
            on_wait: Some(OnWait::new(|notice| note_line!("{notice}"))),
            ..ConnectOptions::default()
        };
        if let Some(timeout) = self.ps_timeout {
            (options.timeout, options.connect_timeout) = (timeout, timeout);
        }
        if let Some(path) = &self.ps_token_file {
            options.token =
                read_token(path).map_err(|error| Failure::Usage(format!("--ps-token-file {error}")))?;
        }
        if let Some(path) = &self.ps_ca_file {
            let tls = TlsClient::from_ca_file(path);
            options.tls = Some(tls.map_err(|error| Failure::Usage(format!("--ps-ca-file: {error}")))?);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_timeout_holds_for_the_first_connection_too() {
        let check = |given: Option<u64>, expected_s: [u64; 2]| {
            let ask = AskArgs { ps_timeout: given.map(Duration::from_secs), ..AskArgs::default() };
            let options = ask.options().expect("no files are named");
            let found = [options.timeout, options.connect_timeout].map(|timeout| timeout.as_secs());
            assert_eq!(found, expected_s, "{given:?}");
        };
        check(None, [20, 5]);
        check(Some(20), [20, 20]);
        check(Some(60), [60, 60]);
        check(Some(2), [2, 2]);
    }
}
