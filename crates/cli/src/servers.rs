//! Options about parameter servers, shared by the commands that talk to some.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use sanderling_client::{
    Address, Cluster, Compression, ConnectOptions, Hedge, TlsClient, addresses, compression,
};
use sanderling_learner::Model;

use crate::failure::Failure;

/// Where the parameter servers are, and how they are asked.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Parameter servers")]
pub(crate) struct ServerArgs {
    /// The tables are on these servers, all shards: host:port, tcp://host:port, unix:PATH or shm:NAME, with commas
    /// between them
    #[arg(long, value_name = "ADDR,...")]
    ps: Option<String>,
    /// The servers' token is in this file
    #[arg(long, value_name = "FILE", requires = "ps")]
    ps_token_file: Option<PathBuf>,
    /// Talk TLS, and trust servers whose certificate this one (PEM) has signed
    #[arg(long, value_name = "FILE", requires = "ps")]
    ps_ca: Option<PathBuf>,
    /// Use the addresses as they are, even if a server of this host offers a faster way
    #[arg(long, requires = "ps")]
    ps_no_local: bool,
    /// Have pulled rows travel in half precision: half the bytes, each value rounded to the nearest (relative error at
    /// most 2^-11)
    #[arg(long, requires = "ps")]
    ps_f16: bool,
    /// Compress what travels, for slow links: lz4 or zstd
    #[arg(long, value_name = "HOW", requires = "ps", value_parser = compression)]
    ps_compress: Option<Compression>,
    /// Ask once more, over a second connection, for a pull that takes longer than so many microseconds, or than 95 % of
    /// those before it (p95); at most 5 % of the pulls
    #[arg(long, value_name = "US|p95", requires = "ps")]
    ps_hedge: Option<Hedge>,
}

impl ServerArgs {
    /// A saved model, with its tables in this process, or as they are on the servers if any were named.
    pub(crate) fn model(&self, path: &Path) -> Result<Model, Failure> {
        Ok(match self.connect()? {
            Some(cluster) => Model::open_on_servers(path, &cluster)?,
            None => Model::load(path)?,
        })
    }

    /// The servers, if any were named.
    pub(crate) fn connect(&self) -> Result<Option<Arc<Cluster>>, Failure> {
        let Some(text) = self.address() else { return Ok(None) };
        let found = addresses(text).map_err(|error| Failure::Usage(format!("--ps: {error}")))?;
        if found == [Address::Embedded] {
            return Ok(None);
        }
        Ok(Some(Cluster::connect(&found, self.options()?)?))
    }

    /// Where they are, as it was given.
    pub(crate) fn address(&self) -> Option<&str> {
        self.ps.as_deref()
    }

    /// How they are asked.
    pub(crate) fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions {
            prefer_local: !self.ps_no_local,
            f16_rows: self.ps_f16,
            compression: self.ps_compress,
            hedge: self.ps_hedge,
            ..ConnectOptions::default()
        };
        if let Some(path) = &self.ps_token_file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("--ps-token-file {}: {error}", path.display())))?;
            text.trim().clone_into(&mut options.token);
        }
        if let Some(path) = &self.ps_ca {
            let tls = TlsClient::from_ca_file(path);
            options.tls = Some(tls.map_err(|error| Failure::Usage(format!("--ps-ca: {error}")))?);
        }
        Ok(options)
    }
}
