//! Records and leases as a state machine without clock, disk or thread: the heart of the keeper and of the registry in
//! memory. Names are those of all clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::{LEASES_MAX, RECORDS_MAX, TERM_MAX, TOTAL_BYTES_MAX};
use crate::protocol::JsonText;

/// No keeper counts so far.
const REVISION_MAX: u64 = 1 << 62;

/// A request that may change records or leases.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Creates or replaces a record that is at a revision; 0: that is not there.
    Put {
        /// The record.
        name: Arc<str>,
        /// Its revision.
        expected: u64,
        /// The content.
        value: JsonText,
        /// The lease with which it ends.
        lease: Option<u64>,
    },
    /// Removes a record that is at a revision.
    Delete {
        /// The record.
        name: Arc<str>,
        /// Its revision.
        expected: u64,
    },
    /// Takes a lease.
    Grant {
        /// Its number, drawn by the caller.
        lease: u64,
        /// Its term.
        term_s: u64,
    },
    /// Gives a lease its full term again.
    KeepAlive {
        /// The lease.
        lease: u64,
    },
    /// Ends a lease.
    Revoke {
        /// The lease.
        lease: u64,
    },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The record was changed, at this revision.
    Done(u64),
    /// The record is at another revision and was not changed.
    Other(Option<Held>),
    /// The lease was taken.
    Granted(u64),
    /// Whether the lease is there.
    Kept(bool),
    /// The lease of the record has ended. Nothing was changed.
    LeaseEnded(u64),
    /// A limit is reached. Nothing was changed.
    Full(String),
}

/// A record.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The revision of its last change.
    pub revision: u64,
    /// The lease with which it ends.
    pub lease: Option<u64>,
    /// The content.
    pub value: JsonText,
}

/// A change of a record.
#[derive(Debug, Clone)]
pub struct PastChange {
    /// The record.
    pub name: Arc<str>,
    /// The revision of the change.
    pub revision: u64,
    /// The record since then.
    pub held: Option<Held>,
}

impl PastChange {
    /// Bytes of name and value.
    pub(crate) fn bytes(&self) -> usize {
        self.name.len() + self.held.as_ref().map_or(0, |held| held.value.len())
    }
}

/// A change, as the journal has it. A group of them is made as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// All changes of records up to this revision are in what was before.
    #[serde(rename = "revision")]
    Revision(u64),
    /// A lease was taken.
    #[serde(rename = "grant")]
    Grant {
        /// The lease.
        lease: u64,
        /// Its term.
        term_s: u64,
    },
    /// A record was created or replaced.
    #[serde(rename = "put")]
    Put {
        /// The record.
        #[serde(with = "name_text")]
        name: Arc<str>,
        /// The revision of the change.
        revision: u64,
        /// The lease with which it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<u64>,
        /// The content.
        value: JsonText,
    },
    /// A record was removed.
    #[serde(rename = "delete")]
    Delete {
        /// The record.
        #[serde(with = "name_text")]
        name: Arc<str>,
        /// The revision of the change.
        revision: u64,
    },
    /// A lease without records has ended.
    #[serde(rename = "end")]
    End {
        /// The lease.
        lease: u64,
    },
}

/// Names as text: serde has it for shared text only with another feature.
mod name_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(name: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Arc::from)
    }
}

#[derive(Debug, Clone)]
struct Lease {
    term: Duration,
    ends: Duration,
    names: BTreeSet<Arc<str>>,
}

/// Records and leases at one revision. Times are since any moment, and only grow.
#[derive(Debug, Clone, Default)]
pub struct StateMachine {
    revision: u64,
    records: BTreeMap<Arc<str>, Held>,
    leases: BTreeMap<u64, Lease>,
    /// Bytes of names and values.
    bytes: usize,
}

impl StateMachine {
    /// The revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of leases.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Bytes of names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A record.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Held> {
        self.records.get(name)
    }

    /// The records whose names begin with `prefix`, by name.
    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Held)> {
        let from =
            self.records.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// Decides a request. The changes, if any, are to be applied together; until then nothing is changed, except that a
    /// lease is kept alive at once.
    pub fn decide(&mut self, request: &Request, now: Duration) -> (Vec<Entry>, Reply) {
        let next = self.revision + 1;
        let nothing = |reply| (Vec::new(), reply);
        match request {
            Request::Put { name, expected, value, lease } => {
                let present = self.records.get(name);
                if present.map_or(0, |held| held.revision) != *expected {
                    return nothing(Reply::Other(present.cloned()));
                }
                if let Some(lease) = lease.filter(|lease| !self.leases.contains_key(lease)) {
                    return nothing(Reply::LeaseEnded(lease));
                }
                let bytes = self.bytes + name.len() + value.len();
                let freed = present.map_or(0, |held| name.len() + held.value.len());
                if present.is_none() && self.records.len() >= RECORDS_MAX {
                    return nothing(Reply::Full(format!(
                        "there are {RECORDS_MAX} records, and no more may be"
                    )));
                }
                if bytes - freed > TOTAL_BYTES_MAX {
                    let text = format!("records have at most {TOTAL_BYTES_MAX} bytes together");
                    return nothing(Reply::Full(text));
                }
                let (name, value) = (Arc::clone(name), value.clone());
                (vec![Entry::Put { name, revision: next, lease: *lease, value }], Reply::Done(next))
            }
            Request::Delete { name, expected } => match self.records.get(name) {
                Some(held) if held.revision == *expected => {
                    (vec![Entry::Delete { name: Arc::clone(name), revision: next }], Reply::Done(next))
                }
                present => nothing(Reply::Other(present.cloned())),
            },
            Request::Grant { lease, term_s } => {
                if self.leases.len() >= LEASES_MAX {
                    return nothing(Reply::Full(format!(
                        "there are {LEASES_MAX} leases, and no more may be"
                    )));
                }
                if self.leases.contains_key(lease) {
                    return nothing(Reply::Full(format!("lease {lease} is taken; ask again")));
                }
                (vec![Entry::Grant { lease: *lease, term_s: *term_s }], Reply::Granted(*lease))
            }
            Request::KeepAlive { lease } => {
                let found = self.leases.get_mut(lease);
                let kept = found.map(|lease| lease.ends = now + lease.term).is_some();
                nothing(Reply::Kept(kept))
            }
            Request::Revoke { lease } => (self.end(*lease), Reply::Kept(self.leases.contains_key(lease))),
        }
    }

    /// The changes that end a lease; none if there is none.
    fn end(&self, lease: u64) -> Vec<Entry> {
        let Some(found) = self.leases.get(&lease) else { return Vec::new() };
        let deleted = (self.revision + 1..).zip(&found.names);
        let deleted = deleted.map(|(revision, name)| Entry::Delete { name: Arc::clone(name), revision });
        deleted.chain([Entry::End { lease }]).collect()
    }

    /// The leases that have ended by now.
    #[must_use]
    pub fn ended(&self, now: Duration) -> Vec<u64> {
        self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(number, _)| *number).collect()
    }

    /// Gives all leases their full term again, as after a restart.
    pub fn renew_all(&mut self, now: Duration) {
        self.leases.values_mut().for_each(|lease| lease.ends = now + lease.term);
    }

    /// Takes the ends of leases over from another machine.
    pub fn take_times(&mut self, other: &StateMachine) {
        for (number, lease) in &mut self.leases {
            if let Some(other) = other.leases.get(number) {
                lease.ends = other.ends;
            }
        }
    }

    /// Makes a change, and tells it for watches if it is one of a record.
    ///
    /// # Errors
    /// The change does not follow the ones before, which only a damaged journal has.
    pub fn apply(&mut self, entry: &Entry, now: Duration) -> Result<Option<PastChange>, String> {
        match entry {
            Entry::Revision(revision) if (self.revision..REVISION_MAX).contains(revision) => {
                self.revision = *revision;
                Ok(None)
            }
            Entry::Revision(revision) => Err(format!("revision {revision} follows {}", self.revision)),
            Entry::Grant { lease, term_s } => {
                let term = Duration::from_secs(*term_s);
                if term > TERM_MAX {
                    return Err(format!("lease {lease} has a term of {term_s} s"));
                }
                let ends = now + term;
                let taken = self.leases.insert(*lease, Lease { term, ends, names: BTreeSet::new() });
                taken.map_or(Ok(None), |_| Err(format!("lease {lease} was taken twice")))
            }
            Entry::Put { name, revision, lease, value } => {
                self.follow(name, *revision)?;
                if let Some(lease) = lease {
                    let found = self.leases.get_mut(lease);
                    found
                        .ok_or_else(|| format!("{name}: there is no lease {lease}"))?
                        .names
                        .insert(Arc::clone(name));
                }
                let held = Held { revision: *revision, lease: *lease, value: value.clone() };
                self.bytes += name.len() + value.len();
                let replaced = self.records.insert(Arc::clone(name), held.clone());
                if let Some(replaced) = replaced {
                    self.bytes -= name.len() + replaced.value.len();
                    if replaced.lease != *lease {
                        self.release(name, replaced.lease);
                    }
                }
                self.revision = *revision;
                Ok(Some(PastChange { name: Arc::clone(name), revision: *revision, held: Some(held) }))
            }
            Entry::Delete { name, revision } => {
                self.follow(name, *revision)?;
                let removed = self.records.remove(name).ok_or_else(|| format!("{name}: it is not there"))?;
                self.bytes -= name.len() + removed.value.len();
                self.release(name, removed.lease);
                self.revision = *revision;
                Ok(Some(PastChange { name: Arc::clone(name), revision: *revision, held: None }))
            }
            Entry::End { lease } => match self.leases.remove(lease) {
                Some(Lease { names, .. }) if names.is_empty() => Ok(None),
                Some(_) => Err(format!("lease {lease} ended with records")),
                None => Err(format!("lease {lease} ended twice")),
            },
        }
    }

    fn follow(&self, name: &str, revision: u64) -> Result<(), String> {
        match revision.checked_sub(1) {
            Some(before) if before == self.revision => Ok(()),
            _ => Err(format!("{name}: revision {revision} follows {}", self.revision)),
        }
    }

    fn release(&mut self, name: &str, lease: Option<u64>) {
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.names.remove(name);
        }
    }

    /// The changes that make this state machine from an empty one. Its records come by revision, with [`Entry::Revision`]
    /// where some between are gone.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Entry> {
        let leases = self.leases.iter();
        let mut entries: Vec<Entry> =
            leases.map(|(lease, held)| Entry::Grant { lease: *lease, term_s: held.term.as_secs() }).collect();
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_unstable_by_key(|(_, held)| held.revision);
        let mut last = 0;
        for (name, held) in records {
            if held.revision > last + 1 {
                entries.push(Entry::Revision(held.revision - 1));
            }
            last = held.revision;
            let (name, value) = (Arc::clone(name), held.value.clone());
            entries.push(Entry::Put { name, revision: held.revision, lease: held.lease, value });
        }
        if self.revision > last {
            entries.push(Entry::Revision(self.revision));
        }
        entries
    }
}
