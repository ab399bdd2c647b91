//! The report of a run from the files in its folder, while it goes on and when it has ended. Changes no file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::error::LearnError;
use crate::metrics::Metrics;
use crate::metrics_log::METRICS;
use crate::report::{CurvePoint, RunReport, UnderWay, add_point};

/// The file's name in a run's folder.
pub(crate) const RECORD: &str = "run.json";
/// Largest accepted file, or line.
const BYTES_MAX: u64 = 64 << 20;

/// Reads how far a run is, or its report: from `run.json`, else as far as `metrics.jsonl` tells, of which a deep run has no
/// more.
///
/// # Errors
/// [`LearnError::Model`] names the folder if it is that of no run.
pub fn read_record(run_dir: &Path) -> Result<RunReport, LearnError> {
    let path = run_dir.join(RECORD);
    let bad = |path: &Path, reason: String| LearnError::Model { path: path.into(), reason };
    match File::open(&path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(LearnError::io(&path))?;
            serde_json::from_slice(&bytes).map_err(|error| {
                bad(&path, format!("not the record of a run: {error}; a newer version may have written it"))
            })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => of_lines(run_dir),
        Err(error) => Err(LearnError::io(&path)(error)),
    }
}

/// The part of a line of metrics that is shown.
#[derive(Deserialize)]
struct Line {
    kind: String,
    step: u64,
    pass: u32,
    #[serde(default)]
    trained_examples: u64,
    #[serde(default)]
    examples_per_s: Option<f64>,
    #[serde(flatten)]
    metrics: Metrics,
}

/// The report as far as lines of metrics tell.
fn of_lines(run_dir: &Path) -> Result<RunReport, LearnError> {
    let path = run_dir.join(METRICS);
    let file = File::open(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let reason =
                "there is no run in this folder: it has neither run.json nor metrics.jsonl; name the folder of a run, such as \
                 runs/clicks";
            LearnError::Model { path: run_dir.into(), reason: reason.to_owned() }
        }
        _ => LearnError::io(&path)(error),
    })?;
    let changed_s = |path: &Path| {
        let changed = fs::metadata(path).and_then(|file| file.modified()).ok()?;
        changed.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
    };
    let mut report = empty(run_dir);
    // The last line may be cut, because the run is writing it.
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    for line in lines.filter_map(|line| serde_json::from_str::<Line>(&line).ok()) {
        let mut point = CurvePoint::new(line.step, line.pass, line.trained_examples, &line.metrics);
        point.examples_per_s = line.examples_per_s.unwrap_or(f64::NAN);
        report.examples = report.examples.max(line.trained_examples);
        report.passes = report.passes.max(line.pass);
        match line.kind.as_str() {
            "step" => {
                (report.metrics, report.examples_per_s) = (line.metrics, point.examples_per_s);
                add_point(&mut report.train_curve, point);
            }
            "valid" => {
                report.valid = Some("the validation files".to_owned());
                add_point(&mut report.valid_curve, point);
            }
            _ => {}
        }
    }
    let noted_unix_s = changed_s(&path).unwrap_or(0);
    if changed_s(&run_dir.join("summary.json")).is_none_or(|ended| ended < noted_unix_s) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        report.under_way = Some(UnderWay {
            phase: "training".to_owned(),
            pass: u64::from(report.passes),
            passes: 0,
            share: None,
            elapsed_s: f64::NAN,
            left_s: None,
            process: 0,
            // Such a run writes at its own intervals, which may be long.
            noted_unix_s: now,
            failure: None,
        });
        let date = sanderling_observe::numbers::date(noted_unix_s);
        report.warnings.push(format!(
            "this run has no run.json, so it cannot be told whether it still goes on: its last line of metrics is of {date}"
        ));
    }
    Ok(report)
}

/// A report of a run of which nothing but its folder is known.
fn empty(run_dir: &Path) -> RunReport {
    let text = |name: &str| fs::read_to_string(run_dir.join(name)).unwrap_or_default();
    let model_path = run_dir.join("model").display().to_string();
    RunReport {
        name: run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        model: "model".to_owned(),
        train_s: f64::NAN,
        eval_command: format!("sanderling eval {model_path} FILE"),
        model_path,
        config: [text("config.toml"), text("config.json")].concat(),
        ..RunReport::without_results()
    }
}
