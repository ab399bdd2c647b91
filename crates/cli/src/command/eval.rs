//! `sanderling eval`: metrics of a model on labelled files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sanderling_formats::BadRows;
use sanderling_learner::{KnownKeys, NumberMetrics, Scores, evaluate, is_deep, remarks};
use serde::Serialize;

use crate::deep::{DeepModels, Purpose, Scoring};
use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::quality;
use crate::reading::{ReadArgs, report_bad_rows, report_skipped};
use crate::saved_model;
use crate::servers::ServerArgs;

/// Compute the metrics of a model on labelled files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling eval runs/adult_fm/model data/adult/adult.test.gz --format csv \\
      --json
  sanderling eval runs/clicks/model held_out.csv \\
      --ps 127.0.0.1:7000,127.0.0.1:7001

With --ps, rows are read from the tables that train --ps made on the servers; MODEL supplies only the configuration.

MODEL may be a deep model, with the Python package and PyTorch: pip install 'sanderling[torch]'.")]
pub(crate) struct Args {
    /// Model directory, such as runs/clicks/model
    model: PathBuf,
    /// Input files, patterns or URLs (s3://, gs://, az://, https://); - for standard input
    #[arg(required = true)]
    files: Vec<String>,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
    /// Number of threads, 1 to 1024; if not given one per processor, at most 64
    #[arg(long, default_value_t = default_threads(), value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

fn default_threads() -> u16 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get().min(64) as u16)
}

#[derive(Serialize)]
struct Evaluation {
    auc: Option<f64>,
    logloss: Option<f64>,
    prob_mean: Option<f64>,
    real_mean: Option<f64>,
    normalized_entropy: Option<f64>,
    /// Ends of the 95 % confidence interval of the AUC (DeLong et al. 1988).
    auc_low: Option<f64>,
    auc_high: Option<f64>,
    examples: u64,
    positives: u64,
    examples_per_s: f64,
    rows: u64,
    table_bytes: u64,
    bad_rows: u64,
    auc_exact: bool,
    known: Vec<KnownKeys>,
    warnings: Vec<String>,
    /// The errors of a regression.
    #[serde(flatten)]
    numbers: Option<NumberMetrics>,
    /// Metrics that only a deep model has.
    #[serde(flatten)]
    further: BTreeMap<String, f64>,
}

/// Scored rows, of either kind of model.
struct Scored {
    scores: Scores,
    positives: u64,
    known: Vec<KnownKeys>,
    rows: u64,
    table_bytes: u64,
    bad_rows: u64,
    seconds: f64,
    /// Metrics by name that only a deep model has.
    further: Vec<(String, f64)>,
}

/// Scores with a built-in model.
fn built_in(args: &Args) -> Result<Scored, Failure> {
    let model = saved_model::open(&args.model, &args.servers)?;
    let mut config = model.config().data.reading.clone();
    args.reading.apply_all(&mut config)?;
    args.reading.check_used(&config, &args.files)?;
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
    let bar = Bar::new(args.quiet);
    let stop = crate::stop::flag();
    let start = Instant::now();
    let found =
        evaluate(&model, &args.files, &config, &bad_rows, usize::from(args.threads), &stop, &mut |scan| {
            bar.scan("evaluating", scan.bytes_read, scan.bytes_total);
        });
    bar.finish();
    let (found, seconds) = (found?, start.elapsed().as_secs_f64());
    report_bad_rows(&bad_rows);
    let (rows, table_bytes) = model.size()?;
    Ok(Scored {
        scores: found.scores,
        positives: found.positives,
        known: found.known,
        rows,
        table_bytes,
        bad_rows: bad_rows.count(),
        seconds,
        further: Vec::new(),
    })
}

/// Scores with a deep model.
fn deep(args: &Args, models: Option<&dyn DeepModels>) -> Result<Scored, Failure> {
    let stop = crate::stop::flag();
    let scoring = Scoring {
        models,
        path: &args.model,
        files: &args.files,
        servers: &args.servers,
        reading: &args.reading,
        threads: usize::from(args.threads),
        stop: &stop,
    };
    let bar = Bar::new(args.quiet);
    let (mut scores, mut positives, start) = (Scores::new(), 0, Instant::now());
    let end = scoring.run(Purpose::Metrics, &bar, |rows| {
        for ((logit, label), weight) in rows.scores.iter().zip(&rows.labels).zip(&rows.weights) {
            scores.push(*logit, *label, *weight);
            positives += u64::from(*label > 0.5);
        }
        Ok(())
    });
    bar.finish();
    let (end, seconds) = (end?, start.elapsed().as_secs_f64());
    report_skipped(end.bad_rows, &end.bad_row_messages);
    Ok(Scored {
        scores,
        positives,
        known: end.known,
        rows: end.rows,
        table_bytes: end.table_bytes,
        bad_rows: end.bad_rows,
        seconds,
        further: end.metrics,
    })
}

pub(crate) fn run(args: &Args, models: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    let found = if is_deep(&args.model) { deep(args, models)? } else { built_in(args)? };
    if found.scores.is_empty() {
        return further_alone(args, &found);
    }
    let (metrics, interval) = (found.scores.metrics(), found.scores.auc_interval());
    let number = |value: f64| value.is_finite().then_some(value);
    let mut warnings = remarks(&metrics, Some(&found.scores));
    warnings.extend(found.known.iter().filter_map(KnownKeys::remark));
    warnings.iter().for_each(|warning| note!("warning: {warning}"));
    let result = Evaluation {
        auc: number(metrics.auc),
        logloss: number(metrics.logloss),
        prob_mean: number(metrics.prob_mean),
        real_mean: number(metrics.real_mean),
        normalized_entropy: number(metrics.normalized_entropy),
        auc_low: interval.map(|interval| interval.low),
        auc_high: interval.map(|interval| interval.high),
        examples: metrics.examples,
        positives: found.positives,
        examples_per_s: metrics.examples as f64 / found.seconds.max(1e-9),
        rows: found.rows,
        table_bytes: found.table_bytes,
        bad_rows: found.bad_rows,
        auc_exact: metrics.auc_exact,
        known: found.known,
        warnings,
        numbers: metrics.numbers,
        further: found.further.into_iter().collect(),
    };
    if args.json {
        output::json(&result)?;
    } else {
        let (scores, means) = ((result.auc, result.logloss), (result.prob_mean, result.real_mean));
        let mut rows = quality::in_rows(scores, means, result.numbers);
        if let Some((low, high)) = result.auc_low.zip(result.auc_high) {
            rows.insert(1, ("AUC, 95 %", format!("{low:.6} to {high:.6}")));
        }
        rows.extend(result.further.iter().map(|(name, value)| (name.as_str(), format!("{value:.6}"))));
        if result.numbers.is_none() {
            rows.push(("positives", output::count(result.positives)));
        }
        rows.extend([
            (
                "examples",
                format!(
                    "{}, {} examples/s",
                    output::count(result.examples),
                    output::per_s(result.examples_per_s)
                ),
            ),
            ("table rows", format!("{}, {}", output::count(result.rows), output::bytes(result.table_bytes))),
            ("known keys", known_keys(&result.known)),
            ("bad rows", output::count(result.bad_rows)),
        ]);
        output::prose(&output::pairs(&rows))?;
    }
    Ok(0)
}

/// Prints the metrics of a model that has no logits.
fn further_alone(args: &Args, found: &Scored) -> Result<u8, Failure> {
    let warnings: Vec<String> = found.known.iter().filter_map(KnownKeys::remark).collect();
    warnings.iter().for_each(|warning| note!("warning: {warning}"));
    if args.json {
        output::json(&Unlabelled {
            metrics: found.further.iter().cloned().collect(),
            known: &found.known,
            warnings,
        })?;
    } else {
        let metrics = found.further.iter().map(|(name, value)| (name.as_str(), number(*value)));
        let rows: Vec<(&str, String)> = metrics.chain([("known keys", known_keys(&found.known))]).collect();
        output::prose(&output::pairs(&rows))?;
    }
    Ok(0)
}

/// The metrics of a model that has no logits.
#[derive(Serialize)]
struct Unlabelled<'a> {
    #[serde(flatten)]
    metrics: BTreeMap<String, f64>,
    known: &'a [KnownKeys],
    warnings: Vec<String>,
}

/// A metric, or a count without decimals.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value >= 2.0 { output::count(value as u64) } else { format!("{value:.6}") }
}

/// Features that are named, of those with unknown keys.
const FEATURES_SHOWN_MAX: usize = 3;

/// How many occurrences of keys the model knows, and the features of which it knows the smallest part.
fn known_keys(known: &[KnownKeys]) -> String {
    let sum = |of: fn(&KnownKeys) -> u64| known.iter().map(of).sum::<u64>();
    let (all, found) = (sum(|keys| keys.occurrences), sum(|keys| keys.known));
    let share = |keys: &KnownKeys| keys.known as f64 / keys.occurrences as f64;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut worst: Vec<&KnownKeys> = known.iter().filter(|keys| keys.known < keys.occurrences).collect();
    worst.sort_by(|a, b| share(a).total_cmp(&share(b)));
    worst.truncate(FEATURES_SHOWN_MAX);
    let worst: Vec<String> =
        worst.iter().map(|keys| format!("{} {}", keys.feature, percent(share(keys)))).collect();
    let least = if worst.is_empty() { String::new() } else { format!("; least of {}", worst.join(", ")) };
    format!("{} of {}{least}", output::count(found), output::count(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_with_the_most_unknown_keys_are_named() {
        let keys =
            |feature: &str, known, occurrences| KnownKeys { feature: feature.into(), occurrences, known };
        assert_eq!(known_keys(&[keys("a", 2, 2), keys("none", 0, 0)]), "2 of 2");
        let some =
            [keys("a", 1000, 1000), keys("b", 1, 4), keys("c", 0, 4), keys("d", 3, 4), keys("e", 2, 4)];
        assert_eq!(known_keys(&some), "1,006 of 1,016; least of c 0.0 %, b 25.0 %, e 50.0 %");
    }
}
