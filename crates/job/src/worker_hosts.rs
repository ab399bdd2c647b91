//! Addresses of workers that are processes of their own, and how they trust each other. Opens no connection.

use std::time::Duration;

use sanderling_transport::{Address, TlsClient, TlsServer};
use sanderling_wire::{Join, Way};

use crate::error::JobError;

/// Where the workers of a job are that are processes of their own, and which one this is.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Which worker this is, from 0.
    pub rank: u32,
    /// Attempt of the job, equal for all of its workers; increases with each restart.
    pub attempt: u32,
    /// Listen address of each worker, by rank: one TCP endpoint or unix socket each.
    ///
    /// Workers of higher rank connect to it.
    pub hosts: Vec<Address>,
    /// Made of everything that must be the same for all workers: configuration, input, options.
    pub job: u64,
    /// Shared auth token, or empty.
    pub token: String,
    /// Certificate and key, for TLS on TCP.
    pub tls: Option<TlsServer>,
    /// Whom to trust, for TLS on TCP.
    pub trust: Option<TlsClient>,
    /// May this worker listen where other machines can reach it?
    pub expose: bool,
    /// May it do so without TLS and token?
    pub insecure: bool,
    /// A worker that says nothing for so long is taken for dead.
    pub silence: Duration,
}

/// Default of [`Hosts::silence`].
pub const SILENCE_DEFAULT: Duration = Duration::from_secs(30);

impl Hosts {
    /// The first attempt, on loopback addresses or unix sockets, without a token.
    #[must_use]
    pub fn new(rank: u32, hosts: Vec<Address>, job: u64) -> Hosts {
        Hosts {
            rank,
            attempt: 0,
            hosts,
            job,
            token: String::new(),
            tls: None,
            trust: None,
            expose: false,
            insecure: false,
            silence: SILENCE_DEFAULT,
        }
    }

    pub(crate) fn check(&self, workers: u32) -> Result<(), JobError> {
        let found = self.hosts.len();
        let reason = if found != workers as usize {
            format!("{found} addresses of workers for a job of {workers}: every worker has one")
        } else if self.rank >= workers {
            format!("worker {} of {workers}: ranks are numbered from 0", self.rank)
        } else if let Some(at) =
            self.hosts.iter().position(|host| self.hosts.iter().filter(|other| *other == host).count() > 1)
        {
            format!("two workers at {}: every worker has an address of its own", self.hosts[at])
        } else {
            return Ok(());
        };
        Err(JobError::Options(reason))
    }

    pub(crate) fn join(&self, way: Way) -> Join {
        let Hosts { rank, attempt, job, .. } = *self;
        Join { job, rank, workers: self.hosts.len() as u32, attempt, way }
    }

    pub(crate) fn error(&self, worker: u32, reason: impl Into<String>) -> JobError {
        let address = self.hosts[worker as usize].to_string();
        JobError::Worker { worker, address, reason: reason.into() }
    }
}
