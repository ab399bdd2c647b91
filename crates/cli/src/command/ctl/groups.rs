//! `sanderling ctl groups` and `ctl rebalance`: more or fewer groups, and slots that move between them.

use std::io::IsTerminal;
use std::time::Duration;

use sanderling_registry::{
    Placement, PlannedMove, Registry, add_group, begin_moves, cancel_moves, drain_group, layout, plan,
};
use serde::Serialize;

use super::confirm;
use super::in_cluster::InCluster;
use crate::failure::Failure;
use crate::output;
use crate::width;

/// How often it is looked how far moves are.
const LOOK: Duration = Duration::from_millis(200);

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
    /// Return when the moves have begun
    #[arg(long)]
    no_wait: bool,
}

/// A planned or begun move, for --json.
#[derive(Debug, Serialize)]
struct MoveView {
    from: u32,
    to: u32,
    slots: u32,
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
                let planned = plan(&placement, &active, &vec![1.0; placement.slots as usize]);
                let leaving: Vec<PlannedMove> =
                    planned.into_iter().filter(|one| one.from == *group).collect();
                begin(&*registry, &leaving, *no_wait, json)?;
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
        let planned = plan(&placement, &active, &vec![1.0; placement.slots as usize]);
        if self.plan || planned.is_empty() {
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

/// Shows moves, those between the same groups together.
fn show(planned: &[PlannedMove], json: bool) -> Result<(), Failure> {
    let mut moves: Vec<MoveView> = Vec::new();
    for PlannedMove { from, to, slots } in planned {
        match moves.iter_mut().find(|known| (known.from, known.to) == (*from, *to)) {
            Some(known) => known.slots += slots.len() as u32,
            None => moves.push(MoveView { from: *from, to: *to, slots: slots.len() as u32 }),
        }
    }
    if json {
        output::text(&serde_json::json!({ "moves": moves }).to_string())?;
    } else if moves.is_empty() {
        output::prose("The groups have equal shares of the slots. Nothing has to move.")?;
    } else {
        let row = |one: &MoveView| vec![one.from.to_string(), one.to.to_string(), one.slots.to_string()];
        let rows: Vec<_> = moves.iter().map(row).collect();
        output::text(&output::columns_within(
            &["from group", "to group", "slots"],
            &rows,
            &[],
            width::of_stdout(),
        ))?;
    }
    Ok(())
}

/// Begins moves, and waits until they are done.
fn begin(registry: &dyn Registry, planned: &[PlannedMove], no_wait: bool, json: bool) -> Result<(), Failure> {
    let placement = if planned.is_empty() { layout(registry)?.1 } else { begin_moves(registry, planned)? };
    let ids: Vec<u64> = placement.moves.iter().map(|one| one.id).collect();
    let wanted: Vec<(u32, u32)> =
        planned.iter().flat_map(|one| one.slots.iter().map(|&slot| (slot, one.to))).collect();
    if no_wait {
        return show(planned, json);
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
        show(planned, true)?;
    } else if !planned.is_empty() {
        output::prose(&format!("Moved {} slots.", wanted.len()))?;
    }
    Ok(())
}
