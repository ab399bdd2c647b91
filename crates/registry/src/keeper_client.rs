//! The client of `sanderling keeper`: JSON over HTTP. Each request is sent once.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde::de::DeserializeOwned;

use crate::limit::WAIT_MAX;
use crate::name::{check_prefix, check_record};
use crate::network::{Answer, Call, CallError, HttpClient};
use crate::options::Options;
use crate::protocol::{
    Changes, Granted, JsonText, KEEPER_HEADER, Kept, Read, Refusal, Set, Term, check_delete, term_s,
};
use crate::registry::{Edit, Listing, Outcome, Record, Registry, RegistryError, Watched};
use crate::url::RegistryUrl;

/// Time of a watch's request beyond the time that the keeper waits.
const WATCH_SLACK: Duration = Duration::from_secs(5);
const OK: u16 = 200;
const CONFLICT: u16 = 409;
const GONE: u16 = 410;

/// The records of one cluster at a keeper.
pub(crate) struct KeeperClient {
    url: String,
    base: String,
    cluster: String,
    token: Option<String>,
    http: HttpClient,
    /// The number of the keeper, after its first answer.
    keeper: Mutex<Option<String>>,
}

/// Without the secrets.
impl fmt::Debug for KeeperClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeeperClient").field("url", &self.url).finish_non_exhaustive()
    }
}

impl KeeperClient {
    pub(crate) fn new(
        url: &RegistryUrl,
        cluster: &str,
        options: &Options,
    ) -> Result<KeeperClient, RegistryError> {
        let http = HttpClient::new(options, KEEPER_HEADER)?;
        let base = format!("{}://{}/v1", http.scheme(), url.hosts[0]);
        let (url, cluster, token) = (url.to_string(), cluster.to_owned(), options.token.clone());
        Ok(KeeperClient { url, base, cluster, token, http, keeper: Mutex::default() })
    }

    /// Sends a request. `changes` has the record or lease that it changes, if any.
    fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        within: Duration,
        changes: Option<&str>,
    ) -> Result<Answer, RegistryError> {
        let lost = |reason| match changes {
            Some(name) => RegistryError::Unknown { url: self.url.clone(), name: name.to_owned(), reason },
            None => RegistryError::Unreachable { url: self.url.clone(), reason },
        };
        let expected = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut headers = Vec::new();
        headers.extend(self.token.iter().map(|token| ("authorization", format!("Bearer {token}"))));
        headers.extend(expected.iter().map(|keeper| (KEEPER_HEADER, keeper.clone())));
        let url = format!("{}{path}", self.base);
        let answer = match self.http.call(Call { method, url, headers, body, within }) {
            Ok(answer) => answer,
            Err(CallError::NotSent(reason)) => {
                return Err(RegistryError::Unreachable { url: self.url.clone(), reason });
            }
            Err(CallError::Lost(reason)) => return Err(lost(reason)),
        };
        let Some(found) = answer.header.clone() else {
            return Err(lost(format!(
                "no keeper answers there, but something with status {}",
                answer.status
            )));
        };
        match expected {
            Some(expected) if expected != found => {
                return Err(RegistryError::Another { url: self.url.clone(), expected, found });
            }
            Some(_) => {}
            // Without the token its number is not told for sure, and another keeper may be meant.
            None if answer.status < 400 => {
                *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            }
            None => {}
        }
        if [OK, CONFLICT, GONE].contains(&answer.status) {
            return Ok(answer);
        }
        let refusal: Refusal = serde_json::from_slice(&answer.body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&answer.body).trim().chars().take(200).collect();
            Refusal { error: text, unknown: answer.status >= 500, lease_ended: None }
        });
        let reason = format!("{} (status {})", refusal.error, answer.status);
        Err(match refusal {
            Refusal { lease_ended: Some(lease), .. } => RegistryError::LeaseEnded { lease },
            Refusal { unknown: true, .. } => lost(reason),
            _ if answer.status == 400 => RegistryError::Invalid(format!("registry {}: {reason}", self.url)),
            _ => RegistryError::Refused { url: self.url.clone(), reason },
        })
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: &Answer,
        name: &str,
        is_change: bool,
    ) -> Result<T, RegistryError> {
        serde_json::from_slice(&answer.body).map_err(|error| {
            let (url, name) = (self.url.clone(), name.to_owned());
            let reason = format!("the answer is damaged: {error}");
            match is_change {
                true => RegistryError::Unknown { url, name, reason },
                false => RegistryError::Unreachable { url, reason },
            }
        })
    }

    fn record_path(&self, name: &str) -> String {
        format!("/clusters/{}/records/{name}", self.cluster)
    }
}

impl Registry for KeeperClient {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn get(&self, name: &str, within: Duration) -> Result<Option<Record>, RegistryError> {
        check_record(name)?;
        let answer = self.ask(Method::GET, &self.record_path(name), None, within, None)?;
        Ok(self.read::<Read>(&answer, name, false)?.record)
    }

    fn list(&self, prefix: &str, within: Duration) -> Result<Listing, RegistryError> {
        check_prefix(prefix)?;
        let path = format!("/clusters/{}/records?prefix={prefix}", self.cluster);
        let answer = self.ask(Method::GET, &path, None, within, None)?;
        self.read(&answer, prefix, false)
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: u64,
        edit: Edit,
        within: Duration,
    ) -> Result<Outcome, RegistryError> {
        check_record(name)?;
        let mut path = format!("{}?revision={expected}", self.record_path(name));
        let (method, body) = match edit {
            Edit::Put { value, lease } => {
                if let Some(lease) = lease {
                    path = format!("{path}&lease={lease}");
                }
                (Method::PUT, Some(JsonText::new(name, &value)?.as_str().to_owned()))
            }
            Edit::Delete => {
                check_delete(name, expected)?;
                (Method::DELETE, None)
            }
        };
        let answer = self.ask(method, &path, body, within, Some(name))?;
        Ok(match self.read(&answer, name, true)? {
            Set::Done(revision) => Outcome::Done(revision),
            Set::Other(present) => Outcome::Other(present),
        })
    }

    fn watch(&self, prefix: &str, after: u64, within: Duration) -> Result<Watched, RegistryError> {
        check_prefix(prefix)?;
        let deadline = Instant::now() + within;
        let mut after = after;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now()).min(WAIT_MAX);
            let path = format!(
                "/clusters/{}/changes?prefix={prefix}&after={after}&wait_ms={}",
                self.cluster,
                wait.as_millis()
            );
            let answer = self.ask(Method::GET, &path, None, wait + WATCH_SLACK, None)?;
            if answer.status == GONE {
                return Ok(Watched::BeginAgain);
            }
            let found: Changes = self.read(&answer, prefix, false)?;
            after = found.after;
            if !found.changes.is_empty() || Instant::now() >= deadline {
                return Ok(Watched::Changes { changes: found.changes, after });
            }
        }
    }

    fn grant(&self, term: Duration, within: Duration) -> Result<u64, RegistryError> {
        let term = Term { term_s: term_s(term)? };
        let body = serde_json::to_string(&term).map_err(|error| RegistryError::Invalid(error.to_string()))?;
        // A lease whose answer is lost ends by itself, so nothing is left open.
        let answer = self.ask(Method::POST, "/leases", Some(body), within, None)?;
        Ok(self.read::<Granted>(&answer, "lease", false)?.lease)
    }

    fn keep_alive(&self, lease: u64, within: Duration) -> Result<bool, RegistryError> {
        let path = format!("/leases/{lease}/keep-alive");
        let answer = self.ask(Method::POST, &path, Some("{}".to_owned()), within, None)?;
        Ok(self.read::<Kept>(&answer, "lease", false)?.kept)
    }

    fn revoke(&self, lease: u64, within: Duration) -> Result<(), RegistryError> {
        let name = format!("lease {lease}");
        let answer = self.ask(Method::DELETE, &format!("/leases/{lease}"), None, within, Some(&name))?;
        self.read::<Kept>(&answer, &name, true).map(|_| ())
    }
}
