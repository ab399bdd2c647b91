//! Options about workers that are commands of their own: which one this is, where the others are, what becomes of the job when
//! one dies. Knows no algorithm.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sanderling_client::{Address, TlsClient};
use sanderling_job::{Hosts, Observer, OnLoss, Options, Place, TlsServer};
use sanderling_learner::Config;
use sanderling_sample::{input, key};

use crate::failure::Failure;
use crate::quantity;
use crate::token::read_token;

/// How long workers on several hosts wait for each other, each time: a person starts them, one after the other. Whoever dies
/// is noticed much sooner.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Which of several commands this is, and where the others are.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Workers on several hosts")]
pub(crate) struct WorkerArgs {
    /// Which worker this command is, from 0; worker 0 validates and saves
    #[arg(long, value_name = "R", requires = "hosts")]
    rank: Option<u32>,
    /// Where every worker listens for the others, in the order of ranks: host:port or unix:PATH, with commas between them; the
    /// same for all
    #[arg(long, value_name = "ADDR,...", requires = "rank")]
    hosts: Option<String>,
    /// How often the job was started before; the same for all
    #[arg(long, value_name = "K", default_value_t = 0, requires = "hosts")]
    attempt: u32,
    /// What the others do when a worker dies: go on without it, with its rows; or stop, so that the job can be started again
    /// with --resume
    #[arg(long, value_name = "HOW", default_value = "redo", requires = "hosts")]
    on_worker_loss: Loss,
    /// A worker that says nothing for so long is taken for dead
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "hosts")]
    worker_timeout: String,
    /// What workers must say to each other is in this file
    #[arg(long, value_name = "FILE", requires = "hosts")]
    worker_token_file: Option<PathBuf>,
    /// Talk TLS, and trust workers whose certificate this one (PEM) has signed
    #[arg(long, value_name = "FILE", requires_all = ["hosts", "worker_tls_cert"])]
    worker_ca: Option<PathBuf>,
    /// Certificate chain of this worker, PEM
    #[arg(long, value_name = "FILE", requires_all = ["worker_tls_key", "worker_ca"])]
    worker_tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "worker_tls_cert")]
    worker_tls_key: Option<PathBuf>,
    /// Let workers of other machines connect; needs TLS and a token
    #[arg(long, requires = "hosts")]
    worker_expose: bool,
    /// Let them connect without TLS and token: whoever reaches the port can take part
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
    /// Which worker this is; `None`: all are threads of this process.
    pub(crate) fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// Puts what was asked for into the options of a job; without --hosts they stay as they are.
    pub(crate) fn apply(&self, config: &Config, words: &str, options: &mut Options) -> Result<(), Failure> {
        let (Some(rank), Some(hosts)) = (self.rank, &self.hosts) else { return Ok(()) };
        let hosts = addresses(hosts)?;
        let workers = hosts.len() as u32;
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
        let tls = self.worker_tls_cert.as_ref().zip(self.worker_tls_key.as_ref());
        let tls = tls.map(|(certificate, key)| TlsServer::from_files(certificate, key)).transpose();
        let trust = self.worker_ca.as_ref().map(|path| TlsClient::from_ca_file(path)).transpose();
        let silence = quantity::time(&self.worker_timeout).map_err(|error| usage("worker-timeout", error))?;
        if silence < Duration::from_secs(1) {
            return Err(usage("worker-timeout", "at least 1s: a busy machine is silent for moments"));
        }
        // Copies of a file on other machines may be older.
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
            tls: tls.map_err(|error| usage("worker-tls-cert", error))?,
            trust: trust.map_err(|error| usage("worker-ca", error))?,
            expose: self.worker_expose,
            insecure: self.worker_insecure,
            silence,
            // A number that differs where anything does, the same on all machines.
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
