//! The status pages of a keeper: its state and the records of its clusters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use sanderling_http::status_pages::{Asked, Cell, Column, Page, Part, StatusPages, Table, period};
use sanderling_observe::{Resident, numbers};
use sanderling_registry::{CONFIG, ClusterView, Listing, Record};

use crate::cluster_page::cluster_parts;
use crate::keeper::KeeperConfig;
use crate::router::Service;
use crate::slots_page::slots_parts;

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
    let [one, other, third, fourth, noted] = [(); 5].map(|()| Arc::clone(service));
    let (started, folder) = (Instant::now(), config.data.display().to_string());
    StatusPages::of("sanderling keeper")
        .page("status", "State of the keeper and its disk.", move |_| status(&one, started, &folder))
        .pages("cluster", "Clusters; /cluster/NAME has the groups and servers of one.", move |asked| {
            match asked.rest {
                None => Some(clusters(&third, "cluster", asked)),
                Some(name) => cluster(&third, name, asked),
            }
        })
        .pages("slots", "Slots by cluster; /slots/NAME has the groups of the slots of one.", move |asked| {
            match asked.rest {
                None => Some(clusters(&fourth, "slots", asked)),
                Some(name) => slots(&fourth, name, asked),
            }
        })
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

/// All clusters, each with its page below this one.
fn clusters(service: &Service, page: &str, asked: &Asked<'_>) -> Page {
    let names: BTreeSet<String> = {
        let published = service.shared.published();
        let names =
            published.machine.list("").filter_map(|(name, _)| name.strip_suffix(CONFIG)?.strip_suffix('/'));
        names.map(str::to_owned).collect()
    };
    let columns = [
        Column::text("cluster"),
        Column::number("groups"),
        Column::number("replicas"),
        Column::number("servers"),
        Column::number("primaries"),
    ];
    let table = Table::new("Clusters", columns).part_of(names, asked.from(), |name| {
        let known = match view(service, &name) {
            Some(Ok(view)) => {
                let with = |role| view.servers.iter().filter(|server| server.role == role).count();
                let servers = view.servers.len() - with("lost");
                [
                    view.groups.to_string(),
                    view.replicas.to_string(),
                    servers.to_string(),
                    with("primary").to_string(),
                ]
            }
            _ => [const { String::new() }; 4].map(|_| "-".to_owned()),
        };
        std::iter::once(Cell::below(page, &name)).chain(known.map(Cell::Number)).collect()
    });
    Page::new(page, [Part::Table(table)])
}

/// One cluster; `None`: there is no such one.
fn cluster(service: &Service, name: &str, asked: &Asked<'_>) -> Option<Page> {
    let title = format!("cluster {name}");
    Some(match view(service, name)? {
        Ok(view) => Page::new(title, cluster_parts(&view, asked.from(), None)),
        Err(reason) => Page::new(title, [Part::Warning(reason)]),
    })
}

/// The slots of one cluster; `None`: there is no such one.
fn slots(service: &Service, name: &str, asked: &Asked<'_>) -> Option<Page> {
    let title = format!("slots of {name}");
    let Cell::Link(_, cluster) = Cell::below("cluster", name) else { return None };
    Some(match view(service, name)? {
        Ok(view) => Page::new(title, slots_parts(&view, asked.from(), &cluster)),
        Err(reason) => Page::new(title, [Part::Warning(reason)]),
    })
}

/// A cluster by its records, or which of them is damaged.
fn view(service: &Service, name: &str) -> Option<Result<ClusterView, String>> {
    let root = format!("{name}/");
    let listing = {
        let published = service.shared.published();
        let record = |name: &str, held: &sanderling_registry::state_machine::Held| Record {
            name: name.strip_prefix(&root).unwrap_or(name).to_owned(),
            revision: held.revision,
            lease: held.lease,
            value: serde_json::from_str(held.value.as_str()).unwrap_or_default(),
        };
        let records = published.machine.list(&root).map(|(name, held)| record(name, held)).collect();
        Listing { revision: published.machine.revision(), records }
    };
    match ClusterView::of(name, &listing) {
        Ok(view) => Some(Ok(view?)),
        Err(error) => Some(Err(error.to_string())),
    }
}
