//! `sanderling runs`: lists runs with their models, data and metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sanderling_observe::numbers::date;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::output;
use crate::quality::{Further, further_of, shortened};
use crate::run_config;
use crate::width;

/// List runs: model, data, metrics, time
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling runs
  # the best run by AUC on validation data
  sanderling runs --json | jq '[.[] | select(.measured_on == \"valid\")] | max_by(.auc)'

Runs are listed by the time at which they ended, the latest last. A directory without summary.json, such as that of a run \
under way, is left out.")]
pub(crate) struct Args {
    /// Parent directory of runs
    #[arg(long, default_value = "runs", value_name = "DIR")]
    runs_dir: PathBuf,
    /// Print the runs as a JSON array
    #[arg(long)]
    json: bool,
}

/// Largest accepted summary.
const SUMMARY_BYTES_MAX: u64 = 64 << 20;

/// The part of a summary that is listed.
#[derive(Debug, Deserialize)]
struct Summary {
    name: String,
    auc: Option<f64>,
    logloss: Option<f64>,
    measured_on: String,
    examples: u64,
    #[serde(default)]
    stopped: bool,
    #[serde(default)]
    from: Option<PathBuf>,
    /// The others.
    #[serde(flatten)]
    fields: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize)]
struct RunView {
    name: String,
    path: PathBuf,
    /// Type of the model, with its rank; null for runs of earlier versions.
    model: Option<String>,
    /// Training files; null for runs of earlier versions.
    data: Option<Value>,
    auc: Option<f64>,
    logloss: Option<f64>,
    measured_on: String,
    examples: u64,
    stopped: bool,
    /// The model that the run began from.
    from: Option<PathBuf>,
    ended_unix_s: u64,
    /// Metrics that only some models have, such as `rmse` and `ndcg@20`.
    #[serde(flatten)]
    further: Further,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Usage(format!(
            "{}: no such folder; train a model first, or name another folder with --runs-dir",
            args.runs_dir.display()
        )),
        _ => Failure::Run(format!("{}: {error}", args.runs_dir.display())),
    };
    let folders = std::fs::read_dir(&args.runs_dir).map_err(failed)?;
    let mut runs: Vec<RunView> = folders.flatten().filter_map(|folder| view(&folder.path())).collect();
    runs.sort_by(|a, b| (a.ended_unix_s, &a.name).cmp(&(b.ended_unix_s, &b.name)));
    if args.json {
        output::json(&runs)?;
    } else {
        output::text(&for_people(&runs, width::of_stdout()))?;
    }
    Ok(0)
}

/// A run that has ended; `None` for another directory.
fn view(path: &Path) -> Option<RunView> {
    let file = path.join("summary.json");
    let metadata = file.metadata().ok().filter(|file| file.is_file() && file.len() <= SUMMARY_BYTES_MAX)?;
    let summary: Summary = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
    let ended = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let mut config = run_config::entries(path);
    let model = config.get("model.type").map(|kind| {
        let rank = config.get("model.rank").filter(|_| kind == "fm" || kind == "ffm");
        let rank = rank.map_or(String::new(), |rank| format!(", rank {rank}"));
        format!("{}{rank}", run_config::shown(Some(kind)))
    });
    Some(RunView {
        name: summary.name,
        path: path.to_owned(),
        model,
        data: config.remove("data.train"),
        auc: summary.auc,
        logloss: summary.logloss,
        measured_on: summary.measured_on,
        examples: summary.examples,
        stopped: summary.stopped,
        from: summary.from,
        further: further_of(&summary.fields),
        ended_unix_s: ended.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
    })
}

fn for_people(runs: &[RunView], width: Option<usize>) -> String {
    if runs.is_empty() {
        return "no run has ended here".to_owned();
    }
    let mut header = vec!["run", "model", "data", "AUC", "logloss", "measured on", "examples", "ended"];
    let row = |run: &RunView| {
        let stopped = if run.stopped { " (stopped)" } else { "" };
        vec![
            format!("{}{stopped}", run.name),
            run.model.clone().unwrap_or_else(|| "-".to_owned()),
            run_config::shown(run.data.as_ref()),
            output::metric(run.auc),
            output::metric(run.logloss),
            run.measured_on.clone(),
            output::count(run.examples),
            date(run.ended_unix_s),
        ]
    };
    let mut rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let further: Vec<String> = runs.iter().map(|run| shortened(&run.further)).collect();
    if further.iter().any(|metrics| !metrics.is_empty()) {
        const PLACE: usize = 5;
        header.insert(PLACE, "other metrics");
        rows.iter_mut().zip(further).for_each(|(row, metrics)| row.insert(PLACE, metrics));
        return output::columns_within(&header, &rows, &[0, 1, 2, 5, 6, 8], width);
    }
    output::columns_within(&header, &rows, &[0, 1, 2, 5, 7], width)
}
