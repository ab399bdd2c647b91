//! Replies of servers as text and as JSON.

use std::time::{Duration, SystemTime};

use sanderling_control::proto::{
    Checkpoint, CheckpointsReply, ConnectionsReply, HandOverReply, HotReply, RestoreReply, SaveReply,
    StatsReply, StatusReply, Table, TablesReply,
};
use sanderling_observe::{LatencySummary, LatencyTable};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// Replies, each with the URL of its server.
#[derive(Debug)]
pub(super) enum Answers {
    Status(Vec<(String, StatusReply)>),
    Tables(Vec<(String, TablesReply)>),
    Connections(Vec<(String, ConnectionsReply)>),
    Hot(Vec<(String, HotReply)>),
    /// By peer?
    Stats(bool, Vec<(String, StatsReply)>),
    /// The checkpoint's name.
    Saved(String, Vec<(String, SaveReply)>),
    Restored(String, Vec<(String, RestoreReply)>),
    Checkpoints(Vec<(String, CheckpointsReply)>),
    /// The table's name.
    Dropped(String, Vec<String>),
    HandedOver(Vec<(String, HandOverReply)>),
    /// Connections that are told to go.
    Draining(Vec<(String, u64)>),
}

#[derive(Serialize)]
struct Line<'a, T> {
    server: &'a str,
    #[serde(flatten)]
    answer: &'a T,
}

fn line<T: Serialize>(server: &str, answer: &T) -> Result<String, Failure> {
    Ok(serde_json::to_string(&Line { server, answer }).map_err(std::io::Error::from)?)
}

fn lines<T: Serialize>(answers: &[(String, T)]) -> Result<Vec<String>, Failure> {
    answers.iter().map(|(server, answer)| line(server, answer)).collect()
}

impl Answers {
    /// Adds those of another server to the same question.
    pub(super) fn add(&mut self, other: Answers) {
        match (self, other) {
            (Answers::Status(all), Answers::Status(one)) => all.extend(one),
            (Answers::Tables(all), Answers::Tables(one)) => all.extend(one),
            (Answers::Connections(all), Answers::Connections(one)) => all.extend(one),
            (Answers::Hot(all), Answers::Hot(one)) => all.extend(one),
            (Answers::Stats(_, all), Answers::Stats(_, one)) => all.extend(one),
            (Answers::Saved(_, all), Answers::Saved(_, one)) => all.extend(one),
            (Answers::Restored(_, all), Answers::Restored(_, one)) => all.extend(one),
            (Answers::Checkpoints(all), Answers::Checkpoints(one)) => all.extend(one),
            (Answers::Dropped(_, all), Answers::Dropped(_, one)) => all.extend(one),
            (Answers::HandedOver(all), Answers::HandedOver(one)) => all.extend(one),
            (Answers::Draining(all), Answers::Draining(one)) => all.extend(one),
            (all, one) => unreachable!("{one:?} does not answer what {all:?} does"),
        }
    }

    /// One JSON object per server, with its address in it.
    pub(super) fn lines(&self) -> Result<Vec<String>, Failure> {
        match self {
            Answers::Status(all) => lines(all),
            Answers::Tables(all) => lines(all),
            Answers::Connections(all) => lines(all),
            Answers::Hot(all) => lines(all),
            Answers::Stats(_, all) => lines(all),
            Answers::Saved(_, all) => lines(all),
            Answers::Restored(_, all) => lines(all),
            Answers::Checkpoints(all) => lines(all),
            Answers::HandedOver(all) => lines(all),
            Answers::Dropped(table, all) => {
                all.iter().map(|server| line(server, &serde_json::json!({ "dropped": table }))).collect()
            }
            Answers::Draining(all) => {
                let line = |(server, count): &(String, u64)| {
                    line(server, &serde_json::json!({ "draining": true, "connections": count }))
                };
                all.iter().map(line).collect()
            }
        }
    }

    /// Text for people; tables that are wider than the terminal are folded.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        match self {
            Answers::Status(all) => status(all, width),
            Answers::Tables(all) => tables(all, width),
            Answers::Connections(all) => connections(all, width),
            Answers::Hot(all) => hot(all, width),
            Answers::Stats(by_peer, all) => stats(*by_peer, all, width),
            Answers::Saved(name, all) => {
                each(all, |SaveReply { rows, bytes, generation, deltas, full_because }| {
                    let (rows, bytes) = (output::count(*rows), output::bytes(*bytes));
                    let delta = if *deltas > 0 { format!("delta {deltas}, ") } else { String::new() };
                    let saved = format!("saved {name}: {delta}{rows} rows, {bytes}, generation {generation}");
                    if full_because.is_empty() { saved } else { format!("{saved}, in full: {full_because}") }
                })
            }
            Answers::Restored(name, all) => each(all, |RestoreReply { tables, rows }| {
                format!("restored {name}: {tables} tables, {} rows", output::count(*rows))
            }),
            Answers::Checkpoints(all) => checkpoints(all, width),
            Answers::Dropped(table, all) => {
                let line = |server: &String| format!("{server}: dropped table {table}");
                all.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            Answers::HandedOver(all) => each(all, |HandOverReply { epoch, primary, took_ms }| {
                format!("handed over to {primary} in {took_ms} ms, epoch {epoch}")
            }),
            Answers::Draining(all) => {
                each(all, |count| format!("draining {count} connections, then it ends"))
            }
        }
    }
}

fn each<T>(answers: &[(String, T)], text: impl Fn(&T) -> String) -> String {
    let line = |(server, answer): &(String, T)| format!("{server}: {}", text(answer));
    answers.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// As a person says it: the largest unit and the one below.
pub(super) fn time(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86_400, s / 3600 % 24),
    }
}

fn last_saved(status: &StatusReply) -> String {
    let before = match (status.saves, status.last_saved_unix_ms) {
        (false, _) => "no --data".to_owned(),
        (true, 0) => "not yet".to_owned(),
        (true, ms) => {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
            format!("{} ago", time(at.elapsed().unwrap_or_default()))
        }
    };
    match &status.save_failure[..] {
        "" => before,
        _ => format!("FAILED, before: {before}"),
    }
}

/// The sum of what tables may take, and how many may take anything.
fn budgets(bytes: u64, unbounded: u64) -> String {
    match (bytes, unbounded) {
        (0, 0) => "-".to_owned(),
        (bytes, 0) => output::bytes(bytes),
        (0, unbounded) => format!("{unbounded} without"),
        (bytes, unbounded) => format!("{}, {unbounded} without", output::bytes(bytes)),
    }
}

fn status(all: &[(String, StatusReply)], width: Option<usize>) -> String {
    let header = [
        "server",
        "name",
        "shard",
        "state",
        "uptime",
        "connections",
        "tables",
        "rows",
        "tables' memory",
        "budgets",
    ];
    let header = [&header[..], &["process memory", "last save", "checkpoints", "listening at"]].concat();
    let row = |(server, status): &(String, StatusReply)| {
        let counter = |name: &str| status.counters.get(name).copied().unwrap_or_default();
        vec![
            server.clone(),
            status.name.clone(),
            format!("{}/{}", status.shard, status.shards),
            if status.serving { "serving" } else { "draining" }.to_owned(),
            time(Duration::from_millis(status.uptime_ms)),
            output::count(counter("connections")),
            output::count(counter("tables")),
            output::count(counter("rows")),
            output::bytes(counter("table_bytes")),
            budgets(counter("table_budget_bytes"), counter("tables_without_budget")),
            output::bytes(status.resident_bytes),
            last_saved(status),
            match counter("checkpoints") {
                0 => "-".to_owned(),
                count => format!("{} ({})", output::count(count), output::bytes(counter("checkpoint_bytes"))),
            },
            status.addresses.join(" "),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let mut text = output::columns_within(&header, &rows, &[0, header.len() - 1], width);
    for (server, status) in all.iter().filter(|(_, status)| !status.save_failure.is_empty()) {
        // A client has named what could not be saved.
        let failure = output::on_a_line(&status.save_failure);
        text.push_str(&format!("\n{server}: the last save failed: {failure}"));
    }
    text
}

fn tables(all: &[(String, TablesReply)], width: Option<usize>) -> String {
    let header = ["table", "run", "home", "dim", "age", "rows", "bytes", "pushes", "admitted", "rejected"];
    let mut header = [&header[..], &["evicted", "full", "temporary", "server"]].concat();
    // Only servers with connections by RDMA tell.
    let has_gather = all.iter().flat_map(|(_, reply)| &reply.tables).any(|table| !table.gather.is_empty());
    if has_gather {
        header.extend(["gather", "cpu ns/row", "nic ns/row", "nic pulls"]);
    }
    let ns = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"));
    let row = |server: &String, table: &Table| {
        let home = table.pinned.map_or_else(|| "sharded".to_owned(), |on| format!("server {on}"));
        let memory = output::bytes(table.index_bytes + table.slab_bytes);
        // Tables of a run are called RUN/TABLE.
        let run = table.name.rsplit_once('/').map_or("-", |(run, _)| run).to_owned();
        let age = table.age_ms.map_or_else(|| "-".to_owned(), |ms| time(Duration::from_millis(ms)));
        let mut row = vec![table.name.clone(), run, home, table.dim.to_string(), age];
        row.extend([output::count(table.rows), memory]);
        let counts = [table.pushes, table.admitted, table.rejected, table.evicted, table.rejected_full];
        row.extend(counts.map(output::count));
        row.push(if table.temporary { "yes" } else { "-" }.to_owned());
        row.push(server.clone());
        if has_gather {
            row.extend([table.gather.clone(), ns(table.cpu_ns_per_row), ns(table.nic_ns_per_row)]);
            row.push(output::count(table.nic_pulls));
        }
        row
    };
    let row = &row;
    let rows: Vec<_> = all
        .iter()
        .flat_map(|(server, reply)| reply.tables.iter().map(move |table| row(server, table)))
        .collect();
    if rows.is_empty() {
        return "no tables".to_owned();
    }
    output::columns_repeating(&header, &rows, &[0, 1, 2, 12, 13], 1, width)
}

fn checkpoints(all: &[(String, CheckpointsReply)], width: Option<usize>) -> String {
    let header = ["checkpoint", "bytes", "saved", "server"];
    let row = |server: &String, checkpoint: &Checkpoint| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(checkpoint.saved_unix_ms);
        let saved = format!("{} ago", time(at.elapsed().unwrap_or_default()));
        vec![checkpoint.name.clone(), output::bytes(checkpoint.bytes), saved, server.clone()]
    };
    let of = |(server, reply): &'_ (String, CheckpointsReply)| -> Vec<Vec<String>> {
        reply.checkpoints.iter().map(|checkpoint| row(server, checkpoint)).collect()
    };
    let rows: Vec<_> = all.iter().flat_map(of).collect();
    if rows.is_empty() {
        return "no checkpoints".to_owned();
    }
    output::columns_within(&header, &rows, &[0, header.len() - 1], width)
}

fn connections(all: &[(String, ConnectionsReply)], width: Option<usize>) -> String {
    let header = ["server", "number", "age", "requests", "peer", "client"];
    let rows: Vec<_> = all
        .iter()
        .flat_map(|(server, reply)| reply.connections.iter().map(move |connection| (server, connection)))
        .map(|(server, connection)| {
            vec![
                server.clone(),
                connection.id.to_string(),
                time(Duration::from_millis(connection.age_ms)),
                output::count(connection.requests),
                connection.peer.clone(),
                connection.client.clone(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no connections".to_owned();
    }
    output::columns_within(&header, &rows, &[0, header.len() - 1], width)
}

/// Keys of each server that are shown.
const HOT_SHOWN: usize = 20;

fn hot(all: &[(String, HotReply)], width: Option<usize>) -> String {
    let header = ["server", "table", "key", "seen", "share"];
    let rows = all.iter().flat_map(|(server, reply)| {
        reply.keys.iter().take(HOT_SHOWN).map(move |key| {
            let share = 100.0 * key.count as f64 / reply.total.max(1) as f64;
            let seen = output::count(key.count);
            vec![server.clone(), key.table.clone(), key.key.to_string(), seen, format!("{share:.2} %")]
        })
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return "no sampled keys of late: see ps --sample-every".to_owned();
    }
    output::columns_within(&header, &rows, &[0, 1], width)
}

fn stats(by_peer: bool, all: &[(String, StatsReply)], width: Option<usize>) -> String {
    let names: &[&'static str] =
        if by_peer { &["server", "peer", "command"] } else { &["server", "command"] };
    let mut table = LatencyTable::new(names);
    for (server, reply) in all {
        for latency in &reply.latencies {
            let summary = LatencySummary {
                count: latency.count,
                sum_ns: latency.sum_ns,
                average_ns: latency.average_ns,
                min_ns: latency.min_ns,
                max_ns: latency.max_ns,
                p50_ns: latency.p50_ns,
                p95_ns: latency.p95_ns,
                p99_ns: latency.p99_ns,
                p999_ns: latency.p999_ns,
            };
            // A client chooses its name freely.
            let (peer, command) = (output::on_a_line(&latency.peer), output::on_a_line(&latency.command));
            match by_peer {
                true => table.row(&[server, &peer, &command], summary),
                false => table.row(&[server, &command], summary),
            }
        }
    }
    if table.is_empty() {
        return "no requests yet".to_owned();
    }
    let (titles, rows) = table.cells();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let labels: Vec<usize> = (0..names.len()).collect();
    output::columns_within(&titles, &rows, &labels, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_two_units() {
        for (s, expected) in [(0, "0 s"), (61, "1 min 01 s"), (7_260, "2 h 01 min"), (90_000, "1 d 01 h")] {
            assert_eq!(time(Duration::from_secs(s)), expected);
        }
    }

    #[test]
    fn the_sum_of_budgets_tells_what_tables_may_take() {
        for (bytes, unbounded, expected) in
            [(0, 0, "-"), (3 << 30, 0, "3.00 GiB"), (0, 2, "2 without"), (1 << 20, 1, "1.00 MiB, 1 without")]
        {
            assert_eq!(budgets(bytes, unbounded), expected);
        }
    }

    #[test]
    fn what_clients_name_stays_on_its_line() {
        let latency = sanderling_control::proto::Latency {
            peer: "a\nb\u{1b}".to_owned(),
            command: "pull".to_owned(),
            count: 1,
            ..Default::default()
        };
        let reply = StatsReply { uptime_ms: 1, latencies: vec![latency] };
        let text = Answers::Stats(true, vec![("h".to_owned(), reply)]).text(None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[1].starts_with("h       a\\u000ab\\u001b  pull "), "{text}");
        assert_eq!(lines[0].find("command"), lines[1].find("pull"), "{text}");
        let failed = StatusReply { save_failure: "x\nh: all is well".to_owned(), ..Default::default() };
        let text = Answers::Status(vec![("h".to_owned(), failed)]).text(None);
        assert!(text.ends_with("\nh: the last save failed: x\\u000ah: all is well"), "{text}");
    }

    #[test]
    fn servers_stand_below_one_another() {
        let latency = |command: &str| sanderling_control::proto::Latency {
            command: command.to_owned(),
            count: 1,
            ..Default::default()
        };
        let reply = |commands: &[&str]| StatsReply {
            uptime_ms: 1,
            latencies: commands.iter().map(|command| latency(command)).collect(),
        };
        let mut answers = Answers::Stats(false, vec![("http://a:1".to_owned(), reply(&["pull", "push"]))]);
        answers.add(Answers::Stats(false, vec![("http://b:1".to_owned(), reply(&["pull"]))]));
        let text = answers.text(None);
        let starts: Vec<&str> = text.lines().map(|line| &line[..18]).collect();
        assert_eq!(
            starts,
            ["server      comman", "http://a:1  pull  ", "http://a:1  push  ", "http://b:1  pull  "]
        );
        let lines = answers.lines().expect("JSON");
        let first: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
        assert_eq!(
            (&first["server"], &first["latencies"][1]["command"]),
            (&"http://a:1".into(), &"push".into())
        );
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn tables_are_folded_at_the_width_of_the_terminal() {
        let table = |name: &str| Table {
            name: name.to_owned(),
            dim: 9,
            rows: 12_345_678,
            temporary: true,
            ..Default::default()
        };
        let tables = TablesReply { tables: vec![table("clicks/user"), table("serve")] };
        let status = StatusReply { name: "0/1".to_owned(), serving: true, ..Default::default() };
        let latency = sanderling_control::proto::Latency { command: "pull".to_owned(), ..Default::default() };
        let stats = StatsReply { uptime_ms: 1, latencies: vec![latency] };
        let checkpoint = Checkpoint { name: "a".repeat(50), bytes: 1, saved_unix_ms: 1 };
        let connections = ConnectionsReply {
            connections: vec![sanderling_control::proto::Connection {
                peer: "unix:/run/user/1000/sanderling/7000.sock".to_owned(),
                client: "process 12345".to_owned(),
                ..Default::default()
            }],
        };
        let url = || "http://127.0.0.1:7100".to_owned();
        for answers in [
            Answers::Status(vec![(url(), status)]),
            Answers::Tables(vec![(url(), tables)]),
            Answers::Stats(true, vec![(url(), stats)]),
            Answers::Connections(vec![(url(), connections)]),
            Answers::Checkpoints(vec![(url(), CheckpointsReply { checkpoints: vec![checkpoint] })]),
        ] {
            let (folded, whole) = (answers.text(Some(80)), answers.text(None));
            assert!(folded.lines().all(|line| line.chars().count() <= 80), "{folded}");
            assert!(whole.lines().any(|line| line.chars().count() > 80), "{whole}");
            // Every cell is there, and every part names its rows.
            let words = |text: &str| {
                let words: std::collections::BTreeSet<String> =
                    text.split_whitespace().map(str::to_owned).collect();
                words
            };
            assert_eq!(words(&folded), words(&whole), "{folded}");
        }
    }
}
