//! Options of a job whose workers are commands of their own: rank, addresses, failure policy, security.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sanderling_client::{Address, TlsClient};
use sanderling_formats::input;
use sanderling_job::{Hosts, Observer, OnLoss, Options, Place, TlsServer};
use sanderling_learner::Config;
use sanderling_sample::key;

use crate::failure::Failure;
use crate::listening::note_unused_expose;
use crate::quantity;
use crate::token::read_token;

/// Longest wait of workers on several hosts for each other: a person starts them one by one. A dead worker is noticed
/// after `--worker-timeout`.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Rank of this command, and addresses of all workers.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Workers on several hosts")]
pub(crate) struct WorkerArgs {
    /// Rank of this worker, 0 to N-1; rank 0 validates and saves
    #[arg(long, value_name = "R", requires = "hosts")]
    rank: Option<u32>,
    /// Addresses of all workers by rank, comma-separated: host:port or unix:PATH; the same list on every worker
    #[arg(long, value_name = "ADDR,...", requires = "rank")]
    hosts: Option<String>,
    /// Restart count of the job, the same on every worker; add 1 with each --resume
    #[arg(long, value_name = "K", default_value_t = 0, requires = "hosts")]
    attempt: u32,
    /// Action when a worker is lost: redo (others take over its rows) or stop (restart with --resume)
    #[arg(long, value_name = "ACTION", default_value = "redo", requires = "hosts")]
    on_worker_loss: Loss,
    /// Time without a message after which a worker counts as lost, at least 1s
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "hosts")]
    worker_timeout: String,
    /// File with the shared auth token of the workers [default: no token]
    #[arg(long, value_name = "FILE", requires = "hosts")]
    worker_token_file: Option<PathBuf>,
    /// CA bundle (PEM) to verify workers; enables TLS, with --worker-cert-file
    #[arg(long, value_name = "FILE", requires_all = ["hosts", "worker_cert_file"])]
    worker_ca_file: Option<PathBuf>,
    /// Certificate chain of this worker (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["worker_key_file", "worker_ca_file"])]
    worker_cert_file: Option<PathBuf>,
    /// Private key of --worker-cert-file (PEM)
    #[arg(long, value_name = "FILE", requires = "worker_cert_file")]
    worker_key_file: Option<PathBuf>,
    /// Allow an own --hosts address that other machines reach; needs TLS and a token
    #[arg(long, requires = "hosts")]
    worker_expose: bool,
    /// Allow --worker-expose without TLS and token: any machine that reaches the port can join the job
    #[arg(long, requires = "worker_expose")]
    worker_insecure: bool,
}

/// [`OnLoss`] by name.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Loss {
    #[default]
    Redo,
    Stop,
}

fn usage(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--{what}: {error}"))
}

impl WorkerArgs {
    /// Rank of this worker; `None` if all workers are threads of this process.
    pub(crate) fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// Sets the options of a job; without --hosts nothing changes.
    pub(crate) fn apply(&self, config: &Config, words: &str, options: &mut Options) -> Result<(), Failure> {
        let (Some(rank), Some(hosts)) = (self.rank, &self.hosts) else { return Ok(()) };
        let hosts = addresses(hosts)?;
        let workers = hosts.len() as u32;
        if let Some(own) = hosts.get(rank as usize).filter(|_| self.worker_expose) {
            note_unused_expose("--worker-expose", std::slice::from_ref(own));
        }
        if options.workers != 1 && options.workers != workers {
            let asked = options.workers;
            return Err(usage(
                "workers",
                format!("{asked} (or train.threads), but --hosts names {workers}: leave both out"),
            ));
        }
        if rank >= workers {
            return Err(usage("rank", format!("{rank}, but --hosts names {workers}, numbered from 0")));
        }
        let token = self.worker_token_file.as_deref().map(token_in).transpose()?;
        let tls = self.worker_cert_file.as_ref().zip(self.worker_key_file.as_ref());
        let tls = tls.map(|(certificate, key)| TlsServer::from_files(certificate, key)).transpose();
        let trust = self.worker_ca_file.as_ref().map(|path| TlsClient::from_ca_file(path)).transpose();
        let silence = quantity::time(&self.worker_timeout).map_err(|error| usage("worker-timeout", error))?;
        if silence < Duration::from_secs(1) {
            return Err(usage("worker-timeout", "must be at least 1s"));
        }
        // Copies of a file on other machines may differ.
        let files = input::expand(&config.data.train.0)?;
        let bytes: Vec<Option<u64>> = files.iter().map(|file| file.bytes).collect();
        let same = format!("{words}\n{:?}\n{bytes:?}\n{}", self.on_worker_loss, config.to_toml());
        options.workers = workers;
        options.timeout = TIMEOUT;
        options.on_loss = if self.on_worker_loss == Loss::Redo { OnLoss::Redo } else { OnLoss::Stop };
        options.observer = Some(Observer(Arc::new(|event| note_line!("{event}"))));
        options.place = Place::Hosts(Hosts {
            attempt: self.attempt,
            token: token.unwrap_or_default(),
            tls: tls.map_err(|error| usage("worker-cert-file", error))?,
            trust: trust.map_err(|error| usage("worker-ca-file", error))?,
            expose: self.worker_expose,
            insecure: self.worker_insecure,
            silence,
            // A fingerprint of the options: workers with other options are refused.
            ..Hosts::new(rank, hosts, key::salt(&same))
        });
        Ok(())
    }
}

fn addresses(text: &str) -> Result<Vec<Address>, Failure> {
    let parse = |text: &str| match text.parse::<Address>() {
        Ok(address @ (Address::Tcp(_) | Address::Unix(_))) => Ok(address),
        Ok(other) => Err(usage("hosts", format!("{other}: workers listen at host:port or unix:PATH"))),
        Err(error) => Err(usage("hosts", error)),
    };
    text.split(',').map(parse).collect()
}

fn token_in(path: &Path) -> Result<String, Failure> {
    read_token(path).map_err(|error| usage("worker-token-file", error))
}
