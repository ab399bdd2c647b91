//! The lines that a run prints on its way, and which of them --quiet keeps. Prints nothing itself.

use sanderling_client::ClientError;
use sanderling_learner::{Event, KnownKeys, LargeValues, MeasuredOn, Metrics, PassLine, RESTORES_MAX};

use crate::{output, quality};

/// Whether an event is shown with --quiet.
pub(super) fn is_for_the_quiet(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::InputChanged { .. }
            | Event::JobStopped { .. }
            | Event::Recorded { .. }
            | Event::Unvalidated { .. }
            | Event::LargeValues { .. }
            | Event::Renamed { .. }
            | Event::Restoring { .. }
    )
}

/// Lines of text for an event.
pub(super) fn describe(event: &Event<'_>) -> Vec<String> {
    let metrics = |metrics: &Metrics| quality::in_a_line(metrics, false);
    match event {
        Event::Started { model, run_dir, resumed_step: 0 } => {
            vec![format!("training a {model} into {}", run_dir.display())]
        }
        Event::Started { model, run_dir, resumed_step } => {
            vec![format!("going on with a {model} in {} after step {resumed_step}", run_dir.display())]
        }
        Event::Kept { table, found } => vec![format!("table {table}: {found}")],
        Event::Fitting { features } => vec![format!("fitting the quantiles of {features} features")],
        Event::Step(line) => vec![format!(
            "step {}{}, {} ({:.1} it/s; {} examples/s)",
            line.step,
            over(line.measured_on),
            metrics(&line.metrics),
            line.steps_per_s,
            output::per_s(line.examples_per_s)
        )],
        Event::PredictedFirst(line) => {
            vec![format!("predicted {} before learning: {}", line.data, metrics(&line.metrics))]
        }
        Event::Pass(line) => vec![of_pass(line)],
        Event::Valid(line) => vec![format!(
            "pass {} validated: {}{}",
            line.pass,
            metrics(&line.metrics),
            if line.best { ", best so far" } else { "" }
        )],
        Event::Tested(line) => vec![format!("test set {}: {}", line.name, metrics(&line.metrics))],
        Event::BadRows { count, messages } => {
            let head = format!("{} bad rows were skipped; the first:", output::count(*count));
            std::iter::once(head).chain(messages.iter().map(|message| format!("  {message}"))).collect()
        }
        Event::RepeatedHeaders { count } => {
            vec![format!("{} repeated header lines were skipped", output::count(*count))]
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
        Event::Restoring { error, count } => {
            let server = match error {
                ClientError::Restarted { server, .. } => {
                    format!("server {server} was started anew without the rows of this run")
                }
                error => error.to_string(),
            };
            vec![format!(
                "{server}: the run puts its last save back on the servers and goes on from there ({count} of at most \
                 {RESTORES_MAX} times an hour)"
            )]
        }
        Event::Renamed { from, to, replaces: false } => vec![format!(
            "a run of another configuration is in {from} and is kept: this one is {to} (--name {from} would replace it)"
        )],
        Event::Renamed { from, to, replaces: true } => vec![format!(
            "this run replaces the earlier one of this configuration, {to}; {from} is of another one (--name NAME names this run)"
        )],
        Event::Replacing { run_dir } => vec![format!(
            "this run replaces the earlier one in {}; --name NAME would keep both",
            run_dir.display()
        )],
        Event::LargeValues { features } => large_values(features),
        Event::UnknownKeys { known } => known.iter().filter_map(KnownKeys::remark).collect(),
        Event::JobStopped { words } | Event::Recorded { words } => vec![(*words).to_owned()],
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
        Event::Saved { .. }
        | Event::Training { .. }
        | Event::TrainingRows { .. }
        | Event::Validating { .. } => Vec::new(),
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
    let missed = line.staleness_mean.map_or(String::new(), |mean| format!("; {mean:.2} pushes missed"));
    format!(
        "pass {} trained{}: {} ({} examples in {:.2} s, {} examples/s{missed})",
        line.pass,
        over(line.measured_on),
        quality::in_a_line(&line.metrics, true),
        output::count(line.metrics.examples),
        line.seconds,
        output::per_s(line.examples_per_s)
    )
}
