//! The page of a run for a browser, curl or a program, and the status pages of the process that trains. Trains nothing.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sanderling_control::status_pages::{
    Asked, AskedForm, Cell, Column, Form, Page, Part, StatusPages, Table, period,
};
use sanderling_control::{MetricsPage, PageAccess, PageError, PageOptions};
use sanderling_learner::LiveRun;
use sanderling_learner::report::{FeatureStats, Frame, PageLink, RunReport, render_in, render_text};
use sanderling_observe::{LatencySummary, Resident, numbers};
use sanderling_transport::Address;

/// Seconds after which a browser loads the page of a run again, unless it asks for others.
const REFRESH_S: u32 = 5;

/// From this stability index on, keys are others than before.
const DRIFT_MAX: f64 = 0.25;

/// Seconds since 1970.
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The page of a run in the form that is asked for, with links to other pages of its process.
pub(crate) fn render(report: &RunReport, asked: &AskedForm<'_>, links: &[PageLink<'_>]) -> String {
    let now_unix_s = now_unix_s();
    match asked.form {
        Form::Html => {
            let refresh_s = asked.refresh_s.unwrap_or(REFRESH_S);
            render_in(report, &Frame { links, refresh_s, now_unix_s })
        }
        Form::Text => render_text(report, now_unix_s),
        // A struct of numbers and text has a JSON form.
        Form::Json => serde_json::to_string(report).unwrap_or_default() + "\n",
    }
}

/// Shows a run of this process at an address until the result is dropped.
///
/// # Errors
/// The address is taken or may not be exposed, or the system has no thread left.
pub fn show_run(
    live: &LiveRun,
    address: &Address,
    access: &PageAccess,
    options: PageOptions,
) -> Result<MetricsPage, PageError> {
    let io = |source| PageError::Io { address: address.to_string(), source };
    let pages = pages(live, options).map_err(io)?;
    let noted = live.clone();
    MetricsPage::start_for(address, access, move || noted.exposition(), Some(pages))
}

/// The pages of a process that trains, and the thread that notes its metrics.
fn pages(live: &LiveRun, options: PageOptions) -> std::io::Result<StatusPages> {
    let [front, state, servers, features, noted] = [(); 5].map(|()| live.clone());
    let started = Instant::now();
    // It is exposed by an option of its own, or not at all.
    StatusPages::of("sanderling train")
        .front(move |asked| {
            let metrics = PageLink { name: "metrics", help: "Metrics for Prometheus." };
            let links = asked.links.iter().map(|link| PageLink { name: link.name, help: link.help });
            let links: Vec<PageLink<'_>> = links.chain([metrics]).collect();
            Some(render(&front.report()?, asked, &links))
        })
        .page("status", "State of the process; / has the run.", move |_| {
            status(state.report().as_ref(), started.elapsed())
        })
        .page("connections", "Servers that the trainer asks, by calls.", move |asked| {
            connections(servers.report().as_ref(), asked)
        })
        .page("features", "Features: keys, rows, updates, drifts.", move |asked| {
            features_page(features.report().as_ref(), asked)
        })
        .options(options, false)
        .start(move || noted.exposition())
}

fn status(report: Option<&RunReport>, uptime: Duration) -> Page {
    let mut facts = vec![
        Cell::fact("version", env!("CARGO_PKG_VERSION")),
        Cell::fact("process", std::process::id().to_string()),
        Cell::fact("uptime", period(uptime)),
        Cell::fact("resident memory", numbers::bytes(Resident::read().now_bytes)),
    ];
    match report {
        None => facts.push(Cell::fact("run", "no model yet, or a worker whose run is led elsewhere")),
        Some(report) => {
            facts.push(("run".to_owned(), Cell::link(&report.name, "/")));
            facts.push(Cell::fact("started", numbers::date(report.started_unix_s)));
            facts.push(Cell::fact("examples", numbers::count(report.examples)));
            facts.push(Cell::fact("threads", report.threads.to_string()));
            let saved =
                report.saved.as_ref().map_or("not yet".to_owned(), |saved| numbers::date(saved.unix_s));
            facts.push(Cell::fact("last save", saved));
        }
    }
    Page::new("status", [Part::Facts(facts)])
}

/// One feature per row. Tables of many features are told apart by their features here, where servers cannot.
fn features_page(report: Option<&RunReport>, asked: &Asked<'_>) -> Page {
    let features = report.map_or(&[][..], |report| &report.features[..]);
    let names = FeatureStats::default().numbers().map(|(name, ..)| Column::number(name));
    let columns =
        [Column::text("feature"), Column::text("table"), Column::text("shared with"), Column::number("keys")];
    let table = Table::new("Features", columns.into_iter().chain(names));
    let table = table.part_of(features, asked.from(), |feature| {
        let first = [
            Cell::text(&feature.name),
            Cell::text(&feature.table),
            Cell::text(feature.shares_table_with(features).join(", ")),
            Cell::Number(numbers::count(feature.keys)),
        ];
        let numbers = feature.numbers().map(|(name, _, value)| match value {
            None => Cell::Number("-".to_owned()),
            Some(value) if name.starts_with("drift") && value > DRIFT_MAX => {
                Cell::Marked(format!("{value:.3}"))
            }
            Some(value) if value.fract() == 0.0 => Cell::Number(numbers::count(value as u64)),
            Some(value) => Cell::Number(format!("{value:.4}")),
        });
        first.into_iter().chain(numbers).collect()
    });
    let note = "From sampled minibatches: keys are occurrences that were looked at. Drifts are population stability indices of the \
                keys of late, against all of the run and against the model that it began from; above 0.25 they are others. \
                Admitted, rejected and evicted are of the table, with the features that share it.";
    Page::new("features", [Part::Table(table), Part::Note(note.to_owned())])
}

fn connections(report: Option<&RunReport>, asked: &Asked<'_>) -> Page {
    let times = ["calls", "average us", "p50 us", "p99 us", "max us"];
    let numbers = |latency: &LatencySummary| {
        let LatencySummary { count, average_ns, p50_ns, p99_ns, max_ns, .. } = *latency;
        let us =
            [average_ns, p50_ns, p99_ns, max_ns].map(|ns| Cell::Number(format!("{:.1}", ns as f64 / 1e3)));
        std::iter::once(Cell::number(count)).chain(us)
    };
    let columns =
        |names: [&'static str; 2]| names.map(Column::text).into_iter().chain(times.map(Column::number));
    let (servers, calls) = report.map_or((&[][..], &[][..]), |report| (&report.servers, &report.calls));
    let servers =
        Table::new("Servers", columns(["server", "over"])).part_of(servers, asked.from(), |server| {
            let names = [Cell::text(&server.server), Cell::text(&server.transport)];
            names.into_iter().chain(numbers(&server.latency)).collect()
        });
    let calls = Table::new("Requests by command", columns(["command", "of"])).part_of(calls, 0, |calls| {
        let names = [Cell::text(&calls.command), Cell::text(&calls.of)];
        names.into_iter().chain(numbers(&calls.latency)).collect()
    });
    let note =
        "Latencies as this process sees them, retries included. Without servers, tables are in this process.";
    Page::new("connections", [Part::Table(servers), Part::Table(calls), Part::Note(note.to_owned())])
}
