//! HTTP requests behind blocking calls: the runtime of this process, TLS, time limits. Knows no registry.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Method;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::{Builder, Runtime};

use crate::limit::ANSWER_BYTES_MAX;
use crate::options::Options;
use crate::registry::RegistryError;

/// Threads of the runtime. It moves small records only.
const THREADS: usize = 1;
/// Longest wait for a connection, so that another server can be asked.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The runtime ends each call by itself. After this much more time it is taken for broken.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// The runtime of this process, with the process id: after a fork its threads are missing in the child.
static OF_PROCESS: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);

fn runtime() -> Result<Arc<Runtime>, CallError> {
    let mut held = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, runtime)) = &*held
        && *process == std::process::id()
    {
        return Ok(Arc::clone(runtime));
    }
    let runtime =
        Builder::new_multi_thread().worker_threads(THREADS).thread_name("registry").enable_all().build();
    let runtime = runtime.map_err(|error| CallError::NotSent(format!("no thread for requests: {error}")))?;
    let runtime = Arc::new(runtime);
    // The parent's runtime is leaked: dropping it would wait for threads that do not exist in this process.
    std::mem::forget(held.replace((std::process::id(), Arc::clone(&runtime))));
    Ok(runtime)
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The request did not reach the server.
    NotSent(String),
    /// The request may have reached the server.
    Lost(String),
}

/// A request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// JSON.
    pub(crate) body: Option<String>,
    pub(crate) within: Duration,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header that was asked for.
    pub(crate) header: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// A client of HTTP with open connections.
#[derive(Debug)]
pub(crate) struct HttpClient {
    tls: ClientConfig,
    has_tls: bool,
    /// The name of the header that answers are asked for.
    header: &'static str,
    /// The client of a process: connections belong to its runtime.
    client: Mutex<Option<(u32, reqwest::Client)>>,
}

impl HttpClient {
    pub(crate) fn new(options: &Options, header: &'static str) -> Result<HttpClient, RegistryError> {
        let tls = tls(options).map_err(RegistryError::Invalid)?;
        Ok(HttpClient { tls, has_tls: options.ca.is_some(), header, client: Mutex::default() })
    }

    /// The scheme of urls.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.has_tls { "https" } else { "http" }
    }

    fn client(&self) -> Result<reqwest::Client, CallError> {
        let mut held = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, client)) = &*held
            && *process == std::process::id()
        {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .http1_only()
            .no_proxy()
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .build()
            .map_err(|error| CallError::NotSent(words(&error)))?;
        // The connections of a parent process are its own: they are leaked and not closed.
        std::mem::forget(held.replace((std::process::id(), client.clone())));
        Ok(client)
    }

    /// Sends a request and reads its answer.
    pub(crate) fn call(&self, call: Call) -> Result<Answer, CallError> {
        self.call_until(call, |_| false)
    }

    /// Sends a request and reads its answer until `is_enough` of it is there. If it gets no end in time, it is what
    /// there is.
    pub(crate) fn call_until(
        &self,
        call: Call,
        is_enough: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> Result<Answer, CallError> {
        let (runtime, client) = (runtime()?, self.client()?);
        let Call { method, url, headers, body, within } = call;
        let header = self.header;
        let mut request = client.request(method, url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        block_on(&runtime, within, async move {
            let deadline = tokio::time::Instant::now() + within;
            let late = || CallError::Lost(format!("no answer within {} ms", within.as_millis()));
            let sent = tokio::time::timeout_at(deadline, request.send()).await.map_err(|_| late())?;
            let mut response = sent.map_err(|error| call_error(&error))?;
            let status = response.status().as_u16();
            let header = response.headers().get(header).and_then(|value| value.to_str().ok());
            let mut answer = Answer { status, header: header.map(str::to_owned), body: Vec::new() };
            loop {
                let chunk = match tokio::time::timeout_at(deadline, response.chunk()).await {
                    Ok(chunk) => chunk.map_err(|error| CallError::Lost(words(&error)))?,
                    // Part of an answer that has an end is none.
                    Err(_) if response.content_length().is_some() => return Err(late()),
                    Err(_) => None,
                };
                let Some(chunk) = chunk else { return Ok(answer) };
                if answer.body.len() + chunk.len() > ANSWER_BYTES_MAX {
                    return Err(CallError::Lost(format!(
                        "the answer has more than {ANSWER_BYTES_MAX} bytes"
                    )));
                }
                answer.body.extend_from_slice(&chunk);
                if is_enough(&answer.body) {
                    return Ok(answer);
                }
            }
        })
    }
}

/// Runs a request in the runtime and waits for it.
fn block_on<T: Send + 'static>(
    runtime: &Runtime,
    within: Duration,
    work: impl Future<Output = Result<T, CallError>> + Send + 'static,
) -> Result<T, CallError> {
    let (send, result) = sync_channel(1);
    let task = runtime.spawn(async move {
        // The channel has room for the one result, so this does not wait; the receiver may be gone.
        let _ = send.send(work.await);
    });
    result.recv_timeout(within.saturating_add(STUCK_AFTER)).unwrap_or_else(|_| {
        task.abort();
        Err(CallError::Lost("the request failed an internal check".to_owned()))
    })
}

fn call_error(error: &reqwest::Error) -> CallError {
    let text = words(error);
    match error.is_connect() || error.is_builder() {
        true => CallError::NotSent(text),
        false => CallError::Lost(text),
    }
}

/// The causes of an error, without the url, which the caller names.
fn words(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        let said = found.to_string();
        if !text.contains(&said) {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
        cause = found.source();
    }
    if text.is_empty() { "the request failed".to_owned() } else { text }
}

fn tls(options: &Options) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &options.ca {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| at(path, &error))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots);
    match &options.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, &error))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, private)
                .map_err(|error| at(certificate, &error))
        }
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(at(path, &"holds no certificate in PEM form")),
        Ok(all) => Ok(all),
        Err(error) => Err(at(path, &error)),
    }
}

fn at(path: &Path, reason: &dyn std::fmt::Display) -> String {
    format!("{}: {reason}", path.display())
}
