//! A cluster as an operator sees it: its groups and their servers, from the records of its registry. Asks no server.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{
    CONFIG, ClusterConfig, GROUPS, GroupRecord, MEMBERS, MemberRecord, Move, MoveState, PLACEMENT,
    PinnedPlace, Placement,
};
use crate::group_load::{GroupLoad, loads};
use crate::registry::{Listing, RegistryError};

/// A cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterView {
    /// The registry and the cluster.
    pub cluster: String,
    /// Number of groups.
    pub groups: u32,
    /// Servers of a group.
    pub replicas: u32,
    /// Slots of keys.
    pub slots: u32,
    /// Groups with slots whose rows are gone: every server that had them has ended.
    pub lost_groups: Vec<u32>,
    /// The servers by group, the primary first.
    pub servers: Vec<ServerView>,
    /// Moves of slots under way.
    pub moves: Vec<MoveView>,
    /// The load of each group, as its primary told it last.
    #[serde(skip)]
    pub loads: BTreeMap<u32, GroupLoad>,
    /// Slots by group, ascending, cut where a group or a move begins or ends.
    pub slot_runs: Vec<SlotRunView>,
    /// The groups whose pinned tables are in another one.
    pub pinned: Vec<PinnedPlace>,
}

/// Slots in one group that have one destiny.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotRunView {
    /// The first slot.
    pub first: u32,
    /// Number of slots.
    pub slots: u32,
    /// The group that has them.
    pub group: u32,
    /// The move that they are in. None: they stay.
    pub in_move: Option<u64>,
}

/// A move of slots between two groups.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoveView {
    /// Number of the move.
    pub id: u64,
    /// The group that has them.
    pub from: u32,
    /// The group that gets them.
    pub to: u32,
    /// Number of slots.
    pub slots: u32,
    /// The groups whose pinned tables move.
    pub pinned: Vec<u32>,
    /// How far it is.
    pub state: MoveState,
    /// Rows copied so far, repeated ones included, as far as the receiving server was asked.
    pub rows: Option<u64>,
    /// Rows of the slots, estimated, as far as the receiving server was asked.
    pub rows_expected: Option<u64>,
}

impl MoveView {
    fn of(one: &Move) -> MoveView {
        let &Move { id, from, to, state, .. } = one;
        let (slots, pinned, rows, rows_expected) = (one.count(), one.pinned.clone(), None, None);
        MoveView { id, from, to, slots, pinned, state, rows, rows_expected }
    }

    /// The content in words: the number of slots, and the homes of pinned tables.
    #[must_use]
    pub fn content(&self) -> String {
        let homes: Vec<String> = self.pinned.iter().map(u32::to_string).collect();
        match (self.slots, &homes[..]) {
            (slots, []) => slots.to_string(),
            (0, homes) => format!("pinned to {}", homes.join(", ")),
            (slots, homes) => format!("{slots}, pinned to {}", homes.join(", ")),
        }
    }

    /// The state as records have it.
    #[must_use]
    pub fn state_name(&self) -> String {
        let name = serde_json::to_value(self.state).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

/// A server of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerView {
    /// Its group.
    pub group: u32,
    /// Its number.
    pub server: u32,
    /// `primary`, `in sync`, `catching up`, or `lost` if its lease has ended.
    pub role: &'static str,
    /// Count of the group's primaries so far.
    pub epoch: u64,
    /// Slots of the group.
    pub slots: u32,
    /// Records that wait, for a server that was asked.
    pub lag: Option<u64>,
    /// Rows, for a server that was asked.
    pub rows: Option<u64>,
    /// Address of the data plane.
    pub address: String,
    /// URL of the control plane; empty where there is none.
    pub control: String,
}

impl ClusterView {
    /// The cluster whose records these are. `None`: there is no such cluster.
    ///
    /// # Errors
    /// [`RegistryError::Damaged`] names the record that is not what it should be.
    pub fn of(url: &str, listing: &Listing) -> Result<Option<ClusterView>, RegistryError> {
        let Some(config) = parsed::<ClusterConfig>(url, listing, CONFIG)? else { return Ok(None) };
        let placement: Option<Placement> = parsed(url, listing, PLACEMENT)?;
        let (mut servers, mut lost_groups) = (Vec::new(), Vec::new());
        let members: BTreeMap<u32, MemberRecord> = numbered(url, listing, MEMBERS)?;
        let groups: BTreeMap<u32, GroupRecord> = numbered(url, listing, GROUPS)?;
        for group in 0..config.groups {
            // Without a placement, the slots are shared out evenly.
            let slots = match &placement {
                Some(placement) => (0..placement.slots)
                    .filter(|&slot| placement.group_of(slot) == Some(group))
                    .count() as u32,
                None => config.slots / config.groups + u32::from(group < config.slots % config.groups),
            };
            let server = |server: u32, role, epoch, address: Option<&String>| ServerView {
                group,
                server,
                role,
                epoch,
                slots,
                lag: None,
                rows: None,
                address: address.cloned().unwrap_or_default(),
                control: members.get(&server).and_then(|member| member.control.clone()).unwrap_or_default(),
            };
            let known = groups.get(&group);
            let epoch = known.map_or(0, |known| known.group.epoch);
            let mut listed = Vec::new();
            if let Some(known) = known {
                lost_groups.extend((slots > 0 && is_lost(known, &members)).then_some(group));
                let all = [(&known.group.primary, "primary")].into_iter();
                for (member, role) in all.chain(known.group.in_sync.iter().map(|member| (member, "in sync")))
                {
                    let role = match members.get(&member.server) {
                        Some(found) if found.member.boot == member.boot => role,
                        // Another process has the place: it is below.
                        Some(_) => continue,
                        None => "lost",
                    };
                    let address = known.addresses.get(&member.server).and_then(|all| all.first());
                    listed.push(member.server);
                    servers.push(server(member.server, role, epoch, address));
                }
            }
            for (&number, member) in
                members.iter().filter(|(number, member)| member.group == group && !listed.contains(number))
            {
                servers.push(server(number, "catching up", epoch, member.addresses.first()));
            }
        }
        let slots = placement.as_ref().map_or(config.slots, |placement| placement.slots);
        let placed = placement.clone().unwrap_or_else(|| Placement::even(slots, config.groups));
        Ok(Some(ClusterView {
            slot_runs: slot_runs(&placed),
            pinned: placed.pinned,
            cluster: url.to_owned(),
            groups: config.groups,
            replicas: config.replicas,
            slots,
            lost_groups,
            servers,
            loads: loads(url, listing)?,
            moves: placement.iter().flat_map(|placement| placement.moves.iter().map(MoveView::of)).collect(),
        }))
    }
}

/// The slots of a placement, cut where a group or a move begins or ends.
fn slot_runs(placement: &Placement) -> Vec<SlotRunView> {
    let mut moving = vec![None; placement.slots as usize];
    for one in &placement.moves {
        for span in &one.slots {
            let slots = moving.iter_mut().skip(span.first as usize).take(span.count as usize);
            slots.for_each(|slot| *slot = Some(one.id));
        }
    }
    let mut runs: Vec<SlotRunView> = Vec::new();
    for (slot, (group, in_move)) in (0..).zip(placement.groups().into_iter().zip(moving)) {
        match runs.last_mut() {
            Some(last) if (last.group, last.in_move) == (group, in_move) => last.slots += 1,
            _ => runs.push(SlotRunView { first: slot, slots: 1, group, in_move }),
        }
    }
    runs
}

/// Whether every server that had the rows of a group has ended.
#[must_use]
pub fn is_lost(known: &GroupRecord, members: &BTreeMap<u32, MemberRecord>) -> bool {
    let mut all = std::iter::once(&known.group.primary).chain(&known.group.in_sync);
    all.all(|member| members.get(&member.server).is_none_or(|found| found.member != *member))
}

fn parsed<T: DeserializeOwned>(url: &str, listing: &Listing, name: &str) -> Result<Option<T>, RegistryError> {
    let Some(record) = listing.records.iter().find(|record| record.name == name) else { return Ok(None) };
    let parsed = serde_json::from_value(record.value.clone()).map_err(|error| RegistryError::Damaged {
        url: url.to_owned(),
        name: name.to_owned(),
        reason: error.to_string(),
    });
    Ok(Some(parsed?))
}

/// The records whose names are this prefix and a number.
///
/// # Errors
/// [`RegistryError::Damaged`] names the record that is not what it should be.
pub fn numbered<T: DeserializeOwned>(
    url: &str,
    listing: &Listing,
    prefix: &str,
) -> Result<BTreeMap<u32, T>, RegistryError> {
    let mut all = BTreeMap::new();
    for record in &listing.records {
        let number = record.name.strip_prefix(prefix).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        all.extend(parsed(url, listing, &record.name)?.map(|value| (number, value)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use sanderling_replica::SlotSpan;
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Record;

    fn listing(records: &[(&str, Value)]) -> Listing {
        let record = |(name, value): &(&str, Value)| Record {
            name: (*name).to_owned(),
            revision: 1,
            lease: None,
            value: value.clone(),
        };
        Listing { revision: 1, records: records.iter().map(record).collect() }
    }

    #[test]
    fn a_cluster_shows_who_is_what() {
        let member = |server: u32, boot: u32, group: u32| {
            json!({ "server": server, "boot": boot, "group": group, "addresses": [format!("tcp://h:{server}")],
                "control": format!("http://h:{}", server + 100) })
        };
        let records = [
            ("config", json!({ "slots": 5, "groups": 2, "replicas": 2 })),
            (
                "groups/0",
                json!({ "epoch": 3, "history": 9, "primary": { "server": 0, "boot": 1 },
                    "in_sync": [{ "server": 2, "boot": 1 }], "addresses": { "0": ["tcp://h:0"], "2": ["tcp://h:2"] } }),
            ),
            ("members/0", member(0, 1, 0)),
            // Server 2 is lost, and server 4 has a place of its own.
            ("members/4", member(4, 7, 0)),
            ("members/1", member(1, 5, 1)),
        ];
        let view = ClusterView::of("keeper://h/ads", &listing(&records)).expect("it is whole");
        let view = view.expect("it is a cluster");
        let found: Vec<_> =
            view.servers.iter().map(|s| (s.group, s.server, s.role, s.epoch, s.slots)).collect();
        assert_eq!(
            found,
            [
                (0, 0, "primary", 3, 3),
                (0, 2, "lost", 3, 3),
                (0, 4, "catching up", 3, 3),
                (1, 1, "catching up", 0, 2)
            ]
        );
        assert_eq!((view.groups, view.replicas, view.slots), (2, 2, 5));
        let addresses = view.servers.iter().map(|server| (&*server.address, &*server.control));
        let addresses: Vec<_> = addresses.collect();
        assert_eq!(addresses[..2], [("tcp://h:0", "http://h:100"), ("tcp://h:2", "")]);
    }

    #[test]
    fn slots_are_cut_where_a_move_begins() {
        let mut placement = Placement::of_groups(3, &[0, 0, 0, 1, 1, 0]);
        let slots = vec![SlotSpan { first: 1, count: 1 }, SlotSpan { first: 5, count: 1 }];
        placement.moves.push(Move::new(7, (0, 1), slots, vec![0]));
        let runs = slot_runs(&placement).into_iter();
        let found: Vec<_> = runs.map(|run| (run.first, run.slots, run.group, run.in_move)).collect();
        let expected =
            [(0, 1, 0, None), (1, 1, 0, Some(7)), (2, 1, 0, None), (3, 2, 1, None), (5, 1, 0, Some(7))];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_group_without_its_servers_is_lost() {
        let group = json!({ "epoch": 3, "history": 9, "primary": { "server": 0, "boot": 1 },
            "in_sync": [{ "server": 1, "boot": 1 }], "addresses": {} });
        let member = |server: u32, boot: u32| json!({ "server": server, "boot": boot, "group": 0, "addresses": ["tcp://h:1"] });
        for (members, expected) in [
            (vec![("members/0", member(0, 1)), ("members/1", member(1, 2))], vec![]),
            (vec![("members/0", member(0, 2)), ("members/1", member(1, 1))], vec![]),
            (vec![("members/0", member(0, 2)), ("members/1", member(1, 2))], vec![0]),
            (vec![], vec![0]),
        ] {
            let mut records = vec![
                ("config", json!({ "slots": 5, "groups": 1, "replicas": 2 })),
                ("groups/0", group.clone()),
            ];
            records.extend(members);
            let view = ClusterView::of("keeper://h/ads", &listing(&records)).expect("it is whole");
            assert_eq!(view.expect("it is a cluster").lost_groups, expected);
        }
    }

    #[test]
    fn damage_is_named() {
        for (records, expected) in [
            (vec![("config", json!(3))], "config"),
            (
                vec![("config", json!({ "slots": 5, "groups": 1, "replicas": 1 })), ("groups/0", json!("x"))],
                "groups/0",
            ),
        ] {
            let error = ClusterView::of("keeper://h/ads", &listing(&records)).expect_err("it is damaged");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(ClusterView::of("keeper://h/ads", &listing(&[])), Ok(None));
    }
}
