//! Short runs in a directory of their own, for the tests of this folder. Knows what a run takes and leaves behind, not
//! what is right.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sanderling_learner::{Config, Event, LearnError, Model, RunOptions, Summary, ValidLine, train};
use sanderling_synth::{SynthConfig, generate};

/// Pseudo-random integers for test data (Knuth's MMIX generator, upper bits).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A temporary directory with data and runs.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and returns its path, quoted for TOML.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        format!("{:?}", self.path(name))
    }

    /// Rows of one synthetic stream, from `first` on; the path quoted for TOML.
    pub(crate) fn synth(&self, name: &str, first: u64, rows: u64) -> String {
        let config = SynthConfig { rows, first_row: first, vocabulary: 2000, ..SynthConfig::default() };
        generate(&config, &self.path(name), &mut |_, _| true).unwrap();
        format!("{:?}", self.path(name))
    }

    pub(crate) fn run_dir(&self, name: &str) -> PathBuf {
        self.path("runs").join(name)
    }

    pub(crate) fn model(&self, name: &str) -> Model {
        Model::load(&self.run_dir(name).join("model")).unwrap()
    }

    pub(crate) fn run(&self, toml: &str) -> Result<Summary, LearnError> {
        self.run_with(toml, false, |_| false).map(|(summary, _)| summary)
    }

    pub(crate) fn resume(&self, toml: &str) -> Result<Summary, LearnError> {
        self.run_with(toml, true, |_| false).map(|(summary, _)| summary)
    }

    /// The summary and the validations. The run is asked to stop at the first event for which `stop_at` is true.
    pub(crate) fn run_with(
        &self,
        toml: &str,
        resume: bool,
        stop_at: impl Fn(&Event<'_>) -> bool,
    ) -> Result<(Summary, Vec<ValidLine>), LearnError> {
        self.run_as(toml, &RunOptions { resume, ..self.options() }, stop_at)
    }

    /// Where runs go; on which servers or by which workers is up to the test.
    pub(crate) fn options(&self) -> RunOptions {
        RunOptions { runs_dir: self.path("runs"), ..RunOptions::default() }
    }

    /// The same as [`Place::run_with`] for any options; an algorithm makes its model of the configuration.
    pub(crate) fn run_as(
        &self,
        toml: &str,
        options: &RunOptions,
        stop_at: impl Fn(&Event<'_>) -> bool,
    ) -> Result<(Summary, Vec<ValidLine>), LearnError> {
        let mut config = Config::parse(toml, Path::new("test.toml"), "run")?;
        if let Some(job) = &options.job {
            job.algorithm.preset(&mut config);
        }
        let stop = AtomicBool::new(false);
        let mut valid = Vec::new();
        let summary = train(config, options, &stop, &mut |event| {
            if let Event::Valid(line) = event {
                valid.push(**line);
            }
            if stop_at(event) {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        })?;
        Ok((summary, valid))
    }
}

/// What a row is, apart from its use clock (which counts calls): key, frequency, version, bits of weights and state.
pub(crate) type RowBits = (u64, u32, u32, Vec<u32>);

/// All rows of all tables, in order.
pub(crate) fn contents(model: &Model) -> Vec<(String, Vec<RowBits>)> {
    let tables = model.client().tables().iter().map(|table| {
        let mut rows = Vec::new();
        table.for_each_row(|row| {
            let bits = row.weights.iter().chain(row.state).map(|f| f.to_bits()).collect();
            rows.push((row.key, row.frequency, row.version, bits));
        });
        rows.sort();
        (table.name().to_string(), rows)
    });
    tables.collect()
}

/// A key's weights, then its optimizer state; a key without a row is a failure.
pub(crate) fn row(model: &Model, table: &str, key: u64) -> Vec<f64> {
    let row = model.table(table).unwrap().get(key).unwrap();
    row.weights.iter().chain(&row.state).map(|x| f64::from(*x)).collect()
}

/// Fails unless two numbers are within `tolerance`, relative to the larger of 1 and the expected one.
pub(crate) fn close(got: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (got - expected).abs() / expected.abs().max(1.0);
    assert!(error <= tolerance, "{what}: {got}, expected {expected}, off by {error:e}");
}
