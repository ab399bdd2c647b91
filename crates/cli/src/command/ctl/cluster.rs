//! `sanderling ctl cluster`: the groups of a cluster and their servers, from its registry and from the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use sanderling_control::proto::StatusReply;
use sanderling_control::{Client, ClientOptions, ControlError};
use sanderling_registry::{
    CONFIG, ClusterConfig, GROUPS, GroupRecord, Listing, MEMBERS, MemberRecord, Move, MoveState, PLACEMENT,
    Placement, RegistryError, RegistryUrl,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Watch, ask_all};
use crate::failure::Failure;
use crate::output;
use crate::width;

/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(10);

/// Options of `ctl cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sanderling ctl cluster --registry keeper://127.0.0.1:7400/ads
  sanderling ctl --json cluster --registry registry://ads | jq '.servers[] | select(.role == \"primary\")'

Roles: a primary answers clients; a server in sync has every acknowledged push and may take over; one that is catching up has \
not yet. A silent server does not answer this command; the lease of a lost one has ended. Lag: for a primary, records that a follower has not acknowledged; for \
others, updates that wait for earlier ones.")]
pub(super) struct Cluster {
    /// Registry with the cluster: keeper://HOST:PORT/CLUSTER, etcd://HOST:PORT,.../CLUSTER, or registry://CLUSTER
    #[arg(long, value_name = "URL", default_value = "registry://", hide_default_value = true)]
    registry: String,
    #[command(flatten)]
    pub(super) watch: Watch,
}

/// A cluster as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct View {
    cluster: String,
    groups: u32,
    replicas: u32,
    slots: u32,
    /// Groups whose rows are gone: every server that had them has ended.
    lost_groups: Vec<u32>,
    servers: Vec<ServerView>,
    /// Moves under way.
    moves: Vec<MoveView>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct MoveView {
    id: u64,
    from: u32,
    to: u32,
    slots: u32,
    state: MoveState,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ServerView {
    group: u32,
    server: u32,
    role: &'static str,
    epoch: u64,
    slots: u32,
    /// None: the server did not answer.
    lag: Option<u64>,
    rows: Option<u64>,
    address: String,
    control: String,
}

impl Cluster {
    /// Reads the registry and asks the servers.
    pub(super) fn view(&self, options: &ClientOptions) -> Result<View, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(format!("--registry: {error}"));
        let url = RegistryUrl::parse(&self.registry).map_err(|error| usage(&error))?;
        let registry = url.open_of_cluster(options.token.as_deref()).map_err(|error| usage(&error))?;
        let listing = registry.list("", WITHIN)?;
        let mut view = view(&registry.url(), &listing)?;
        let servers: Vec<String> =
            view.servers.iter().map(|server| server.control.clone()).filter(|url| !url.is_empty()).collect();
        let mut clients: Vec<Option<Client>> = servers.iter().map(|_| None).collect();
        let answers = ask_all(&servers, options, &mut clients, Client::status);
        let answers: BTreeMap<&String, Result<StatusReply, ControlError>> =
            servers.iter().zip(answers).collect();
        for server in &mut view.servers {
            match answers.get(&server.control) {
                Some(Ok(status)) => {
                    let counter = |name: &str| status.counters.get(name).copied().unwrap_or_default();
                    server.lag = Some(counter("group_backlog") + counter("group_waiting"));
                    server.rows = Some(counter("rows"));
                }
                // Its lease has not ended yet.
                Some(Err(ControlError::Unreachable { .. })) => server.role = "silent",
                Some(Err(error)) => note_line!("{error}"),
                None => {}
            }
        }
        Ok(view)
    }
}

impl View {
    pub(super) fn text(&self) -> String {
        let View { cluster, groups, replicas, slots, lost_groups, servers, moves } = self;
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (groups, slots) = (plural(*groups, "group"), output::count(u64::from(*slots)));
        let mut text = format!("{cluster}: {groups} of {}, {slots} slots\n", plural(*replicas, "replica"));
        let header = ["group", "server", "role", "epoch", "slots", "lag", "rows", "address", "control"];
        let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), output::count);
        let row = |server: &ServerView| {
            vec![
                server.group.to_string(),
                server.server.to_string(),
                server.role.to_owned(),
                server.epoch.to_string(),
                output::count(u64::from(server.slots)),
                number(server.lag),
                number(server.rows),
                server.address.clone(),
                server.control.clone(),
            ]
        };
        let rows: Vec<_> = servers.iter().map(row).collect();
        match rows.is_empty() {
            true => text.push_str("no servers yet"),
            false => {
                text.push_str(&output::columns_within(&header, &rows, &[2, 7, 8], width::of_stdout()));
            }
        }
        for group in lost_groups {
            text.push_str(&format!(
                "\ngroup {group} has lost its rows: all servers that had them have ended. Begin it anew: sanderling ctl begin-anew \
                 --registry {cluster} --group {group}"
            ));
        }
        if !moves.is_empty() {
            let row = |one: &MoveView| {
                let state = serde_json::to_value(one.state).unwrap_or_default();
                let state = state.as_str().unwrap_or_default().to_owned();
                vec![
                    one.id.to_string(),
                    one.from.to_string(),
                    one.to.to_string(),
                    output::count(one.slots.into()),
                    state,
                ]
            };
            let rows: Vec<_> = moves.iter().map(row).collect();
            let header = ["move", "from", "to", "slots", "state"];
            text.push_str("\n\n");
            text.push_str(&output::columns_within(&header, &rows, &[], width::of_stdout()));
        }
        text
    }
}

/// Whether every server that had the rows of a group has ended.
pub(super) fn is_lost(known: &GroupRecord, members: &BTreeMap<u32, MemberRecord>) -> bool {
    let all = std::iter::once(&known.group.primary).chain(&known.group.in_sync);
    all.into_iter().all(|member| members.get(&member.server).is_none_or(|found| found.member != *member))
}

/// The cluster as its registry says.
fn view(url: &str, listing: &Listing) -> Result<View, Failure> {
    let config: ClusterConfig = parsed(url, listing, CONFIG)?.ok_or_else(|| {
        Failure::Run(format!("{url}: there is no such cluster; sanderling ps --cluster begins one"))
    })?;
    let placement: Option<Placement> = parsed(url, listing, PLACEMENT)?;
    let (mut servers, mut lost_groups) = (Vec::new(), Vec::new());
    let members: BTreeMap<u32, MemberRecord> = numbered(url, listing, MEMBERS)?;
    let groups: BTreeMap<u32, GroupRecord> = numbered(url, listing, GROUPS)?;
    for group in 0..config.groups {
        // Without a placement, the slots are shared out evenly.
        let slots = match &placement {
            Some(placement) => {
                (0..placement.slots).filter(|&slot| placement.group_of(slot) == Some(group)).count() as u32
            }
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
            lost_groups.extend(is_lost(known, &members).then_some(group));
            let all = [(&known.group.primary, "primary")].into_iter();
            for (member, role) in all.chain(known.group.in_sync.iter().map(|member| (member, "in sync"))) {
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
    Ok(View {
        cluster: url.to_owned(),
        groups: config.groups,
        replicas: config.replicas,
        slots: placement.as_ref().map_or(config.slots, |placement| placement.slots),
        lost_groups,
        servers,
        moves: placement.iter().flat_map(|placement| placement.moves.iter().map(shown_move)).collect(),
    })
}

fn shown_move(one: &Move) -> MoveView {
    MoveView { id: one.id, from: one.from, to: one.to, slots: one.count(), state: one.state }
}

fn parsed<T: DeserializeOwned>(url: &str, listing: &Listing, name: &str) -> Result<Option<T>, Failure> {
    let Some(record) = listing.records.iter().find(|record| record.name == name) else { return Ok(None) };
    let parsed = serde_json::from_value(record.value.clone()).map_err(|error| RegistryError::Damaged {
        url: url.to_owned(),
        name: name.to_owned(),
        reason: error.to_string(),
    });
    Ok(Some(parsed?))
}

/// The records whose names are this prefix and a number.
pub(super) fn numbered<T: DeserializeOwned>(
    url: &str,
    listing: &Listing,
    prefix: &str,
) -> Result<BTreeMap<u32, T>, Failure> {
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
    use sanderling_registry::Record;
    use serde_json::{Value, json};

    use super::*;

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
        let view = view("keeper://h/ads", &listing(&records)).expect("it is a cluster");
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
        assert_eq!(view.lost_groups, [0; 0]);
        let text = view.text();
        assert!(text.starts_with("keeper://h/ads: 2 groups of 2 replicas, 5 slots\n"), "{text}");
        assert!(text.contains("tcp://h:2"), "{text}");
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
            let view = view("keeper://h/ads", &listing(&records)).expect("it is a cluster");
            assert_eq!(view.lost_groups, expected);
            assert_eq!(view.text().contains("begin-anew"), !expected.is_empty(), "{}", view.text());
        }
    }

    #[test]
    fn damage_is_named() {
        for (records, expected) in [
            (vec![], "there is no such cluster"),
            (vec![("config", json!(3))], "config"),
            (
                vec![("config", json!({ "slots": 5, "groups": 1, "replicas": 1 })), ("groups/0", json!("x"))],
                "groups/0",
            ),
        ] {
            let error = view("keeper://h/ads", &listing(&records)).expect_err("it is damaged").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
