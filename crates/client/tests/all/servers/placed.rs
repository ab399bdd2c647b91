//! A cluster of groups with one server each, and its registry. Slots move when a test says so, step by step: each server
//! acts by the placement that it was told last.

use std::sync::Arc;

use sanderling_client::{Cluster, ConnectOptions};
use sanderling_registry::Placement;
use sanderling_store::{Table, WholeRows};
use sanderling_testkit::TestRegistry;
use sanderling_wire::{Fault, Request, slot_of};

use super::{Memory, Refusal, Server, address};

pub(crate) const SLOTS: u32 = 64;

/// What a server knows of the placement.
#[derive(Debug)]
pub(crate) struct Place {
    group: u32,
    version: u64,
    groups: Vec<u32>,
}

impl Place {
    fn has(&self, key: u64) -> bool {
        self.groups[slot_of(key, self.groups.len())] == self.group
    }

    /// Why a request is not carried out here.
    pub(super) fn refusal(&self, memory: &Memory, request: &Request<'_>) -> Option<Refusal> {
        let keys = match request {
            Request::Pull(pull) => pull.keys,
            Request::PullPooled(pull) => pull.ragged.keys,
            Request::Push(push) => push.keys,
            Request::Delete(delete) => delete.keys,
            Request::Import(import) => import.rows.keys,
            _ => return None,
        };
        if let Request::Push(push) = request {
            if memory.applied.lock().unwrap().contains_key(&(push.client, push.sequence)) {
                return None;
            }
            if keys.iter().all(|&key| self.has(key)) {
                memory.sequences.lock().unwrap().push((push.sequence, push.continues));
            }
        }
        let elsewhere = keys.iter().find(|&&key| !self.has(key))?;
        Some((Fault::NotHere { placement_version: self.version }, format!("key {elsewhere} moved")))
    }
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) registry: TestRegistry,
    pub(crate) servers: Vec<Server>,
    pub(crate) placement: Placement,
    /// Whether groups get the tables whose rows come to them.
    pub(crate) makes_tables: bool,
}

impl Groups {
    pub(crate) fn start(folder: &tempfile::TempDir, groups: u32) -> Groups {
        let registry = TestRegistry::default();
        let placement = Placement::even(SLOTS, groups);
        let mut started = Groups { registry, servers: Vec::new(), placement, makes_tables: true };
        (0..groups).for_each(|_| started.add(folder));
        started.publish();
        started
    }

    /// Adds a group, without slots.
    pub(crate) fn add(&mut self, folder: &tempfile::TempDir) {
        let group = self.servers.len() as u32;
        // How many shards there are, servers learn one by one.
        let server = Server::start(&address(folder), group, group + 1);
        self.registry.add_group(SLOTS, group, &server.address.to_string());
        self.servers.push(server);
        self.tell(group as usize);
    }

    pub(crate) fn connect(&self, options: ConnectOptions) -> Arc<Cluster> {
        Cluster::in_registry(self.registry.registry(), options).unwrap()
    }

    /// Changes the group of each slot. Nobody knows it yet.
    pub(crate) fn place(&mut self, group_of: impl Fn(u32, u32) -> u32) {
        let groups = (0..).zip(self.placement.groups()).map(|(slot, group)| group_of(slot, group));
        let groups: Vec<u32> = groups.collect();
        self.placement = Placement::of_groups(self.placement.version + 1, &groups);
    }

    /// Tells the clients.
    pub(crate) fn publish(&self) {
        self.registry.place(self.placement.version, &self.placement.groups());
    }

    /// Tells a server. The rows that are not its own any more go to the group that has their slots.
    pub(crate) fn tell(&self, server: usize) {
        let memory = &self.servers[server].memory;
        let mut place = memory.place.write().unwrap();
        let (version, groups) = (self.placement.version, self.placement.groups());
        let next = Place { group: server as u32, version, groups };
        let tables = memory.tables.lock().unwrap().clone();
        for table in tables {
            let mut gone = Vec::new();
            table.for_each_row(|row| gone.extend(Some(row.key).filter(|&key| !next.has(key))));
            for key in gone {
                let row = table.get(key).unwrap();
                let to = next.groups[slot_of(key, next.groups.len())] as usize;
                if let Some(there) = self.table_at(to, &table) {
                    let (keys, frequencies) = (&[key], &[row.frequency]);
                    let (last_uses, versions) = (&[row.last_use], &[row.version]);
                    let (weights, states) = (&row.weights[..], &row.state[..]);
                    let rows = WholeRows { keys, frequencies, last_uses, versions, weights, states };
                    there.import(rows).unwrap();
                }
                table.remove(key);
            }
        }
        *place = Some(next);
    }

    /// The table of a name at another group, which is made there.
    fn table_at(&self, group: usize, like: &Table) -> Option<Arc<Table>> {
        let memory = &self.servers[group].memory;
        let mut tables = memory.tables.lock().unwrap();
        let there = tables.iter().find(|table| table.name() == like.name()).cloned();
        if there.is_some() || !self.makes_tables {
            return there;
        }
        self.copy_config(group, like.name());
        tables.push(Arc::new(Table::new(like.config().clone()).unwrap()));
        tables.last().cloned()
    }

    fn copy_config(&self, group: usize, name: &str) {
        let config = self.servers[0].memory.configs.lock().unwrap()[name].clone();
        self.servers[group].memory.configs.lock().unwrap().insert(name.to_owned(), config);
    }

    /// Makes an empty table at a group, as the first one has it.
    pub(crate) fn make_table(&mut self, group: usize) {
        let like = self.servers[0].memory.tables.lock().unwrap()[0].clone();
        self.makes_tables = true;
        self.table_at(group, &like).unwrap();
    }
}
