//! Counters of a hub: as a line of text and as the statistics message. Measures nothing itself.

use std::fmt;
use std::time::Duration;

use sanderling_observe::{Exposition, LatencySummary, StageTotal};
use sanderling_wire::{Counter, Latency, Statistics, limit};

use super::leases::TrainerCounts;

/// One trainer's counters.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerStatus {
    /// Its name.
    pub name: String,
    /// Whether it is connected.
    pub here: bool,
    /// Its counts.
    pub counts: TrainerCounts,
}

/// Counters of a hub since its start.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The time since the start.
    pub uptime: Duration,
    /// Minibatches that are ready.
    pub ready: usize,
    /// See above.
    pub ready_bytes: usize,
    /// Minibatches that are leased and not acknowledged.
    pub unacknowledged: usize,
    /// See above.
    pub unacknowledged_bytes: usize,
    /// The most minibatches that were ready at a time.
    pub ready_max: usize,
    /// See above.
    pub ready_bytes_max: usize,
    /// Minibatches that were acknowledged, those before the start included.
    pub acknowledged: u64,
    /// Rows that were skipped as bad.
    pub bad_rows: u64,
    /// Time of the threads by stage, named as in `SERVICE_STAGES`.
    pub stages: Vec<StageTotal>,
    /// Latency of answers to requests for a minibatch, without the wait for one.
    pub next: LatencySummary,
    /// The trainers.
    pub trainers: Vec<TrainerStatus>,
}

/// A counter: its name in Prometheus, which ends in `_total` if it only grows, and its help text.
struct Number<T: 'static> {
    metric: &'static str,
    help: &'static str,
    value: fn(&T) -> u64,
}

impl<T> Number<T> {
    /// Its name in the statistics message.
    fn counter(&self) -> &'static str {
        self.metric.strip_suffix(TOTAL).unwrap_or(self.metric)
    }

    fn kind(&self) -> &'static str {
        if self.metric.ends_with(TOTAL) { "counter" } else { "gauge" }
    }
}

const TOTAL: &str = "_total";

const fn number<T>(metric: &'static str, help: &'static str, value: fn(&T) -> u64) -> Number<T> {
    Number { metric, help, value }
}

const NUMBERS: &[Number<Status>] = &[
    number("ready", "Minibatches that are ready.", |hub| hub.ready as u64),
    number("ready_bytes", "Bytes of ready minibatches.", |hub| hub.ready_bytes as u64),
    number("ready_max", "Most minibatches that were ready at a time.", |hub| hub.ready_max as u64),
    number("ready_max_bytes", "Most bytes of ready minibatches at a time.", |hub| hub.ready_bytes_max as u64),
    number("unacknowledged", "Minibatches that are leased to trainers.", |hub| hub.unacknowledged as u64),
    number("unacknowledged_bytes", "Bytes of leased minibatches.", |hub| hub.unacknowledged_bytes as u64),
    number("acknowledged_total", "Minibatches that were acknowledged.", |hub| hub.acknowledged),
    number("bad_rows_total", "Rows skipped as bad.", |hub| hub.bad_rows),
];

const TRAINER_NUMBERS: &[Number<TrainerStatus>] = &[
    number("here", "1 while a trainer is connected.", |trainer| u64::from(trainer.here)),
    number("starts_total", "Starts of a trainer.", |trainer| trainer.counts.starts),
    number("batches_total", "Minibatches leased to a trainer.", |trainer| trainer.counts.batches),
    number("rows_total", "Rows leased to a trainer.", |trainer| trainer.counts.rows),
    number("bytes_total", "Bytes leased to a trainer.", |trainer| trainer.counts.bytes),
    number("stalls_total", "Requests while no minibatch was ready.", |trainer| trainer.counts.stalls),
    number("late_total", "Acknowledgements that came too late.", |trainer| trainer.counts.late),
    number("asked_whole_total", "Minibatches requested again with the keys that were fed.", |trainer| {
        trainer.counts.asked_full
    }),
];

impl Status {
    /// All counters, units last in their names.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let numbers = NUMBERS.iter().map(|number| (number.counter().to_owned(), (number.value)(self)));
        let mut counters: Vec<(String, u64)> = numbers.collect();
        for stage in &self.stages {
            counters.push((format!("stage {} count", stage.name), stage.count));
            counters.push((format!("stage {} us", stage.name), (stage.seconds * 1e6) as u64));
        }
        for trainer in &self.trainers {
            for number in TRAINER_NUMBERS {
                let name = format!("trainer {} {}", cut(&trainer.name), number.counter());
                counters.push((name, (number.value)(trainer)));
            }
        }
        counters.truncate(limit::STATS_MAX);
        counters
    }

    /// The counters in the text format of Prometheus.
    #[must_use]
    pub fn exposition(&self) -> String {
        let mut text = Exposition::default();
        let help = "Time since the start.";
        text.single("sanderling_hub_uptime_seconds", "gauge", help, self.uptime.as_secs_f64());
        for number in NUMBERS {
            let name = format!("sanderling_hub_{}", number.metric);
            text.single(&name, number.kind(), number.help, (number.value)(self));
        }
        text.stages("sanderling_hub_stage", &[], &self.stages);
        let help = "Latency of answers to requests for a minibatch, without the wait for one.";
        text.latencies("sanderling_hub_next_latency", help, &[(Vec::new(), self.next)]);
        for number in TRAINER_NUMBERS {
            let name = format!("sanderling_hub_trainer_{}", number.metric);
            text.family(&name, number.kind(), number.help);
            for trainer in &self.trainers {
                text.sample(&name, &[("trainer", &trainer.name)], (number.value)(trainer));
            }
        }
        text.finish()
    }

    /// The statistics message; `counters` are those of [`Status::counters`].
    pub(super) fn statistics<'a>(&self, counters: &'a [(String, u64)]) -> Statistics<'a> {
        let next = Latency {
            name: "next",
            count: self.next.count,
            average_ns: self.next.average_ns,
            min_ns: self.next.min_ns,
            max_ns: self.next.max_ns,
            p50_ns: self.next.p50_ns,
            p95_ns: self.next.p95_ns,
            p99_ns: self.next.p99_ns,
            p999_ns: self.next.p999_ns,
        };
        Statistics {
            uptime_us: self.uptime.as_micros() as u64,
            latencies: vec![next],
            counters: counters.iter().map(|(name, value)| Counter { name, value: *value }).collect(),
        }
    }
}

/// A trainer's name cut to the limit of a counter's name.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(limit::NAME_BYTES_MAX - 32);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { ready, unacknowledged, acknowledged, .. } = self;
        write!(out, "{acknowledged} minibatches acknowledged, {ready} ready, {unacknowledged} handed out;")?;
        if self.bad_rows > 0 {
            write!(out, " {} bad rows left out;", self.bad_rows)?;
        }
        for stage in &self.stages {
            write!(out, " {} {:.0} %", stage.name, stage.share * 100.0)?;
        }
        for TrainerStatus { name, here, counts } in &self.trainers {
            let TrainerCounts { batches, rows, stalls, .. } = counts;
            let gone = if *here { "" } else { " (gone)" };
            write!(out, "; {name}{gone}: {batches} minibatches, {rows} rows, {stalls} stalls")?;
        }
        Ok(())
    }
}
