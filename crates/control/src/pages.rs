//! The status pages of a parameter server: its state, connections and tables. Knows no form; see `sanderling_http`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sanderling_http::status_pages::{
    Asked, Cell, Column, Page, PageOptions, Part, Setting, StatusPages, Table, period,
};
use sanderling_observe::{Exposition, Resident, Span, ThreadStatus, numbers, threads};
use sanderling_server::{
    ConnectionStatus, Control, HotKeyList, LatencySummary, RequestTrace, StatsScope, TableStatus,
};

use crate::metrics;
use crate::service;
use crate::table_samples::TableSamples;

const NS_PER_US: f64 = 1e3;

/// The pages of a server, and the thread that notes its metrics.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn pages(
    control: &Control,
    options: PageOptions,
    is_reached: bool,
) -> std::io::Result<StatusPages> {
    let name = control.status().name;
    let of = |make: fn(&Control, &Asked<'_>) -> Page| {
        let control = control.clone();
        move |asked: &Asked<'_>| make(&control, asked)
    };
    let tables = control.clone();
    let (counted, noted) = (control.clone(), control.clone());
    StatusPages::of(format!("sanderling ps {name}"))
        .page("status", "State, requests by command, counters.", of(status))
        .page("connections", "Connections of clients by traffic.", of(connections))
        .pages("tables", "Tables by memory; /tables/NAME has one with its trends.", move |asked| match asked
            .rest
        {
            None => Some(list_tables(&tables, asked)),
            Some(name) => table(&counted, name, asked),
        })
        .page("hot", "Keys that occur most in sampled requests.", of(hot))
        .page("requests", "Slow and sampled requests with their stages.", of(requests))
        .settings(settings(control))
        .options(options, is_reached)
        .start(move || exposition(&noted))
}

/// The options that can be set while the server runs.
fn settings(control: &Control) -> [Setting; 2] {
    let [get_every, set_every, get_slow, set_slow] = [(); 4].map(|()| control.clone());
    let wrong = |text: &str| format!("{text:?} is not a whole number");
    [
        Setting::new(
            "sample-every",
            move || get_every.sample_every().to_string(),
            move |text| {
                set_every.set_sample_every(text.parse().map_err(|_| wrong(text))?);
                Ok(())
            },
        ),
        Setting::new(
            "slow",
            move || time_text(get_slow.slow()),
            move |text| {
                let wrong = || format!("{text:?} is not a time, such as 5ms");
                set_slow.set_slow(numbers::time(text).ok_or_else(wrong)?);
                Ok(())
            },
        ),
    ]
}

/// A time as options say it.
fn time_text(time: Duration) -> String {
    match time.as_micros() {
        us if us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
        us if us % 1000 == 0 => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

/// The metrics that are noted each second.
fn exposition(control: &Control) -> String {
    let tables: Vec<_> = control.quick_tables().into_iter().map(service::table).collect();
    let by_command = control.stats(StatsScope::Commands).into_iter().map(service::latency);
    metrics::quick_text(&service::status(control), &tables, &by_command.collect::<Vec<_>>())
}

fn status(control: &Control, asked: &Asked<'_>) -> Page {
    let status = control.status();
    let counter =
        |name| status.counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
    let saved = match (status.saves, counter("last_saved_unix_ms")) {
        (false, _) => "no folder for checkpoints (--data)".to_owned(),
        (true, 0) => "not since the start".to_owned(),
        (true, ms) => numbers::date(ms / 1000),
    };
    let facts = vec![
        Cell::fact("server", &status.name),
        Cell::fact("state", if status.serving { "serving" } else { "draining" }),
        Cell::fact("shard", format!("{} of {}", status.shard, status.shards)),
        Cell::fact("version", env!("CARGO_PKG_VERSION")),
        Cell::fact("process", std::process::id().to_string()),
        Cell::fact("uptime", period(status.uptime)),
        Cell::fact("addresses", status.addresses.join("  ")),
        Cell::fact("resident memory", numbers::bytes(Resident::read().now_bytes)),
        Cell::fact("tables", format!("{}, {}", counter("tables"), numbers::bytes(counter("table_bytes")))),
        Cell::fact("rows", numbers::count(counter("rows"))),
        Cell::fact("connections", format!("{} of {}", counter("connections"), counter("connections_max"))),
        Cell::fact("last save", saved),
    ];
    let mut parts = vec![Part::Facts(facts)];
    if !status.save_failure.is_empty() {
        parts.push(Part::Warning(format!("The last save failed: {}", status.save_failure)));
    }
    parts.extend(starved(&threads(), status.uptime).map(Part::Warning));
    parts.push(Part::Table(commands(control, asked)));
    let columns = [Column::text("counter"), Column::number("value")];
    let counters = Table::new("Counters", columns)
        .part_of(&status.counters, 0, |(name, value)| vec![Cell::text(*name), Cell::number(value)]);
    parts.push(Part::Table(counters));
    Page::new("status", parts)
}

/// Names of the threads that answer requests begin with this.
const WORKER: &str = "worker";
/// The least share of a server's uptime that its threads wait for processors before it is told.
const STARVED_SHARE: f64 = 0.1;

/// Says that the threads which answer requests have too little processor time.
fn starved(threads: &[ThreadStatus], uptime: Duration) -> Option<String> {
    let workers = threads.iter().filter(|thread| thread.name.starts_with(WORKER));
    let sum = |sum: (Duration, Duration), thread: &ThreadStatus| {
        (sum.0 + thread.cpu, sum.1 + thread.waited.unwrap_or_default())
    };
    let (ran, waited) = workers.fold((Duration::ZERO, Duration::ZERO), sum);
    let is_starved = waited > ran && waited.as_secs_f64() > uptime.as_secs_f64() * STARVED_SHARE;
    is_starved.then(|| {
        format!(
            "This server lacks processor time: its workers ran {:.1} s, and waited {:.1} s for a processor (/threads).",
            ran.as_secs_f64(),
            waited.as_secs_f64()
        )
    })
}

/// Requests by command: rates of the last seconds, latencies since the start.
fn commands(control: &Control, asked: &Asked<'_>) -> Table {
    let columns = [
        Column::text("command"),
        Column::number("requests"),
        Column::number("per s"),
        Column::number("average us"),
        Column::number("p50 us"),
        Column::number("p99 us"),
        Column::number("max us"),
        Column::number("last 60 s"),
    ];
    let us = |ns: u64| Cell::Number(format!("{:.1}", ns as f64 / NS_PER_US));
    Table::new("Requests since the start", columns).part_of(control.stats(StatsScope::Commands), 0, |of| {
        let labels = [("command", of.command)];
        let series = Exposition::series("sanderling_request_latency_seconds_count", &labels);
        let series = asked.trends.get(&series);
        let LatencySummary { count, average_ns, p50_ns, p99_ns, max_ns, .. } = of.summary;
        let trend = series.and_then(|series| series.points(Span::Minute)).unwrap_or_default();
        let mut cells = vec![Cell::text(of.command), Cell::number(count), Cell::rate(series)];
        cells.extend([average_ns, p50_ns, p99_ns, max_ns].map(us));
        cells.push(Cell::Trend(trend));
        cells
    })
}

fn connections(control: &Control, asked: &Asked<'_>) -> Page {
    let mut all = control.connections();
    let bytes = |connection: &ConnectionStatus| connection.received_bytes + connection.sent_bytes;
    all.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then(a.id.cmp(&b.id)));
    let sum = |of: fn(&ConnectionStatus) -> u64| all.iter().map(of).sum::<u64>();
    let facts = vec![
        Cell::fact("connections", numbers::count(all.len() as u64)),
        Cell::fact("requests", numbers::count(sum(|of| of.requests))),
        Cell::fact("received", numbers::bytes(sum(|of| of.received_bytes))),
        Cell::fact("sent", numbers::bytes(sum(|of| of.sent_bytes))),
    ];
    let columns = [
        Column::number("number"),
        Column::text("client"),
        Column::text("peer"),
        Column::text("age"),
        Column::number("requests"),
        Column::number("received"),
        Column::number("sent"),
    ];
    let table = Table::new("Connections by traffic", columns).part_of(&all, asked.from(), |of| {
        vec![
            Cell::number(of.id),
            Cell::text(&of.client),
            Cell::text(&of.peer),
            Cell::text(period(of.age)),
            Cell::number(of.requests),
            Cell::Number(numbers::bytes(of.received_bytes)),
            Cell::Number(numbers::bytes(of.sent_bytes)),
        ]
    });
    Page::new("connections", [Part::Facts(facts), Part::Table(table)])
}

fn table_bytes(table: &TableStatus) -> u64 {
    table.stats.index_bytes + table.stats.slab_bytes
}

/// The series of a table's metric.
fn series_of(metric: &str, table: &str) -> String {
    Exposition::series(metric, &[("table", table)])
}

fn list_tables(control: &Control, asked: &Asked<'_>) -> Page {
    let mut all = control.quick_tables();
    all.sort_by(|a, b| table_bytes(b).cmp(&table_bytes(a)).then(a.name.cmp(&b.name)));
    let columns = [
        Column::text("table"),
        Column::number("rows"),
        Column::number("memory"),
        Column::number("dim"),
        Column::number("pushes"),
        Column::number("per s"),
        Column::number("admitted"),
        Column::number("rejected"),
        Column::number("evicted"),
    ];
    let table = Table::new("Tables by memory", columns).part_of(&all, asked.from(), |of| {
        let pushes = asked.trends.get(&series_of("sanderling_table_pushes_total", &of.name));
        let stats = of.stats;
        let mut cells = vec![
            Cell::below("tables", &of.name),
            Cell::number(stats.rows),
            Cell::Number(numbers::bytes(table_bytes(of))),
            Cell::number(of.dim),
            Cell::number(stats.pushes),
            Cell::rate(pushes),
        ];
        cells.extend([stats.admitted, stats.rejected + stats.rejected_full, stats.evicted].map(Cell::number));
        cells
    });
    Page::new("tables", [Part::Table(table)])
}

fn table(control: &Control, name: &str, asked: &Asked<'_>) -> Option<Page> {
    let table = control.quick_tables().into_iter().find(|table| table.name == name)?;
    let facts = vec![
        Cell::fact("number", table.number.to_string()),
        Cell::fact("home", table.pinned.map_or("sharded".to_owned(), |server| format!("server {server}"))),
        Cell::fact("weights per row", table.dim.to_string()),
        Cell::fact("optimizer state per row", table.state.to_string()),
        Cell::fact("age", table.age.map_or("unknown".to_owned(), period)),
        Cell::fact("in checkpoints", if table.temporary { "no, it is temporary" } else { "yes" }),
        Cell::fact("memory", numbers::bytes(table_bytes(&table))),
    ];
    let noted = metrics::table_metrics().filter_map(|metric| {
        let series = asked.trends.get(&series_of(&metric, name))?;
        Some((metric, series))
    });
    let numbers = Table::of_series("Metrics of the table", noted, 0);
    let estimates = TableSamples::of(control, table.number, name).table();
    let note = "Rows are drawn when the page is asked for, at most every 5 s; 64 of them are followed until the next time. Keys are of \
                sampled requests (--sample-every), of the last minutes.";
    let (title, note) = (format!("table {name}"), Part::Note(note.to_owned()));
    let config = Part::Text(table.config);
    Some(Page::new(title, [Part::Facts(facts), Part::Table(estimates), note, Part::Table(numbers), config]))
}

/// Names of the tables by number.
fn names(control: &Control) -> HashMap<u32, String> {
    control.quick_tables().into_iter().map(|table| (table.number, table.name)).collect()
}

fn hot(control: &Control, asked: &Asked<'_>) -> Page {
    let (HotKeyList { keys, error, total }, names) = (control.hot_keys(), names(control));
    let columns =
        [Column::text("table"), Column::number("key"), Column::number("seen"), Column::number("share")];
    let table = Table::new("Keys of sampled requests, the most frequent first", columns);
    let table = table.part_of(keys, asked.from(), |(table, key, count)| {
        let share = 100.0 * count as f64 / total.max(1) as f64;
        vec![
            names.get(&table).map_or(Cell::text("-"), |name| Cell::below("tables", name)),
            Cell::number(key),
            Cell::number(count),
            Cell::Number(format!("{share:.2} %")),
        ]
    });
    let note = format!(
        "Of the last minutes: {} keys of sampled requests were looked at (--sample-every), and a key may have been seen {} \
         times more. Pushes and pulls count alike.",
        numbers::count(total),
        numbers::count(error)
    );
    Page::new("hot", [Part::Table(table), Part::Note(note)])
}

fn requests(control: &Control, asked: &Asked<'_>) -> Page {
    let names = names(control);
    let columns = [
        Column::text("when"),
        Column::text("why"),
        Column::text("command"),
        Column::text("client"),
        Column::text("table"),
        Column::number("keys"),
        Column::number("bytes"),
        Column::number("us"),
        Column::text("us by stage"),
        Column::text("trace"),
    ];
    let us = |time: Duration| format!("{:.1}", time.as_nanos() as f64 / NS_PER_US);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let table = Table::new("Requests, the latest first", columns);
    let table = table.part_of(control.traces(), asked.from(), |trace: RequestTrace| {
        let total = us(trace.total());
        let RequestTrace { unix_ms, command, peer, table, keys, bytes, is_slow, trace, stages } = trace;
        let stages: Vec<String> =
            stages.iter().map(|(stage, time)| format!("{stage} {}", us(*time))).collect();
        vec![
            Cell::text(format!("{} ago", period(now.saturating_sub(Duration::from_millis(unix_ms))))),
            if is_slow { Cell::Marked("slow".to_owned()) } else { Cell::text("sampled") },
            Cell::text(command),
            Cell::text(peer),
            table
                .and_then(|table| names.get(&table))
                .map_or(Cell::text("-"), |name| Cell::below("tables", name)),
            Cell::Number(keys.map_or("-".to_owned(), |keys| keys.to_string())),
            Cell::number(bytes),
            Cell::Number(total),
            Cell::text(stages.join(", ")),
            Cell::text(trace.map_or("-".to_owned(), |trace| format!("{trace:032x}"))),
        ]
    });
    let note = "Stages: wait until the work begins, decode, work on the tables, reply; then replicate or log. A slow request that was not sampled has \
                its work only. --sample-every and --slow say which requests are listed.";
    Page::new("requests", [Part::Table(table), Part::Note(note.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_wait_for_processors_are_told() {
        let thread = |name: &str, cpu_ms, waited_ms| ThreadStatus {
            id: 1,
            name: name.to_owned(),
            state: "running",
            cpu: Duration::from_millis(cpu_ms),
            waited: Some(Duration::from_millis(waited_ms)),
        };
        for (threads, expected) in [
            (vec![], None),
            (vec![thread("worker-0", 40, 35_000)], Some("ran 0.0 s, and waited 35.0 s")),
            (vec![thread("worker-0", 100, 300), thread("worker-1", 10, 4000)], None),
            (vec![thread("worker-0", 9000, 8000)], None),
            (vec![thread("control", 40, 35_000)], None),
        ] {
            let said = starved(&threads, Duration::from_secs(60));
            assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
            assert!(said.is_none_or(|said| said.contains(expected.unwrap_or_default())));
        }
    }

    #[test]
    fn times_as_options_say_them() {
        for (us, expected) in [(0, "0s"), (10_000, "10ms"), (1500, "1500us"), (2_000_000, "2s")] {
            assert_eq!(time_text(Duration::from_micros(us)), expected);
        }
    }
}
