//! The options of a job whose workers are processes of their own: where they are, which one this is, and what they must show each
//! other. Conversion only; the command line has the same options (`docs/distributed.md`).

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use sanderling_client::{Address, TlsClient};
use sanderling_job::{Hosts, JobEvent, Observer, OnLoss, Options, Place, TlsServer};
use sanderling_sample::key;

use crate::error::{ConfigError, FileError};
use crate::sources::Tls;

/// As they are given.
pub(super) struct HostWords<'a> {
    pub(super) hosts: Option<Vec<String>>,
    pub(super) rank: Option<u32>,
    pub(super) attempt: u32,
    pub(super) on_worker_loss: &'a str,
    pub(super) silence: Duration,
    pub(super) token: Option<String>,
    pub(super) tls: Option<Tls>,
    pub(super) expose: bool,
    pub(super) insecure: bool,
}

fn wrong(what: &str, reason: impl std::fmt::Display) -> PyErr {
    ConfigError::new_err(format!("{what}: {reason}"))
}

impl HostWords<'_> {
    /// Puts them into the options of a job; without hosts these stay as they are. `same` is what must be the same for all workers.
    pub(super) fn apply(self, has_connection: bool, same: &str, options: &mut Options) -> PyResult<()> {
        let (hosts, rank) = match (&self.hosts, self.rank) {
            (Some(hosts), Some(rank)) => (addresses(hosts)?, rank),
            (None, None) if has_connection || self.has_others() => {
                let reason = "left out, but options that only workers of several processes have are given";
                return Err(wrong("hosts", reason));
            }
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                return Err(wrong("rank", "given without hosts, the addresses of all workers"));
            }
            (Some(_), None) => {
                return Err(wrong("hosts", "given without rank: which of them is this process?"));
            }
        };
        let workers = hosts.len() as u32;
        if options.workers != 1 && options.workers != workers {
            let reason = format!("{}, but hosts names {workers}: leave it out", options.workers);
            return Err(wrong("workers", reason));
        }
        if rank >= workers {
            return Err(wrong("rank", format!("{rank}, but hosts names {workers}, numbered from 0")));
        }
        if !has_connection {
            let reason =
                "the workers of several processes meet at parameter servers: give sanderling.connect(...)";
            return Err(wrong("connection", reason));
        }
        if self.silence < Duration::from_secs(1) {
            return Err(wrong("worker_timeout_s", "at least 1: a busy machine is silent for moments"));
        }
        if self.token.as_ref().is_some_and(String::is_empty) {
            return Err(wrong("token", "empty"));
        }
        options.workers = workers;
        options.on_loss = match self.on_worker_loss {
            "redo" => OnLoss::Redo,
            "stop" => OnLoss::Stop,
            other => return Err(wrong("on_worker_loss", format!("{other:?} is none of 'redo', 'stop'"))),
        };
        options.observer = Some(Observer(Arc::new(warn)));
        let (tls, trust) = self.tls()?;
        options.place = Place::Hosts(Hosts {
            attempt: self.attempt,
            token: self.token.unwrap_or_default(),
            tls,
            trust,
            expose: self.expose,
            insecure: self.insecure,
            silence: self.silence,
            ..Hosts::new(rank, hosts, key::salt(&format!("{same} {}", self.on_worker_loss)))
        });
        Ok(())
    }

    fn has_others(&self) -> bool {
        self.token.is_some()
            || self.tls.is_some()
            || self.expose
            || self.attempt > 0
            || self.on_worker_loss != "stop"
    }

    fn tls(&self) -> PyResult<(Option<TlsServer>, Option<TlsClient>)> {
        let Some(files) = &self.tls else { return Ok((None, None)) };
        let (Some(certificate), Some(key)) = (&files.cert, &files.key) else {
            return Err(wrong("tls", "workers that talk TLS need all of ca, cert and key"));
        };
        let tls = TlsServer::from_files(certificate, key);
        let tls = tls.map_err(|error| FileError::new_err(error.to_string()))?;
        let trust = TlsClient::from_ca_file(&files.ca);
        Ok((Some(tls), Some(trust.map_err(|error| FileError::new_err(error.to_string()))?)))
    }
}

fn addresses(hosts: &[String]) -> PyResult<Vec<Address>> {
    let parse = |text: &String| match text.parse::<Address>() {
        Ok(address @ (Address::Tcp(_) | Address::Unix(_))) => Ok(address),
        Ok(other) => Err(wrong("hosts", format!("{other}: workers listen at host:port or unix:PATH"))),
        Err(error) => Err(wrong("hosts", error)),
    };
    hosts.iter().map(parse).collect()
}

/// Whom it could not reach or has turned away, who is slow or lost: a warning of the logger "sanderling".
fn warn(event: &JobEvent) {
    let warned = Python::try_attach(|py| -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", ("sanderling",))?;
        logger.call_method1("warning", ("%s", event.to_string()))?;
        Ok(())
    });
    // A handler that fails is no reason to stop a job, and the error cannot be reported elsewhere.
    drop(warned);
}
