//! `sanderling ctl groups` and `ctl rebalance`: more or fewer groups, and slots that move between them.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use sanderling_registry::{
    LOADS, Placement, PlannedMove, Registry, Sharing, Weights, add_group, begin_moves, cancel_moves, costs,
    drain_group, layout, loads, moved, plan, weights,
};
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
    /// Move all slots of a group to the others, and wait until it has none; then its servers can be stopped
    #[command(after_help = "Example:
  sanderling ctl groups drain 2 --registry keeper://127.0.0.1:7400/ads

Tables that are pinned to the group stay there: drop them, or keep the group.")]
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
                let config = drain_group(&*registry, *group)?;
                let (_, placement) = layout(&*registry)?;
                let active: Vec<u32> = config.active().collect();
                let mut planned = Plan::of(&*registry, &placement, &active, By::Load)?;
                planned.moves.retain(|one| one.from == *group);
                begin(&*registry, &planned, *no_wait, json)?;
                let has_none = !layout(&*registry)?.1.groups().contains(group);
                if has_none && !json {
                    output::prose(&format!("Group {group} has no slots. Its servers can be stopped."))?;
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
        begin(&*registry, &planned, self.no_wait, json)?;
        Ok(0)
    }
}

/// Shows moves, those between the same groups together, and what they make of the groups.
fn show(plan: &Plan, json: bool) -> Result<(), Failure> {
    let mut moves: Vec<MoveView> = Vec::new();
    for PlannedMove { from, to, slots } in &plan.moves {
        match moves.iter_mut().find(|known| (known.from, known.to) == (*from, *to)) {
            Some(known) => known.slots += slots.len() as u32,
            None => moves.push(MoveView { from: *from, to: *to, slots: slots.len() as u32 }),
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

/// Begins moves, and waits until they are done.
fn begin(registry: &dyn Registry, plan: &Plan, no_wait: bool, json: bool) -> Result<(), Failure> {
    let planned = &plan.moves;
    let placement = if planned.is_empty() { layout(registry)?.1 } else { begin_moves(registry, planned)? };
    let ids: Vec<u64> = placement.moves.iter().map(|one| one.id).collect();
    let wanted: Vec<(u32, u32)> =
        planned.iter().flat_map(|one| one.slots.iter().map(|&slot| (slot, one.to))).collect();
    if no_wait {
        return show(plan, json);
    }
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
    let stayed = wanted.iter().filter(|(slot, to)| groups[*slot as usize] != *to).count();
    if stayed > 0 {
        let reason = format!("{stayed} slots did not move: see the log of the receiving group's primary");
        return Err(Failure::Run(reason));
    }
    if json {
        show(plan, true)?;
    } else if !planned.is_empty() {
        output::prose(&format!("Moved {} slots.", wanted.len()))?;
    }
    Ok(())
}
