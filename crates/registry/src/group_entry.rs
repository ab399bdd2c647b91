//! The record of one group, as a replica's machine asks for it. Decides nothing about the group.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_replica::{Action, Event, Group, Revised};
use serde_json::Value;

use crate::cluster::{GroupRecord, group_name};
use crate::registry::{Edit, Outcome, Record, Registry, RegistryError, Watched};

/// The record of one group in a registry. Copies of the `Arc` in it share connections.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use sanderling_registry::{GroupEntry, MemoryRegistry};
/// use sanderling_replica::{Action, Event};
///
/// let registry = Arc::new(MemoryRegistry::default());
/// let entry = GroupEntry::new(registry, 0, Duration::from_secs(2));
/// let event = entry.run(&Action::Read).expect("it is for the registry").expect("it answers");
/// assert!(matches!(event, Event::Registry(revised) if revised.revision == 0));
/// ```
#[derive(Debug)]
pub struct GroupEntry {
    registry: Arc<dyn Registry>,
    url: String,
    name: String,
    within: Duration,
    /// Addresses of servers, which the record also has.
    addresses: Mutex<BTreeMap<u32, Vec<String>>>,
}

impl GroupEntry {
    /// The record of a group. Each call of [`run`](GroupEntry::run) gets this time.
    #[must_use]
    pub fn new(registry: Arc<dyn Registry>, group: u32, within: Duration) -> GroupEntry {
        let url = registry.url();
        GroupEntry { registry, url, name: group_name(group), within, addresses: Mutex::default() }
    }

    /// Tells the addresses of a server, which the next change of the record takes along. Addresses that a read of the
    /// record finds are known, too.
    pub fn set_addresses(&self, server: u32, addresses: Vec<String>) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(server, addresses);
    }

    /// Runs an action of a replica and gives the event with the answer. `None`: the action is not for the registry.
    ///
    /// # Errors
    /// The registry does not answer; the change may have been made or not. The machine asks again by itself.
    pub fn run(&self, action: &Action) -> Option<Result<Event, RegistryError>> {
        let revised = match action {
            Action::Read => self.read(self.within),
            Action::CompareAndSet { revision, group } => self.compare_and_set(*revision, group.clone()),
            _ => return None,
        };
        Some(revised.map(Event::Registry))
    }

    /// Reads the record.
    ///
    /// # Errors
    /// The registry does not answer, or the record is damaged.
    pub fn read(&self, within: Duration) -> Result<Revised, RegistryError> {
        let record = self.registry.get(&self.name, within)?;
        self.revised(record)
    }

    /// Replaces the record if it is at this revision, and returns the record afterwards.
    ///
    /// # Errors
    /// The registry does not answer; the change may have been made or not.
    pub fn compare_and_set(&self, revision: u64, group: Group) -> Result<Revised, RegistryError> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        addresses.retain(|server, _| {
            group.in_sync.iter().chain([&group.primary]).any(|member| member.server == *server)
        });
        let record = GroupRecord { group, addresses };
        let value = serde_json::to_value(&record)
            .map_err(|error| RegistryError::Invalid(format!("{}: {error}", self.name)))?;
        match self.registry.compare_and_set(&self.name, revision, Edit::put(value), self.within)? {
            Outcome::Done(revision) => Ok(Revised { revision, group: Some(record.group) }),
            Outcome::Other(present) => self.revised(present),
        }
    }

    /// Waits until the record has a revision above `known`. `None`: it has not within this time.
    ///
    /// # Errors
    /// The registry does not answer, or the record is damaged.
    pub fn changed(&self, known: u64, within: Duration) -> Result<Option<Revised>, RegistryError> {
        let deadline = Instant::now() + within;
        let mut after = known;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.registry.watch(&self.name, after, left)? {
                // Other names may begin with this one.
                Watched::Changes { changes, .. } if changes.iter().any(|change| change.name == self.name) => {
                }
                Watched::Changes { after: seen, .. } => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                    after = seen;
                    continue;
                }
                Watched::BeginAgain => {}
            }
            // The newest record, however many changes there were.
            let left = deadline.saturating_duration_since(Instant::now()).max(self.within);
            let listing = self.registry.list(&self.name, left)?;
            let record = listing.records.into_iter().find(|record| record.name == self.name);
            let revised = self.revised(record)?;
            if revised.revision > known {
                return Ok(Some(revised));
            }
            after = listing.revision;
        }
    }

    fn revised(&self, record: Option<Record>) -> Result<Revised, RegistryError> {
        let Some(Record { revision, value, .. }) = record else { return Ok(Revised::default()) };
        let record = self.parse(value)?;
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        for (server, addresses) in record.addresses {
            known.entry(server).or_insert(addresses);
        }
        Ok(Revised { revision, group: Some(record.group) })
    }

    fn parse(&self, value: Value) -> Result<GroupRecord, RegistryError> {
        serde_json::from_value(value).map_err(|error| RegistryError::Damaged {
            url: self.url.clone(),
            name: self.name.clone(),
            reason: format!("it is no group: {error}"),
        })
    }
}

/// The registry of the machine and its simulator.
impl sanderling_replica::Registry for GroupEntry {
    fn read(&mut self) -> io::Result<Revised> {
        GroupEntry::read(self, self.within).map_err(io::Error::other)
    }

    fn compare_and_set(&mut self, revision: u64, group: Group) -> io::Result<Revised> {
        GroupEntry::compare_and_set(self, revision, group).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use sanderling_replica::Member;

    use super::*;
    use crate::memory::MemoryRegistry;

    const WITHIN: Duration = Duration::from_secs(5);

    fn member(server: u32) -> Member {
        Member { server, boot: u64::from(server) + 100 }
    }

    fn group(epoch: u64, primary: u32, in_sync: &[u32]) -> Group {
        let in_sync = in_sync.iter().map(|&server| member(server)).collect();
        Group { epoch, history: 9, primary: member(primary), in_sync }
    }

    fn run(entry: &GroupEntry, action: &Action) -> Revised {
        match entry.run(action).expect("it is for the registry").expect("it answers") {
            Event::Registry(revised) => revised,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_of_two_compare_and_sets_wins() {
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::default());
        let [one, two] = [1, 2].map(|server| {
            let entry = GroupEntry::new(Arc::clone(&registry), 1, WITHIN);
            entry.set_addresses(server, vec![format!("tcp://10.0.0.{server}:7000")]);
            entry
        });
        let begun = run(&one, &Action::CompareAndSet { revision: 0, group: group(1, 1, &[]) });
        assert_eq!(begun.group, Some(group(1, 1, &[])));
        let lost = run(&two, &Action::CompareAndSet { revision: 0, group: group(1, 2, &[]) });
        assert_eq!(lost, begun);
        assert_eq!(run(&two, &Action::Read), begun);
        // Another group, whose name begins with this one's, is no change of it.
        let other = GroupEntry::new(Arc::clone(&registry), 10, WITHIN);
        run(&other, &Action::CompareAndSet { revision: 0, group: group(1, 3, &[]) });
        assert_eq!(one.changed(begun.revision, Duration::from_millis(20)).expect("it answers"), None);
        let next =
            run(&two, &Action::CompareAndSet { revision: begun.revision, group: group(2, 2, &[1, 3]) });
        assert!(next.revision > begun.revision);
        assert_eq!(one.changed(begun.revision, WITHIN).expect("it answers"), Some(next));
        let found = registry.get("groups/1", WITHIN).expect("it answers").expect("it is there");
        let found: GroupRecord = serde_json::from_value(found.value).expect("it is a group");
        let expected = [1, 2].map(|server| (server, vec![format!("tcp://10.0.0.{server}:7000")]));
        assert_eq!(found.addresses, expected.into());
    }

    #[test]
    fn what_is_no_group_is_said() {
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::default());
        registry.compare_and_set("groups/0", 0, Edit::put(Value::from(3)), WITHIN).expect("it answers");
        let entry = GroupEntry::new(registry, 0, WITHIN);
        let error = entry.run(&Action::Read).expect("it is for the registry").expect_err("it is a number");
        assert!(error.to_string().contains("groups/0: it is no group"), "{error}");
    }
}
