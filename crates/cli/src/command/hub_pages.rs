//! The status pages of a hub: its state, trainers and stages.

use sanderling_control::PageOptions;
use sanderling_control::status_pages::{Asked, Cell, Column, Page, Part, StatusPages, Table, period};
use sanderling_hub::service::{Status, TrainerStatus};
use sanderling_observe::{Exposition, Resident, numbers};

/// The pages of a hub, and the thread that notes its metrics. They answer on this host only.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn pages(
    status: impl Fn() -> Status + Clone + Send + Sync + 'static,
    options: PageOptions,
) -> std::io::Result<StatusPages> {
    let (one, other) = (status.clone(), status.clone());
    StatusPages::of("sanderling hub")
        .page("status", "Minibatches, stages of the threads.", move |asked| state(&one(), asked))
        .page("connections", "Trainers by traffic.", move |asked| trainers(&other(), asked))
        .options(options, false)
        .start(move || status().exposition())
}

fn state(status: &Status, asked: &Asked<'_>) -> Page {
    let batches = |number: usize, bytes: usize| format!("{number}, {}", numbers::bytes(bytes as u64));
    let facts = vec![
        Cell::fact("version", env!("CARGO_PKG_VERSION")),
        Cell::fact("process", std::process::id().to_string()),
        Cell::fact("uptime", period(status.uptime)),
        Cell::fact("resident memory", numbers::bytes(Resident::read().now_bytes)),
        Cell::fact("ready minibatches", batches(status.ready, status.ready_bytes)),
        Cell::fact("most at a time", batches(status.ready_max, status.ready_bytes_max)),
        Cell::fact("unacknowledged", batches(status.unacknowledged, status.unacknowledged_bytes)),
        Cell::fact("acknowledged", numbers::count(status.acknowledged)),
        Cell::fact("bad rows", numbers::count(status.bad_rows)),
        Cell::fact("trainers", status.trainers.iter().filter(|trainer| trainer.here).count().to_string()),
    ];
    let columns = [
        Column::text("stage"),
        Column::number("entered"),
        Column::number("per s"),
        Column::number("seconds"),
        Column::number("share"),
    ];
    let stages = Table::new("Time of the threads by stage", columns).part_of(&status.stages, 0, |stage| {
        let series = Exposition::series("sanderling_hub_stage_entered_total", &[("stage", &stage.name)]);
        vec![
            Cell::text(&stage.name),
            Cell::number(stage.count),
            Cell::rate(asked.trends.get(&series)),
            Cell::Number(format!("{:.2}", stage.seconds)),
            Cell::Number(format!("{:.0} %", stage.share * 100.0)),
        ]
    });
    let held_up = held_up(status).map(Part::Warning);
    Page::new("status", [Part::Facts(facts)].into_iter().chain(held_up).chain([Part::Table(stages)]))
}

/// Stages in which the threads have no work.
const IDLE: [&str; 2] = ["wait", "full"];

/// Says why trainers that are connected get no minibatch at once.
fn held_up(status: &Status) -> Option<String> {
    let here = status.trainers.iter().filter(|trainer| trainer.here);
    let stalls: u64 = here.map(|trainer| trainer.counts.stalls).sum();
    if status.ready > 0 || stalls == 0 {
        return None;
    }
    let stages = status.stages.iter().filter(|stage| !IDLE.contains(&&*stage.name));
    let longest = stages.max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let cause = match &*longest.name {
        "read" => "reading the input",
        "decode" => "decoding rows (--threads)",
        name => name,
    };
    Some(format!(
        "Trainers wait, and no minibatch is ready: of the threads' time, {:.0} % goes to {cause}.",
        longest.share * 100.0
    ))
}

fn trainers(status: &Status, asked: &Asked<'_>) -> Page {
    let mut trainers: Vec<&TrainerStatus> = status.trainers.iter().collect();
    trainers.sort_by(|a, b| b.counts.bytes.cmp(&a.counts.bytes).then(a.name.cmp(&b.name)));
    let columns = [
        Column::text("trainer"),
        Column::text("state"),
        Column::number("minibatches"),
        Column::number("rows"),
        Column::number("rows per s"),
        Column::number("sent"),
        Column::number("stalls"),
        Column::number("late"),
    ];
    let table = Table::new("Trainers by traffic", columns).part_of(trainers, asked.from(), |trainer| {
        let TrainerStatus { name, here, counts } = trainer;
        let series = Exposition::series("sanderling_hub_trainer_rows_total", &[("trainer", name)]);
        vec![
            Cell::text(name),
            Cell::text(if *here { "connected" } else { "gone" }),
            Cell::number(counts.batches),
            Cell::number(counts.rows),
            Cell::rate(asked.trends.get(&series)),
            Cell::Number(numbers::bytes(counts.bytes)),
            Cell::number(counts.stalls),
            Cell::number(counts.late),
        ]
    });
    Page::new("connections", [Part::Table(table)])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sanderling_hub::service::TrainerCounts;
    use sanderling_observe::{LatencySummary, StageTotal};

    use super::*;

    #[test]
    fn why_trainers_wait_is_told() {
        let stage = |name: &str, seconds: f64, share: f64| StageTotal {
            name: name.to_owned(),
            count: 1,
            seconds,
            share,
        };
        let stages = |read: f64, decode: f64| {
            vec![
                stage("read", read, read / 10.0),
                stage("decode", decode, decode / 10.0),
                stage("wait", 9.0, 0.9),
            ]
        };
        let trainer = |here: bool, stalls: u64| TrainerStatus {
            name: "t".to_owned(),
            here,
            counts: TrainerCounts { stalls, ..TrainerCounts::default() },
        };
        for (ready, trainers, stages, expected) in [
            (0, vec![], stages(8.0, 1.0), None),
            (0, vec![trainer(true, 0)], stages(8.0, 1.0), None),
            (0, vec![trainer(false, 5)], stages(8.0, 1.0), None),
            (3, vec![trainer(true, 5)], stages(8.0, 1.0), None),
            (0, vec![trainer(true, 5)], stages(8.0, 1.0), Some("80 % goes to reading the input")),
            (0, vec![trainer(true, 5)], stages(1.0, 8.0), Some("80 % goes to decoding rows (--threads)")),
        ] {
            let status = Status {
                uptime: Duration::ZERO,
                ready,
                ready_bytes: 0,
                unacknowledged: 0,
                unacknowledged_bytes: 0,
                ready_max: 0,
                ready_bytes_max: 0,
                acknowledged: 0,
                bad_rows: 0,
                stages,
                next: LatencySummary::default(),
                trainers,
            };
            let said = held_up(&status);
            assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
            assert!(said.is_none_or(|said| said.contains(expected.unwrap_or_default())));
        }
    }
}
