//! A seeded generator of Criteo-like data of any size, whose best possible AUC is known. It knows no reader, no batch
//! and no model but its own.
//!
//! A row has 13 numeric features (heavy-tailed counts, some missing) and 26 categorical ones (zipf-distributed ids
//! over vocabularies of very different sizes); some categorical ones have several values on request. A hidden
//! factorization machine, linear in `ln(1 + count)` of the numeric features and with weights and factors for every
//! categorical id, gives each row its true probability, and the label is drawn with it. So the AUC and the logloss of
//! the true probabilities over the rows written are the best that any model can expect.
//!
//! Rows come from an endless stream that the seed determines. They are drawn in chunks, each from a random stream of
//! its own, by several threads, and written in order by one: the same rows give the same bytes whatever the number
//! of threads.

mod bound;
mod columnar;
mod sink;
#[cfg(test)]
mod tests;
mod text;
mod truth;

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde::{Deserialize, Serialize};

use bound::Bound;
use columnar::BatchBuilder;
use sanderling_formats::Compression;
use sanderling_sample::{SampleError, quote};
use sink::{Chunk, Sink};
use text::{Layout, Text, TextWriter};
use truth::CHUNK_ROWS;
pub use truth::{Generator, Row};

/// Numeric features of a row, I1..I13.
pub const NUMERIC: usize = 13;
/// Categorical features of a row, C1..C26.
pub const CATEGORICAL: usize = 26;
/// Fewest distinct categorical values.
pub const VOCABULARY_MIN: u32 = 100;
/// Most distinct categorical values; ids stay within 31 bits.
pub const VOCABULARY_MAX: u32 = 2_000_000_000;
/// Most values of a multi-valued feature.
pub const VALUES_MAX: u32 = 64;
/// Highest rank of the hidden factorization machine.
pub const RANK_MAX: usize = 64;
/// Most threads that generate.
pub const THREADS_MAX: usize = 256;
/// Chunks that wait per thread for the writer.
const QUEUE_CHUNKS: usize = 2;

/// Format of the file written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynthFormat {
    /// `label index:value ...`. Index 1..13 is `ln(1 + count)` of I1..I13; when I`j` is missing, index 13 + `j` has the
    /// value 1 instead; a categorical value is `id:1` with an id that no other feature uses.
    Libsvm,
    /// Criteo's layout, no header: label, I1..I13 (empty if missing), C1..C26 as eight hex digits, several values of
    /// a feature separated by a bar.
    Tsv,
    /// The columns of `Tsv` with commas and a header.
    Csv,
    /// The columns of `Tsv`: `label` int32, `I*` int64, `C*` strings or lists of strings.
    Parquet,
}

impl SynthFormat {
    /// By extension, below `.gz` or `.zst`: libsvm, svm, libfm, fm; tsv, criteo; csv; parquet.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<SynthFormat> {
        let name = path.file_name()?.to_str()?;
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        Some(match name.rsplit_once('.')?.1 {
            "libsvm" | "svm" | "libfm" | "fm" => SynthFormat::Libsvm,
            "tsv" | "criteo" => SynthFormat::Tsv,
            "csv" => SynthFormat::Csv,
            "parquet" => SynthFormat::Parquet,
            _ => return None,
        })
    }
}

impl std::str::FromStr for SynthFormat {
    type Err = SampleError;

    /// By the name that configs use: libsvm, tsv, csv, parquet.
    fn from_str(name: &str) -> Result<Self, SampleError> {
        Ok(match name {
            "libsvm" => SynthFormat::Libsvm,
            "tsv" => SynthFormat::Tsv,
            "csv" => SynthFormat::Csv,
            "parquet" => SynthFormat::Parquet,
            _ => {
                let found = quote(name.as_bytes());
                return Err(SampleError::Settings(format!(
                    "format: expected libsvm, tsv, csv or parquet, found {found}"
                )));
            }
        })
    }
}

/// The settings of the generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SynthConfig {
    /// Rows to write.
    pub rows: u64,
    /// First row of the stream: rows `first_row .. first_row + rows` are written, so that a held-out file continues
    /// a training file of the same seed.
    pub first_row: u64,
    /// Determines the stream and the hidden model.
    pub seed: u64,
    /// `None`: by the extension of the path.
    pub format: Option<SynthFormat>,
    /// Distinct categorical values, all features together.
    pub vocabulary: u32,
    /// The `r`-th most frequent value of a feature has a probability proportional to `r^-zipf_exponent`.
    pub zipf_exponent: f64,
    /// C1 to this one have 1 to `values_max` values a row, equally probable, duplicates left out.
    pub multi_valued: usize,
    /// Most values of a multi-valued feature in a row.
    pub values_max: u32,
    /// Expected share of positive labels.
    pub positive_rate: f64,
    /// Rank of the hidden factorization machine; 0 leaves a linear one.
    pub rank: usize,
    /// Standard deviation of the linear part of the true log-odds.
    pub linear_std: f64,
    /// Standard deviation of the pairwise part.
    pub interaction_std: f64,
    /// How far the hidden weights and factors move per day, 0 to 1: those of successive days correlate by
    /// `cos(drift * 90 degrees)`. 0: labels of all days follow one model.
    pub drift: f64,
    /// Rows of the stream per day, for `drift`; 0: as many as `rows`.
    pub day_rows: u64,
    /// Threads that generate; 0: one per core. Does not change the rows.
    pub threads: usize,
}

impl Default for SynthConfig {
    fn default() -> Self {
        SynthConfig {
            rows: 1_000_000,
            first_row: 0,
            seed: 42,
            format: None,
            vocabulary: 30_000_000,
            zipf_exponent: 1.1,
            multi_valued: 0,
            values_max: 4,
            positive_rate: 0.25,
            rank: 4,
            linear_std: 1.3,
            interaction_std: 0.6,
            drift: 0.0,
            day_rows: 0,
            threads: 0,
        }
    }
}

impl SynthConfig {
    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// [`SampleError::Settings`] names the first setting out of bounds.
    pub fn validate(&self) -> Result<(), SampleError> {
        let in_range = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(SampleError::Settings(format!("synth: {name} = {value} must lie between {low} and {high}")))
        };
        in_range("rows", self.rows as f64, 0.0, 1e15)?;
        in_range("first_row", self.first_row as f64, 0.0, 1e15)?;
        in_range("vocabulary", self.vocabulary.into(), VOCABULARY_MIN.into(), VOCABULARY_MAX.into())?;
        in_range("zipf_exponent", self.zipf_exponent, 0.0, 10.0)?;
        in_range("multi_valued", self.multi_valued as f64, 0.0, CATEGORICAL as f64)?;
        in_range("values_max", self.values_max.into(), 1.0, VALUES_MAX.into())?;
        in_range("positive_rate", self.positive_rate, 1e-6, 1.0 - 1e-6)?;
        in_range("rank", self.rank as f64, 0.0, RANK_MAX as f64)?;
        in_range("linear_std", self.linear_std, 0.0, 10.0)?;
        in_range("interaction_std", self.interaction_std, 0.0, 10.0)?;
        in_range("drift", self.drift, 0.0, 1.0)?;
        in_range("day_rows", self.day_rows as f64, 0.0, 1e15)?;
        in_range("threads", self.threads as f64, 0.0, THREADS_MAX as f64)
    }
}

/// Counts and scores of the generated file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SynthReport {
    /// Rows written.
    pub rows: u64,
    /// Rows with label 1.
    pub positives: u64,
    /// Size of the file; on standard output, the bytes written to it.
    pub bytes: u64,
    /// AUC of the true probabilities over the rows written: no model can expect more. `None` if a class is absent.
    pub best_auc: Option<f64>,
    /// Mean logloss of the true probabilities, in nats; `None` without rows.
    pub best_logloss: Option<f64>,
    /// Distinct values that each categorical feature can take.
    pub vocabularies: Vec<u32>,
    /// One more than the largest index in libsvm output.
    pub ids_end: u32,
}

/// Names of the columns of TSV, CSV and Parquet output: label, I1..I13, C1..C26.
#[must_use]
pub fn column_names() -> Vec<String> {
    let mut names = vec!["label".to_string()];
    names.extend((1..=NUMERIC).map(|index| format!("I{index}")));
    names.extend((1..=CATEGORICAL).map(|index| format!("C{index}")));
    names
}

impl Generator {
    /// The stream and the hidden model of a config.
    ///
    /// # Errors
    /// [`SampleError::Settings`] if a setting is out of bounds.
    pub fn new(config: &SynthConfig) -> Result<Generator, SampleError> {
        config.validate()?;
        Ok(Generator::build(config))
    }
}

/// Writes the rows to `path` and reports the best AUC and logloss over them.
///
/// `-` is standard output, for text only; a path that ends in `.gz` or `.zst` is compressed. `progress` gets the rows
/// and bytes written so far, once per chunk, and returns whether to go on; if it returns false, there is no file and
/// no report.
///
/// # Errors
/// [`SampleError::Settings`] if a setting is out of bounds or the format unknown, [`SampleError::Io`] or
/// [`SampleError::BadFile`] if the file cannot be written. The file gets its name once it is complete.
pub fn generate(
    config: &SynthConfig,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<SynthReport>, SampleError> {
    let generator = Generator::new(config)?;
    let format = config.format.or_else(|| SynthFormat::of_path(path)).ok_or_else(|| {
        let path = path.display();
        SampleError::Settings(format!(
            "{path}: unknown file extension; use .libsvm, .tsv, .csv or .parquet, or give --format"
        ))
    })?;
    if format == SynthFormat::Parquet && Compression::of_path(path) != Compression::None {
        let path = path.display();
        return Err(SampleError::Settings(format!(
            "{path}: Parquet is compressed inside; leave the last part of the name out"
        )));
    }
    let layout = match format {
        SynthFormat::Libsvm => Some(Layout::Libsvm),
        SynthFormat::Tsv => Some(Layout::Columns(b'\t')),
        SynthFormat::Csv => Some(Layout::Columns(b',')),
        SynthFormat::Parquet => None,
    };
    let writer = layout.map(|layout| TextWriter::new(layout, &generator));
    let mut sink = Sink::create(path, config, writer.as_ref().map(TextWriter::header))?;

    let end = config.first_row + config.rows;
    let chunks = config.first_row / CHUNK_ROWS..end.div_ceil(CHUNK_ROWS);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if config.threads == 0 { cores.min(THREADS_MAX) } else { config.threads };
    let threads = threads.min((chunks.end - chunks.start) as usize).max(1);
    let worker = Worker { config, generator: &generator, writer: writer.as_ref() };

    let (mut rows, mut logloss, mut bound, mut goes_on) = (0u64, 0.0f64, Bound::new(), true);
    std::thread::scope(|scope| -> Result<(), SampleError> {
        let (mut full, mut empty, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for thread in 0..threads {
            let (full_out, full_in) = sync_channel::<Made>(QUEUE_CHUNKS);
            let (empty_out, empty_in) = sync_channel::<Text>(QUEUE_CHUNKS + 2);
            let own = (chunks.start + thread as u64..chunks.end).step_by(threads);
            let worker = &worker;
            handles.push(scope.spawn(move || worker.work(own, &full_out, &empty_in)));
            full.push(full_in);
            empty.push(empty_out);
        }
        for (thread, _) in (0..threads).cycle().zip(chunks.clone()) {
            // A worker ends early only by a panic, which the scope passes on.
            let Ok(made) = full[thread].recv() else { break };
            let bytes = sink.write(&made.chunk)?;
            rows += made.rows;
            logloss += made.logloss;
            goes_on = progress(rows, bytes);
            if !goes_on {
                break;
            }
            if let Chunk::Text(text) = made.chunk {
                // The worker may have ended, and then needs no buffer.
                let _ = empty[thread].try_send(text);
            }
        }
        // Workers that are still busy see that the writer is gone.
        drop(full);
        for handle in handles {
            match handle.join() {
                Ok(part) => bound.merge(&part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })?;
    if !goes_on {
        return Ok(None);
    }
    debug_assert_eq!(rows, config.rows);
    Ok(Some(SynthReport {
        rows,
        positives: bound.positives(),
        bytes: sink.finish()?,
        best_auc: bound.auc(),
        best_logloss: (rows > 0).then(|| logloss / rows as f64),
        vocabularies: generator.vocabularies(),
        ids_end: generator.ids_end(),
    }))
}

/// A chunk for the writer, with the values that the report needs.
struct Made {
    chunk: Chunk,
    rows: u64,
    /// Sum over the rows; added up in order of the chunks, so that it does not depend on the threads.
    logloss: f64,
}

struct Worker<'a> {
    config: &'a SynthConfig,
    generator: &'a Generator,
    /// `None`: record batches.
    writer: Option<&'a TextWriter>,
}

impl Worker<'_> {
    /// Makes chunks until done or until the writer has gone; returns its share of the bound.
    fn work(
        &self,
        chunks: impl Iterator<Item = u64>,
        full: &SyncSender<Made>,
        empty: &Receiver<Text>,
    ) -> Bound {
        let mut bound = Bound::new();
        let mut batch = self.writer.is_none().then(|| BatchBuilder::new(self.config));
        for chunk in chunks {
            let first = (chunk * CHUNK_ROWS).max(self.config.first_row);
            let end = ((chunk + 1) * CHUNK_ROWS).min(self.config.first_row + self.config.rows);
            let mut text = empty.try_recv().unwrap_or_else(|_| Text::new());
            text.clear();
            let mut logloss = 0.0;
            self.generator.for_each_row(first..end, |row| {
                bound.add(row);
                logloss += bound::logloss(row);
                if let Some(writer) = self.writer {
                    writer.write(row, &mut text);
                }
                if let Some(batch) = &mut batch {
                    batch.push(row);
                }
            });
            let chunk = match &mut batch {
                Some(batch) => Chunk::Batch(batch.finish()),
                None => Chunk::Text(text),
            };
            if full.send(Made { chunk, rows: end - first, logloss }).is_err() {
                break;
            }
        }
        bound
    }
}
