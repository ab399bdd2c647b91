//! `sanderling ctl groups` and `ctl rebalance`: more or fewer groups, and slots and pinned tables that move between them.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use sanderling_registry::{
    LOADS, MEMBERS, MemberRecord, Placement, PlannedMove, Registry, Sharing, Weights, add_group, begin_moves,
    cancel_moves, costs, drain_group, layout, loads, moved, numbered, plan, plan_pinned, weights,
};
use sanderling_server::MOVES_PINNED_TABLES;
use serde::Serialize;

use super::confirm;
use super::in_cluster::InCluster;
use crate::failure::Failure;
use crate::output;
use crate::width;

/// How often it is looked how far moves are.
const LOOK: Duration = Duration::from_millis(200);
/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(5);
/// How old measured loads may be.
const LOAD_AGE_MAX: Duration = Duration::from_secs(60);

/// Orders of `ctl groups`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Groups {
    /// Add a group without slots; servers that wait or start take its places
    #[command(after_help = "Example:
  sanderling ctl groups add --registry keeper://127.0.0.1:7400/ads
  sanderling ps --cluster ads --registry keeper://127.0.0.1:7400    # as many as there are replicas
  sanderling ctl rebalance --registry keeper://127.0.0.1:7400/ads")]
    Add {
        #[command(flatten)]
        cluster: InCluster,
    },
    /// Move all pinned tables and slots of a group to the others, and wait; then its servers can be stopped
    #[command(after_help = "Example:
  sanderling ctl groups drain 2 --registry keeper://127.0.0.1:7400/ads

Pinned tables move first, all together, to the group with the smallest share. Slots follow when these have moved.")]
    Drain {
        /// Number of the group, as ctl cluster shows it
        group: u32,
        #[command(flatten)]
        cluster: InCluster,
        /// Return when the moves have begun
        #[arg(long)]
        no_wait: bool,
    },
}

/// Options of `ctl rebalance`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  # what would move
  sanderling ctl rebalance --plan --registry keeper://127.0.0.1:7400/ads
  sanderling ctl rebalance --yes --registry keeper://127.0.0.1:7400/ads

The plan evens out the measured load and the rows of the groups: the share of a group is the greater one of both. Where less than \
1,000 keys per second are asked for and there are less than 1,000,000 rows, or servers were started with --rebalance off, all groups get as many slots.

Rows move with their optimizer state, while training and serving go on. Requests for the slots of a move wait for a moment while \
its last rows are copied. ctl cluster shows how far moves are.")]
pub(super) struct Rebalance {
    #[command(flatten)]
    cluster: InCluster,
    /// Show the moves, and begin none
    #[arg(long, conflicts_with = "cancel")]
    plan: bool,
    /// Give up the moves that are not done: their slots stay where they are
    #[arg(long)]
    cancel: bool,
    /// Begin without confirmation; needed without a terminal
    #[arg(long, short)]
    yes: bool,
    /// Groups get equal shares of the load, as measured, or of the slots
    #[arg(long, value_name = "WHAT", hide_possible_values = true, default_value = "load")]
    by: By,
    /// Return when the moves have begun
    #[arg(long)]
    no_wait: bool,
}

/// Of what groups get equal shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Load,
    Slots,
}

/// A planned or begun move, for --json.
#[derive(Debug, Serialize)]
struct MoveView {
    from: u32,
    to: u32,
    slots: u32,
    /// Groups whose pinned tables move.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pinned: Vec<u32>,
}

/// A group before and after moves, for --json.
#[derive(Debug, Serialize)]
struct GroupShare {
    group: u32,
    slots: u32,
    slots_after: u32,
    /// Shares of the cluster; absent where nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_after: Option<f64>,
}

/// A plan, and what it makes of the groups.
#[derive(Debug, Default)]
struct Plan {
    moves: Vec<PlannedMove>,
    groups: Vec<GroupShare>,
}

impl Plan {
    /// The plan of a cluster for these groups.
    fn of(registry: &dyn Registry, placement: &Placement, active: &[u32], by: By) -> Result<Plan, Failure> {
        let measured = match by {
            By::Load => measured(registry, placement)?,
            By::Slots => None,
        };
        let weights = measured.clone().unwrap_or_else(|| Weights::equal(placement.slots));
        let moves = plan(placement, &Sharing::of(active), &weights);
        let after = moved(placement, &moves);
        let slots = |placement: &Placement, group| {
            placement.groups().iter().filter(|of| **of == group).count() as u32
        };
        let share = |shares: Option<&Vec<f64>>, placement: &Placement, group| {
            let shares = shares.filter(|shares| shares.iter().any(|share| *share > 0.0))?;
            let only = Weights { load: shares.clone(), rows: Vec::new(), alike: 1.0 };
            costs(placement, &[group], &only).first().copied()
        };
        let (load, rows) = measured.as_ref().map(|weights| (&weights.load, &weights.rows)).unzip();
        let mut groups = [placement.groups(), active.to_vec()].concat();
        groups.sort_unstable();
        groups.dedup();
        let of = |&group: &u32| GroupShare {
            group,
            slots: slots(placement, group),
            slots_after: slots(&after, group),
            load: share(load, placement, group),
            load_after: share(load, &after, group),
            rows: share(rows, placement, group),
            rows_after: share(rows, &after, group),
        };
        Ok(Plan { groups: groups.iter().map(of).collect(), moves })
    }
}

/// The weights of slots by the loads that the groups have told of late.
fn measured(registry: &dyn Registry, placement: &Placement) -> Result<Option<Weights>, Failure> {
    let mut loads = loads(&registry.url(), &registry.list(LOADS, WITHIN)?)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    loads.retain(|_, load| now.as_millis().abs_diff(load.unix_ms.into()) < LOAD_AGE_MAX.as_millis());
    Ok(weights(placement, &loads))
}

impl Groups {
    pub(super) fn run(&self, token: Option<&str>, json: bool) -> Result<u8, Failure> {
        match self {
            Groups::Add { cluster } => {
                let registry = cluster.open(token)?;
                let group = add_group(&*registry)?;
                let (config, _) = layout(&*registry)?;
                if json {
                    output::text(
                        &serde_json::json!({ "group": group, "replicas": config.replicas }).to_string(),
                    )?;
                } else {
                    output::prose(&format!(
                        "Added group {group} of {}. It needs {} servers, and has no slots before ctl rebalance.",
                        registry.url(),
                        config.replicas
                    ))?;
                }
            }
            Groups::Drain { group, cluster, no_wait } => {
                let registry = cluster.open(token)?;
                check_versions(&*registry)?;
                let config = drain_group(&*registry, *group)?;
                let (_, placement) = layout(&*registry)?;
                let active: Vec<u32> = config.active().collect();
                let mut planned = Plan::of(&*registry, &placement, &active, By::Load)?;
                planned.moves.retain(|one| one.from == *group);
                let groups = (*group, config.groups);
                let weights = Weights::equal(placement.slots);
                if let Some(pinned) = plan_pinned(&placement, groups, &active, &weights) {
                    // A save asks only groups with slots: until its pinned tables are elsewhere, the group keeps some.
                    if !*no_wait {
                        wait(&*registry, std::slice::from_ref(&pinned))?;
                    }
                    planned.moves.insert(0, pinned);
                }
                let left = |one: &&PlannedMove| *no_wait || one.pinned.is_empty();
                let begun: Vec<PlannedMove> = planned.moves.iter().filter(left).cloned().collect();
                begin(&*registry, &planned, &begun, *no_wait, json)?;
                let (_, placement) = layout(&*registry)?;
                let has_none = !placement.groups().contains(group)
                    && (0..config.groups).all(|home| placement.pinned_to(home) != *group);
                if has_none && !json {
                    let line = format!(
                        "Group {group} has no slots and no pinned tables. Its servers can be stopped."
                    );
                    output::prose(&line)?;
                }
            }
        }
        Ok(0)
    }
}

impl Rebalance {
    pub(super) fn run(&self, token: Option<&str>, json: bool) -> Result<u8, Failure> {
        let registry = self.cluster.open(token)?;
        if self.cancel {
            let cancelled = cancel_moves(&*registry)?;
            match json {
                true => output::text(&serde_json::json!({ "cancelled": cancelled }).to_string())?,
                false => output::prose(&format!("Cancelled moves: {cancelled}"))?,
            }
            return Ok(0);
        }
        let (config, placement) = layout(&*registry)?;
        let active: Vec<u32> = config.active().collect();
        let planned = Plan::of(&*registry, &placement, &active, self.by)?;
        if self.plan || planned.moves.is_empty() {
            show(&planned, json)?;
            return Ok(0);
        }
        if !self.yes {
            if !std::io::stdin().is_terminal() {
                return Err(Failure::Usage(
                    "rebalance: confirmation needs a terminal; pass --yes".to_owned(),
                ));
            }
            show(&planned, false)?;
            confirm("Begin these moves?", "no slot was moved")?;
        }
        begin(&*registry, &planned, &planned.moves, self.no_wait, json)?;
        Ok(0)
    }
}

/// Shows moves, those between the same groups together, and what they make of the groups.
fn show(plan: &Plan, json: bool) -> Result<(), Failure> {
    let mut moves: Vec<MoveView> = Vec::new();
    for PlannedMove { from, to, slots, pinned } in &plan.moves {
        match moves.iter_mut().find(|known| (known.from, known.to) == (*from, *to)) {
            Some(known) => {
                known.slots += slots.len() as u32;
                known.pinned.extend(pinned);
            }
            None => {
                let (slots, pinned) = (slots.len() as u32, pinned.clone());
                moves.push(MoveView { from: *from, to: *to, slots, pinned });
            }
        }
    }
    if json {
        output::text(&serde_json::json!({ "moves": moves, "groups": plan.groups }).to_string())?;
        return Ok(());
    }
    if moves.is_empty() {
        output::prose("The groups have equal shares. Nothing has to move.")?;
    } else {
        let row = |one: &MoveView| vec![one.from.to_string(), one.to.to_string(), one.slots.to_string()];
        let rows: Vec<_> = moves.iter().map(row).collect();
        let header = ["from group", "to group", "slots"];
        output::text(&output::columns_within(&header, &rows, &[], width::of_stdout()))?;
        output::text("")?;
    }
    let change = |before: Option<f64>, after: Option<f64>| match (before, after) {
        (Some(before), Some(after)) => format!("{:.1} -> {:.1} %", before * 100.0, after * 100.0),
        _ => "-".to_owned(),
    };
    let row = |one: &GroupShare| {
        let slots = format!("{} -> {}", one.slots, one.slots_after);
        vec![one.group.to_string(), slots, change(one.load, one.load_after), change(one.rows, one.rows_after)]
    };
    let rows: Vec<_> = plan.groups.iter().map(row).collect();
    output::text(&output::columns_within(
        &["group", "slots", "load", "rows"],
        &rows,
        &[],
        width::of_stdout(),
    ))?;
    Ok(())
}

/// Refuses to move pinned tables while a server of the cluster would lose them.
fn check_versions(registry: &dyn Registry) -> Result<(), Failure> {
    let members = numbered::<MemberRecord>(&registry.url(), &registry.list(MEMBERS, WITHIN)?, MEMBERS)?;
    let needed = u32::from(MOVES_PINNED_TABLES);
    match members.iter().find(|(_, member)| member.speaks < needed) {
        None => Ok(()),
        Some((server, member)) => Err(Failure::Run(format!(
            "server {server} of group {} speaks version {} of messages between servers, and pinned tables move by version \
             {needed}: upgrade all servers of the cluster first",
            member.group, member.speaks
        ))),
    }
}

/// Begins moves of a plan, and waits until they are done.
fn begin(
    registry: &dyn Registry,
    plan: &Plan,
    begun: &[PlannedMove],
    no_wait: bool,
    json: bool,
) -> Result<(), Failure> {
    if no_wait {
        if !begun.is_empty() {
            begin_moves(registry, begun)?;
        }
        return show(plan, json);
    }
    wait(registry, begun)?;
    if json {
        return show(plan, true);
    }
    let slots: usize = plan.moves.iter().map(|one| one.slots.len()).sum();
    if slots > 0 {
        output::prose(&format!("Moved {slots} slots."))?;
    }
    Ok(())
}

/// Begins moves, and waits until these and those that were under way are done.
fn wait(registry: &dyn Registry, planned: &[PlannedMove]) -> Result<(), Failure> {
    let placement = if planned.is_empty() { layout(registry)?.1 } else { begin_moves(registry, planned)? };
    let ids: Vec<u64> = placement.moves.iter().map(|one| one.id).collect();
    let mut left_before = usize::MAX;
    let placement: Placement = loop {
        let (_, placement) = layout(registry)?;
        let left = placement.moves.iter().filter(|one| ids.contains(&one.id)).count();
        if left == 0 {
            break placement;
        }
        if left != left_before {
            note_line!("{} of {} moves are done", ids.len() - left, ids.len());
            left_before = left;
        }
        std::thread::sleep(LOOK);
    };
    let groups = placement.groups();
    let wanted = planned.iter().flat_map(|one| one.slots.iter().map(|&slot| (slot, one.to)));
    let stayed = wanted.filter(|(slot, to)| groups[*slot as usize] != *to).count();
    if stayed > 0 {
        let reason = format!("{stayed} slots did not move: see the log of the receiving group's primary");
        return Err(Failure::Run(reason));
    }
    let pinned = planned.iter().flat_map(|one| one.pinned.iter().map(move |&home| (home, one)));
    if let Some((home, one)) = pinned.into_iter().find(|(home, one)| placement.pinned_to(*home) != one.to) {
        return Err(Failure::Run(format!(
            "the tables pinned to group {home} did not move: see the log of the primary of group {}",
            one.to
        )));
    }
    Ok(())
}
