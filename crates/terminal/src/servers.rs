//! Options about parameter servers, shared by the commands that talk to some.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sanderling_client::{
    Address, Cluster, Compression, ConnectOptions, Hedge, OnWait, Stop, TlsClient, addresses, compression,
};

use crate::failure::Failure;
use crate::token::read_token;

/// Bounds of `--ps-timeout`.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Where the parameter servers are, and how they are asked.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Parameter servers")]
pub struct ServerArgs {
    /// Addresses of all parameter servers, separated by commas: host:port, tcp://host:port, unix:PATH or shm:NAME
    #[arg(long, value_name = "ADDR,...")]
    ps: Option<String>,
    #[command(flatten)]
    ask: AskArgs,
}

/// How parameter servers are asked, whichever they are.
#[derive(Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Parameter servers")]
pub struct AskArgs {
    /// The servers' token is in this file
    #[arg(long, value_name = "FILE")]
    ps_token_file: Option<PathBuf>,
    /// Talk TLS, and trust servers whose certificate this one (PEM) has signed
    #[arg(long, value_name = "FILE")]
    ps_ca: Option<PathBuf>,
    /// Use the addresses as they are, even if a server of this host offers a faster way
    #[arg(long)]
    ps_no_local: bool,
    /// Have pulled rows travel in half precision: half the bytes, each value rounded to the nearest (relative error at
    /// most 2^-11)
    #[arg(long)]
    ps_f16: bool,
    /// Compress what travels, for slow links: lz4 or zstd
    #[arg(long, value_name = "HOW", value_parser = compression)]
    ps_compress: Option<Compression>,
    /// Send a pull again over a second connection after this many microseconds, or after the time of 95 % of earlier
    /// pulls (p95); at most 5 % of the pulls
    #[arg(long, value_name = "US|p95")]
    ps_hedge: Option<Hedge>,
    /// Time limit of a request, and of waiting for a server that is away, such as 20s or 5m [default: train.ps_timeout_s, 20s]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    ps_timeout: Option<Duration>,
}

/// A time within the bounds.
fn timeout(text: &str) -> Result<Duration, String> {
    let time = crate::quantity::time(text)?;
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&time) {
        return Err("10ms to 24h are possible".to_owned());
    }
    Ok(time)
}

impl ServerArgs {
    /// The servers, if any were named. Those that are silent are waited for no longer once the process is told to stop.
    pub fn connect(&self) -> Result<Option<Arc<Cluster>>, Failure> {
        self.connect_within(None)
    }

    /// Connects as [`connect`](Self::connect) does; `timeout` is the configuration's, for a command line without `--ps-timeout`.
    pub fn connect_within(&self, timeout: Option<Duration>) -> Result<Option<Arc<Cluster>>, Failure> {
        let Some(text) = self.address()? else { return Ok(None) };
        let found = addresses(text).map_err(|error| Failure::Usage(format!("--ps: {error}")))?;
        if found == [Address::Embedded] {
            return Ok(None);
        }
        let mut options = self.ask.options_until_told()?;
        if let Some(timeout) = timeout.filter(|_| self.ask.ps_timeout.is_none()) {
            options.timeout = timeout;
        }
        Ok(Some(Cluster::connect(&found, options)?))
    }

    /// Where they are, as it was given.
    pub fn address(&self) -> Result<Option<&str>, Failure> {
        if self.ps.is_none() && self.ask != AskArgs::default() {
            return Err(Failure::Usage(
                "the options --ps-... say how servers are asked: name some with --ps".to_owned(),
            ));
        }
        Ok(self.ps.as_deref())
    }

    /// How they are asked.
    pub fn ask(&self) -> &AskArgs {
        &self.ask
    }
}

impl AskArgs {
    /// Connection options with which silent servers are no longer waited for once the process is told to stop.
    pub fn options_until_told(&self) -> Result<ConnectOptions, Failure> {
        let stop = Some(Stop::flag(&crate::stop::told()));
        Ok(ConnectOptions { stop, ..self.options()? })
    }

    /// As the client takes them.
    pub fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions {
            prefer_local: !self.ps_no_local,
            f16_rows: self.ps_f16,
            compression: self.ps_compress,
            hedge: self.ps_hedge,
            on_wait: Some(OnWait::new(|waiting| note_line!("{waiting}"))),
            ..ConnectOptions::default()
        };
        options.timeout = self.ps_timeout.unwrap_or(options.timeout);
        if let Some(path) = &self.ps_token_file {
            options.token =
                read_token(path).map_err(|error| Failure::Usage(format!("--ps-token-file {error}")))?;
        }
        if let Some(path) = &self.ps_ca {
            let tls = TlsClient::from_ca_file(path);
            options.tls = Some(tls.map_err(|error| Failure::Usage(format!("--ps-ca: {error}")))?);
        }
        Ok(options)
    }
}
