//! A server's numbers in the Prometheus text format, version 0.0.4, made from the messages of the service.

use sanderling_observe::{Exposition, Labels, LatencySummary};

use crate::proto::{Latency, StatusReply, Table};
use crate::table_samples::{self, TableSamples};

const MS_PER_S: f64 = 1e3;

/// Counter name, metric name, type and help. Milliseconds become seconds.
const COUNTERS: &[(&str, &str, &str, &str)] = &[
    ("connections", "connections", "gauge", "Open connections of clients."),
    ("connections_max", "connections_max", "gauge", "ConnectionSlots for them."),
    ("connections_accepted", "connections_accepted_total", "counter", "Connections since the start."),
    (
        "logins_refused",
        "logins_refused_total",
        "counter",
        "Clients of the data plane that said no token or a wrong one.",
    ),
    (
        "control_logins_refused",
        "control_logins_refused_total",
        "counter",
        "Requests to the control plane without a token or with a wrong one.",
    ),
    ("tables", "tables", "gauge", "Tables."),
    ("rows", "rows", "gauge", "Rows of all tables."),
    ("table_bytes", "tables_bytes", "gauge", "Memory of all tables."),
    ("table_budget_bytes", "tables_budget_bytes", "gauge", "Sum of the budgets of all tables that have one."),
    ("tables_without_budget", "tables_without_budget", "gauge", "Tables that have none."),
    ("pushing_clients", "pushing_clients", "gauge", "Clients whose pushes are known."),
    ("fed_batches", "fed_batches", "gauge", "Batches that were fed and not yet pushed."),
    ("fed_bytes", "fed_bytes", "gauge", "Memory of them."),
    ("step_groups", "step_groups", "gauge", "Groups of workers that go in step."),
    ("step_bytes", "step_bytes", "gauge", "Memory of what they have handed in and is not applied."),
    ("checkpoints", "checkpoints", "gauge", "Checkpoints of this server on disk."),
    ("checkpoint_bytes", "checkpoint_bytes", "gauge", "Bytes of them."),
    ("saves", "saves_total", "counter", "Checkpoints that were saved, by whomever."),
    ("saves_failed", "saves_failed_total", "counter", "Checkpoints that could not be saved."),
    ("group_server", "group_server", "gauge", "Number of the server in its cluster."),
    ("group_primary", "group_primary", "gauge", "1 if the server is the primary of its group."),
    ("group_epoch", "group_epoch", "gauge", "Count of the primaries of the group so far."),
    (
        "group_in_sync",
        "group_in_sync",
        "gauge",
        "Replicas that have every acknowledged push, the primary included.",
    ),
    ("group_placement", "group_placement", "gauge", "Version of the placement that the group has applied."),
    ("group_moving", "group_moving", "gauge", "Whether the group receives slots of another one."),
    (
        "group_moved_rows",
        "group_moved_rows_total",
        "counter",
        "Rows copied by the move under way, repeated ones included.",
    ),
    (
        "group_moving_rows",
        "group_moving_rows",
        "gauge",
        "Rows of the slots of the move under way, estimated; 0: there is none.",
    ),
    ("group_backlog", "group_backlog", "gauge", "Records that a follower in sync has not acknowledged."),
    ("group_waiting", "group_waiting", "gauge", "Updates of a follower that wait for earlier ones."),
    ("spans_exported", "spans_exported_total", "counter", "Spans of traces that reached the collector."),
    ("spans_dropped", "spans_dropped_total", "counter", "Spans of traces that were dropped."),
    ("restores", "restores_total", "counter", "Checkpoints that were restored since the start."),
    ("log_groups", "log_groups_total", "counter", "Groups that were written to the delta log."),
    ("log_bytes", "log_bytes_total", "counter", "Bytes of them."),
    ("log_waiting", "log_waiting", "gauge", "Replies that wait until their changes are on disk."),
    (
        "log_refused_since_unix_ms",
        "log_refused_since_timestamp_seconds",
        "gauge",
        "When the delta log failed and changes began to be refused, since 1970; 0: they are not.",
    ),
    (
        "log_unsynced_ms",
        "log_unsynced_seconds",
        "gauge",
        "At most the age of the oldest change that is not on disk; 0: all are.",
    ),
];

type TableNumber = (&'static str, &'static str, &'static str, fn(&Table) -> u64);

/// Metric name, type, help and value of a table's numbers.
const TABLE_NUMBERS: &[TableNumber] = &[
    ("rows", "gauge", "Rows of a table.", |table| table.rows),
    ("free_rows", "gauge", "Rows that were removed and wait to be reused.", |table| table.free_rows),
    ("index_bytes", "gauge", "Memory of the index.", |table| table.index_bytes),
    ("slab_bytes", "gauge", "Memory of the rows.", |table| table.slab_bytes),
    ("huge_bytes", "gauge", "Memory of both that is on huge pages.", |table| table.huge_bytes),
    ("pushes_total", "counter", "Pushes, those before a checkpoint included.", |table| table.pushes),
    ("admitted_total", "counter", "New keys that got a row.", |table| table.admitted),
    ("rejected_total", "counter", "Sightings of new keys that admission refused.", |table| table.rejected),
    ("evicted_total", "counter", "Rows that were evicted.", |table| table.evicted),
    ("rejected_full_total", "counter", "Sightings of new keys that found the table full.", |table| {
        table.rejected_full
    }),
    ("promoted_total", "counter", "Keys moved to where a search begins.", |table| table.promoted),
];

/// A metric of tables that takes long to count.
const SLOW_TABLE_NUMBER: &str = "huge_bytes";

/// All metrics of a server.
pub(crate) fn text(
    status: &StatusReply,
    tables: &[Table],
    by_command: &[Latency],
    by_peer: &[Latency],
    log_syncs: Option<LatencySummary>,
    samples: &[TableSamples],
) -> String {
    let mut text = text_of(status, tables, by_command, Some(by_peer), log_syncs);
    table_samples::exposition(&mut text, samples);
    text.finish()
}

/// The metrics that are quickly told: all but those of peers and of huge pages.
pub(crate) fn quick_text(status: &StatusReply, tables: &[Table], by_command: &[Latency]) -> String {
    text_of(status, tables, by_command, None, None).finish()
}

/// The names of the metrics of a table that are quickly told.
pub(crate) fn table_metrics() -> impl Iterator<Item = String> {
    let quick = TABLE_NUMBERS.iter().filter(|(metric, ..)| *metric != SLOW_TABLE_NUMBER);
    quick.map(|(metric, ..)| format!("sanderling_table_{metric}"))
}

fn text_of(
    status: &StatusReply,
    tables: &[Table],
    by_command: &[Latency],
    by_peer: Option<&[Latency]>,
    log_syncs: Option<LatencySummary>,
) -> Exposition {
    let mut text = Exposition::default();
    let (shard, shards) = (status.shard.to_string(), status.shards.to_string());
    text.family("sanderling_info", "gauge", "Always 1; the labels say who the server is.");
    let labels =
        [("name", &*status.name), ("version", &*status.version), ("shard", &*shard), ("shards", &*shards)];
    text.sample("sanderling_info", &labels, 1);
    let uptime_s = status.uptime_ms as f64 / MS_PER_S;
    text.single("sanderling_uptime_seconds", "gauge", "Time since the start.", uptime_s);
    let serving = u8::from(status.serving);
    text.single("sanderling_serving", "gauge", "1 while new work is taken, 0 while draining.", serving);
    let saved_s = status.last_saved_unix_ms as f64 / MS_PER_S;
    let help = "When a checkpoint was last saved, since 1970; 0: not since the start.";
    text.single("sanderling_last_saved_timestamp_seconds", "gauge", help, saved_s);
    let help = "Resident memory of the process.";
    text.single("process_resident_memory_bytes", "gauge", help, status.resident_bytes);
    for (counter, &value) in &status.counters {
        match COUNTERS.iter().find(|(name, ..)| name == counter) {
            Some((_, metric, kind, help)) => {
                let name = format!("sanderling_{metric}");
                match counter.ends_with("_ms") {
                    true => text.single(&name, kind, help, value as f64 / MS_PER_S),
                    false => text.single(&name, kind, help, value),
                }
            }
            None => {
                let help = "As ctl status says it.";
                text.single(&format!("sanderling_{counter}"), "untyped", help, value);
            }
        }
    }
    let is_told = |metric: &str| by_peer.is_some() || metric != SLOW_TABLE_NUMBER;
    for (metric, kind, help, value) in TABLE_NUMBERS.iter().filter(|(metric, ..)| is_told(metric)) {
        let name = format!("sanderling_table_{metric}");
        text.family(&name, kind, help);
        tables.iter().for_each(|table| text.sample(&name, &[("table", &table.name)], value(table)));
    }
    let help = "Time of work on requests at the server, by command, since the start.";
    text.latencies("sanderling_request_latency", help, &summaries(by_command));
    if let Some(by_peer) = by_peer {
        let help = "Time of work on requests at the server, by peer and command; the peer is a client's own name or its host.";
        text.latencies("sanderling_peer_request_latency", help, &summaries(by_peer));
    }
    if let Some(syncs) = log_syncs {
        let help = "Time of writing the end of a group of the delta log and syncing it.";
        text.latencies("sanderling_log_sync", help, &[(Labels::new(), syncs)]);
    }
    text
}

/// Summaries with their labels. The peer is a label only where there is one.
fn summaries(latencies: &[Latency]) -> Vec<(Labels<'_>, LatencySummary)> {
    let summary = |latency: &Latency| {
        let &Latency { count, sum_ns, average_ns, min_ns, max_ns, p50_ns, p95_ns, p99_ns, p999_ns, .. } =
            latency;
        LatencySummary { count, sum_ns, average_ns, min_ns, max_ns, p50_ns, p95_ns, p99_ns, p999_ns }
    };
    let of = latencies.iter().map(|latency| {
        let peer = (!latency.peer.is_empty()).then_some(("peer", &*latency.peer));
        (peer.into_iter().chain([("command", &*latency.command)]).collect(), summary(latency))
    });
    of.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_line() {
        let counters = [("saves", 7), ("new", 8), ("log_unsynced_ms", 250)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        let status = StatusReply {
            name: "0/1".to_owned(),
            serving: true,
            uptime_ms: 1500,
            counters,
            ..StatusReply::default()
        };
        let table = Table { name: "t".to_owned(), rows: 3, pushes: 4, ..Table::default() };
        let pull = Latency {
            command: "pull".to_owned(),
            count: 2,
            sum_ns: 3000,
            p99_ns: 2000,
            ..Latency::default()
        };
        let of_peer = Latency { peer: "p".to_owned(), max_ns: 5_000_000_000, ..pull.clone() };
        let syncs = LatencySummary { count: 3, sum_ns: 6_000_000, ..LatencySummary::default() };
        let text = text(&status, &[table], &[pull], &[of_peer], Some(syncs), &[]);
        for line in [
            "sanderling_serving 1",
            "sanderling_uptime_seconds 1.5",
            "# TYPE sanderling_saves_total counter",
            "sanderling_saves_total 7",
            "sanderling_new 8",
            "# TYPE sanderling_log_unsynced_seconds gauge",
            "sanderling_log_unsynced_seconds 0.25",
            "sanderling_log_sync_seconds_sum 0.006",
            "sanderling_log_sync_seconds_count 3",
            "sanderling_table_rows{table=\"t\"} 3",
            "sanderling_table_pushes_total{table=\"t\"} 4",
            "# TYPE sanderling_request_latency_seconds summary",
            "sanderling_request_latency_seconds{command=\"pull\",quantile=\"0.99\"} 0.000002",
            "sanderling_request_latency_seconds_sum{command=\"pull\"} 0.000003",
            "sanderling_request_latency_seconds_count{command=\"pull\"} 2",
            "sanderling_peer_request_latency_max_seconds{peer=\"p\",command=\"pull\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
