//! The metrics of a run as JSON lines: `{"kind": "predicted_first" | "step" | "pass" | "valid" | "test", ...}`. Knows no terminal and keeps nothing in memory.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LearnError;
use crate::event::Event;
use crate::state::RunState;

/// The file's name in a run's folder, where it is from the run's first line of metrics on.
pub(crate) const METRICS: &str = "metrics.jsonl";

/// The file under way.
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: BufWriter<File>,
    /// Whether lines of an earlier run may be in the file: they stay until this one has some.
    is_old: bool,
    /// Whether that run can be resumed: then they stay beside the file until this one has saved something.
    has_earlier: bool,
    failed: Option<std::io::Error>,
}

/// The position of a line in the run.
#[derive(Deserialize)]
struct Place {
    kind: String,
    step: u64,
    pass: u64,
}

impl MetricsLog {
    /// A file that is empty once a line is written, or the run is over: one that fails before leaves an earlier run as it was.
    /// The lines of one that can be resumed are there for [`put_back`] until this one has saved something.
    pub(crate) fn create(path: &Path, has_earlier: bool) -> Result<Self, LearnError> {
        let file = BufWriter::new(open(path).map_err(LearnError::io(path))?);
        Ok(MetricsLog { path: path.into(), file, is_old: true, has_earlier, failed: None })
    }

    /// The file, without what is not of this run.
    fn of_this_run(&mut self) -> std::io::Result<&mut BufWriter<File>> {
        if std::mem::take(&mut self.is_old) {
            let aside = aside(&self.path);
            if self.has_earlier && !aside.exists() {
                fs::rename(&self.path, aside)?;
                self.file = BufWriter::new(open(&self.path)?);
            } else {
                // Where something was put aside, these lines are of a run that was killed before it had saved anything.
                self.file.get_ref().set_len(0)?;
            }
        }
        Ok(&mut self.file)
    }

    /// Removes the lines of earlier runs, once this one has saved its model or is over.
    fn take_over(&mut self) -> std::io::Result<()> {
        self.has_earlier = false;
        self.of_this_run()?;
        match fs::remove_file(aside(&self.path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Goes on with the file of a run that is resumed at `state`. A killed run may have written more than it had
    /// saved, and half a line: what will be written again is left out.
    pub(crate) fn resume(path: &Path, state: &RunState) -> Result<Self, LearnError> {
        let old = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::create(path, false),
            file => BufReader::new(file.map_err(LearnError::io(path))?),
        };
        let part = path.with_extension("jsonl.part");
        let mut log = Self::create(&part, false)?;
        for line in old.lines() {
            let line = line.map_err(LearnError::io(path))?;
            if serde_json::from_str(&line).is_ok_and(|place| was_saved(&place, state)) {
                log.of_this_run().and_then(|file| writeln!(file, "{line}")).map_err(LearnError::io(&part))?;
            }
        }
        log.of_this_run().and_then(Write::flush).map_err(LearnError::io(&part))?;
        fs::rename(&part, path).map_err(LearnError::io(path))?;
        Ok(MetricsLog { path: path.into(), ..log })
    }

    /// Writes an event that is a line; the first failure is told by [`MetricsLog::finish`].
    pub(crate) fn write(&mut self, event: &Event<'_>) {
        #[derive(Serialize)]
        struct Line<'a, T> {
            kind: &'a str,
            #[serde(flatten)]
            line: &'a T,
        }
        let json = match event {
            Event::Step(line) => serde_json::to_string(&Line { kind: "step", line: *line }),
            Event::Pass(line) => serde_json::to_string(&Line { kind: "pass", line: *line }),
            Event::Valid(line) => serde_json::to_string(&Line { kind: "valid", line: *line }),
            Event::PredictedFirst(line) => {
                serde_json::to_string(&Line { kind: "predicted_first", line: *line })
            }
            Event::Tested(line) => serde_json::to_string(&Line { kind: "test", line: *line }),
            Event::Saved { .. } => return self.note(Self::take_over),
            _ => return,
        };
        // Each line is flushed, so that whoever follows the file sees it, and a killed run leaves whole lines.
        self.note(|log| {
            let file = log.of_this_run()?;
            writeln!(file, "{}", json?)?;
            file.flush()
        });
    }

    fn note(&mut self, act: impl FnOnce(&mut Self) -> std::io::Result<()>) {
        if let Err(error) = act(self) {
            self.failed.get_or_insert(error);
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), LearnError> {
        self.note(Self::take_over);
        self.failed.map_or(Ok(()), Err).map_err(LearnError::io(self.path))
    }
}

/// Puts the lines of an earlier run back, for a run that has saved nothing: the earlier one can be resumed then. If that fails,
/// they stay beside the file, as they do where the process is killed.
pub(crate) fn put_back(path: &Path) {
    let _ = fs::rename(aside(path), path);
}

/// Where the lines of an earlier run are while this one has saved nothing.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("jsonl.earlier")
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Whether a run resumed at `state` will not write the line again.
fn was_saved(place: &Place, state: &RunState) -> bool {
    match place.kind.as_str() {
        // Each session that ends the run measures again.
        "test" => false,
        "valid" => place.pass < state.pass || (place.pass == state.pass && !state.pass_to_judge),
        _ => place.step <= state.step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StepLine;
    use crate::metrics::Scores;

    #[test]
    fn a_resumed_log_holds_no_line_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let line = |kind: &str, step: u64, pass: u64| {
            format!("{{\"kind\":\"{kind}\",\"step\":{step},\"pass\":{pass}}}\n")
        };
        let (one, two, three) = (line("step", 10, 1), line("step", 20, 1), line("step", 30, 2));
        let valid = line("valid", 20, 1);
        let all = format!("{one}{two}{valid}{three}{{\"kind\":\"st");
        for (step, pass, pass_to_judge, kept) in [
            (0, 0, false, String::new()),
            (15, 0, false, one.clone()),
            (20, 1, true, format!("{one}{two}")),
            (20, 1, false, format!("{one}{two}{valid}")),
            (35, 1, false, format!("{one}{two}{valid}{three}")),
        ] {
            std::fs::write(&path, &all).unwrap();
            let state = RunState { step, pass, pass_to_judge, ..RunState::default() };
            MetricsLog::resume(&path, &state).unwrap().finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept, "{step} {pass} {pass_to_judge}");
        }
    }

    /// The lines that remain when runs follow each other under one name.
    #[test]
    fn lines_of_an_earlier_run_are_kept_until_there_is_something_of_this_one() {
        enum Run {
            Fails,
            IsKilled,
            Saves,
        }
        use Run::{Fails, IsKilled, Saves};
        let line = StepLine {
            step: 1,
            pass: 1,
            trained_examples: 1,
            measured_on: crate::MeasuredOn::Train,
            metrics: Scores::new().metrics(),
            steps_per_s: 1.0,
            examples_per_s: 1.0,
        };
        for (what, runs, is_kept) in [
            ("before its first line", vec![(Fails, 0)], true),
            ("after some", vec![(Fails, 2)], true),
            ("twice", vec![(Fails, 2), (Fails, 1)], true),
            ("after one that was killed", vec![(IsKilled, 2), (Fails, 1)], true),
            ("after one that has saved", vec![(Saves, 2), (Fails, 1)], false),
            ("with one that is killed before", vec![(IsKilled, 1), (Saves, 2)], false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("metrics.jsonl");
            fs::write(&path, "of the earlier one\n").unwrap();
            for (run, lines) in runs {
                let mut log = MetricsLog::create(&path, true).unwrap();
                (0..lines).for_each(|_| log.write(&Event::Step(&line)));
                match run {
                    Fails => {
                        drop(log);
                        put_back(&path);
                    }
                    IsKilled => drop(log),
                    Saves => {
                        log.write(&Event::Saved { path: dir.path() });
                        log.finish().unwrap();
                    }
                }
            }
            let left = fs::read_to_string(&path).unwrap();
            assert_eq!(
                (left == "of the earlier one\n", left.lines().count()),
                (is_kept, if is_kept { 1 } else { 2 }),
                "{what}"
            );
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "{what}");
        }
    }
}
