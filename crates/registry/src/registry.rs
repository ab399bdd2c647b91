//! The calls of a registry, and their errors. Knows no server and no protocol.

use std::fmt::Debug;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The name in its cluster, such as `groups/3`.
    pub name: String,
    /// The revision of the last change. Revisions only grow, over all records, and none is used twice.
    pub revision: u64,
    /// The lease with which the record ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// The content.
    pub value: Value,
}

/// Records as they are at one revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The revision, from which a watch sees all later changes.
    pub revision: u64,
    /// The records by name.
    pub records: Vec<Record>,
}

/// A change of one record.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Creates or replaces it.
    Put {
        /// The content.
        value: Value,
        /// The lease with which the record ends, if any.
        lease: Option<u64>,
    },
    /// Removes it.
    Delete,
}

impl Edit {
    /// Creates or replaces a record that stays.
    #[must_use]
    pub fn put(value: Value) -> Edit {
        Edit::Put { value, lease: None }
    }
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The record was changed, at this revision.
    Done(u64),
    /// The record is at another revision and was not changed. `None`: there is none.
    Other(Option<Record>),
}

/// A change as a watch sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The name of the record.
    pub name: String,
    /// The revision of the change.
    pub revision: u64,
    /// The record since then; `None`: it was removed, or its lease has ended.
    pub record: Option<Record>,
}

/// The answer to a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Watched {
    /// All changes after the revision of the question up to `after`, oldest first; none if the time is over.
    Changes {
        /// The changes. Several may have one revision, and then one answer has them all.
        changes: Vec<Change>,
        /// The revision for the next question.
        after: u64,
    },
    /// The registry no longer has the changes since then: list the records, and watch from there.
    BeginAgain,
}

/// Why a registry does not answer as it should.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// There is no answer. Nothing was changed.
    #[error("registry {url}: {reason}")]
    Unreachable {
        /// The registry.
        url: String,
        /// The reason.
        reason: String,
    },
    /// A change was sent, and its answer is missing: it may have taken effect, may yet, or not. Read the record again.
    #[error(
        "registry {url}: {name}: it is unknown whether the change was made: {reason}; read the record again"
    )]
    Unknown {
        /// The registry.
        url: String,
        /// The record, or the lease.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The registry refused, and changed nothing. More attempts may succeed, as when its disk was full.
    #[error("registry {url}: {reason}")]
    Refused {
        /// The registry.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The registry behind the address is another one than before, without the records of the first.
    #[error(
        "registry {url}: it is registry {found}, and was {expected} before: its data was lost or replaced; bring the \
         data back, or start this process anew"
    )]
    Another {
        /// The registry.
        url: String,
        /// The number of the first.
        expected: String,
        /// The number of the present one.
        found: String,
    },
    /// The lease has ended, or never was.
    #[error("lease {lease} has ended; take another one")]
    LeaseEnded {
        /// The lease.
        lease: u64,
    },
    /// The request is wrong: a name, a value, a term, an address.
    #[error("{0}")]
    Invalid(String),
    /// A record is not what it should be.
    #[error("registry {url}: {name}: {reason}; look at it, and repair or delete it")]
    Damaged {
        /// The registry.
        url: String,
        /// The record.
        name: String,
        /// The reason.
        reason: String,
    },
}

/// The records of one cluster. Calls block, at most for `within`.
///
/// Every call is linearizable: it takes effect at one moment between its start and its answer, also over restarts of
/// the registry. A call is sent once, and never again by itself: after [`RegistryError::Unknown`] the caller reads.
pub trait Registry: Debug + Send + Sync {
    /// The registry and the cluster, for messages, such as `keeper://127.0.0.1:7400/ads`.
    fn url(&self) -> String;

    /// Reads a record.
    ///
    /// # Errors
    /// The registry does not answer, or the record is damaged.
    fn get(&self, name: &str, within: Duration) -> Result<Option<Record>, RegistryError>;

    /// Reads all records whose names begin with `prefix`, at one moment.
    ///
    /// # Errors
    /// The registry does not answer, or a record is damaged.
    fn list(&self, prefix: &str, within: Duration) -> Result<Listing, RegistryError>;

    /// Changes a record if it is at the revision `expected`; 0: if there is none.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]: the change may have been made. [`RegistryError::LeaseEnded`]: the lease of the edit
    /// has. With all others nothing was changed.
    fn compare_and_set(
        &self,
        name: &str,
        expected: u64,
        edit: Edit,
        within: Duration,
    ) -> Result<Outcome, RegistryError>;

    /// Waits for changes after the revision `after` of records whose names begin with `prefix`. A registry that stops
    /// meanwhile is noticed up to 5 s later.
    ///
    /// # Errors
    /// The registry does not answer, or a record is damaged.
    fn watch(&self, prefix: &str, after: u64, within: Duration) -> Result<Watched, RegistryError>;

    /// Takes a lease, and returns its number, which is not 0. Whole seconds count, rounded up.
    ///
    /// # Errors
    /// The registry does not answer, or refuses the term. A lease whose answer was lost ends by itself.
    fn grant(&self, term: Duration, within: Duration) -> Result<u64, RegistryError>;

    /// Gives a lease its full term again. False: it has ended, and with it its records.
    ///
    /// # Errors
    /// The registry does not answer.
    fn keep_alive(&self, lease: u64, within: Duration) -> Result<bool, RegistryError>;

    /// Ends a lease and removes its records. One that has ended already is no error.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]: it may have ended. With all others nothing was changed.
    fn revoke(&self, lease: u64, within: Duration) -> Result<(), RegistryError>;
}
