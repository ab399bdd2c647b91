//! `sanderling ctl cluster`: the groups of a cluster and their servers, from its registry and from the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use sanderling_control::proto::StatusReply;
use sanderling_control::{Client, ClientOptions, ControlError};
use sanderling_registry::{ClusterView, MoveView, PinnedPlace, ServerView};

use super::in_cluster::InCluster;
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
    #[command(flatten)]
    cluster: InCluster,
    #[command(flatten)]
    pub(super) watch: Watch,
}

impl Cluster {
    /// Reads the registry and asks the servers.
    pub(super) fn view(&self, options: &ClientOptions) -> Result<ClusterView, Failure> {
        let registry = self.cluster.open(options.token.as_deref())?;
        let listing = registry.list("", WITHIN)?;
        let mut view = ClusterView::of(&registry.url(), &listing)?.ok_or_else(|| {
            let begins = "sanderling ps --cluster begins one";
            Failure::Run(format!("{}: there is no such cluster; {begins}", registry.url()))
        })?;
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
                    let received = view.moves.iter_mut().find(|one| one.id == counter("group_move"));
                    if let Some(one) = received {
                        one.rows = Some(counter("group_moved_rows"));
                        one.rows_expected = Some(counter("group_moving_rows"));
                    }
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

/// A cluster as lines.
pub(super) fn text(view: &ClusterView) -> String {
    let ClusterView { cluster, groups, replicas, slots, lost_groups, servers, moves, pinned, .. } = view;
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
        false => text.push_str(&output::columns_within(&header, &rows, &[2, 7, 8], width::of_stdout())),
    }
    for group in lost_groups {
        text.push_str(&format!(
            "\ngroup {group} has lost its rows: all servers that had them have ended. Begin it anew: sanderling ctl begin-anew \
             --registry {cluster} --group {group}"
        ));
    }
    for PinnedPlace { home, group } in pinned {
        text.push_str(&format!("\ntables pinned to group {home} are in group {group}"));
    }
    if !moves.is_empty() {
        let row = |one: &MoveView| {
            let numbers = [one.id.to_string(), one.from.to_string(), one.to.to_string()];
            let rows = [one.rows, one.rows_expected].map(number);
            numbers.into_iter().chain([one.content(), one.state_name()]).chain(rows).collect()
        };
        let rows: Vec<Vec<String>> = moves.iter().map(row).collect();
        let header = ["move", "from", "to", "slots", "state", "copied", "of rows"];
        text.push_str("\n\n");
        text.push_str(&output::columns_within(&header, &rows, &[], width::of_stdout()));
    }
    text
}
