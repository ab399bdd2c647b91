//! The client of etcd 3.4 and later, by the JSON form of its API. Each change is sent once.
//!
//! Records of a cluster are under `/sanderling/CLUSTER/`. A revision is that of etcd.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::etcd_messages::{Event, Events, Failure, Header, KeyValue, Lease, Range, Streamed, Txn};
use crate::name::{check_prefix, check_record};
use crate::network::{Answer, Call, CallError, HttpClient};
use crate::options::Options;
use crate::protocol::{JsonText, check_delete, term_s};
use crate::registry::{Change, Edit, Listing, Outcome, Record, Registry, RegistryError, Watched};
use crate::url::RegistryUrl;

const OK: u16 = 200;
/// Codes of gRPC with which etcd refuses a request and has changed nothing.
const DEFINITE: [u64; 6] =
    [INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, 12, UNAUTHENTICATED];
const INVALID_ARGUMENT: u64 = 3;
const NOT_FOUND: u64 = 5;
const PERMISSION_DENIED: u64 = 7;
const RESOURCE_EXHAUSTED: u64 = 8;
const UNAUTHENTICATED: u64 = 16;

/// The records of one cluster in etcd.
pub(crate) struct Etcd {
    url: String,
    /// The members of etcd, as urls.
    members: Vec<String>,
    /// The member that answered last.
    member: AtomicUsize,
    /// Beginning of all keys of the cluster.
    root: String,
    user: Option<(String, String)>,
    http: HttpClient,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The number of this etcd.
    cluster: Option<String>,
    /// The token of the user, which etcd lets end.
    token: Option<String>,
}

/// Whether a request may change something, and what.
#[derive(Debug, Clone, Copy)]
enum Effect<'a> {
    None,
    Changes(&'a str),
}

/// Without the secrets.
impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Etcd {
    pub(crate) fn new(url: &RegistryUrl, cluster: &str, options: &Options) -> Result<Etcd, RegistryError> {
        let http = HttpClient::new(options, "date")?;
        let members = url.hosts.iter().map(|host| format!("{}://{host}/v3", http.scheme())).collect();
        let user = options.token.as_ref().map(|token| {
            let user = token.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()));
            user.ok_or_else(|| RegistryError::Invalid(format!("{url}: the token of etcd is USER:PASSWORD")))
        });
        Ok(Etcd {
            url: url.to_string(),
            members,
            member: AtomicUsize::new(0),
            root: format!("/sanderling/{cluster}/"),
            user: user.transpose()?,
            http,
            known: Mutex::default(),
        })
    }

    fn key(&self, name: &str) -> String {
        STANDARD.encode(format!("{}{name}", self.root))
    }

    /// The first key after all that begin with a prefix.
    fn end(&self, prefix: &str) -> String {
        let mut end = format!("{}{prefix}", self.root).into_bytes();
        // Names are ASCII, so there is a next byte.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        STANDARD.encode(end)
    }

    /// Asks a member, and the others only while none got the request.
    fn send(
        &self,
        path: &str,
        body: &Value,
        token: Option<&str>,
        deadline: Instant,
        is_enough: fn(&[u8]) -> bool,
    ) -> Result<Answer, CallError> {
        let first = self.member.load(Ordering::Relaxed);
        let mut last = CallError::NotSent("no time is left".to_owned());
        for at in 0..self.members.len() {
            let member = (first + at) % self.members.len();
            let within = deadline.saturating_duration_since(Instant::now());
            if within.is_zero() && at > 0 {
                break;
            }
            let call = Call {
                method: Method::POST,
                url: format!("{}{path}", self.members[member]),
                headers: token.iter().map(|token| ("authorization", (*token).to_owned())).collect(),
                body: Some(body.to_string()),
                within,
            };
            match self.http.call_until(call, is_enough) {
                Ok(answer) => {
                    self.member.store(member, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error @ CallError::Lost(_)) => {
                    // The next call goes to another member.
                    self.member.store((member + 1) % self.members.len(), Ordering::Relaxed);
                    return Err(error);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask(
        &self,
        path: &str,
        body: &Value,
        within: Duration,
        effect: Effect<'_>,
        is_enough: fn(&[u8]) -> bool,
    ) -> Result<Answer, RegistryError> {
        let deadline = Instant::now() + within;
        let token = self.token(deadline)?;
        let mut answer = self.send(path, body, token.as_deref(), deadline, is_enough);
        if token.is_some()
            && matches!(&answer, Ok(answer) if failure(answer).is_some_and(|found| found.code == UNAUTHENTICATED))
        {
            // It was refused, so it may be sent again.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).token = None;
            let token = self.token(deadline)?;
            answer = self.send(path, body, token.as_deref(), deadline, is_enough);
        }
        let answer = answer.map_err(|error| match error {
            CallError::NotSent(reason) => RegistryError::Unreachable { url: self.url.clone(), reason },
            CallError::Lost(reason) => self.lost(effect, reason),
        })?;
        match failure(&answer) {
            None => Ok(answer),
            Some(failure) => Err(self.refused(&failure, answer.status, effect)),
        }
    }

    fn refused(&self, failure: &Failure, status: u16, effect: Effect<'_>) -> RegistryError {
        let reason = match failure.words() {
            text if text.is_empty() => format!("no etcd answers there, but something with status {status}"),
            text => text,
        };
        match DEFINITE.contains(&failure.code) {
            true => RegistryError::Refused { url: self.url.clone(), reason },
            false => self.lost(effect, reason),
        }
    }

    fn lost(&self, effect: Effect<'_>, reason: String) -> RegistryError {
        let url = self.url.clone();
        match effect {
            Effect::None => RegistryError::Unreachable { url, reason },
            Effect::Changes(name) => RegistryError::Unknown { url, name: name.to_owned(), reason },
        }
    }

    /// The token of the user, if there is one.
    fn token(&self, deadline: Instant) -> Result<Option<String>, RegistryError> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        if let Some(token) = &self.known.lock().unwrap_or_else(PoisonError::into_inner).token {
            return Ok(Some(token.clone()));
        }
        let body = json!({ "name": name, "password": password });
        let unreachable = |reason| RegistryError::Unreachable { url: self.url.clone(), reason };
        let answer = self.send("/auth/authenticate", &body, None, deadline, |_| false);
        let answer = answer.map_err(|error| match error {
            CallError::NotSent(reason) | CallError::Lost(reason) => unreachable(reason),
        })?;
        if let Some(failure) = failure(&answer) {
            let reason = format!("user {name} is refused: {}", failure.words());
            return Err(RegistryError::Refused { url: self.url.clone(), reason });
        }
        let found: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let token =
            found["token"].as_str().ok_or_else(|| unreachable("the answer has no token".to_owned()))?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).token = Some(token.to_owned());
        Ok(Some(token.to_owned()))
    }

    fn parse<'a, T: Deserialize<'a>>(
        &self,
        body: &'a [u8],
        effect: Effect<'_>,
        header: fn(&T) -> &Header,
    ) -> Result<T, RegistryError> {
        let parsed: T = serde_json::from_slice(body)
            .map_err(|error| self.lost(effect, format!("the answer is damaged: {error}")))?;
        let found = match header(&parsed).cluster_id {
            // Only refusals come without.
            0 => return Ok(parsed),
            id => id.to_string(),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = known.cluster.get_or_insert_with(|| found.clone()).clone();
        match expected == found {
            true => Ok(parsed),
            false => Err(RegistryError::Another { url: self.url.clone(), expected, found }),
        }
    }

    fn record(&self, found: &KeyValue) -> Result<Record, RegistryError> {
        let name = self.name(found)?;
        let damaged =
            |reason: String| RegistryError::Damaged { url: self.url.clone(), name: name.clone(), reason };
        let bytes = STANDARD.decode(&found.value).map_err(|error| damaged(error.to_string()))?;
        let value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(format!("it is no JSON: {error}")))?;
        let lease = (found.lease != 0).then_some(found.lease);
        Ok(Record { name, revision: found.mod_revision, lease, value })
    }

    fn name(&self, found: &KeyValue) -> Result<String, RegistryError> {
        let key = STANDARD.decode(&found.key).ok().and_then(|key| String::from_utf8(key).ok());
        let name = key.as_deref().and_then(|key| key.strip_prefix(&*self.root)).map(str::to_owned);
        name.ok_or_else(|| RegistryError::Damaged {
            url: self.url.clone(),
            name: found.key.clone(),
            reason: "the key is none that was asked for".to_owned(),
        })
    }

    fn range(&self, body: &Value, within: Duration) -> Result<Listing, RegistryError> {
        let answer = self.ask("/kv/range", body, within, Effect::None, |_| false)?;
        let found: Range = self.parse(&answer.body, Effect::None, |found: &Range| &found.header)?;
        let records = found.kvs.iter().map(|found| self.record(found)).collect::<Result<_, _>>()?;
        Ok(Listing { revision: found.header.revision, records })
    }
}

/// The refusal in an answer.
fn failure(answer: &Answer) -> Option<Failure> {
    (answer.status != OK).then(|| serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// The first line of a watch's answer that says more than that it has begun.
fn told(body: &[u8]) -> Option<&[u8]> {
    let lines = body.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.into_iter().find(|line| {
        let found: Result<Streamed<Events>, _> = serde_json::from_slice(line);
        found.is_ok_and(|Streamed { result, error }| {
            error.is_some() || result.canceled || !result.events.is_empty()
        })
    })
}

impl Registry for Etcd {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn get(&self, name: &str, within: Duration) -> Result<Option<Record>, RegistryError> {
        check_record(name)?;
        Ok(self.range(&json!({ "key": self.key(name) }), within)?.records.pop())
    }

    fn list(&self, prefix: &str, within: Duration) -> Result<Listing, RegistryError> {
        check_prefix(prefix)?;
        self.range(&json!({ "key": self.key(prefix), "range_end": self.end(prefix) }), within)
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: u64,
        edit: Edit,
        within: Duration,
    ) -> Result<Outcome, RegistryError> {
        check_record(name)?;
        let key = self.key(name);
        let (change, lease) = match edit {
            Edit::Put { value, lease } => {
                if lease == Some(0) {
                    // For etcd that is no lease.
                    return Err(RegistryError::LeaseEnded { lease: 0 });
                }
                let value = STANDARD.encode(JsonText::new(name, &value)?.as_str());
                let lease_text = lease.unwrap_or_default().to_string();
                (json!({ "request_put": { "key": key, "value": value, "lease": lease_text } }), lease)
            }
            Edit::Delete => {
                check_delete(name, expected)?;
                (json!({ "request_delete_range": { "key": key } }), None)
            }
        };
        let expected = expected.to_string();
        let compare = json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": expected });
        let read = json!({ "request_range": { "key": key } });
        let body = json!({ "compare": [compare], "success": [change], "failure": [read] });
        let effect = Effect::Changes(name);
        let answer = self.ask("/kv/txn", &body, within, effect, |_| false);
        let answer = match (answer, lease) {
            (Err(RegistryError::Refused { reason, .. }), Some(lease))
                if reason.contains("lease not found") =>
            {
                return Err(RegistryError::LeaseEnded { lease });
            }
            (answer, _) => answer?,
        };
        let found: Txn = self.parse(&answer.body, effect, |found: &Txn| &found.header)?;
        if found.succeeded {
            return Ok(Outcome::Done(found.header.revision));
        }
        let mut present = found.responses.into_iter().filter_map(|response| response.response_range);
        let present = present.next().and_then(|mut range| range.kvs.pop());
        present.map(|found| self.record(&found)).transpose().map(Outcome::Other)
    }

    fn watch(&self, prefix: &str, after: u64, within: Duration) -> Result<Watched, RegistryError> {
        check_prefix(prefix)?;
        let start = (after + 1).to_string();
        let body = json!({ "create_request": {
            "key": self.key(prefix), "range_end": self.end(prefix), "start_revision": start,
        } });
        let answer = self.ask("/watch", &body, within, Effect::None, |body| told(body).is_some())?;
        let Some(line) = told(&answer.body) else {
            return Ok(Watched::Changes { changes: Vec::new(), after });
        };
        let found: Streamed<Events> =
            self.parse(line, Effect::None, |found: &Streamed<Events>| &found.result.header)?;
        if let Some(failure) = found.error {
            return Err(self.refused(&failure, answer.status, Effect::None));
        }
        let events = found.result;
        if events.compact_revision > 0 {
            return Ok(Watched::BeginAgain);
        }
        if events.canceled {
            let reason = format!("the watch was canceled: {}", events.cancel_reason);
            return Err(RegistryError::Refused { url: self.url.clone(), reason });
        }
        let change = |event: &Event| {
            let is_delete = event.r#type == "DELETE";
            let record = if is_delete { None } else { Some(self.record(&event.kv)?) };
            Ok(Change { name: self.name(&event.kv)?, revision: event.kv.mod_revision, record })
        };
        let changes = events.events.iter().map(change).collect::<Result<Vec<_>, RegistryError>>()?;
        let after = changes.iter().map(|change| change.revision).fold(after, u64::max);
        Ok(Watched::Changes { changes, after })
    }

    fn grant(&self, term: Duration, within: Duration) -> Result<u64, RegistryError> {
        let body = json!({ "TTL": term_s(term)?.to_string() });
        let answer = self.ask("/lease/grant", &body, within, Effect::None, |_| false)?;
        Ok(self.parse(&answer.body, Effect::None, |found: &Lease| &found.header)?.id)
    }

    fn keep_alive(&self, lease: u64, within: Duration) -> Result<bool, RegistryError> {
        let body = json!({ "ID": lease.to_string() });
        let whole_line = |body: &[u8]| body.ends_with(b"\n");
        let answer = self.ask("/lease/keepalive", &body, within, Effect::None, whole_line)?;
        let found: Streamed<Lease> =
            self.parse(&answer.body, Effect::None, |found: &Streamed<Lease>| &found.result.header)?;
        match found.error {
            Some(failure) => Err(self.refused(&failure, answer.status, Effect::None)),
            None => Ok(found.result.ttl > 0),
        }
    }

    fn revoke(&self, lease: u64, within: Duration) -> Result<(), RegistryError> {
        let (body, name) = (json!({ "ID": lease.to_string() }), format!("lease {lease}"));
        match self.ask("/lease/revoke", &body, within, Effect::Changes(&name), |_| false) {
            Err(RegistryError::Refused { reason, .. }) if reason.contains("lease not found") => Ok(()),
            answer => answer.map(|_| ()),
        }
    }
}
