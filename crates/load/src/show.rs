//! Results as text for people: two lines of a run, all of one, two side by side, a list of many, a
//! comparison. At most [`COLUMNS_MAX`] columns, no colours. Knows neither terminal nor file.

mod numbers;
mod table;

use crate::compare::{Comparison, digits, probability};
use crate::observed::distribution::SAMPLES_BEYOND_MIN;
use crate::observed::{Distribution, FailureCount, Measured};
use crate::result::estimate::{self, Estimate};
use crate::result::{Limit, Load, Objective, RunResult};
use numbers::{bytes, rate};
use sanderling_observe::numbers::count;
use table::Table;

pub(crate) use numbers::{duration, percentile};

/// The most columns of a line.
pub const COLUMNS_MAX: usize = 100;
/// Where a number is not known, or stands on too few samples.
const DASH: &str = "-";
/// Percentiles that are listed.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Lines of a failure's message below the two lines of a run; all of it are below all of a run.
const MESSAGE_LINES_MAX: usize = 12;
/// Kinds of failures that are shown there.
const KINDS_MAX: usize = 3;
/// Runs of many whose reasons are shown: most are not valid for the same ones.
const DOUBTED_MAX: usize = 3;

/// The two lines of a run, one for every reason to doubt it, and the first message of each kind of failure.
#[must_use]
pub fn summary(run: &RunResult) -> String {
    let messages = run.measured.failures.iter().take(KINDS_MAX);
    let messages =
        messages.map(|kind| message(&format!("  {}: ", kind.kind), &kind.first, MESSAGE_LINES_MAX));
    lines(run) + &messages.collect::<String>()
}

/// The two lines of a run, and one for every reason to doubt it.
fn lines(run: &RunResult) -> String {
    let measured = &run.measured;
    let (response, service) = (measured.response(), measured.service());
    let failures = match measured.failed() {
        0 if measured.failures.is_empty() => "no failures".to_owned(),
        failed => {
            let kinds = measured.failures.iter().take(KINDS_MAX);
            let kinds: Vec<String> =
                kinds.map(|kind| format!("{} {}", count(kind.count), kind.kind)).collect();
            let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
            match measured.calls() {
                // It gave up before there was one that counts.
                0 => format!("failed in the warm-up{kinds}"),
                calls => format!("{} of {} calls failed{kinds}", count(failed), count(calls)),
            }
        }
    };
    let mut text = format!(
        "  {} keys/s ({} calls/s), {failures}\n",
        rate(measured.keys_per_s()),
        rate(measured.calls_per_s())
    );
    let quantile = |of: &Distribution, quantile| duration_or_dash(of.quantile_ns(quantile));
    let others = format!("p50 {}, p99.9 {}", quantile(&response, 0.5), quantile(&response, 0.999));
    text += &match run.asked.load {
        Load::Closed => format!("  p99 {} ({others})\n", quantile(&response, 0.99)),
        Load::Open { .. } => format!(
            "  p99 {} from when calls were due ({others}); service p99 {}\n",
            quantile(&response, 0.99),
            quantile(&service, 0.99)
        ),
    };
    for reason in &run.validity.reasons {
        let kind = if run.validity.valid { "note" } else { "NOT VALID" };
        text += &wrapped(&format!("  {kind}: "), reason);
    }
    text
}

/// All of a run.
#[must_use]
pub fn one(run: &RunResult) -> String {
    let measured = &run.measured;
    let mut text = heading(run) + "\n" + &lines(run) + "\n";

    let mut table = Table::new(&["", "", "+-"]);
    rates(&mut table, measured);
    text += &table.text();
    text += "\n";

    let mut table = Table::new(&["latency", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"]);
    let response = measured.response();
    table.row(distribution("response", &response));
    let mut errors = vec!["  +-".to_owned(), half(estimate::mean_ns(measured))];
    errors.extend(QUANTILES.map(|(_, quantile)| half(estimate::quantile_ns(measured, quantile))));
    errors.push(String::new());
    if errors[1..].iter().any(|error| !error.is_empty() && error != DASH) {
        table.row(errors);
    }
    let service = measured.service();
    if service != response {
        table.row(distribution("service", &service));
        table.row(distribution("send lag", &measured.lag()));
    }
    if measured.functions.len() > 1 {
        for function in &measured.functions {
            table.row(distribution(&function.name, &function.response));
        }
    }
    text += &table.text();

    if !measured.requests.is_empty() {
        let mut table =
            Table::new(&["requests", "keys each", "count", "failed", "missing", "mean", "p50", "p99", "max"]);
        for class in &measured.requests {
            let sizes = if class.batch_min == class.batch_max {
                class.batch_min.to_string()
            } else {
                format!("{} to {}", class.batch_min, class.batch_max)
            };
            let service = &class.service;
            let mut row = vec![class.operation.clone(), sizes, count(class.requests), count(class.failed)];
            row.push(percent(class.missing as f64, class.keys as f64));
            let known = |ns: u64| (service.count > 0).then_some(ns);
            let quantile = |quantile, ns| known(ns).filter(|_| has_beyond(service.count, quantile));
            let (p50, p99) = (quantile(0.5, service.p50_ns), quantile(0.99, service.p99_ns));
            row.extend([known(service.average_ns), p50, p99, known(service.max_ns)].map(duration_or_dash));
            table.row(row);
        }
        text += "\n";
        text += &table.text();
    }
    if !run.server.is_empty() {
        let mut table = Table::new(&["server", "peer", "count", "mean", "p50", "p95", "p99", "max"]);
        for line in &run.server {
            let of = &line.summary;
            let mut row = vec![line.command.clone(), line.peer.clone(), count(of.count)];
            // 0: the server cannot tell them from what was before the run.
            let known = |ns: u64| (ns > 0).then_some(ns);
            let quantile = |quantile, ns| known(ns).filter(|_| has_beyond(of.count, quantile));
            let quantiles = [quantile(0.5, of.p50_ns), quantile(0.95, of.p95_ns), quantile(0.99, of.p99_ns)];
            row.push(duration_or_dash(known(of.average_ns)));
            row.extend(quantiles.map(duration_or_dash));
            row.push(duration_or_dash(known(of.max_ns)));
            table.row(row);
        }
        text += "\n";
        text += &table.text();
        if run.asked.warmup_s > 0.0 {
            text += "Servers count the warm-up, too.\n";
        }
    }
    if !measured.failures.is_empty() {
        text += "\n";
        for failure in &measured.failures {
            let prefix = format!("{} {}: ", count(failure.count), failure.kind);
            text += &message(&prefix, &failure.first, usize::MAX);
        }
    }
    text
}

/// Two runs side by side; a star marks a difference beyond what both vary by within themselves.
#[must_use]
pub fn two(a: &RunResult, b: &RunResult) -> String {
    let mut text =
        format!("A: {}\nB: {}\n", heading(a).replace('\n', "\n   "), heading(b).replace('\n', "\n   "));
    let mut table = Table::new(&["", "A", "+-", "B", "+-", "B - A", ""]);
    let mut row = |name: &str, a: Option<Estimate>, b: Option<Estimate>, write: &dyn Fn(f64) -> String| {
        let value = |of: Option<Estimate>| of.map_or(DASH.to_owned(), |of| write(of.value));
        let (change, mark) = match (a, b) {
            (Some(a), Some(b)) if a.value > 0.0 => {
                let percent = 100.0 * (b.value / a.value - 1.0);
                let beyond = match (a.half_width, b.half_width) {
                    (Some(of_a), Some(of_b)) => (b.value - a.value).abs() > of_a.hypot(of_b),
                    _ => false,
                };
                (
                    format!("{}{} %", if percent > 0.0 { "+" } else { "" }, digits(percent)),
                    if beyond { "*" } else { "" },
                )
            }
            _ => (DASH.to_owned(), ""),
        };
        table.row(vec![name.to_owned(), value(a), half(a), value(b), half(b), change, mark.to_owned()]);
    };
    let (of_a, of_b) = (&a.measured, &b.measured);
    let exact = |value: f64| Some(Estimate { value, half_width: None });
    row("calls/s", Some(estimate::calls_per_s(of_a)), Some(estimate::calls_per_s(of_b)), &rate);
    row("keys/s", Some(estimate::keys_per_s(of_a)), Some(estimate::keys_per_s(of_b)), &rate);
    row("bytes/s", exact(of_a.bytes_per_s()), exact(of_b.bytes_per_s()), &bytes);
    row("response mean", estimate::mean_ns(of_a), estimate::mean_ns(of_b), &duration);
    for (name, quantile) in QUANTILES {
        let name = format!("response {name}");
        row(&name, estimate::quantile_ns(of_a, quantile), estimate::quantile_ns(of_b, quantile), &duration);
    }
    let service = |of: &Measured| of.service().quantile_ns(0.99).and_then(|ns| exact(ns as f64));
    row("service p99", service(of_a), service(of_b), &duration);
    let share = |of: f64| format!("{of:.2}");
    row("client cores", exact(a.client_cores()), exact(b.client_cores()), &share);
    row("failed calls", exact(of_a.failed() as f64), exact(of_b.failed() as f64), &|value| {
        count(value as u64)
    });
    text += "\n";
    text += &table.text();
    text += "\n* more than both vary by within themselves. Runs vary among each other too: ab tells.\n";
    for (side, run) in [("A", a), ("B", b)] {
        for reason in &run.validity.reasons {
            let kind = if run.validity.valid { "note" } else { "NOT VALID" };
            text += &wrapped(&format!("{side}: {kind}: "), reason);
        }
    }
    text
}

/// Many runs, one a line; what was wanted of them, and what [`doubts`] there are.
#[must_use]
pub fn list(runs: &[RunResult]) -> String {
    let wanted = wanted(runs);
    let heading = if wanted.is_empty() { "" } else { "wanted" };
    let mut table = Table::new(&[
        "run", "due/s", "calls/s", "keys/s", "p50", "p99", "p99.9", "max", "cores", heading, "",
    ]);
    for run in runs {
        let due = match &run.asked.load {
            Load::Closed => DASH.to_owned(),
            Load::Open { rate_per_s, .. } => rate(*rate_per_s),
        };
        let response = run.measured.response();
        let quantile = |quantile| duration_or_dash(response.quantile_ns(quantile));
        table.row(vec![
            numbers::shortened(&run.label, 16),
            due,
            rate(run.measured.calls_per_s()),
            rate(run.measured.keys_per_s()),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            duration_or_dash(response.max_ns()),
            format!("{:.2}", run.client_cores()),
            if run.asked.objectives.is_empty() { String::new() } else { of_objectives(run).to_owned() },
            if run.validity.valid { "" } else { "NOT VALID" }.to_owned(),
        ]);
    }
    let mut text = table.text();
    if !wanted.is_empty() {
        let one = |of: &Objective| format!("{} < {}", percentile(of.quantile), duration(of.below_ns as f64));
        let all: Vec<String> = wanted.iter().map(one).collect();
        text += &wrapped("  wanted: ", &all.join(", "));
    }
    text + &doubts(runs)
}

/// The objectives of all runs, each once.
#[must_use]
pub fn wanted(runs: &[RunResult]) -> Vec<Objective> {
    let mut all: Vec<Objective> = Vec::new();
    for one in runs.iter().flat_map(|run| &run.asked.objectives) {
        if !all.contains(one) {
            all.push(*one);
        }
    }
    all
}

/// Whether a run kept all that was wanted of it, in a word.
fn of_objectives(run: &RunResult) -> &'static str {
    let kept: Vec<Option<bool>> = run.asked.objectives.iter().map(|one| is_kept(run, one)).collect();
    match () {
        () if kept.contains(&Some(false)) => "missed",
        () if kept.contains(&None) => DASH,
        () => "kept",
    }
}

/// None of too few samples.
fn is_kept(run: &RunResult, Objective { quantile, below_ns }: &Objective) -> Option<bool> {
    run.measured.response().quantile_ns(*quantile).map(|ns| ns < *below_ns)
}

/// Why runs are not valid, and the first message of each kind of failure: what stands below a list of them, or a comparison.
#[must_use]
pub fn doubts(runs: &[RunResult]) -> String {
    let mut text = String::new();
    let doubted: Vec<&RunResult> = runs.iter().filter(|run| !run.validity.valid).collect();
    for run in doubted.iter().take(DOUBTED_MAX) {
        let label = match &run.label[..] {
            "" => String::new(),
            label => format!("{}: ", numbers::shortened(label, 24)),
        };
        let prefix = format!("  {label}NOT VALID: ");
        for reason in &run.validity.reasons {
            text += &wrapped(&prefix, reason);
        }
    }
    if doubted.len() > DOUBTED_MAX {
        text += &format!("  and {} more that are not valid\n", doubted.len() - DOUBTED_MAX);
    }
    let mut kinds: Vec<&FailureCount> = Vec::new();
    for kind in runs.iter().flat_map(|run| &run.measured.failures) {
        if !kinds.iter().any(|other| other.kind == kind.kind) {
            kinds.push(kind);
        }
    }
    for kind in kinds.into_iter().take(KINDS_MAX) {
        text += &message(&format!("  {}: ", kind.kind), &kind.first, MESSAGE_LINES_MAX);
    }
    text
}

/// Two sets of runs, compared: the verdict, then the numbers.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = String::new();
    for line in comparison.verdict() {
        text += &wrapped("  ", &line);
    }
    let mut table = Table::new(&["", "A", "B", "B - A", "95 % alone", "p", "detectable"]);
    let sure = comparison.has_intervals();
    let if_sure = |text: String| if sure { text } else { DASH.to_owned() };
    for of in &comparison.differences {
        let write = if of.metric.is_rate() { rate } else { duration };
        table.row(vec![
            of.metric.name().to_owned(),
            write(of.a),
            write(of.b),
            format!("{}{} %", if of.percent > 0.0 { "+" } else { "" }, digits(of.percent)),
            if_sure(format!("{} to {} %", digits(of.percent_low), digits(of.percent_high))),
            if_sure(probability(of.p_corrected).trim_start_matches("= ").to_owned()),
            if_sure(format!("{} %", digits(of.detectable_percent))),
        ]);
    }
    text += "\n";
    text += &table.text();
    let Comparison { runs_a, runs_b, test, .. } = comparison;
    if !sure {
        text += &format!("\n{runs_a} runs of A and {runs_b} of B; means are geometric.\n");
        return text;
    }
    text += &format!(
        "\n{runs_a} runs of A and {runs_b} of B; means are geometric, p by the {test} test with Holm's \
         correction;\n\
         95 % alone: of each line by itself, not corrected; detectable: what is found four times in five.\n"
    );
    text
}

/// Workload and target in a few words.
fn heading(run: &RunResult) -> String {
    let asked = &run.asked;
    let label = if run.label.is_empty() { String::new() } else { format!("{}: ", run.label) };
    let (took, made) = (duration(run.measured.seconds * 1e9), run.measured.calls());
    let length = match asked.limit {
        Limit::Seconds { .. } => took,
        Limit::Calls { calls } if calls == made => format!("{} calls in {took}", count(calls)),
        Limit::Calls { calls } => format!("{} of {} calls in {took}", count(made), count(calls)),
    };
    let load = match &asked.load {
        Load::Closed => format!("closed loop of {}", asked.concurrency),
        Load::Open { rate_per_s, arrivals } => format!("{} calls/s ({arrivals})", rate(*rate_per_s)),
    };
    let threads = if asked.threads == 1 { "1 thread" } else { &format!("{} threads", asked.threads) };
    let first = format!("{label}{} on {}", asked.script.name, asked.address);
    let mut text = format!(
        "{}\n{length} after {} of warm-up, {threads}, {load}\nsanderling {} on {}, {} cores",
        numbers::shortened(&first, COLUMNS_MAX - 3),
        duration(asked.warmup_s * 1e9),
        run.versions.sanderling,
        numbers::shortened(&run.machine.cpu, 60),
        run.machine.cpus_usable,
    );
    for one in &asked.objectives {
        let kept = match is_kept(run, one) {
            Some(true) => "kept",
            Some(false) => "missed",
            None => "too few samples to say",
        };
        let (name, below) = (percentile(one.quantile), duration(one.below_ns as f64));
        text += &format!("\nwanted: {name} < {below}: {kept}");
    }
    text
}

fn rates(table: &mut Table, measured: &Measured) {
    let mut row = |name: &str, value: String, error: String| table.row(vec![name.to_owned(), value, error]);
    let calls = estimate::calls_per_s(measured);
    let keys = estimate::keys_per_s(measured);
    row("calls/s", rate(calls.value), half(Some(calls)));
    row("keys/s", rate(keys.value), half(Some(keys)));
    row("bytes/s", bytes(measured.bytes_per_s()), String::new());
    row("missing keys", percent(measured.missing() as f64, measured.keys() as f64), String::new());
    if let Some(distinct) = measured.distinct {
        let error = if distinct.error > 0.0 {
            format!("{} %", digits(196.0 * distinct.error))
        } else {
            String::new()
        };
        row("distinct keys", percent(distinct.ratio(), 1.0), error);
    }
}

fn distribution(name: &str, of: &Distribution) -> Vec<String> {
    let mut row = vec![numbers::shortened(name, 18), of.mean_ns().map_or(DASH.to_owned(), duration)];
    row.extend(QUANTILES.map(|(_, quantile)| duration_or_dash(of.quantile_ns(quantile))));
    row.push(duration_or_dash(of.max_ns()));
    row
}

fn duration_or_dash(ns: Option<u64>) -> String {
    ns.map_or(DASH.to_owned(), |ns| duration(ns as f64))
}

/// Do so many samples lie beyond a percentile that it is told?
fn has_beyond(count: u64, quantile: f64) -> bool {
    (1.0 - quantile) * count as f64 >= SAMPLES_BEYOND_MIN
}

/// The error in percent of the value.
fn half(of: Option<Estimate>) -> String {
    match of {
        Some(Estimate { value, half_width: Some(half) }) if value > 0.0 => {
            format!("{} %", digits(100.0 * half / value))
        }
        _ => DASH.to_owned(),
    }
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{} %", digits(100.0 * part / whole)) } else { DASH.to_owned() }
}

/// A message after a prefix, in at most so many lines. One of several lines keeps them, below the prefix: it may draw a place.
fn message(prefix: &str, text: &str, lines_max: usize) -> String {
    let text = text.trim_end();
    let all = if text.contains('\n') {
        let line = |line: &str| format!("    {}", numbers::shortened(line.trim_end(), COLUMNS_MAX - 4));
        let lines = text.lines().map(|text| line(text).trim_end().to_owned() + "\n");
        format!("{}\n", prefix.trim_end()) + &lines.collect::<String>()
    } else {
        wrapped(prefix, text)
    };
    let mut lines: Vec<&str> = all.lines().take(lines_max).collect();
    if all.lines().count() > lines_max {
        lines.push("    …");
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Words after a prefix, over as many lines as they need.
fn wrapped(prefix: &str, words: &str) -> String {
    let indent = " ".repeat(prefix.chars().count().min(COLUMNS_MAX / 2));
    let mut lines = vec![prefix.to_owned()];
    let mut first = true;
    for word in words.split_whitespace() {
        let word = numbers::shortened(word, COLUMNS_MAX - indent.len());
        let line = lines.last_mut().expect("there is a line");
        let gap = usize::from(!first);
        if line.chars().count() + gap + word.chars().count() > COLUMNS_MAX {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push_str(&" ".repeat(gap));
            line.push_str(&word);
        }
        first = false;
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests;
