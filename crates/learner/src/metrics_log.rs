//! The metrics of a run as JSON lines: `{"kind": "step" | "pass" | "valid", ...}`. Knows no terminal and keeps nothing in memory.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LearnError;
use crate::event::Event;
use crate::state::RunState;

/// The file under way.
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: BufWriter<File>,
    /// Whether lines of an earlier run may be in the file: they stay until this one has some.
    is_old: bool,
    failed: Option<std::io::Error>,
}

/// What a line says about its place in the run.
#[derive(Deserialize)]
struct Place {
    kind: String,
    step: u64,
    pass: u64,
}

impl MetricsLog {
    /// A file that is empty once a line is written, or the run is over: one that fails before leaves an earlier run as it was.
    pub(crate) fn create(path: &Path) -> Result<Self, LearnError> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(LearnError::io(path))?;
        Ok(MetricsLog { path: path.into(), file: BufWriter::new(file), is_old: true, failed: None })
    }

    /// The file, without what is not of this run.
    fn of_this_run(&mut self) -> std::io::Result<&mut BufWriter<File>> {
        if std::mem::take(&mut self.is_old) {
            self.file.get_ref().set_len(0)?;
        }
        Ok(&mut self.file)
    }

    /// Goes on with the file of a run that is resumed at `state`. A killed run may have written more than it had
    /// saved, and half a line: what will be written again is left out.
    pub(crate) fn resume(path: &Path, state: &RunState) -> Result<Self, LearnError> {
        let old = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::create(path),
            file => BufReader::new(file.map_err(LearnError::io(path))?),
        };
        let part = path.with_extension("jsonl.part");
        let mut log = Self::create(&part)?;
        for line in old.lines() {
            let line = line.map_err(LearnError::io(path))?;
            if serde_json::from_str(&line).is_ok_and(|place| was_saved(&place, state)) {
                log.of_this_run().and_then(|file| writeln!(file, "{line}")).map_err(LearnError::io(&part))?;
            }
        }
        log.of_this_run().and_then(Write::flush).map_err(LearnError::io(&part))?;
        std::fs::rename(&part, path).map_err(LearnError::io(path))?;
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
            _ => return,
        };
        // Each line is flushed, so that whoever follows the file sees it, and a killed run leaves whole lines.
        let written = json.map_err(std::io::Error::from).and_then(|json| {
            let file = self.of_this_run()?;
            writeln!(file, "{json}")?;
            file.flush()
        });
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), LearnError> {
        let emptied = self.of_this_run().map(drop);
        self.failed.map_or(emptied, Err).map_err(LearnError::io(self.path))
    }
}

/// Whether a run resumed at `state` will not write the line again.
fn was_saved(place: &Place, state: &RunState) -> bool {
    match place.kind.as_str() {
        "valid" => place.pass < state.pass || (place.pass == state.pass && !state.pass_to_judge),
        _ => place.step <= state.step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_log_holds_no_line_twice() {
        let dir = std::env::temp_dir().join(format!("sanderling-metrics-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("metrics.jsonl");
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
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
