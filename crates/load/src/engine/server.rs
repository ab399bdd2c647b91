//! Server statistics of the time of a run: how often a command was carried out, and its mean time.
//! Percentiles they have only since their start; those are taken where the run is nearly all of it, and left out otherwise.

use sanderling_client::{LatencySummary, ServerCommand};

use crate::result::ServerLatency;
use crate::target::Target;

/// The share of a server's requests that must be the run's for the percentiles to be taken as the run's.
const NEARLY_ALL: f64 = 0.98;

/// Of all servers so far; nothing where there are none, or they do not say.
pub(super) fn statistics(target: &Target) -> Vec<ServerCommand> {
    target.cluster().and_then(|cluster| cluster.server_statistics().ok()).unwrap_or_default()
}

/// Of the time between two looks.
pub(super) fn since(before: &[ServerCommand], after: Vec<ServerCommand>) -> Vec<ServerLatency> {
    let earlier = |now: &ServerCommand| {
        let same = |then: &&ServerCommand| (&then.server, &then.command) == (&now.server, &now.command);
        before.iter().find(same).map_or_else(LatencySummary::default, |then| then.summary)
    };
    let latency = |now: ServerCommand| {
        let (then, now, ServerCommand { server, command, .. }) = (earlier(&now), now.summary, now);
        let count = now.count.checked_sub(then.count).filter(|&count| count > 0)?;
        let sum_ns = now.sum_ns.saturating_sub(then.sum_ns);
        let all = count as f64 >= NEARLY_ALL * now.count as f64;
        let of_all = if all { now } else { LatencySummary::default() };
        let summary = LatencySummary { count, sum_ns, average_ns: sum_ns / count, ..of_all };
        Some(ServerLatency { peer: server, command, summary })
    };
    after.into_iter().filter_map(latency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_is_not_of_the_run() {
        let one = |server: &str, command: &str, count, sum_ns| ServerCommand {
            server: server.to_owned(),
            command: command.to_owned(),
            summary: LatencySummary { count, sum_ns, p99_ns: 77, ..LatencySummary::default() },
        };
        let before = vec![one("a", "pull", 100, 1000), one("a", "push", 5, 50), one("a", "ping", 1, 1)];
        let after = vec![
            one("a", "pull", 300, 9000),
            one("a", "push", 1005, 2050),
            one("b", "pull", 9, 90),
            one("a", "ping", 1, 1),
        ];
        let found = since(&before, after);
        let rows: Vec<(&str, &str, u64, u64, u64)> = found
            .iter()
            .map(|row| {
                let ServerLatency { peer, command, summary } = row;
                (&peer[..], &command[..], summary.count, summary.average_ns, summary.p99_ns)
            })
            .collect();
        assert_eq!(rows, [("a", "pull", 200, 40, 0), ("a", "push", 1000, 2, 77), ("b", "pull", 9, 10, 77)]);
    }
}
