//! The sections of a report, in the order in which they stand. Knows no style and no drawing.

use maud::{Markup, PreEscaped, html};
use sanderling_observe::LatencySummary;

use super::summary::by_norm;
use super::{KeyNorm, Metrics, NumberMetrics, RunReport, Saved, bottleneck, charts, numbers, values_of};

/// The most validations listed; with more, the best and the last ones.
const VALIDATIONS_MAX: usize = 12;
/// The most points of progressive validation listed.
const POINTS_MAX: usize = 60;
/// The most keys listed over all tables.
const KEYS_MAX: usize = 20;

pub(super) fn section(id: &str, title: &str, lead: &str, body: &Markup) -> Markup {
    html! {
        section id=(id) {
            h2 { (title) }
            @if !lead.is_empty() { p.lead { (lead) } }
            (body)
        }
    }
}

fn chart(svg: String) -> Markup {
    html! { figure { (PreEscaped(svg)) } }
}

pub(super) fn learning_curves(report: &RunReport) -> Markup {
    let lead = "Training metrics of the first pass are progressive: every example is scored before it is learned. Those of later \
                passes are of training (seen) data.";
    let body = html! {
        @if report.train_curve.is_empty() && report.valid_curve.is_empty() && report.under_way.is_some() {
            p.none { "No point was recorded yet ([train] print_every_steps)." }
        } @else if report.train_curve.is_empty() && report.valid_curve.is_empty() {
            p.none { "No point was recorded: the run ended before its first one ([train] print_every_steps)." }
        } @else {
            @let has_rate = report.train_curve.iter().any(|point| point.examples_per_s.is_finite());
            div.figures.three[has_rate] {
                (chart(charts::learning(report, report.metric_names()[0], |point| point.values()[0])))
                (chart(charts::learning(report, report.metric_names()[1], |point| point.values()[1])))
                @if has_rate { (chart(charts::rate(report))) }
            }
        }
        @if report.valid.is_none() {
            p.none { "There is no validation curve: the configuration names no validation file ([data] valid)." }
        } @else if !report.valid_curve.is_empty() {
            (validations(report))
        }
    };
    section("curves", "Learning curves", lead, &body)
}

/// The validations as a list; that of the pass whose model was kept stands out.
fn validations(report: &RunReport) -> Markup {
    let (curve, best_pass) = (&report.valid_curve, report.best_pass);
    let names = lower_names(report);
    let first = curve.len().saturating_sub(VALIDATIONS_MAX);
    let is_best = |at: usize| curve[at].pass == best_pass;
    let shown = (0..curve.len()).filter(|&at| at >= first || is_best(at));
    html! {
        div.scroll { table.compact {
            thead { tr {
                th.number { "pass" } th.number { "step" } th.number { "examples" } th.number { (names[0]) }
                th.number { (names[1]) } th.number { "predicted" } th.number { "real" } th {}
            } }
            tbody { @for at in shown {
                @let point = &curve[at];
                tr.best[is_best(at) && curve.len() > 1] {
                    td.number { (point.pass) }
                    td.number { (numbers::count(point.step)) }
                    td.number { (numbers::count(point.examples)) }
                    @for value in point.values().into_iter().chain([point.prob_mean, point.real_mean]) {
                        td.number { (of_metric(report, value, 5)) }
                    }
                    td { @if is_best(at) && curve.len() > 1 { "best" } }
                }
            } }
        } }
        @if first > 0 { p.note { "The best and the last " (VALIDATIONS_MAX) " of " (curve.len()) " validations." } }
    }
}

/// Empty without test sets.
pub(super) fn test_sets(report: &RunReport) -> Markup {
    if report.tests.is_empty() {
        return html! {};
    }
    let names = lower_names(report);
    let body = html! {
        div.scroll { table.compact {
            thead { tr {
                th { "test set" } th { "data" } th.number { "examples" } th.number { (names[0]) } th.number { (names[1]) }
                th.number { "predicted" } th.number { "real" }
            } }
            tbody { @for set in &report.tests { tr {
                td.name title=(set.name) { (set.name) }
                td.name title=(set.data) { (set.data) }
                (metric_cells(report, &set.metrics))
            } } }
        } }
    };
    section("tests", "Test sets", "The saved model on each test set ([data] test).", &body)
}

fn metric_cells(report: &RunReport, metrics: &Metrics) -> Markup {
    html! {
        td.number { (numbers::count(metrics.examples)) }
        @for value in values_of(metrics).into_iter().chain([metrics.prob_mean, metrics.real_mean]) {
            td.number { (of_metric(report, value, 5)) }
        }
    }
}

/// [`RunReport::metric_names`] as they stand in a sentence.
pub(super) fn lower_names(report: &RunReport) -> [&'static str; 2] {
    if report.metrics.numbers.is_some() { report.metric_names() } else { ["AUC", "logloss"] }
}

/// A metric with so many digits after the point; of a regression, whose numbers are of any size, as a figure.
pub(super) fn of_metric(report: &RunReport, value: f64, digits: usize) -> String {
    match report.metrics.numbers {
        None => numbers::decimal(value, digits),
        Some(_) => numbers::figure(value),
    }
}

/// Empty where no run predicted its data first.
pub(super) fn progressive_validation(report: &RunReport) -> Markup {
    let curve = &report.progressive_curve;
    if curve.is_empty() {
        return html! {};
    }
    let (first, names) = (curve.len().saturating_sub(POINTS_MAX), lower_names(report));
    let body = html! {
        div.figures {
            (chart(charts::progressive(curve, report.metric_names()[0], |point| values_of(&point.metrics)[0])))
            (chart(charts::progressive(curve, report.metric_names()[1], |point| values_of(&point.metrics)[1])))
        }
        div.scroll { table.compact {
            thead { tr {
                th { "run" } th { "data" } th.number { "examples" } th.number { (names[0]) } th.number { (names[1]) }
                th.number { "predicted" } th.number { "real" }
            } }
            tbody { @for point in &curve[first..] { tr {
                td.name title=(point.run) { (point.run) }
                td.name title=(point.data) { (point.data) }
                (metric_cells(report, &point.metrics))
            } } }
        } }
        @if first > 0 { p.note { "The last " (POINTS_MAX) " of " (curve.len()) " runs." } }
    };
    let lead =
        "Each run scored its training files with the model that it began from, before it learned from them.";
    section("progressive", "Progressive validation", lead, &body)
}

/// The errors of a regression.
fn errors(found: &NumberMetrics) -> Markup {
    html! {
        dl.facts {
            dt { "Root mean squared error" } dd { (numbers::figure(found.rmse)) }
            dt { "Mean squared error" } dd { (numbers::figure(found.mse)) }
            dt { "Mean absolute error" } dd { (numbers::figure(found.mae)) }
        }
    }
}

pub(super) fn quality(report: &RunReport) -> Markup {
    let lead = match &report.valid {
        Some(files) => format!("Measured on {files}: {} examples.", numbers::count(report.metrics.examples)),
        None if report.plots_seen => {
            "Without a validation file. The run was resumed after its first pass, so the plots are of training (seen) data: they \
             say nothing of new rows."
                .to_owned()
        }
        None => {
            "Without a validation file, measured while training, in the first pass (progressive).".to_owned()
        }
    };
    if let Some(found) = &report.metrics.numbers {
        return section("quality", "Errors", &lead, &errors(found));
    }
    // With one class the curve is made of 0 / 0.
    let with_roc = !report.roc.is_empty() && !report.metrics.auc.is_nan();
    let body = html! {
        @if !with_roc && report.calibration.is_empty() {
            p.none { "No curve was measured." }
        } @else {
            div.figures {
                @if with_roc { (chart(charts::roc_curve(report))) }
                @if !report.calibration.is_empty() { (chart(charts::calibration_plot(report))) }
            }
            @if !report.calibration.is_empty() {
                p.note {
                    "Calibration: on the dashed line, predictions come true as often as they say. Dots grow with the "
                    "number of examples; thin bars are 95 % intervals."
                }
            }
        }
        @if report.metrics.auc.is_nan() {
            p.none { "There is no ROC curve, and AUC is not defined: the examples are all of one class, or there are none." }
        } @else if !report.metrics.auc_exact {
            p.note { "More examples than are ranked exactly: AUC was computed in bins of the score." }
        }
    };
    section("quality", "ROC and calibration", &lead, &body)
}

pub(super) fn importance(report: &RunReport) -> Markup {
    let found = report.importance.as_ref().filter(|found| !found.features.is_empty());
    let on = if report.valid.is_some() { "validation" } else { "training" };
    let lead = found.map_or_else(String::new, |found| {
        format!(
            "Mean absolute contribution of each feature to the logit, over {} {on} examples. In a factorization machine an \
             interaction of two features counts half for each.",
            numbers::count(found.rows)
        )
    });
    let body = html! {
        @match found {
            None => { p.none { "Feature importance was not measured." } }
            Some(found) => {
                (chart(charts::importance(&found.features)))
                @if found.features.len() > charts::BARS_MAX {
                    p.note { "The first " (charts::BARS_MAX) " of " (found.features.len()) " features; the list has all." }
                    details { summary { "All " (found.features.len()) " features" } div.scroll { table.compact {
                        thead { tr { th { "feature" } th.number { "mean |contribution|" } } }
                        tbody { @for feature in &found.features { tr {
                            td.name title=(feature.feature) { (feature.feature) }
                            td.number { (numbers::figure(feature.mean_abs_contribution)) }
                        } } }
                    } } }
                }
            }
        }
    };
    section("importance", "Feature importance", &lead, &body)
}

pub(super) fn top_keys(report: &RunReport) -> Markup {
    let mut keys: Vec<(&str, &KeyNorm)> = report
        .tables
        .iter()
        .flat_map(|table| table.top.iter().map(|key| (table.name.as_str(), key)))
        .collect();
    keys.sort_by(|a, b| by_norm(a.1, b.1).then_with(|| a.0.cmp(b.0)));
    keys.truncate(KEYS_MAX);
    let named = keys.iter().any(|(_, key)| key.value.is_some());
    let body = html! {
        @if keys.is_empty() {
            p.none { "No row has a weight other than zero." }
        } @else {
            div.scroll { table {
                thead { tr {
                    th { "table" } @if named { th { "value" } } th.number { "key" } th.number { "norm" }
                    th.number { "linear weight" } th.number { "frequency" }
                } }
                tbody { @for (table, key) in keys { tr {
                    td.name title=(table) { (table) }
                    @if named {
                        @let value = key.value.as_deref().unwrap_or("–");
                        td.name title=(value) { (value) }
                    }
                    td.number { (key.key) }
                    td.number { (numbers::figure(key.norm)) }
                    td.number { (numbers::figure(f64::from(key.weight))) }
                    td.number { (numbers::count(key.frequency)) }
                } } }
            } }
        }
    };
    section("keys", "Largest keys", "The rows with the largest L2 norm, over all tables.", &body)
}

pub(super) fn timings(report: &RunReport) -> Markup {
    let lead = match report.timed_examples < report.examples {
        true => "Time of every stage since the run was resumed, added up over threads.",
        false => "Time of every stage, added up over threads.",
    };
    let body = html! {
        @if report.stages.is_empty() {
            p.none { "No stage was timed." }
        } @else {
            @if let (None, Some(found)) = (&report.under_way, bottleneck(&report.stages)) {
                p.finding { (found) }
            }
            (chart(charts::stages(report)))
            div.scroll { table.compact {
                thead { tr {
                    th { "stage" } th.number { "time" } th.number { "share" } th.number { "times entered" }
                    th.number { "per example" }
                } }
                tbody { @for stage in &report.stages { tr {
                    td.name { (stage.name) }
                    td.number { (numbers::duration(stage.seconds)) }
                    td.number { (numbers::percent(stage.share)) }
                    td.number { (numbers::count(stage.count)) }
                    td.number { (nanoseconds_each(stage.seconds, report.timed_examples)) }
                } } }
            } }
        }
    };
    section("timings", "Timings by stage", lead, &body)
}

/// Empty with tables in the trainer's process.
pub(super) fn servers(report: &RunReport) -> Markup {
    if report.calls.is_empty() && report.servers.is_empty() {
        return html! {};
    }
    let times = |latency: &LatencySummary| {
        let LatencySummary { count, average_ns, p50_ns, p99_ns, max_ns, .. } = *latency;
        html! {
            td.number { (numbers::count(count)) }
            @for ns in [average_ns, p50_ns, p99_ns, max_ns] { td.number { (numbers::duration(ns as f64 * 1e-9)) } }
        }
    };
    let columns = html! {
        th.number { "count" } th.number { "average" } th.number { "p50" } th.number { "p99" } th.number { "max" }
    };
    let body = html! {
        div.scroll { table.compact {
            thead { tr { th { "server" } th { "over" } (columns) } }
            tbody { @for server in &report.servers { tr {
                td.name title=(server.server) { (server.server) } td { (server.transport) } (times(&server.latency))
            } } }
        } }
        @if !report.calls.is_empty() {
            div.scroll { table.compact {
                thead { tr { th { "command" } th { "of" } (columns) } }
                tbody { @for calls in &report.calls { tr {
                    td { (calls.command) } td { (calls.of) } (times(&calls.latency))
                } } }
            } }
        }
    };
    let lead =
        "Latencies of single calls by server, and of calls and whole requests by command, retries included.";
    section("servers", "Servers", lead, &body)
}

/// Rows that the headline metrics are of.
pub(super) fn measured_on(report: &RunReport) -> String {
    match (&report.under_way, &report.valid) {
        (Some(_), _) => {
            let seen = if report.passes > 1 { ", seen" } else { "" };
            format!("last {} training rows{seen}", numbers::count(report.metrics.examples))
        }
        (None, Some(_)) => "validation".to_owned(),
        (None, None) => "training, progressive, pass 1".to_owned(),
    }
}

/// A save in words.
pub(super) fn saved_words(saved: &Saved) -> String {
    let Saved { path, unix_s, step } = saved;
    format!("{}, step {}, {path}", numbers::date(*unix_s), numbers::count(*step))
}

fn nanoseconds_each(seconds: f64, examples: u64) -> String {
    let nanoseconds = seconds * 1e9 / examples as f64;
    if nanoseconds.is_finite() {
        format!("{} ns", numbers::count(nanoseconds.round() as u64))
    } else {
        "–".to_owned()
    }
}

pub(super) fn data_and_model(report: &RunReport) -> Markup {
    let body = html! {
        dl.facts {
            dt { "Bad rows" } dd { (numbers::count(report.bad_rows)) @if report.bad_rows > 0 { " skipped" } }
            @if report.valid_bad_rows > 0 {
                dt { "Bad rows of the validation data" } dd { (numbers::count(report.valid_bad_rows)) " skipped" }
            }
            @if let Some(saved) = &report.saved {
                dt { "Last save" } dd { (saved_words(saved)) }
            } @else if report.under_way.is_some() {
                dt { "Last save" } dd { "none yet" }
            }
            dt { "Model" } dd { code { (report.model_path) } }
            dt { "Evaluate" } dd { code { (report.eval_command) } }
        }
        @if !report.bad_row_messages.is_empty() {
            p.note { "The first " (report.bad_row_messages.len()) " bad rows:" }
            pre { @for message in &report.bad_row_messages { (message) "\n" } }
        }
    };
    section("data", "Data and model", "", &body)
}

pub(super) fn machine(report: &RunReport) -> Markup {
    let machine = &report.machine;
    let body = html! {
        dl.facts {
            dt { "Processor" } dd { (machine.cpu) " (" (machine.arch) ", " (machine.simd) ")" }
            dt { "Logical processors" } dd {
                (machine.cpus)
                @if machine.cpus_usable != machine.cpus { ", " (machine.cpus_usable) " usable" }
            }
            dt { "Memory" } dd { (numbers::bytes(machine.memory_bytes)) }
            dt { "System" } dd { (machine.os) ", kernel " (machine.kernel) }
        }
    };
    section("machine", "Machine", "", &body)
}

pub(super) fn config(report: &RunReport) -> Markup {
    let body = html! { pre { (report.config) } };
    section("config", "Configuration", "As it ran, defaults filled in.", &body)
}
