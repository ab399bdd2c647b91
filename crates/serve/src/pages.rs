//! The status pages of a server of predictions: models, tables, slow requests. `/` is the page for people who try a model.

use std::sync::Arc;
use std::time::Instant;

use sanderling_http::status_pages::{Asked, Cell, Column, Page, Part, StatusPages, Table, period};
use sanderling_observe::{Resident, numbers};
use sanderling_store::Table as Rows;

use crate::catalog::Models;
use crate::config::Config;
use crate::models::ServedModel;
use crate::service::Service;
use crate::slow::SlowRequest;

/// From this stability index on, keys are others than those of the training.
const DRIFT_MAX: f64 = 0.25;

/// First names of the paths of status pages.
pub(crate) const NAMES: [&str; 7] = ["status", "tables", "requests", "flags", "profile", "vars", "threads"];

/// The pages of a server, and the thread that notes its metrics.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn pages(
    service: &Arc<Service>,
    config: &Config,
    is_reached: bool,
) -> std::io::Result<StatusPages> {
    let started = Instant::now();
    let [state, tables, slow, noted] = [(); 4].map(|()| Arc::clone(service));
    StatusPages::of("sanderling serve")
        .without_root()
        .page("status", "State, models, threads.", move |_| status(&state, started))
        .pages("tables", "Tables of the models by memory; /tables/NAME has one.", move |asked| {
            list_tables(&tables, asked)
        })
        .page("requests", "The latest slow requests with their stages.", move |asked| requests(&slow, asked))
        .options(config.pages.clone(), is_reached)
        .start(move || noted.metrics_text())
}

fn status(service: &Service, started: Instant) -> Page {
    let state = match (service.is_draining(), service.is_ready()) {
        (true, _) => "draining",
        (false, true) => "serving",
        (false, false) => "loading",
    };
    let threads = &service.threads;
    let mut facts = vec![
        Cell::fact("state", state),
        Cell::fact("version", env!("CARGO_PKG_VERSION")),
        Cell::fact("process", std::process::id().to_string()),
        Cell::fact("uptime", period(started.elapsed())),
        Cell::fact("resident memory", numbers::bytes(Resident::read().now_bytes)),
        Cell::fact("scoring threads", threads.count().to_string()),
        Cell::fact("requests that wait", format!("{} of {}", threads.waiting(), threads.limit())),
    ];
    if let Some(replica) = service.replica.get() {
        facts.push(Cell::fact("replica", replica.health().to_string()));
    }
    let models = service.models.current();
    let columns = [
        Column::text("model"),
        Column::number("version"),
        Column::text("aliases"),
        Column::number("rows"),
        Column::number("memory"),
    ];
    let table = Table::new("Models", columns).part_of(models.iter(), 0, |model: &Arc<ServedModel>| {
        let aliases: Vec<&str> = models.aliases_of(model).collect();
        vec![
            Cell::text(model.name()),
            Cell::number(model.version()),
            Cell::text(aliases.join(", ")),
            Cell::number(model.rows()),
            Cell::Number(numbers::bytes(model.table_bytes())),
        ]
    });
    Page::new("status", [Part::Facts(facts), Part::Table(table)])
}

fn list_tables(service: &Service, asked: &Asked<'_>) -> Option<Page> {
    let models = service.models.current();
    let all = models.iter().flat_map(|model| model.all_tables().map(move |table| (model, table)));
    let mut all: Vec<(&Arc<ServedModel>, &Arc<Rows>)> = match asked.rest {
        None => all.collect(),
        Some(name) => all.filter(|(_, table)| table.name() == name).collect(),
    };
    if asked.rest.is_some() && all.is_empty() {
        return None;
    }
    all.sort_by(|(_, a), (_, b)| b.bytes().cmp(&a.bytes()).then(a.name().cmp(b.name())));
    let columns = [
        Column::text("table"),
        Column::text("model"),
        Column::number("version"),
        Column::number("rows"),
        Column::number("memory"),
        Column::number("dim"),
    ];
    let table = Table::new("Tables by memory", columns).part_of(&all, asked.from(), |(model, table)| {
        vec![
            Cell::below("tables", table.name()),
            Cell::text(model.name()),
            Cell::number(model.version()),
            Cell::number(table.len()),
            Cell::Number(numbers::bytes(table.bytes())),
            Cell::number(table.dim()),
        ]
    });
    let title = asked.rest.map_or("tables".to_owned(), |name| format!("table {name}"));
    let features = asked.rest.is_none().then(|| features(&models));
    Some(Page::new(title, std::iter::once(Part::Table(table)).chain(features.into_iter().flatten())))
}

/// The keys of requests against those of the training, by feature.
fn features(models: &Models) -> [Part; 2] {
    let columns =
        [Column::text("feature"), Column::text("model"), Column::number("version"), Column::number("drift")];
    let all = models.iter().flat_map(|model| {
        model.model.drift().into_iter().map(move |(feature, drift)| (model, feature, drift))
    });
    let table = Table::new("Features: keys of requests against those of the training", columns);
    let table = table.part_of(all, 0, |(model, feature, drift)| {
        let drift = match drift {
            None => Cell::Number("-".to_owned()),
            Some(drift) if drift > DRIFT_MAX => Cell::Marked(format!("{drift:.3}")),
            Some(drift) => Cell::Number(format!("{drift:.3}")),
        };
        vec![Cell::text(feature), Cell::text(model.name()), Cell::number(model.version()), drift]
    });
    let note = "Drift is the population stability index of the keys of late, from 2,000 keys on: below 0.1 they are alike, above \
                0.25 they are others. It is unknown of models that were saved without features.json.";
    [Part::Table(table), Part::Note(note.to_owned())]
}

fn requests(service: &Service, asked: &Asked<'_>) -> Page {
    let columns = [
        Column::text("time"),
        Column::text("request"),
        Column::text("model"),
        Column::text("code"),
        Column::number("rows"),
        Column::number("ms"),
        Column::text("ms by stage"),
        Column::text("trace"),
    ];
    let table = Table::new("Slow requests, the latest first", columns);
    let table = table.part_of(service.slow.latest(), asked.from(), |request: SlowRequest| {
        let SlowRequest { time, protocol, endpoint, model, version, code, rows, ms, trace, stages } = request;
        let stages: Vec<String> = stages.iter().map(|(stage, ms)| format!("{stage} {ms}")).collect();
        vec![
            Cell::text(numbers::date(time as u64)),
            Cell::text(format!("{protocol} {endpoint}")),
            Cell::text(if model.is_empty() { model } else { format!("{model}@{version}") }),
            Cell::text(code),
            Cell::number(rows),
            Cell::number(ms),
            Cell::text(stages.join(", ")),
            Cell::text(trace.unwrap_or("-".to_owned())),
        ]
    });
    let note = "A request is slow from the time on that --slow says.";
    Page::new("requests", [Part::Table(table), Part::Note(note.to_owned())])
}
