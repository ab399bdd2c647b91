//! `sanderling compare`: two training runs side by side, from their `summary.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::output;
use crate::run_config::{self, Difference, differences};
use crate::width;

mod rows;
use rows::Row;

/// Compare two training runs: configuration, time, stages, server requests, quality
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling train clicks.toml --name tcp --ps tcp://127.0.0.1:7000 \\
      --ps-no-local
  sanderling train clicks.toml --name shm --ps shm:port-7000
  sanderling compare runs/tcp runs/shm

Improvement is B relative to A, in percent of A: less time, smaller loss, higher rate or larger AUC. A negative value means \
that B is worse. Run times vary: repeat both runs before you trust a small difference.

This command reads summary.json of training runs. To compare load tests, use sanderling load show A B or sanderling load ab.")]
pub(crate) struct Args {
    /// Baseline run: its directory, or its summary.json
    #[arg(value_name = "RUN_A")]
    a: PathBuf,
    /// Run to compare with the baseline: its directory, or its summary.json
    #[arg(value_name = "RUN_B")]
    b: PathBuf,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

/// Largest accepted summary.
const SUMMARY_BYTES_MAX: u64 = 64 << 20;

/// The compared part of a summary.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Summary {
    name: String,
    auc: Option<f64>,
    logloss: Option<f64>,
    measured_on: String,
    /// Absent in summaries of older versions.
    measured_examples: Option<u64>,
    /// Share of positives in the measured rows.
    real_mean: Option<f64>,
    examples: u64,
    examples_per_s: f64,
    train_s: f64,
    passes: u64,
    stopped: bool,
    /// The model that the run began from.
    from: Option<String>,
    /// Absent in summaries of older versions.
    timing: Option<Timing>,
    /// The others.
    #[serde(flatten)]
    fields: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Timing {
    algorithm: Option<String>,
    workers: u32,
    /// Earlier versions called it `batch`.
    #[serde(alias = "batch")]
    batch_size: u64,
    transport: String,
    total_s: f64,
    /// Passes of the session that wrote the summary.
    passes: Option<Vec<IgnoredAny>>,
    stages: Vec<Stage>,
    calls: Vec<Call>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Stage {
    name: String,
    seconds: f64,
    share: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Call {
    command: String,
    of: String,
    count: u64,
    average_ns: u64,
    max_ns: u64,
    min_ns: u64,
    p50_ns: u64,
    p95_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
}

/// A run and its timing.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    summary: Summary,
    timing: Timing,
}

/// Header of a comparison.
#[derive(Debug, Serialize)]
struct Head<'a> {
    run: String,
    name: &'a str,
    algorithm: Option<&'a str>,
    workers: u32,
    batch_size: u64,
    transport: &'a str,
    examples: u64,
    passes: u64,
}

#[derive(Debug, Serialize)]
struct Comparison<'a> {
    a: Head<'a>,
    b: Head<'a>,
    /// Entries in which the configurations differ; empty without the configurations.
    differences: Vec<Difference>,
    rows: Vec<Row>,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let comparison = Comparison {
        a: head(&a, &args.a),
        b: head(&b, &args.b),
        differences: all_differences(&a, &b, &config_of(&args.a), &config_of(&args.b)),
        rows: rows::rows(&a, &b),
        warnings: warnings(&a, &b),
    };
    for warning in &comparison.warnings {
        note!("warning: {warning}");
    }
    if args.json {
        output::json(&comparison)?;
    } else {
        output::text(&for_people(&comparison, width::of_stdout()))?;
    }
    Ok(0)
}

/// The differences of two configurations, after that of the models that the runs began from.
fn all_differences(
    a: &Run,
    b: &Run,
    config_a: &BTreeMap<String, Value>,
    config_b: &BTreeMap<String, Value>,
) -> Vec<Difference> {
    let (from_a, from_b) = (&a.summary.from, &b.summary.from);
    let value = |from: &Option<String>| from.clone().map(Value::from);
    let begun = Difference { entry: "--from".to_owned(), a: value(from_a), b: value(from_b) };
    let begun = (from_a != from_b).then_some(begun);
    begun.into_iter().chain(differences(config_a, config_b)).collect()
}

/// The configuration beside a summary.
fn config_of(path: &Path) -> BTreeMap<String, Value> {
    run_config::entries(if path.is_dir() { path } else { path.parent().unwrap_or(path) })
}

fn read(path: &Path) -> Result<Run, Failure> {
    let shown = path.display();
    if !path.exists() {
        return Err(Failure::Usage(format!(
            "{shown}: no such run; name the directory of one, as runs/NAME, or its summary.json"
        )));
    }
    let file = if path.is_dir() { path.join("summary.json") } else { path.to_owned() };
    let failed = |error: std::io::Error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{shown}: there is no summary.json; it is written when a run has ended")
            }
            _ => format!("{}: {error}", file.display()),
        };
        Failure::Run(why)
    };
    let bytes = std::fs::metadata(&file).map_err(failed)?.len();
    if bytes > SUMMARY_BYTES_MAX {
        return Err(Failure::Run(format!(
            "{}: {} are too much for a run's summary",
            file.display(),
            output::bytes(bytes)
        )));
    }
    let text = std::fs::read(&file).map_err(failed)?;
    parse(&text).map_err(|why| Failure::Run(format!("{}: {why}", file.display())))
}

fn parse(text: &[u8]) -> Result<Run, String> {
    let mut summary: Summary =
        serde_json::from_slice(text).map_err(|error| format!("not a run's summary: {error}"))?;
    let timing = summary.timing.take().ok_or(
        "it has no timing, because an earlier version of sanderling wrote it: train once more with this one",
    )?;
    Ok(Run { summary, timing })
}

fn head<'a>(run: &'a Run, path: &Path) -> Head<'a> {
    let Run { summary, timing } = run;
    Head {
        run: path.display().to_string(),
        name: &summary.name,
        algorithm: timing.algorithm.as_deref(),
        workers: timing.workers,
        batch_size: timing.batch_size,
        transport: &timing.transport,
        examples: summary.examples,
        passes: summary.passes,
    }
}

/// Differences in work that make the times incomparable.
fn warnings(a: &Run, b: &Run) -> Vec<String> {
    let algorithm = |run: &Run| run.timing.algorithm.clone().unwrap_or_else(|| "none".to_owned());
    let number = |of: fn(&Run) -> u64| [output::count(of(a)), output::count(of(b))];
    let same_work = [
        ("examples", number(|run| run.summary.examples)),
        ("passes", number(|run| run.summary.passes)),
        ("algorithm", [algorithm(a), algorithm(b)]),
        ("workers", number(|run| u64::from(run.timing.workers))),
        ("batch size", number(|run| run.timing.batch_size)),
    ];
    let differing: Vec<String> = same_work
        .iter()
        .filter(|(_, [a, b])| a != b)
        .map(|(name, [a, b])| format!("{name} {a} and {b}"))
        .collect();
    let mut warnings = Vec::new();
    if !differing.is_empty() {
        warnings.push(format!("the two runs did not do the same work: {}", differing.join("; ")));
    }
    let on = [a, b].map(|run| &run.summary.measured_on);
    if on[0] != on[1] {
        warnings.push(format!("the metrics are not of the same rows: data.{} and data.{}", on[0], on[1]));
    } else if let Some(differing) = measured_rows_differ(&a.summary, &b.summary) {
        warnings.push(format!("the metrics are not of the same rows: {differing} in data.{}", on[0]));
    }
    for (run, side) in [(a, "A"), (b, "B")] {
        if run.summary.stopped {
            warnings.push(format!("{side} was stopped before its end"));
        }
        if was_resumed(run) {
            warnings.push(format!(
                "{side} was resumed: its total, its stages and its calls are those of its last session, while training and \
                 examples/s are of all sessions"
            ));
        }
    }
    warnings
}

/// Whether the run is longer than the session that its timing covers.
fn was_resumed(run: &Run) -> bool {
    let Run { summary, timing } = run;
    let timed = timing.passes.as_ref().map(|passes| passes.len() as u64);
    timed.is_some_and(|timed| timed < summary.passes) || summary.train_s > timing.total_s
}

/// Difference between the measured rows of two runs, by their number and share of positives.
fn measured_rows_differ(a: &Summary, b: &Summary) -> Option<String> {
    if let (Some(a), Some(b)) = (a.measured_examples, b.measured_examples)
        && a != b
    {
        return Some(format!("{} and {}", output::count(a), output::count(b)));
    }
    let is_regression = a.fields.contains_key("rmse");
    let (a, b) = (a.real_mean?, b.real_mean?);
    // The mean of many labels, not in the same order.
    ((a - b).abs() > 1e-9 * a.abs().max(1.0)).then(|| match is_regression {
        true => format!("means of {a:.6} and {b:.6}"),
        false => format!("{a:.6} and {b:.6} are positive"),
    })
}

fn for_people(comparison: &Comparison<'_>, width: Option<usize>) -> String {
    let Comparison { a, b, rows, .. } = comparison;
    let of = |name: &str, of: &dyn Fn(&Head<'_>) -> String| {
        vec![name.to_owned(), String::new(), String::new(), of(a), of(b), String::new()]
    };
    let mut lines = vec![
        of("run", &|head| head.run.clone()),
        of("algorithm", &|head| head.algorithm.unwrap_or("none").to_owned()),
        of("workers", &|head| head.workers.to_string()),
        of("batch size", &|head| output::count(head.batch_size)),
        of("transport", &|head| head.transport.to_owned()),
        of("examples", &|head| output::count(head.examples)),
        of("passes", &|head| output::count(head.passes)),
    ];
    let (calls, runs): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_of_calls());
    // The shares of stages follow from their times; programs get them.
    lines.extend(runs.iter().filter(|row| row.better != rows::Better::Neither).map(|row| row.cells()));
    let mut text = output::columns_within(&["", "", "", "A", "B", "improvement"], &lines, &[0, 1, 2], width);
    let differing = &comparison.differences;
    if !differing.is_empty() {
        let shown = |value: &Option<Value>| run_config::shown(value.as_ref());
        let rows: Vec<Vec<String>> =
            differing.iter().map(|it| vec![it.entry.clone(), shown(&it.a), shown(&it.b)]).collect();
        let entries = output::columns_within(&["configuration", "A", "B"], &rows, &[0, 1, 2], width);
        text = format!("{entries}\n\n{text}");
    }
    if calls.is_empty() { text } else { format!("{text}\n\n{}", rows::of_calls(&calls, width)) }
}

#[cfg(test)]
mod tests;
