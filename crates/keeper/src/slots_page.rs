//! The status page of a cluster's slots, of keepers and of servers alike: which group has which. Asks no server.

use sanderling_http::status_pages::{Cell, Column, Part, Table};
use sanderling_observe::numbers::count;
use sanderling_registry::{ClusterView, SlotRunView};

/// The slots of a cluster by group, from a run on. `cluster` is the path of the page with its servers and moves.
#[must_use]
pub fn slots_parts(view: &ClusterView, from: usize, cluster: &str) -> Vec<Part> {
    let ClusterView { groups, slots, moves, slot_runs, .. } = view;
    let percent = |share: u64| format!("{:.1} %", 100.0 * share as f64 / f64::from((*slots).max(1)));
    let sum = |is_one: &dyn Fn(&&SlotRunView) -> bool| -> u64 {
        slot_runs.iter().filter(is_one).map(|run| u64::from(run.slots)).sum()
    };
    let moving = sum(&|run| run.in_move.is_some());
    let facts = vec![
        Cell::fact("slots", count(u64::from(*slots))),
        Cell::fact("moving", format!("{}, {}", count(moving), percent(moving))),
        ("servers and moves".to_owned(), Cell::link("cluster", cluster)),
    ];
    let columns = [
        Column::number("group"),
        Column::number("slots"),
        Column::number("share"),
        Column::number("leaving"),
        Column::number("coming"),
        Column::number("runs"),
    ];
    let by_group = Table::new("Slots by group", columns).part_of(0..*groups, 0, |group| {
        let of = |is_in: &dyn Fn(u32, u32) -> bool| -> u64 {
            let of = moves.iter().filter(|one| is_in(one.from, one.to));
            of.map(|one| u64::from(one.slots)).sum()
        };
        let own = sum(&|run| run.group == group);
        vec![
            Cell::number(group),
            Cell::Number(count(own)),
            Cell::Number(percent(own)),
            Cell::Number(count(of(&|from, _| from == group))),
            Cell::Number(count(of(&|_, to| to == group))),
            Cell::number(slot_runs.iter().filter(|run| run.group == group).count()),
        ]
    });
    let columns =
        [Column::text("slots"), Column::number("number"), Column::number("group"), Column::text("move")];
    let map = Table::new("Map", columns).part_of(slot_runs, from, |run| {
        let one = run.in_move.and_then(|id| moves.iter().find(|one| one.id == id));
        let last = run.first + run.slots.saturating_sub(1);
        vec![
            Cell::text(if last == run.first { last.to_string() } else { format!("{} to {last}", run.first) }),
            Cell::number(run.slots),
            Cell::number(run.group),
            one.map_or(Cell::text("-"), |one| {
                Cell::Marked(format!("{}, to group {}: {}", one.id, one.to, one.state_name()))
            }),
        ]
    });
    let note = "Each key has a slot by its hash, and each slot is in one group. sanderling ctl rebalance moves slots.";
    vec![Part::Facts(facts), Part::Table(by_group), Part::Table(map), Part::Note(note.to_owned())]
}
