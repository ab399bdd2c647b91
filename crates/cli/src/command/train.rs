//! `sanderling train`: run a configuration.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::NonEmptyStringValueParser;
use sanderling_learner::config::Inputs;
use sanderling_learner::distributed::{JobOptions, Recording};
use sanderling_learner::{Config, Event, LiveRun, RunOptions, Summary};

use sanderling_formats::Format;

use crate::failure::{Failure, INTERRUPTED};
use crate::flags::CommandLine;
use crate::jobs::JobArgs;
use crate::output;
use crate::profile::{Profile, Written};
use crate::progress::Bar;
use crate::quality;
use crate::quantity;
use crate::reading::ReadArgs;
use crate::servers::ServerArgs;
use crate::timing;
use crate::traces::TraceArgs;
use crate::width;

mod lines;
mod status;
mod workers;
use lines::{describe, is_for_the_quiet};
use status::StatusArgs;
use workers::WorkerArgs;

/// Values of `model.type` for deep models, which the Python package trains in PyTorch.
pub const DEEP_MODELS: [&str; 9] =
    ["dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din", "mf", "two_tower"];

/// The deep models with vectors of users and items, which learn from pairs without labels.
pub const RETRIEVAL_MODELS: [&str; 2] = ["mf", "two_tower"];

/// Action of a run whose servers have lost its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum OnLostRows {
    /// Put the rows of the last save back and go on from there, at most 6 times an hour
    #[default]
    Restore,
    /// End with exit code 1
    End,
}

/// Train a model from a configuration file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling train examples/adult_fm.toml
  # yesterday's model learns from today's clicks
  sanderling train clicks.toml --from runs/day1/model --train day2.csv \\
      --name day2 --predict-first
  sanderling train clicks.toml --ps 127.0.0.1:7000,127.0.0.1:7001
  sanderling train examples/adult_ftrl_sync.toml --algorithm ftrl-sync \\
      --workers 2
  # an asynchronous run, and once more to the bit
  sanderling train clicks.toml --algorithm fm --workers 4 --record run1.play
  sanderling train clicks.toml --algorithm fm --workers 4 --replay run1.play \\
      --name again
  # worker 1 of two commands on this host; the other one has --rank 0
  sanderling train clicks.toml --algorithm ftrl-sync --ps 127.0.0.1:7000 \\
      --hosts 127.0.0.1:7300,127.0.0.1:7301 --rank 1
  sanderling train clicks.toml --threads 2 --passes 3 --json | tail -1 | jq .auc
  # write a CPU flame graph
  sanderling train clicks.toml --profile
  # watch it in a browser, at http://127.0.0.1:9400
  sanderling train clicks.toml --status-listen 127.0.0.1:9400

Output: runs/<name> with model/ (for eval, predict, inspect), report.html, metrics.jsonl and summary.json, and a table of \
stage times on standard error (sanderling compare shows two runs side by side). Ctrl-C saves and stops the run; --resume \
continues it.

--from begins a new run with a saved model (docs/daily-training.md). New features and tables may come; a feature of the model \
must stay as it was.

With --ps, rows and optimizer state are on parameter servers (sanderling ps), in tables named RUN/TABLE; tables of an earlier \
run of this name are replaced. The trained model is downloaded to runs/<name>. --resume uploads the rows of the last local \
checkpoint first, so the servers may have been restarted, replaced, or left out. A server that is started again while the run waits \
(--ps-timeout) is gone on with: with --kept or --log --lose 0s from where it was, else from the last save (--on-lost-rows).

Deep models (model.type or --model: dnn, wide_deep, deepfm, dcn, dcnv2, dlrm, din, mf, two_tower) are trained by PyTorch, with the command of \
the Python package: pip install 'sanderling[torch]'. Their options: sanderling train --model dnn --help; see docs/torch.md.

With --algorithm, several workers train together: train.shuffle_rows does not apply, and train.batch_size counts rows \
per worker, or rows of all workers with -sync. -sync shuffles the rows of all workers before each pass, \
-sync-no-shuffle does not (docs/learners.md). A job is saved after every pass; --resume continues it with any number \
of workers. With --hosts, each worker is a command of its own with its own --rank: see docs/distributed.md.")]
pub(crate) struct Args {
    /// Run configuration (TOML)
    config: PathBuf,
    /// Continue the run from its last checkpoint [default: start over]
    #[arg(long, group = "earlier")]
    resume: bool,
    /// Saved model to continue on new data: its weights, optimizer state, frequencies and fitted boundaries
    #[arg(long, value_name = "MODEL", conflicts_with = "resume", group = "earlier")]
    from: Option<PathBuf>,
    /// Remove the rows that kept tables have (table.NAME.memory) before the run begins or restores its checkpoint
    #[arg(long)]
    forget: bool,
    /// Score the training files with the model of --from before learning from them (progressive validation)
    /// [default: train.predict_first]
    #[arg(long, requires = "earlier")]
    predict_first: bool,
    /// Parent directory of runs
    #[arg(long, default_value = "runs", value_name = "DIR")]
    runs_dir: PathBuf,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// Suppress progress and metric lines
    #[arg(long, short)]
    quiet: bool,
    /// Write a CPU profile to the run directory: profile.svg (flame graph) and profile.txt (by function)
    #[arg(long)]
    profile: bool,
    /// Run name; an earlier run of this name is replaced [default: name, or that of CONFIG, numbered if taken]
    #[arg(long, help_heading = "Overrides", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Training files or patterns; - for standard input [default: data.train]
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Overrides")]
    train: Vec<String>,
    /// Validation files or patterns [default: data.valid]
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Overrides")]
    valid: Vec<String>,
    /// Number of training threads; only 1 is reproducible [default: train.threads, 1]
    #[arg(long, help_heading = "Overrides")]
    threads: Option<usize>,
    /// Number of passes over the training input [default: train.passes, 1]
    #[arg(long, help_heading = "Overrides")]
    passes: Option<u64>,
    /// Rows per minibatch [default: train.batch_size, 256]
    #[arg(long, help_heading = "Overrides", value_parser = quantity::length)]
    batch_size: Option<usize>,
    /// Random seed of initial weights and shuffles [default: seed, 42]
    #[arg(long, help_heading = "Overrides")]
    seed: Option<u64>,
    /// Maximum number of steps, then stop and allow --resume; 0: no limit [default: train.max_steps, 0]
    #[arg(long, help_heading = "Overrides", value_parser = quantity::count)]
    max_steps: Option<u64>,
    /// Deep model to train instead of model.type, such as deepfm; needs PyTorch [default: model.type]
    #[arg(long, help_heading = "Overrides")]
    model: Option<String>,
    #[command(flatten)]
    job: JobArgs,
    /// Write the order of all pulls and pushes to a file, for --replay; with --algorithm ftrl or fm
    #[arg(long, value_name = "FILE", help_heading = "Workers", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Pull and push in the order of a recording, which gives the bits of the recorded run, for example --replay run1.play
    #[arg(long, value_name = "FILE", help_heading = "Workers")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    servers: ServerArgs,
    /// Action if the servers have lost the run's rows, for example `--on-lost-rows end`: restore its last save there and go
    /// on, or end
    #[arg(long, value_enum, default_value_t, value_name = "ACTION", help_heading = "Parameter servers")]
    on_lost_rows: OnLostRows,
    #[command(flatten)]
    status: StatusArgs,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

impl Args {
    /// Refuses --model, which the Python package has for deep models.
    fn refuse_model(&self) -> Result<(), Failure> {
        let Some(model) = &self.model else { return Ok(()) };
        Err(deep(model).unwrap_or_else(|| {
            Failure::Usage(format!(
                "--model {model}: one of {}; lr, fm and ffm are chosen in the configuration, by [model] type",
                DEEP_MODELS.join(", ")
            ))
        }))
    }

    /// The error for a configuration of a deep model, which cannot be read as one of a built-in model.
    fn configured_deep(&self) -> Option<Failure> {
        let text = std::fs::read_to_string(&self.config).ok()?;
        let table: toml::Table = toml::from_str(&text).ok()?;
        deep(table.get("model")?.get("type")?.as_str()?)
    }

    /// Refuses a data file in place of a configuration.
    fn refuse_data(&self) -> Result<(), Failure> {
        let name = self.config.display();
        let Some(format) = Format::of_path(&self.config) else { return Ok(()) };
        let stem = self.config.file_name().unwrap_or_default().to_string_lossy();
        let stem = stem.split('.').next().unwrap_or("first");
        Err(Failure::Usage(format!(
            "{name} is data ({format}), and train takes a configuration; type: sanderling inspect {name} --suggest > \
             {stem}.toml && sanderling train {stem}.toml"
        )))
    }

    /// The configuration with the overrides of the command line.
    fn config(&self) -> Result<Config, Failure> {
        let config = Config::read(&self.config, &self.reading.set, |config| {
            if let Some(name) = &self.name {
                config.name.clone_from(name);
            }
            for (inputs, given) in
                [(&mut config.data.train, &self.train), (&mut config.data.valid, &self.valid)]
            {
                if !given.is_empty() {
                    *inputs = Inputs(given.clone());
                }
            }
            if !self.valid.is_empty() {
                config.data.holdout = None;
            }
            let train = &mut config.train;
            train.threads = self.threads.unwrap_or(train.threads);
            train.passes = self.passes.unwrap_or(train.passes);
            train.batch_size = self.batch_size.unwrap_or(train.batch_size);
            train.max_steps = self.max_steps.unwrap_or(train.max_steps);
            train.predict_first |= self.predict_first;
            config.seed = self.seed.unwrap_or(config.seed);
            self.reading.apply(&mut config.data.reading);
            self.job.apply(config);
        });
        let config = config.map_err(|error| self.configured_deep().unwrap_or(error.into()))?;
        let inputs = config.data.train.0.iter().chain(&config.data.valid.0);
        self.reading.check_used(&config.data.reading, inputs)?;
        Ok(config)
    }

    /// Whether the order of pulls and pushes is recorded or replayed.
    fn recording(&self) -> Result<Recording, Failure> {
        let named = |path: &PathBuf, option| output::not_a_url(option, path).map(|()| path.clone());
        Ok(match (&self.record, &self.replay) {
            (Some(path), _) => Recording::Record(named(path, "--record")?),
            (None, Some(path)) => Recording::Replay(named(path, "--replay")?),
            (None, None) => Recording::Off,
        })
    }

    /// Options of the job and its workers; `None` without --algorithm.
    fn job(&self, config: &Config) -> Result<Option<JobOptions>, Failure> {
        let mut job = self.job.options(config)?;
        if self.workers.rank().is_some() {
            let Some(job) = &mut job else {
                return Err(Failure::Usage("--hosts needs --algorithm, such as ftrl-sync".to_owned()));
            };
            if self.servers.address()?.is_none() {
                let reason =
                    "--hosts needs --ps: the tables must be on parameter servers that all workers reach";
                return Err(Failure::Usage(reason.to_owned()));
            }
            let words = format!("{} {:?} {}", job.algorithm, job.staleness, self.resume);
            self.workers.apply(config, &words, &mut job.job)?;
        }
        Ok(job)
    }
}

pub(crate) fn run(args: &Args, line: &CommandLine<'_>) -> Result<u8, Failure> {
    args.refuse_data()?;
    args.refuse_model()?;
    output::not_a_url("--runs-dir", &args.runs_dir)?;
    let config = args.config()?;
    let bar = Bar::new(args.quiet);
    let mut job = args.job(&config)?;
    let traces = args.traces.traces()?;
    let spans = traces.as_ref().map(|traces| Arc::clone(&traces.spans));
    let servers = args.servers.connect_traced(config.train.ps_timeout, spans)?;
    let _exporter = traces.map(|traces| traces.export("sanderling-train", &config.name)).transpose()?;
    let stop = crate::stop::flag();
    if let Some(job) = &mut job {
        job.job.stop = Arc::clone(&stop);
    }
    let options = RunOptions {
        runs_dir: args.runs_dir.clone(),
        resume: args.resume,
        from: args.from.clone(),
        forget: args.forget,
        keeps_earlier: args.name.is_none(),
        ends_with_servers: args.on_lost_rows == OnLostRows::End,
        servers,
        live: LiveRun::default(),
        job,
        recording: args.recording()?,
    };
    let _shown = args.status.show(&options.live, line)?;
    let profile = args.profile.then(Profile::start).transpose()?;
    let result = sanderling_learner::train(config, &options, &stop, &mut |event| match event {
        Event::Training { pass, passes, scan } => {
            bar.scan(&format!("pass {pass}/{passes}"), scan.bytes_read, scan.bytes_total);
        }
        Event::TrainingRows { pass, passes, rows, rows_total } => {
            bar.rows(&format!("pass {pass}/{passes}"), *rows, *rows_total);
        }
        Event::Validating { scan } => bar.scan("validating", scan.bytes_read, scan.bytes_total),
        event if args.quiet && !is_for_the_quiet(event) => {}
        event => describe(event).iter().for_each(|line| bar.line(line)),
    });
    bar.finish();
    let summary = result?;
    let run_dir = args.runs_dir.join(&summary.name);
    let profile = profile.map(|profile| profile.finish(&run_dir, &summary.name)).transpose()?;
    if !args.quiet {
        note!("\n{}\n", timing::for_people(&summary.timing, width::of_stderr()));
    }
    let warnings = one_class(&summary).into_iter().chain(summary.warnings.iter().cloned());
    warnings.for_each(|warning| note!("warning: {warning}"));
    if args.json {
        output::json(&summary)?;
    } else {
        output::prose(&for_people(&summary, profile.as_ref()))?;
    }
    Ok(if summary.stopped && stop.load(std::sync::atomic::Ordering::Relaxed) { INTERRUPTED } else { 0 })
}

/// The error for a deep model; none for other names.
fn deep(model: &str) -> Option<Failure> {
    DEEP_MODELS.contains(&model).then(|| {
        Failure::Usage(format!(
            "{model} is a deep model, which the command of the Python package trains: pip install 'sanderling[torch]', \
             see docs/torch.md"
        ))
    })
}

/// Warning for labels that are all alike; shown with --quiet, too.
fn one_class(summary: &Summary) -> Option<String> {
    let class = match summary.real_mean.filter(|_| summary.numbers.is_none()) {
        Some(0.0) => "negative",
        Some(1.0) => "positive",
        _ => return None,
    };
    let data = if summary.measured_on == "valid" { "valid" } else { "train" };
    Some(format!(
        "every row is {class} (data.{data}), so there is no AUC: look at [label], its column, positive and threshold"
    ))
}

fn for_people(summary: &Summary, profile: Option<&Written>) -> String {
    let on = match summary.measured_on {
        "valid" => format!("the validation data, after pass {}", summary.best_pass),
        "train" => "training data of pass 1, each row before it was learned from".to_string(),
        _ => format!("training (seen) data of pass {}", summary.passes),
    };
    let (scores, means) = ((summary.auc, summary.logloss), (summary.prob_mean, summary.real_mean));
    let mut rows = quality::in_rows(scores, means, summary.numbers);
    rows.push(("measured on", on));
    // The last point is of this run, or of one before it.
    if let Some(first) = summary.progressive_curve.last().filter(|point| point.run == summary.name) {
        rows.push(("before learning", format!("{} over {}", quality::in_words(&first.metrics), first.data)));
    }
    if let Some(seen) = summary.seen {
        let scores = quality::in_words(&seen.metrics);
        rows.push(("seen rows", format!("{scores} over training (seen) data of pass {}", seen.pass)));
    }
    let tests = summary.tests.iter().map(|set| (set.name.as_str(), &set.metrics));
    rows.extend(tests.map(|(name, metrics)| {
        let scores = quality::in_words(metrics);
        ("test set", format!("{name}: {scores}, {} examples", output::count(metrics.examples)))
    }));
    rows.extend([
        (
            "examples",
            format!(
                "{} in {:.2} s, {} examples/s",
                output::count(summary.examples),
                summary.train_s,
                output::per_s(summary.examples_per_s)
            ),
        ),
        (
            "table rows",
            format!(
                "{}; {} weights exactly zero",
                output::count(summary.rows),
                output::count(summary.zero_weights)
            ),
        ),
        (
            "memory",
            format!(
                "{} in tables, {} in all",
                output::bytes(summary.table_bytes),
                output::bytes(summary.memory_peak_bytes)
            ),
        ),
        ("bad rows", output::count(summary.bad_rows)),
    ]);
    if summary.valid_bad_rows > 0 {
        rows.push(("bad valid rows", output::count(summary.valid_bad_rows)));
    }
    if summary.model.as_os_str().is_empty() {
        // A worker on a host of its own: it has neither tables nor a run's folder.
        rows.retain(|(name, _)| !["table rows", "memory"].contains(name));
        if summary.measured_examples == 0 {
            // Nor has it seen what it would tell of.
            rows.clear();
        }
        rows.push(("model", "saved by worker 0".to_string()));
    } else {
        rows.extend([
            ("model", summary.model.display().to_string()),
            ("report", summary.report.display().to_string()),
        ]);
    }
    if let Some(Written { svg, rpc }) = profile {
        rows.push(("profile", format!("{}, {rpc}; more in profile.txt there", svg.display())));
    }
    if summary.stopped {
        rows.insert(0, ("stopped", format!("after step {}; go on with --resume", summary.steps)));
    }
    output::pairs(&rows)
}
