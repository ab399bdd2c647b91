//! The status page of a cluster, of keepers and of servers alike. Asks no server.

use sanderling_http::status_pages::{Cell, Column, Part, Table};
use sanderling_observe::Series;
use sanderling_observe::numbers::count;
use sanderling_registry::{ClusterView, ServerView};

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

#[cfg(test)]
mod tests {
    use super::*;

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
