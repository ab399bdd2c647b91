//! The status page of a cluster, of keepers and of servers alike. Asks no server.

use sanderling_http::status_pages::{Cell, Column, Part, Table};
use sanderling_observe::Series;
use sanderling_observe::numbers::{bytes, count};
use sanderling_registry::{ClusterView, GroupLoad, ServerView};

/// Groups and servers of a cluster, from a row on. `copied` is the count of rows that this server has copied in moves.
#[must_use]
pub fn cluster_parts(view: &ClusterView, from: usize, copied: Option<&Series>) -> Vec<Part> {
    let ClusterView { cluster, groups, replicas, slots, servers, moves, .. } = view;
    let is_primary = |server: &&ServerView| server.role == "primary";
    let with = |role: &str| servers.iter().filter(|server| server.role == role).count();
    let mut facts = vec![
        Cell::fact("cluster", cluster),
        Cell::fact("groups", groups.to_string()),
        Cell::fact("replicas of a group", replicas.to_string()),
        Cell::fact("slots", count(u64::from(*slots))),
        Cell::fact("servers", format!("{} of {}", servers.len() - with("lost"), groups * replicas)),
    ];
    let roles =
        [("primaries", "primary"), ("in sync", "in sync"), ("catching up", "catching up"), ("lost", "lost")];
    facts.extend(roles.map(|(name, role)| Cell::fact(name, with(role).to_string())));
    let columns = [
        Column::number("group"),
        Column::number("server"),
        Column::text("role"),
        Column::number("epoch"),
        Column::number("slots"),
        Column::number("lag"),
        Column::number("rows"),
        Column::text("address"),
        Column::text("control"),
    ];
    let number = |value: Option<u64>| Cell::Number(value.map_or("-".to_owned(), count));
    let table = Table::new("Servers by group", columns).part_of(servers, from, |server| {
        let role = match server.role {
            "lost" | "catching up" => Cell::Marked(server.role.to_owned()),
            role => Cell::text(role),
        };
        // The scheme says no more than the cluster's configuration.
        let control = server.control.split_once("://").map_or(&*server.control, |(_, address)| address);
        vec![
            Cell::number(server.group),
            Cell::number(server.server),
            role,
            Cell::number(server.epoch),
            Cell::Number(count(u64::from(server.slots))),
            number(server.lag),
            number(server.rows),
            Cell::text(&server.address),
            Cell::text(control),
        ]
    });
    let without: Vec<String> = (0..*groups)
        .filter(|group| !servers.iter().filter(is_primary).any(|server| server.group == *group))
        .map(|group| group.to_string())
        .collect();
    let mut parts = vec![Part::Facts(facts)];
    if !without.is_empty() {
        let groups = without.join(", ");
        parts.push(Part::Warning(format!(
            "Without a living primary, and so without service: group {groups}."
        )));
    }
    parts.push(Part::Table(table));
    parts.extend(load_parts(view));
    if !moves.is_empty() {
        let columns = [
            Column::number("move"),
            Column::number("from"),
            Column::number("to"),
            Column::text("slots"),
            Column::text("state"),
            Column::number("rows copied"),
            Column::number("rows per s"),
            Column::number("rest"),
        ];
        parts.push(Part::Table(Table::new("Moves of slots", columns).part_of(moves, 0, |one| {
            let numbers = [one.id, one.from.into(), one.to.into()];
            // Only the receiving server knows.
            let rate = if one.rows.is_some() { Cell::rate(copied) } else { Cell::text("-") };
            let rest = one.rows_expected.zip(one.rows).map(|(expected, rows)| expected.saturating_sub(rows));
            let known = [
                Cell::text(one.content()),
                Cell::text(one.state_name()),
                number(one.rows),
                rate,
                number(rest),
            ];
            numbers.map(Cell::number).into_iter().chain(known).collect()
        })));
        let note = "The server that receives the slots shows rows and rest, the estimated rows that are not copied yet; \
                    rows that change meanwhile are copied again.";
        parts.push(Part::Note(note.to_owned()));
    }
    let note = "A server in sync has every acknowledged push and may take over; one that is catching up has not yet. The lease of \
                a lost one has ended. Lag and rows are those that this process knows; sanderling ctl cluster asks all servers.";
    parts.push(Part::Note(note.to_owned()));
    parts
}

/// A group has too much above this multiple of an equal share of the load, as slots then move by themselves,
const SHARE_MAX: f64 = 1.15;
/// from so many keys per second on.
const KEYS_PER_S_MIN: f64 = 1000.0;
/// A slot with more of its group's load is named.
const GREAT_SLOT: f64 = 0.25;

/// The load of each group, and the group that has too much of it.
fn load_parts(view: &ClusterView) -> Vec<Part> {
    let (loads, mut parts) = (&view.loads, Vec::new());
    if loads.is_empty() {
        return parts;
    }
    let sum: f64 = loads.values().map(|load| load.keys_per_s).sum();
    let share = |load: &GroupLoad| if sum > 0.0 { load.keys_per_s / sum } else { 0.0 };
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let most = loads.iter().max_by(|(_, a), (_, b)| a.keys_per_s.total_cmp(&b.keys_per_s));
    let fair = 1.0 / f64::from(view.groups.max(1));
    let is_too_much = |load: &GroupLoad| sum >= KEYS_PER_S_MIN && share(load) > fair * SHARE_MAX;
    if let Some((group, load)) = most.filter(|(_, load)| is_too_much(load)) {
        let heavy = match load.heavy.first() {
            Some((slot, keys_per_s)) if *keys_per_s > load.keys_per_s * GREAT_SLOT => format!(
                "slot {slot} alone has {} of it, and /hot of its primary shows its keys",
                percent(keys_per_s / load.keys_per_s)
            ),
            _ => "sanderling ctl rebalance --plan shows which slots should move".to_owned(),
        };
        let (own, equal) = (percent(share(load)), percent(fair));
        parts.push(Part::Warning(format!(
            "Group {group} has {own} of the load, and an equal share is {equal}: {heavy}."
        )));
    }
    let columns = [
        Column::number("group"),
        Column::number("keys per s"),
        Column::number("share"),
        Column::number("rows"),
        Column::number("memory of tables"),
        Column::text("greatest slot"),
    ];
    parts.push(Part::Table(Table::new("Load by group", columns).part_of(loads, 0, |(group, load)| {
        let own = percent(share(load));
        let greatest = load.heavy.first().filter(|_| load.keys_per_s > 0.0);
        let greatest = greatest.map(|(slot, rate)| format!("{slot}, {}", percent(rate / load.keys_per_s)));
        vec![
            Cell::number(group),
            Cell::Number(count(load.keys_per_s as u64)),
            if is_too_much(load) { Cell::Marked(own) } else { Cell::Number(own) },
            Cell::Number(count(load.rows)),
            Cell::Number(bytes(load.table_bytes)),
            Cell::text(greatest.unwrap_or("-".to_owned())),
        ]
    })));
    let note = "Load: keys of requests per second over the last minute, from sampled requests; a pushed key counts as three. The greatest slot has so \
                much of its group's load.";
    parts.push(Part::Note(note.to_owned()));
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_group_with_too_much_load_is_told() {
        let load = |keys_per_s, heavy| GroupLoad { keys_per_s, heavy, ..GroupLoad::default() };
        for (loads, expected) in [
            (vec![], None),
            (vec![load(500.0, vec![])], None),
            (vec![load(5000.0, vec![]), load(5100.0, vec![])], None),
            (
                vec![load(9000.0, vec![]), load(1000.0, vec![])],
                Some("Group 0 has 90 % of the load, and an equal share is 50 %: sanderling ctl rebalance"),
            ),
            (
                vec![load(1000.0, vec![]), load(3000.0, vec![(7, 2700.0)])],
                Some("Group 1 has 75 % of the load, and an equal share is 50 %: slot 7 alone has 90 % of it"),
            ),
        ] {
            let view = ClusterView {
                cluster: "c".to_owned(),
                groups: 2,
                replicas: 1,
                slots: 8,
                lost_groups: Vec::new(),
                servers: Vec::new(),
                moves: Vec::new(),
                loads: (0..).zip(loads).collect(),
                slot_runs: Vec::new(),
                pinned: Vec::new(),
            };
            let parts = load_parts(&view);
            let warning = parts.iter().find_map(|part| match part {
                Part::Warning(warning) => Some(warning),
                _ => None,
            });
            assert_eq!(warning.is_some(), expected.is_some(), "{parts:?}");
            assert!(
                warning.is_none_or(|warning| warning.starts_with(expected.unwrap_or_default())),
                "{warning:?}"
            );
        }
    }

    #[test]
    fn a_group_without_a_primary_is_told() {
        let server = |group, role| ServerView {
            group,
            server: group,
            role,
            epoch: 1,
            slots: 2,
            lag: Some(7),
            rows: None,
            address: "tcp://h:1".to_owned(),
            control: "http://h:2".to_owned(),
        };
        for (servers, expected) in [
            (vec![server(0, "primary"), server(1, "primary"), server(1, "in sync")], None),
            (vec![server(0, "primary"), server(1, "lost")], Some("group 1.")),
            (vec![], Some("group 0, 1.")),
        ] {
            let view = ClusterView {
                cluster: "c".to_owned(),
                groups: 2,
                replicas: 2,
                slots: 4,
                lost_groups: Vec::new(),
                servers,
                moves: Vec::new(),
                loads: BTreeMap::new(),
                slot_runs: Vec::new(),
                pinned: Vec::new(),
            };
            let parts = cluster_parts(&view, 0, None);
            let warning = parts.iter().find_map(|part| match part {
                Part::Warning(warning) => Some(warning),
                _ => None,
            });
            assert_eq!(warning.is_some(), expected.is_some(), "{parts:?}");
            assert!(warning.is_none_or(|warning| warning.ends_with(expected.unwrap_or_default())));
        }
    }
}
