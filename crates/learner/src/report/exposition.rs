//! A report in the text format of Prometheus. Knows no port.

use sanderling_observe::{Exposition, Labels, LatencySummary};

use super::{CurvePoint, FeatureStats, RunReport};
use crate::table_counters::TableCounters;

/// All metrics of a run: the last of each curve, stages, tables, requests to servers.
#[must_use]
pub fn exposition(report: &RunReport) -> String {
    let mut text = Exposition::default();
    let steps = report.train_curve.last().map_or(0, |point| point.step);
    for (name, help, value) in [
        ("steps", "Steps, as of the last line of metrics.", steps),
        ("examples", "Rows trained on, as of the last line of metrics.", report.examples),
        ("bad_rows", "Rows left out as bad, as of the last pass.", report.bad_rows),
    ] {
        text.single(&format!("sanderling_train_{name}_total"), "counter", help, value);
    }
    let mut gauge = |name: &str, help: &str, value: f64| {
        if value.is_finite() {
            text.single(&format!("sanderling_train_{name}"), "gauge", help, value);
        }
    };
    gauge("examples_per_second", "Rows per second, of the last line of metrics.", report.examples_per_s);
    if let Some(under_way) = &report.under_way {
        gauge("pass", "The pass under way, first is 1.", under_way.pass as f64);
        gauge("passes", "Passes in all.", under_way.passes as f64);
        gauge(
            "share_ratio",
            "Part of the pass, or of its validation, that is done.",
            under_way.share.unwrap_or(f64::NAN),
        );
    }
    if let Some(saved) = &report.saved {
        gauge("last_saved_timestamp_seconds", "Time of the last save.", saved.unix_s as f64);
    }
    metrics(&mut text, report);
    text.stages("sanderling_train_stage", &[], &report.stages);
    tables(&mut text, report);
    features(&mut text, report);
    let latencies = report.calls.iter();
    let latencies =
        latencies.map(|calls| (vec![("command", &*calls.command), ("of", &*calls.of)], calls.latency));
    let latencies: Vec<(Labels<'_>, LatencySummary)> = latencies.collect();
    let servers = report.servers.iter().map(|server| (vec![("server", &*server.server)], server.latency));
    let servers: Vec<(Labels<'_>, LatencySummary)> = servers.collect();
    if !report.servers.is_empty() {
        text.latencies("sanderling_train_request", "Time of requests to servers, by command.", &latencies);
        text.latencies("sanderling_train_server", "Time of single calls, by server.", &servers);
    }
    text.finish()
}

/// The last point of each curve.
fn metrics(text: &mut Exposition, report: &RunReport) {
    type Of = fn(&CurvePoint) -> f64;
    let all: [(&str, &str, Of); 4] = [
        ("auc", "Area under the ROC curve.", |point| point.auc),
        ("logloss", "Mean logistic loss.", |point| point.logloss),
        ("rmse", "Root mean squared error.", |point| point.numbers.map_or(f64::NAN, |numbers| numbers.rmse)),
        ("mae", "Mean absolute error.", |point| point.numbers.map_or(f64::NAN, |numbers| numbers.mae)),
    ];
    for (name, help, of) in all {
        let curves = [("train", &report.train_curve), ("valid", &report.valid_curve)];
        let last = curves.into_iter().filter_map(|(rows, curve)| Some((rows, of(curve.last()?))));
        let last: Vec<(&str, f64)> = last.filter(|(_, value)| value.is_finite()).collect();
        if last.is_empty() {
            continue;
        }
        let name = format!("sanderling_train_{name}");
        text.family(&name, "gauge", help);
        last.iter().for_each(|(rows, value)| text.sample(&name, &[("rows", rows)], value));
    }
}

/// The numbers of each feature that are known.
fn features(text: &mut Exposition, report: &RunReport) {
    let all: Vec<_> = report.features.iter().map(|feature| (feature, feature.numbers())).collect();
    let Some((_, first)) = all.first() else { return };
    for (at, (number, help, _)) in first.iter().enumerate() {
        let known = all.iter().filter_map(|(feature, numbers)| Some((*feature, numbers[at].2?)));
        let known: Vec<(&FeatureStats, f64)> = known.collect();
        if known.is_empty() {
            continue;
        }
        let name = format!("sanderling_train_feature_{number}");
        text.family(&name, "gauge", help);
        for (feature, value) in known {
            text.sample(&name, &[("feature", &feature.name), ("table", &feature.table)], value);
        }
    }
}

fn tables(text: &mut Exposition, report: &RunReport) {
    let keys = |of: fn(&TableCounters) -> u64| {
        let tables = report.tables.iter().filter_map(|table| Some((&*table.name, of(table.keys.as_ref()?))));
        tables.collect::<Vec<_>>()
    };
    let all = report.tables.iter();
    for (name, kind, help, values) in [
        ("rows", "gauge", "Rows.", all.clone().map(|table| (&*table.name, table.rows)).collect()),
        ("bytes", "gauge", "Memory.", all.map(|table| (&*table.name, table.bytes)).collect()),
        ("admitted_total", "counter", "New keys that got a row.", keys(|keys| keys.admitted)),
        (
            "rejected_total",
            "counter",
            "Pushes of new keys that were not admitted.",
            keys(|keys| keys.rejected),
        ),
        ("evicted_total", "counter", "Evicted rows.", keys(|keys| keys.evicted)),
        (
            "rejected_full_total",
            "counter",
            "Pushes of new keys that a full table rejected.",
            keys(|keys| keys.rejected_full),
        ),
    ] {
        if values.is_empty() {
            continue;
        }
        let name = format!("sanderling_train_table_{name}");
        text.family(&name, kind, help);
        for (table, value) in values {
            text.sample(&name, &[("table", table)], value);
        }
    }
}
