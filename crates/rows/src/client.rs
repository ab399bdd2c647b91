//! The client: cache, replicas, second requests, answers of one version.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

use sanderling_random::SplitMix64;
use sanderling_transport::TlsClient;

use crate::answer::decode;
use crate::cache::RowCache;
use crate::connection::{Connection, Reply, first_readable};
use crate::hedge::{Hedge, Hedger};
use crate::route::{order, replica_hash};

/// Keys per request, as many as a server takes by default.
const KEYS_MAX: usize = 4096;
/// Tries of a read whose rows came from two versions.
const TRIES: usize = 4;
/// Time for which a replica that failed is asked last.
const AVOID: Duration = Duration::from_secs(1);

/// Where and how to read.
#[derive(Debug, Clone)]
pub struct Options {
    /// Servers as `host:port`, replicas of each other.
    pub replicas: Vec<String>,
    /// Model by name, also pinned as in `clicks@12`; empty: the only one.
    pub model: String,
    /// The token of the servers.
    pub token: Option<String>,
    /// The authorities by which servers are verified; enables TLS.
    pub tls: Option<TlsClient>,
    /// Time limit of a read.
    pub timeout: Duration,
    /// Age up to which a row is taken from the cache; zero: no cache.
    pub age_max: Duration,
    /// Memory of the cache per table.
    pub cache_bytes: usize,
    /// When another replica is asked, too; at most 5 % of the requests are repeated.
    pub hedge: Option<Hedge>,
}

impl Options {
    /// One or several replicas, without a cache and without second requests.
    pub fn new(replicas: impl IntoIterator<Item = impl Into<String>>) -> Options {
        Options {
            replicas: replicas.into_iter().map(Into::into).collect(),
            model: String::new(),
            token: None,
            tls: None,
            timeout: Duration::from_secs(1),
            age_max: Duration::ZERO,
            cache_bytes: 64 << 20,
            hedge: None,
        }
    }
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// An option is wrong.
    #[error("{0}")]
    Options(String),
    /// No replica answered in time.
    #[error("{replica}: {source}")]
    Io {
        /// The last replica.
        replica: String,
        /// Its error.
        source: io::Error,
    },
    /// A server refused the request.
    #[error("{replica}: {status}: {text}")]
    Refused {
        /// The server.
        replica: String,
        /// HTTP status.
        status: u16,
        /// Its reason.
        text: String,
    },
    /// The bytes of an answer are malformed.
    #[error("{replica}: the answer is malformed: {reason}")]
    Answer {
        /// The server.
        replica: String,
        /// The first problem.
        reason: &'static str,
    },
    /// Versions changed during each try.
    #[error("the version of the model changed during each of {TRIES} tries; ask replicas of one version")]
    Versions,
}

/// Rows of one version, in the order of the keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// Version of the model.
    pub version: u64,
    /// Weights per row.
    pub dim: usize,
    /// Row by row; zeros where a key has none.
    pub weights: Vec<f32>,
    /// Places of keys without a row, ascending.
    pub absent: Vec<usize>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Keys that the cache had.
    pub hits: u64,
    /// Keys that servers were asked for.
    pub misses: u64,
    /// Changes of a version, each of which emptied a table's cache.
    pub flips: u64,
    /// Requests to servers.
    pub requests: u64,
    /// Second requests.
    pub hedged: u64,
    /// Second requests whose answer came first.
    pub hedges_won: u64,
}

#[derive(Debug)]
struct Replica {
    name: String,
    hash: u64,
    connection: Option<Connection>,
    failed: Option<Instant>,
}

#[derive(Debug)]
struct CachedTable {
    version: u64,
    dim: usize,
    rows: RowCache,
}

/// Reads rows, for one thread.
#[derive(Debug)]
pub struct RowsClient {
    options: Options,
    replicas: Vec<Replica>,
    tables: HashMap<String, CachedTable>,
    hedger: Hedger,
    /// Spreads requests without a user.
    numbers: SplitMix64,
    started: Instant,
    statistics: Statistics,
}

impl RowsClient {
    /// Prepares a client; it connects with the first read.
    ///
    /// # Errors
    /// There is no replica, or the token has control characters.
    pub fn new(options: Options) -> Result<RowsClient, RowsError> {
        let wrong = |text: &str| Err(RowsError::Options(text.to_owned()));
        if options.replicas.is_empty() {
            return wrong("give the address of a server");
        }
        if options.token.as_deref().is_some_and(|token| token.contains(char::is_control)) {
            return wrong("the token has control characters");
        }
        let replica = |name: &String| Replica {
            name: name.clone(),
            hash: replica_hash(name),
            connection: None,
            failed: None,
        };
        Ok(RowsClient {
            replicas: options.replicas.iter().map(replica).collect(),
            tables: HashMap::new(),
            hedger: Hedger::new(options.hedge),
            numbers: SplitMix64::new(std::process::id().into()),
            started: Instant::now(),
            statistics: Statistics::default(),
            options,
        })
    }

    /// Counts since the start.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The rows of keys of a table. With a user, one replica answers all reads of this user while it can.
    ///
    /// # Errors
    /// No replica answered in time, or a server refused the request.
    pub fn rows(&mut self, table: &str, keys: &[u64], user: Option<u64>) -> Result<Rows, RowsError> {
        let deadline = Instant::now() + self.options.timeout;
        let order = self.order(user);
        for _ in 0..TRIES {
            let now = self.started.elapsed();
            let (mut rows, missing) = self.cached(table, keys, now);
            if missing.is_empty() && !keys.is_empty() {
                self.statistics.hits += keys.len() as u64;
                return Ok(rows);
            }
            let asked: Vec<u64> = missing.iter().map(|at| keys[*at]).collect();
            let Some(fetched) = self.fetch(table, &asked, &order, deadline)? else { continue };
            self.keep(table, &asked, &fetched, now);
            if missing.len() == keys.len() {
                self.statistics.misses += keys.len() as u64;
                return Ok(fetched);
            }
            if (fetched.version, fetched.dim) != (rows.version, rows.dim) {
                // The cached rows are of another version.
                continue;
            }
            self.statistics.hits += (keys.len() - missing.len()) as u64;
            self.statistics.misses += missing.len() as u64;
            for (weights, at) in fetched.weights.chunks_exact(fetched.dim.max(1)).zip(&missing) {
                rows.weights[at * rows.dim..(at + 1) * rows.dim].copy_from_slice(weights);
            }
            rows.absent.extend(fetched.absent.iter().map(|place| missing[*place]));
            rows.absent.sort_unstable();
            return Ok(rows);
        }
        Err(RowsError::Versions)
    }

    /// The cached rows of the keys, and the places of the other keys.
    fn cached(&mut self, table: &str, keys: &[u64], now: Duration) -> (Rows, Vec<usize>) {
        let Some(cached) = self.tables.get_mut(table) else {
            return (Rows::default(), (0..keys.len()).collect());
        };
        let (version, dim) = (cached.version, cached.dim);
        let mut rows = Rows { version, dim, weights: vec![0.0; keys.len() * dim], absent: Vec::new() };
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match cached.rows.get(now, *key) {
                Some(Some(weights)) => rows.weights[at * dim..(at + 1) * dim].copy_from_slice(weights),
                Some(None) => rows.absent.push(at),
                None => missing.push(at),
            }
        }
        (rows, missing)
    }

    /// Keeps what a server answered; another version empties the cache first.
    fn keep(&mut self, table: &str, keys: &[u64], rows: &Rows, now: Duration) {
        if self.options.age_max.is_zero() || rows.dim == 0 {
            return;
        }
        let (version, dim) = (rows.version, rows.dim);
        let is_same = |cached: &CachedTable| (cached.version, cached.dim) == (version, dim);
        if !self.tables.get(table).is_some_and(is_same) {
            let cache = RowCache::new(dim, self.options.cache_bytes, self.options.age_max);
            let before = self.tables.insert(table.to_owned(), CachedTable { version, dim, rows: cache });
            self.statistics.flips += u64::from(before.is_some());
        }
        let Some(cached) = self.tables.get_mut(table) else { return };
        let mut absent = rows.absent.iter().peekable();
        for (at, (key, weights)) in keys.iter().zip(rows.weights.chunks_exact(dim)).enumerate() {
            let is_absent = absent.next_if_eq(&&at).is_some();
            cached.rows.put(now, *key, (!is_absent).then_some(weights));
        }
    }

    /// Replicas by number, the first choice first; those that failed lately come last.
    fn order(&mut self, user: Option<u64>) -> Vec<usize> {
        let user = user.unwrap_or_else(|| self.numbers.next());
        let hashes: Vec<u64> = self.replicas.iter().map(|replica| replica.hash).collect();
        let mut order = order(&hashes, user);
        order.sort_by_key(|at| self.replicas[*at].failed.is_some_and(|failed| failed.elapsed() < AVOID));
        order
    }

    /// Asks servers for rows; `None` if parts of the answer are of different versions.
    fn fetch(
        &mut self,
        table: &str,
        keys: &[u64],
        order: &[usize],
        deadline: Instant,
    ) -> Result<Option<Rows>, RowsError> {
        let mut all: Option<Rows> = None;
        let parts: Vec<&[u64]> = if keys.is_empty() { vec![keys] } else { keys.chunks(KEYS_MAX).collect() };
        for keys in parts {
            let (replica, reply) = self.ask(table, keys, order, deadline)?;
            let name = &self.replicas[replica].name;
            if reply.status != 200 {
                let text = String::from_utf8_lossy(&reply.body).trim().chars().take(200).collect();
                return Err(RowsError::Refused { replica: name.clone(), status: reply.status, text });
            }
            let part = decode(&reply.body, keys.len())
                .map_err(|reason| RowsError::Answer { replica: name.clone(), reason })?;
            match &mut all {
                None => all = Some(part),
                Some(all) if (all.version, all.dim) == (part.version, part.dim) => {
                    let before = all.weights.len() / all.dim.max(1);
                    all.weights.extend_from_slice(&part.weights);
                    all.absent.extend(part.absent.iter().map(|at| before + at));
                }
                Some(_) => return Ok(None),
            }
        }
        Ok(all)
    }

    /// Sends a request to the first replica that takes it, and perhaps to a second one; returns the first answer.
    fn ask(
        &mut self,
        table: &str,
        keys: &[u64],
        order: &[usize],
        deadline: Instant,
    ) -> Result<(usize, Reply), RowsError> {
        let mut failed = None;
        let wait = self.hedger.wait();
        for (place, at) in order.iter().enumerate() {
            let started = Instant::now();
            let answered = self.begin(*at, table, keys, deadline).and_then(|connection| {
                let next = order.get(place + 1).copied();
                let hedged = wait.zip(next).filter(|_| place == 0);
                self.finish((*at, connection), hedged, (table, keys), deadline)
            });
            match answered {
                // A replica that is overloaded, loads or drains: another one may answer.
                Ok((replica, reply)) if reply.status == 503 && place + 1 < order.len() => {
                    self.replicas[replica].failed = Some(Instant::now());
                }
                Ok(answer) => {
                    self.hedger.note(started.elapsed());
                    return Ok(answer);
                }
                Err(error) => {
                    self.replicas[*at].failed = Some(Instant::now());
                    failed = Some((*at, error));
                }
            }
        }
        let (at, source) = failed.unwrap_or_else(|| (0, io::ErrorKind::NotConnected.into()));
        Err(RowsError::Io { replica: self.replicas[at].name.clone(), source })
    }

    /// Sends a request over the replica's connection, or a new one if it was closed meanwhile.
    fn begin(&mut self, at: usize, table: &str, keys: &[u64], deadline: Instant) -> io::Result<Connection> {
        let request = self.request(at, table, keys);
        self.statistics.requests += 1;
        let replica = &mut self.replicas[at];
        if let Some(mut kept) = replica.connection.take()
            && first_readable(&mut [&mut kept], Instant::now())?.is_none()
            && kept.send(&request, deadline).is_ok()
        {
            return Ok(kept);
        }
        let mut fresh = Connection::open(&replica.name, self.options.tls.as_ref(), deadline)?;
        fresh.send(&request, deadline)?;
        Ok(fresh)
    }

    /// Waits for the answer; after a while also for that of a second replica.
    fn finish(
        &mut self,
        first: (usize, Connection),
        hedged: Option<(Duration, usize)>,
        request: (&str, &[u64]),
        deadline: Instant,
    ) -> io::Result<(usize, Reply)> {
        let (at, mut connection) = first;
        if let Some((wait, other)) = hedged {
            let until = (Instant::now() + wait).min(deadline);
            if first_readable(&mut [&mut connection], until)?.is_none() {
                self.hedger.spend();
                self.statistics.hedged += 1;
                if let Ok(mut second) = self.begin(other, request.0, request.1, deadline) {
                    let winner = first_readable(&mut [&mut connection, &mut second], deadline)?;
                    // The connection of the other one is closed: its answer is still to come.
                    return match winner {
                        Some(1) => {
                            self.statistics.hedges_won += 1;
                            self.receive(other, second, deadline)
                        }
                        _ => self.receive(at, connection, deadline),
                    };
                }
            }
        }
        self.receive(at, connection, deadline)
    }

    fn receive(
        &mut self,
        at: usize,
        mut connection: Connection,
        deadline: Instant,
    ) -> io::Result<(usize, Reply)> {
        let reply = connection.receive(deadline)?;
        self.replicas[at].connection = Some(connection);
        Ok((at, reply))
    }

    /// The bytes of a request.
    fn request(&self, at: usize, table: &str, keys: &[u64]) -> Vec<u8> {
        let mut path = format!("/tables/{}/rows?input=keys", encoded(table));
        if !self.options.model.is_empty() {
            let _ = write!(path, "&model={}", encoded(&self.options.model));
        }
        let token = self.options.token.as_ref();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let octets = "application/octet-stream";
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\n{token}accept: {octets}\r\ncontent-type: {octets}\r\n\
             content-length: {}\r\n\r\n",
            self.replicas[at].name,
            keys.len() * 8
        );
        let mut request = head.into_bytes();
        keys.iter().for_each(|key| request.extend_from_slice(&key.to_le_bytes()));
        request
    }
}

/// A text as part of a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(byte.into()),
            byte => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_percent_encoded() {
        assert_eq!(encoded("clicks@12/ü x"), "clicks%4012%2F%C3%BC%20x");
    }
}
