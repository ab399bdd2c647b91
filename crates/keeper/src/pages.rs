//! The status pages of a keeper: its state and the records of its clusters.

use std::sync::Arc;
use std::time::Instant;

use sanderling_http::status_pages::{Asked, Cell, Column, Page, Part, StatusPages, Table, period};
use sanderling_observe::{Resident, numbers};

use crate::keeper::KeeperConfig;
use crate::router::Service;

/// Letters of a record's value on a page.
const VALUE_CHARS_MAX: usize = 120;

/// The pages of a keeper, and the thread that notes its metrics.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn pages(
    service: &Arc<Service>,
    config: &KeeperConfig,
    is_reached: bool,
) -> std::io::Result<StatusPages> {
    let (one, other, noted) = (Arc::clone(service), Arc::clone(service), Arc::clone(service));
    let (started, folder) = (Instant::now(), config.data.display().to_string());
    StatusPages::of("sanderling keeper")
        .page("status", "State of the keeper and its disk.", move |_| status(&one, started, &folder))
        .pages("records", "Records by name; /records/PREFIX has those of a cluster.", move |asked| {
            Some(records(&other, asked))
        })
        .options(config.pages.clone(), is_reached)
        .start(move || noted.metrics())
}

fn status(service: &Service, started: Instant, folder: &str) -> Page {
    let (revision, records, bytes, leases) = {
        let published = service.shared.published();
        let machine = &published.machine;
        (machine.revision(), machine.len(), machine.bytes(), machine.leases())
    };
    let writes = service.shared.writes();
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let facts = vec![
        Cell::fact("keeper", &service.keeper),
        Cell::fact("state", if service.is_draining() { "draining" } else { "serving" }),
        Cell::fact("version", env!("CARGO_PKG_VERSION")),
        Cell::fact("process", std::process::id().to_string()),
        Cell::fact("uptime", period(started.elapsed())),
        Cell::fact("folder", folder),
        Cell::fact("resident memory", numbers::bytes(Resident::read().now_bytes)),
        Cell::fact("revision", numbers::count(revision)),
        Cell::fact(
            "records",
            format!("{}, {}", numbers::count(records as u64), numbers::bytes(bytes as u64)),
        ),
        Cell::fact("leases", numbers::count(leases as u64)),
        Cell::fact("writes to the disk", numbers::count(writes.count)),
        Cell::fact("time of a write, p50", us(writes.p50_ns)),
        Cell::fact("time of a write, p99", us(writes.p99_ns)),
        Cell::fact("time of a write, longest", us(writes.max_ns)),
    ];
    let trouble = service.shared.trouble();
    let warning = trouble.map(|reason| Part::Warning(format!("The disk takes no changes: {reason}")));
    Page::new("status", [Part::Facts(facts)].into_iter().chain(warning))
}

fn records(service: &Service, asked: &Asked<'_>) -> Page {
    let columns =
        [Column::text("record"), Column::number("revision"), Column::text("lease"), Column::text("value")];
    let prefix = asked.rest.unwrap_or_default();
    let title = if prefix.is_empty() { "Records".to_owned() } else { format!("Records below {prefix}") };
    let published = service.shared.published();
    let list = published.machine.list(prefix);
    let table = Table::new(title, columns).part_of(list, asked.from(), |(name, held)| {
        let value: String = held.value.as_str().chars().take(VALUE_CHARS_MAX).collect();
        let lease = held.lease.map_or("-".to_owned(), |lease| lease.to_string());
        vec![Cell::text(&**name), Cell::number(held.revision), Cell::text(lease), Cell::text(value)]
    });
    Page::new("records", [Part::Table(table)])
}
