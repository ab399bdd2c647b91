//! A whole run: from a configuration to a directory with the model, the metrics and the report. What the command line
//! and Python both call. Knows no terminal.

mod folder;
mod name;
mod outcome;
mod record;
mod restores;
mod resume;
mod scans;
mod summary;
mod test_sets;
mod warm_start;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sanderling_client::{ClientError, Cluster, Fault};
use sanderling_files::refuse_url;
use sanderling_formats::input::refuse_hubs;
use sanderling_store::Checkpoint;

use crate::config::Config;
use crate::distributed::{self, JobOptions, Recording};
use crate::error::LearnError;
use crate::event::Event;
use crate::kept::{self, KeptTables};
use crate::live::LiveRun;
use crate::metrics::Scores;
use crate::metrics_log::{self, METRICS, MetricsLog};
use crate::model::Model;
use crate::model_diagnostics::{check_replaceable, is_saved};
use crate::report;
use crate::run_marker::{self, RunMarker};
use crate::state::{PROGRESSIVE_ROWS_MAX, RunState, data_bytes};
use crate::table_summary::{name_keys, summaries_of, table_summaries};
use crate::timing::Timing;
use crate::train::{StageList, Trainer};
use folder::{claim, create_run_dir};
use name::name_run;
use outcome::{Begun, Outcome};
use record::Record;
pub use restores::RESTORES_MAX;
use restores::Restores;
use resume::resume;
use scans::{check_inputs, check_servers, explain_training, validate_again};
pub use summary::Summary;
use test_sets::test_sets;
use warm_start::EarlierModel;

/// Points of the ROC curve in a report.
pub const ROC_POINTS: usize = 200;
/// Bins of the calibration plot in a report.
pub const CALIBRATION_BINS: usize = 20;

/// How long a run waits for moves of slots to end, before it puts its last save back.
const MOVES_END_WITHIN: Duration = Duration::from_secs(3600);

/// Where a run goes and whether it goes on.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Parent of the run's directory.
    pub runs_dir: PathBuf,
    /// Whether to go on from the checkpoint in the run's directory.
    pub resume: bool,
    /// A saved model whose rows, optimizer state and fitted boundaries a new run begins with; `None`: an empty model.
    pub from: Option<PathBuf>,
    /// Whether an earlier run of another configuration is kept and this one gets a number after its name. For default
    /// names.
    pub keeps_earlier: bool,
    /// Whether the rows that kept tables have are removed at the start.
    pub forget: bool,
    /// Whether a run whose servers have lost its rows ends, instead of putting its last save back on them.
    pub ends_with_servers: bool,
    /// Parameter servers that hold the tables; `None`: this process does.
    pub servers: Option<Arc<Cluster>>,
    /// Shows the run to other threads while it goes on.
    pub live: LiveRun,
    /// The workers and the algorithm of a job; `None`: one process trains as `train.*` configures.
    pub job: Option<JobOptions>,
    /// Whether the order of an asynchronous job's pulls and pushes is recorded, or that of a recording.
    pub recording: Recording,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            runs_dir: PathBuf::from("runs"),
            resume: false,
            from: None,
            forget: false,
            keeps_earlier: false,
            ends_with_servers: false,
            servers: None,
            live: LiveRun::default(),
            job: None,
            recording: Recording::Off,
        }
    }
}

impl RunOptions {
    /// Whether a run whose servers have lost its rows puts its last save back. Workers of other processes would not know.
    fn restores_itself(&self) -> bool {
        !self.ends_with_servers && self.job.as_ref().is_none_or(JobOptions::is_here)
    }

    /// Whether a new run begins from a model in this folder of a run.
    fn begins_in(&self, run_dir: &Path) -> bool {
        let from = self.from.as_ref().filter(|_| !self.resume).and_then(|path| path.canonicalize().ok());
        from.zip(run_dir.canonicalize().ok()).is_some_and(|(from, dir)| from.starts_with(dir))
    }
}

/// Trains as the configuration says. Setting `stop` ends the run at the next step with everything saved.
///
/// # Errors
/// [`LearnError::Unsaved`], if a server was silent then, where servers are waited for as
/// [`ConnectOptions::stop`](sanderling_client::ConnectOptions::stop) says.
pub fn train(
    config: Config,
    options: &RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary, LearnError> {
    run(config, options, stop, observer).map_err(|error| match error {
        LearnError::Client(error @ ClientError::Stopped { .. }) => LearnError::Unsaved(error),
        error => error,
    })
}

fn run(
    mut config: Config,
    options: &RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary, LearnError> {
    let runs_dir = &options.runs_dir;
    refuse_url(runs_dir)
        .map_err(|reason| LearnError::Config { path: runs_dir.clone(), reason: reason.to_owned() })?;
    match &options.job {
        Some(job) => job.check(&config)?,
        None => check_servers(&config, options)?,
    }
    options.recording.check(&config, options.job.as_ref(), options.servers.is_some(), options.resume)?;
    kept::check(&config, options.servers.is_some(), !options.resume && !options.forget)?;
    // Before the run has a name, which may replace an earlier run.
    [&config.data.train, &config.data.valid].into_iter().try_for_each(|inputs| refuse_hubs(&inputs.0))?;
    let earlier = match &options.from {
        Some(path) if !options.resume => Some(EarlierModel::open(path, &mut config)?),
        _ => None,
    };
    if let Some(job) = options.job.as_ref().filter(|job| !job.leads()) {
        return distributed::follow(config, job, options.servers.as_ref(), stop, observer);
    }
    // Workers on other hosts know the name as it was given.
    let is_here = options.job.as_ref().is_none_or(JobOptions::is_here);
    let mut begun = StartedRun { earlier, ..StartedRun::default() };
    if options.keeps_earlier && is_here {
        begun.is_numbered = name_run(&mut config, options, observer)?;
    }
    let (mut result, mut restores) =
        (lead(config.clone(), options, stop, observer, &mut begun), Restores::default());
    let restored = RunOptions { resume: true, ..options.clone() };
    while let Err(LearnError::RowsLost(error)) = &result
        && restores_after(error)
        && options.restores_itself()
        && !stop.load(Ordering::Relaxed)
        && let Some(count) = restores.count(Instant::now())
    {
        observer(&Event::Restoring { error, count });
        // Rows that are put back while slots move would be moved, too, and the next step would fail again.
        if let Some(cluster) = &options.servers {
            cluster.settle(MOVES_END_WITHIN)?;
        }
        result = lead(config.clone(), &restored, stop, observer, &mut begun);
    }
    if let (Err(error), Some(job), false) = (&result, &options.job, begun.meets) {
        job.turn_away(error);
    }
    result
}

/// How far a run has come.
#[derive(Default)]
struct StartedRun {
    /// The model that it begins from.
    earlier: Option<EarlierModel>,
    /// The marker of a run that is not resumed.
    mark: Option<RunMarker>,
    /// The record of a session under way.
    record: Option<Record>,
    /// Whether its name has a number after that of the configuration, which the observer knows.
    is_numbered: bool,
    /// Whether it has come to where the workers of a job meet, if it is one.
    meets: bool,
}

/// Trains, or leads the workers, in a folder that no other run uses.
fn lead(
    config: Config,
    options: &RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
    begun: &mut StartedRun,
) -> Result<Summary, LearnError> {
    let run_dir = options.runs_dir.join(&config.name);
    let (model_dir, last_dir) = (run_dir.join("model"), run_dir.join("last"));
    if options.begins_in(&run_dir) {
        let reason =
            "--from names the model of this run, which the run would replace; give the run another name";
        return Err(LearnError::Model { path: run_dir, reason: reason.to_owned() });
    }
    if !options.resume {
        create_run_dir(&run_dir)?;
        [&model_dir, &last_dir].into_iter().try_for_each(|dir| check_replaceable(dir))?;
    }
    let _claim = claim(&run_dir)?;
    let result = run_in(&run_dir, config, options, stop, observer, begun);
    let mut is_saved = options.resume;
    let record = begun.record.take();
    if let Some(mark) = begun.mark.take_if(|_| result.is_err()) {
        is_saved = [&model_dir, &last_dir].into_iter().any(|dir| is_of(dir, mark.run_id));
        if !is_saved {
            // The state of the earlier run stays resumable. A killed process leaves its marker.
            mark.take_back();
            metrics_log::put_back(&run_dir.join(METRICS));
        }
    }
    if let (Some(record), Err(error)) = (record, &result) {
        record.fail(error, is_saved);
    }
    result.map_err(|error| match error {
        LearnError::Client(error) if is_saved && has_lost_rows(&error) => LearnError::RowsLost(error),
        error => error,
    })
}

/// Whether a run goes on from its last save by itself: the servers answer, and need the rows.
fn restores_after(error: &ClientError) -> bool {
    match error {
        ClientError::Restarted { .. } => true,
        ClientError::Refused { fault, .. } => matches!(fault, Fault::NotHere { .. }),
        _ => false,
    }
}

/// Whether a server does not have the rows of its clients any more, or does not answer.
fn has_lost_rows(error: &ClientError) -> bool {
    match error {
        ClientError::Restarted { .. } | ClientError::Late { .. } => true,
        // A table was dropped, or the server restored another checkpoint; or rows of a step in hand have moved to another
        // server, so that some servers have made the step and others have not.
        ClientError::Refused { fault, .. } => matches!(fault, Fault::UnknownTable | Fault::NotHere { .. }),
        _ => false,
    }
}

/// Does so when the folder is there.
fn run_in(
    run_dir: &Path,
    config: Config,
    options: &RunOptions,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
    begun: &mut StartedRun,
) -> Result<Summary, LearnError> {
    let started = Instant::now();
    let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (model_dir, last_dir) = (run_dir.join("model"), run_dir.join("last"));
    let has_earlier = !options.resume && (is_saved(&model_dir) || is_saved(&last_dir));
    let mut kept = KeptTables::new(options.forget);
    let (model, state, scores) = if options.resume {
        resume(&config, options, run_dir, [&last_dir, &model_dir], &mut kept)?
    } else {
        let unfitted = config.spec().unfitted().count();
        if unfitted > 0 {
            observer(&Event::Fitting { features: unfitted });
        }
        let config = config.fitted()?;
        check_inputs(&config, has_earlier)?;
        let earlier = begun.earlier.take();
        let model = match (&earlier, &options.servers) {
            (Some(earlier), servers) => earlier.continue_as(config, servers.as_ref(), &mut kept)?,
            (None, Some(cluster)) => Model::on_servers(config, cluster)?,
            (None, None) => Model::new_in(config, |config, table| kept.create(config, table))?,
        };
        let progressive_curve = earlier.map_or(Ok(Vec::new()), |earlier| earlier.progressive_curve())?;
        // The resume state of an earlier run of this name is not this run's.
        let run_id = Some(begun.mark.insert(run_marker::mark(run_dir)?).run_id);
        let algorithm = options.job.as_ref().map(|job| job.algorithm);
        let data_bytes = data_bytes(model.config())?;
        let from = options.from.clone();
        let state =
            RunState { run_id, algorithm, data_bytes, from, progressive_curve, ..RunState::default() };
        (model, state, Scores::with_exact_rows(PROGRESSIVE_ROWS_MAX))
    };
    let train = &model.config().train;
    let words = match &options.job {
        Some(job) => format!("{} by {}", model.config().describe(), job.describe(train.batch_size)),
        None => model.config().describe(),
    };
    let threads = options.job.as_ref().map_or(train.threads, JobOptions::threads);
    observer(&Event::Started { model: &words, run_dir, resumed_step: state.step });
    kept.tell(observer);
    if state.step > 0 && state.is_whole(train) {
        observer(&Event::NothingLeft { passes: state.pass, early: state.pass < train.passes });
    }
    if has_earlier && !begun.is_numbered {
        observer(&Event::Replacing { run_dir });
    }
    if has_earlier && stop.load(Ordering::Relaxed) {
        return Err(LearnError::Stopped);
    }
    let log_path = run_dir.join(METRICS);
    let mut log = match options.resume {
        true => MetricsLog::resume(&log_path, &state)?,
        false => MetricsLog::create(&log_path, has_earlier)?,
    };
    let live = &options.live;
    let stages = options.job.as_ref().map_or_else(StageList::default, |_| distributed::STAGE_LIST);
    let mut bad_row_messages = Vec::new();
    let mut watch = |event: &Event<'_>| {
        log.write(event);
        live.note(event);
        if let Event::BadRows { messages, .. } = event {
            bad_row_messages = messages.to_vec();
        }
        observer(event);
    };
    let dirs = (model_dir.clone(), last_dir);
    let examples_before = state.examples;
    let first = Begun { words: words.clone(), threads, started_unix_s, model_dir: &model_dir };
    let first = first.report(model.config(), &state);
    let mut trainer = Trainer::new(model, state, scores, dirs, stages, stop, &mut watch);
    (trainer.threads, trainer.has_earlier) = (threads, has_earlier);
    live.begin(first, &trainer.stages, options.servers.as_ref(), &trainer.model, &trainer.state);
    begun.record = Some(Record::start(run_dir, live)?);
    trainer.predict_first()?;
    begun.meets = true;
    let job_end = match &options.job {
        Some(job) => Some(distributed::run(&mut trainer, job, &options.recording, options.servers.as_ref())?),
        None => {
            trainer.run()?;
            None
        }
    };
    let mut tests = Vec::new();
    if trainer.state.is_whole(&trainer.model.config().train) && !trainer.model.config().data.test.is_empty() {
        let is_kept = trainer.state.is_best() && !trainer.model.is_remote();
        let kept = if is_kept { Arc::clone(&trainer.model) } else { Arc::new(Model::load(&model_dir)?) };
        tests = test_sets(&kept, &trainer.state, stop, &mut *trainer.observer)?;
    }
    let Trainer {
        model,
        state,
        pass_scores,
        stages,
        mut plot_scores,
        plots_seen,
        mut importance,
        known,
        passes,
        ..
    } = trainer;
    log.finish()?;

    let stages = stages.totals();
    let (servers, train) = (options.servers.as_deref(), &model.config().train);
    let workers = options.job.as_ref().map_or(train.threads as u32, |job| job.job.workers);
    let mut timing = Timing::new(workers, train.batch_size as u64, servers);
    timing.algorithm = options.job.as_ref().map(|job| job.algorithm.to_string());
    timing.staleness = job_end.as_ref().and_then(|end| end.staleness.clone());
    timing.stages.clone_from(&stages);
    timing.passes = passes;
    // The tables may be in the middle of a pass.
    let is_cut = job_end.is_some_and(|end| end.is_cut);
    let stopped = !state.is_whole(&model.config().train);
    let sizes = model.table_sizes()?;
    let is_kept = state.is_best() && !model.is_remote() && !is_cut;
    let config = model.config().clone();
    let tables = is_kept.then(|| summaries_of(&model));
    if importance.is_none() && state.best.is_none() && !is_cut {
        importance = explain_training(&model, stop)?;
    }
    let names = model.names().cloned();
    // Else what is kept is on disk alone, and these tables have served.
    drop(model);
    let mut tables = match tables {
        Some(tables) => tables,
        None => table_summaries(&model_dir, &sizes)?,
    };
    if let Some(names) = &names {
        name_keys(&mut tables, &config.feature, names);
    }
    if plot_scores.is_none() && state.best.is_some() {
        // The best validation was before this session, which resumed the run: score it again for the plots.
        (plot_scores, importance) = validate_again(&Model::load(&model_dir)?, stop, observer)?;
    }
    let report_path = run_dir.join("report.html");
    let table_bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
    let (config, state, pass_scores) = (&config, &state, &pass_scores);
    let outcome = Outcome {
        config,
        table_bytes,
        state,
        pass_scores,
        plot_scores,
        plots_seen,
        threads,
        tables,
        known,
        importance,
        tests,
    };
    let mut summary = outcome.summary(&model_dir, &report_path, stopped, timing);
    if names.is_some_and(|names| names.is_full()) {
        let limit = sanderling_observe::numbers::bytes(config.names.max_bytes);
        summary
            .warnings
            .push(format!("some keys have no names: all are more than names.max_bytes ({limit})"));
    }
    if let Some(unknown @ 1..) = servers.map(Cluster::unknown_pushes) {
        let what = "pushes that were under way when a server ended, and may be applied or not";
        summary.warnings.push(format!("{what}: {unknown}"));
    }
    let timed = (stages, state.examples - examples_before);
    let page = live.end(outcome.report(&summary, timed, bad_row_messages, started_unix_s));
    std::fs::write(&report_path, report::render(&page)).map_err(LearnError::io(&report_path))?;
    begun.record.take().map_or(Ok(()), Record::finish)?;
    if let Some(cluster) = servers {
        summary.timing.calls = cluster.latencies();
    }
    summary.timing.total_s = started.elapsed().as_secs_f64();
    let config_path = run_dir.join("config.toml");
    std::fs::write(&config_path, config.to_toml()).map_err(LearnError::io(&config_path))?;
    let summary_path = run_dir.join("summary.json");
    let json = serde_json::to_vec_pretty(&summary).unwrap_or_default();
    std::fs::write(&summary_path, json).map_err(LearnError::io(&summary_path))?;
    Ok(summary)
}

/// Whether what was saved in a directory is of the run with this number.
fn is_of(dir: &Path, run_id: u64) -> bool {
    let saved = Checkpoint::open(dir).ok().and_then(|checkpoint| {
        RunState::from_checkpoint(&checkpoint, dir).ok().map(|(state, _)| state.run_id)
    });
    saved.flatten() == Some(run_id)
}
