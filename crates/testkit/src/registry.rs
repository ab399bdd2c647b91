//! The registry of a cluster, in memory, for tests that have groups of one server each. Knows no server.

use std::sync::Arc;
use std::time::Duration;

use sanderling_registry::{CONFIG, Edit, MemoryRegistry, PLACEMENT, Placement, Registry, group_name};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(1);

/// See the top of this file.
#[derive(Debug, Default)]
pub struct TestRegistry {
    registry: Arc<MemoryRegistry>,
}

impl TestRegistry {
    /// The registry, for clients.
    #[must_use]
    pub fn registry(&self) -> Arc<dyn Registry> {
        Arc::<MemoryRegistry>::clone(&self.registry)
    }

    /// Sets a record.
    pub fn put(&self, name: &str, value: Value) {
        let revision = self.registry.get(name, WITHIN).unwrap().map_or(0, |record| record.revision);
        self.registry.compare_and_set(name, revision, Edit::put(value), WITHIN).unwrap();
    }

    /// Adds the next group, whose only server is at this address.
    pub fn add_group(&self, slots: u32, group: u32, address: &str) {
        self.put(CONFIG, json!({ "slots": slots, "groups": group + 1, "replicas": 1 }));
        let primary = json!({ "server": group, "boot": 1 });
        let addresses = json!({ group.to_string(): [address] });
        let record =
            json!({ "epoch": 1, "history": 1, "primary": primary, "in_sync": [], "addresses": addresses });
        self.put(&group_name(group), record);
    }

    /// Sets the group of each slot.
    pub fn place(&self, version: u64, groups: &[u32]) {
        self.put(PLACEMENT, serde_json::to_value(Placement::of_groups(version, groups)).unwrap());
    }
}
