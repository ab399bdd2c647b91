//! The header of a recording: the run that it belongs to. A replay of another run is refused by the name of the difference.

use std::path::Path;
use std::sync::Arc;

use sanderling_store::Table;
use serde::{Deserialize, Serialize};

use super::digest::of_tables;
use crate::config::Config;
use crate::distributed::{Algorithm, JobOptions};
use crate::error::LearnError;

/// The run of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) algorithm: Algorithm,
    pub(super) workers: u32,
    pub(super) staleness: Option<u64>,
    /// The configuration as TOML.
    pub(super) config: String,
    /// Bytes of the training files, if known.
    pub(super) data_bytes: Option<u64>,
    pub(super) tables: Vec<String>,
    /// Digest of the tables before the first minibatch.
    pub(super) start: u64,
}

impl Header {
    pub(super) fn new(
        job: &JobOptions,
        config: &Config,
        data_bytes: Option<u64>,
        tables: &[Arc<Table>],
    ) -> Header {
        Header {
            algorithm: job.algorithm,
            workers: job.job.workers,
            staleness: job.staleness,
            config: config.to_toml(),
            data_bytes,
            tables: tables.iter().map(|table| table.name().to_owned()).collect(),
            start: of_tables(tables),
        }
    }

    /// Refuses another algorithm or number of workers.
    pub(super) fn check_job(&self, path: &Path, job: &JobOptions) -> Result<(), LearnError> {
        let bound = |staleness: Option<u64>| staleness.map_or("none".to_owned(), |bound| bound.to_string());
        for (option, found, expected) in [
            ("--algorithm", job.algorithm.to_string(), self.algorithm.to_string()),
            ("--workers", job.job.workers.to_string(), self.workers.to_string()),
            ("--staleness", bound(job.staleness), bound(self.staleness)),
        ] {
            if found != expected {
                return Err(another(path, option, &found, &expected));
            }
        }
        Ok(())
    }

    /// Refuses a run of another configuration, data or beginning.
    pub(super) fn check(&self, path: &Path, run: &Header) -> Result<(), LearnError> {
        if let Some((name, found, expected)) = difference("", &fields(&run.config), &fields(&self.config)) {
            return Err(another(path, &name, &found, &expected));
        }
        let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        if run.data_bytes != self.data_bytes {
            let (found, expected) = (bytes(run.data_bytes), bytes(self.data_bytes));
            return Err(another(path, "the size of data.train in bytes", &found, &expected));
        }
        if run.start != self.start || run.tables != self.tables {
            return Err(another(
                path,
                "the model at the start (--from)",
                &format!("{:016x}", run.start),
                &format!("{:016x}", self.start),
            ));
        }
        Ok(())
    }
}

fn another(path: &Path, what: &str, found: &str, expected: &str) -> LearnError {
    let reason = format!(
        "{} is of another run: {what} is {}, and was {}; replay with the recorded one",
        path.display(),
        cut(found),
        cut(expected)
    );
    LearnError::Config { path: "--replay".into(), reason }
}

/// Long values, such as lists of files, cut.
fn cut(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// The fields of a configuration without the run's name.
fn fields(config: &str) -> toml::Table {
    let mut fields: toml::Table = config.parse().unwrap_or_default();
    fields.remove("name");
    fields
}

/// The first field that differs, with both values.
fn difference(prefix: &str, found: &toml::Table, expected: &toml::Table) -> Option<(String, String, String)> {
    let mut names: Vec<&String> = found.keys().chain(expected.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().find_map(|name| {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match (found.get(name), expected.get(name)) {
            (one, other) if one == other => None,
            (Some(toml::Value::Table(one)), Some(toml::Value::Table(other))) => difference(&path, one, other),
            (one, other) => {
                let text =
                    |value: Option<&toml::Value>| value.map_or("unset".to_owned(), ToString::to_string);
                Some((path, text(one), text(other)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_by_its_path() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let recorded = table("seed = 1\n[train]\nbatch_size = 16\n[optimizer]\nalpha = 0.1");
        for (text, expected) in [
            ("seed = 1\n[train]\nbatch_size = 16\n[optimizer]\nalpha = 0.1", None),
            ("seed = 2\n[train]\nbatch_size = 16\n[optimizer]\nalpha = 0.1", Some(("seed", "2", "1"))),
            (
                "seed = 1\n[train]\nbatch_size = 32\n[optimizer]\nalpha = 0.1",
                Some(("train.batch_size", "32", "16")),
            ),
            ("seed = 1\n[train]\nbatch_size = 16\n[optimizer]", Some(("optimizer.alpha", "unset", "0.1"))),
        ] {
            let found = difference("", &table(text), &recorded);
            let expected = expected.map(|(name, one, other)| (name.into(), one.into(), other.into()));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(cut(&"ä".repeat(41)), format!("{}...", "ä".repeat(40)));
    }
}
