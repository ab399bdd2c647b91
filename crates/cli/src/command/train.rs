//! `sanderling train`: a configuration becomes a run.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::NonEmptyStringValueParser;
use sanderling_learner::config::Inputs;
use sanderling_learner::distributed::JobOptions;
use sanderling_learner::{
    Config, Event, KnownKeys, LargeValues, MeasuredOn, Metrics, PassLine, RunOptions, Summary,
};

use sanderling_sample::Format;

use crate::failure::{Failure, INTERRUPTED};
use crate::jobs::JobArgs;
use crate::output;
use crate::profile::{Profile, Written};
use crate::progress::Bar;
use crate::reading::ReadArgs;
use crate::servers::ServerArgs;
use crate::timing;
use crate::width;

mod workers;
use workers::WorkerArgs;

/// What `model.type` says of models that are trained in PyTorch, by the command of the Python package.
pub const DEEP_MODELS: [&str; 7] = ["dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din"];

/// Train a model as a configuration file says
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling train examples/adult_fm.toml
  sanderling train clicks.toml --ps 127.0.0.1:7000,127.0.0.1:7001
  sanderling train examples/adult_ftrl_sync.toml --algorithm ftrl-sync \\
      --workers 2
  sanderling train clicks.toml --algorithm ftrl-sync --ps s1:7000 \\
      --hosts a:7300,b:7300 --rank 1 ...
  sanderling train clicks.toml --threads 2 --passes 3 --json | tail -1 | jq .auc
  # and a flame graph of it
  sanderling train clicks.toml --profile

It ends with a table of where the time went, which sanderling compare puts beside that of another run.

The run's files go to runs/<name>: model/ (for eval, predict, inspect), report.html, metrics.jsonl, summary.json. \
Ctrl-C saves and stops; --resume goes on from there.

With --ps the rows and their optimizer state are on parameter servers (sanderling ps), in tables named RUN/TABLE that \
replace those of an earlier run of this name. The model is fetched and saved here as one that was trained in this process. \
--resume goes on from what was saved here: its rows replace those on the servers, whatever these still have, so that they \
may have been started anew, be others or more of them, or not be used any more.

With --algorithm several workers train together: train.shuffle does not apply, and train.batch is the minibatch of each \
worker, or in step (-sync) the rows of all workers together. A job is saved after every pass, and --resume goes on from \
there, by any number of workers. With --hosts each worker is a command of its own, with its --rank: see docs/distributed.md.")]
pub(crate) struct Args {
    /// Configuration, TOML
    config: PathBuf,
    /// Go on from the run's last checkpoint; without it the run begins anew
    #[arg(long)]
    resume: bool,
    /// Parent of the run's directory
    #[arg(long, default_value = "runs", value_name = "DIR")]
    runs_dir: PathBuf,
    /// Print the result as one JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// No progress and no lines of metrics
    #[arg(long, short)]
    quiet: bool,
    /// Write a CPU profile of the run to its directory: profile.svg, a flame graph, and profile.txt, the functions that
    /// cost most
    #[arg(long)]
    profile: bool,
    /// Name of the run, whose earlier run is replaced; without it a run of another configuration is kept, and this one is
    /// numbered (clicks-2)
    #[arg(long, help_heading = "Overrides", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Training input: files, patterns, - for standard input
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Overrides")]
    train: Vec<String>,
    /// Validation input
    #[arg(long, num_args = 1.., value_name = "FILE", help_heading = "Overrides")]
    valid: Vec<String>,
    /// Worker threads; one is reproducible
    #[arg(long, help_heading = "Overrides")]
    threads: Option<usize>,
    /// Passes over the training input
    #[arg(long, help_heading = "Overrides")]
    passes: Option<u64>,
    /// Rows per minibatch
    #[arg(long, help_heading = "Overrides")]
    batch: Option<usize>,
    /// Seed of initial values and shuffles
    #[arg(long, help_heading = "Overrides")]
    seed: Option<u64>,
    /// Stop after so many steps, as if interrupted
    #[arg(long, help_heading = "Overrides")]
    max_steps: Option<u64>,
    /// Of the Python package's command, which comes here only without it
    #[arg(long, hide = true)]
    model: Option<String>,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

impl Args {
    /// Says who trains deep models.
    fn refuse_deep(&self) -> Result<(), Failure> {
        self.refuse_data()?;
        let text = std::fs::read_to_string(&self.config).unwrap_or_default();
        let table: toml::Table = toml::from_str(&text).unwrap_or_default();
        let configured = || table.get("model")?.get("type")?.as_str();
        let Some(model) = self.model.as_deref().or_else(configured) else { return Ok(()) };
        if DEEP_MODELS.contains(&model) {
            return Err(Failure::Usage(format!(
                "{model} is a deep model, which the command of the Python package trains: pip install '.[torch]' where \
                 Sanderling's source is, and see docs/torch.md"
            )));
        }
        match &self.model {
            Some(model) => Err(Failure::Usage(format!(
                "--model {model}: one of {}; lr and fm are chosen in the configuration, by [model] type",
                DEEP_MODELS.join(", ")
            ))),
            None => Ok(()),
        }
    }

    /// Says what to do with data in the place of a configuration.
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

    /// The configuration with the overrides laid over it.
    fn config(&self) -> Result<Config, Failure> {
        let config = Config::read(&self.config, |config| {
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
            let train = &mut config.train;
            train.threads = self.threads.unwrap_or(train.threads);
            train.passes = self.passes.unwrap_or(train.passes);
            train.batch = self.batch.unwrap_or(train.batch);
            train.max_steps = self.max_steps.unwrap_or(train.max_steps);
            config.seed = self.seed.unwrap_or(config.seed);
            self.reading.apply(&mut config.data.reading);
            self.job.apply(config);
        })?;
        let inputs = config.data.train.0.iter().chain(&config.data.valid.0);
        self.reading.check_used(&config.data.reading, inputs)?;
        Ok(config)
    }

    /// The job, if there is one, and where its workers are.
    fn job(&self, config: &Config) -> Result<Option<JobOptions>, Failure> {
        let mut job = self.job.options(config)?;
        if self.workers.rank().is_some() {
            let Some(job) = &mut job else {
                return Err(Failure::Usage("--hosts: say what the workers do, with --algorithm".to_owned()));
            };
            if self.servers.address()?.is_none() {
                let reason = "--hosts: the tables must be where all workers reach them: name parameter servers with --ps";
                return Err(Failure::Usage(reason.to_owned()));
            }
            let words = format!("{} {:?} {}", job.algorithm, job.staleness, self.resume);
            self.workers.apply(config, &words, &mut job.job)?;
        }
        Ok(job)
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    args.refuse_deep()?;
    output::not_a_url("--runs-dir", &args.runs_dir)?;
    let config = args.config()?;
    let bar = Bar::new(args.quiet);
    let mut job = args.job(&config)?;
    let servers = args.servers.connect_within(config.train.ps_timeout())?;
    let stop = crate::stop::flag();
    if let Some(job) = &mut job {
        job.job.stop = Arc::clone(&stop);
    }
    let options = RunOptions {
        runs_dir: args.runs_dir.clone(),
        resume: args.resume,
        keeps_earlier: args.name.is_none(),
        servers,
        job,
    };
    let profile = args.profile.then(Profile::start).transpose()?;
    let result = sanderling_learner::train(config, &options, &stop, &mut |event| match event {
        Event::Training { pass, passes, scan } => {
            bar.scan(&format!("pass {pass}/{passes}"), scan.bytes_read, scan.bytes_total)
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

/// What is most likely wrong if the labels are all alike; told even to the quiet.
fn one_class(summary: &Summary) -> Option<String> {
    let class = match summary.real_mean {
        Some(0.0) => "negative",
        Some(1.0) => "positive",
        _ => return None,
    };
    let data = if summary.measured_on == "valid" { "valid" } else { "train" };
    Some(format!(
        "every row is {class} (data.{data}), so there is no AUC: look at [label], its column, positive and threshold"
    ))
}

/// Neither progress nor metrics, and nothing else says it.
fn is_for_the_quiet(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::InputChanged { .. }
            | Event::JobStopped { .. }
            | Event::Unvalidated { .. }
            | Event::LargeValues { .. }
            | Event::Renamed { .. }
    )
}

/// An event in words; bad rows are told even to the quiet, by the summary.
fn describe(event: &Event<'_>) -> Vec<String> {
    let metrics = |m: &Metrics| {
        format!(
            "auc {:.6}, logloss {:.6}, prob_mean {:.6}, real_mean {:.6}",
            m.auc, m.logloss, m.prob_mean, m.real_mean
        )
    };
    match event {
        Event::Started { model, run_dir, resumed_step: 0 } => {
            vec![format!("training a {model} into {}", run_dir.display())]
        }
        Event::Started { model, run_dir, resumed_step } => {
            vec![format!("going on with a {model} in {} after step {resumed_step}", run_dir.display())]
        }
        Event::Fitting { features } => vec![format!("fitting the quantiles of {features} features")],
        Event::Step(line) => vec![format!(
            "step {}{}, {} ({:.1} it/s; {} examples/s)",
            line.step,
            over(line.measured_on),
            metrics(&line.metrics),
            line.steps_per_s,
            output::per_s(line.examples_per_s)
        )],
        Event::Pass(line) => vec![of_pass(line)],
        Event::Valid(line) => vec![format!(
            "pass {} validated: {}{}",
            line.pass,
            metrics(&line.metrics),
            if line.best { ", best so far" } else { "" }
        )],
        Event::BadRows { count, messages } => {
            let head = format!("{} bad rows were left out; the first of them:", output::count(*count));
            std::iter::once(head).chain(messages.iter().map(|message| format!("  {message}"))).collect()
        }
        Event::RepeatedHeaders { count } => {
            vec![format!("{} lines repeat the header and were passed over", output::count(*count))]
        }
        Event::InputChanged { before, now } => vec![format!(
            "warning: the files of data.train had {} bytes when the run began and have {} now: its passes are not over the same rows, \
             and it cannot be resumed unless they are as they were",
            output::count(*before),
            output::count(*now)
        )],
        Event::Unvalidated { pass } => vec![format!(
            "pass {pass} could not be validated, and is saved as it was trained: mend what the error below names, and go on with \
             --resume"
        )],
        Event::Renamed { from, to } => vec![format!(
            "a run of another configuration is in {from} and is kept: this one is {to} (--name {from} would replace it)"
        )],
        Event::Replacing { run_dir } => vec![format!(
            "this run replaces the earlier one in {}; --name NAME would keep both",
            run_dir.display()
        )],
        Event::LargeValues { features } => large_values(features),
        Event::UnknownKeys { known } => known.iter().filter_map(KnownKeys::remark).collect(),
        Event::JobStopped { words } => vec![(*words).to_owned()],
        Event::NothingLeft { passes, early: true } => vec![format!(
            "nothing is left to do: the run stopped early after pass {passes}; a larger train.early_stop, or 0, lets it go on"
        )],
        Event::NothingLeft { passes, early: false } => {
            vec![format!(
                "nothing is left to do after pass {passes}, the last one; a larger --passes lets it go on"
            )]
        }
        Event::EarlyStop { best_pass } => {
            vec![format!("stopped early: validation was best after pass {best_pass}")]
        }
        Event::Saved { .. } | Event::Training { .. } | Event::Validating { .. } => Vec::new(),
    }
}

/// Warnings that name features with values so large that they swamp the model; at most the first `SHOWN_MAX`.
fn large_values(features: &[LargeValues]) -> Vec<String> {
    const SHOWN_MAX: usize = 5;
    let mut lines: Vec<String> =
        features.iter().take(SHOWN_MAX).map(|feature| format!("warning: {feature}")).collect();
    if features.len() > SHOWN_MAX {
        lines.push(format!("warning: so do the values of {} more features", features.len() - SHOWN_MAX));
    }
    lines
}

/// Says so where metrics are of rows that the model has learned from.
fn over(measured_on: MeasuredOn) -> &'static str {
    if measured_on == MeasuredOn::TrainSeen { " over training (seen) data" } else { "" }
}

/// A pass of a job, over all of its workers.
fn of_pass(line: &PassLine) -> String {
    let m = &line.metrics;
    let missed = line.staleness_mean.map_or(String::new(), |mean| format!("; {mean:.2} pushes missed"));
    format!(
        "pass {} trained{}: auc {:.6}, logloss {:.6}, normalized entropy {:.6}, prob_mean {:.6}, real_mean {:.6} \
         ({} examples in {:.2} s, {} examples/s{missed})",
        line.pass,
        over(line.measured_on),
        m.auc,
        m.logloss,
        m.normalized_entropy,
        m.prob_mean,
        m.real_mean,
        output::count(m.examples),
        line.seconds,
        output::per_s(line.examples_per_s)
    )
}

fn for_people(summary: &Summary, profile: Option<&Written>) -> String {
    let on = match summary.measured_on {
        "valid" => format!("the validation data, after pass {}", summary.best_pass),
        "train" => "training data of pass 1, each row before it was learned from".to_string(),
        _ => format!("training (seen) data of pass {}", summary.passes),
    };
    let (scores, means) = ((summary.auc, summary.logloss), (summary.prob_mean, summary.real_mean));
    let mut rows = output::quality(scores, means);
    rows.push(("measured on", on));
    if let Some(seen) = summary.seen {
        let number = |value: f64| output::metric(value.is_finite().then_some(value));
        let (auc, logloss) = (number(seen.metrics.auc), number(seen.metrics.logloss));
        rows.push((
            "seen rows",
            format!("AUC {auc}, logloss {logloss} over training (seen) data of pass {}", seen.pass),
        ));
    }
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
