//! `sanderling key`: the keys of values of a feature, and the values of keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sanderling_formats::{BadRows, Reader};
use sanderling_learner::{Config, LearnError, Names, Reading, SavedRows};
use sanderling_sample::{Field, LabelUse, NoteName};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::reading::ReadArgs;
use crate::saved_model;

/// Largest file of keys or values.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Show the keys of values of a feature, or the values of keys
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling key runs/clicks/model user u17 u18
  sanderling key clicks.toml user u17 --json
  # values of the keys in a file, from the names in the model
  sanderling key runs/movies/model movie --invert keys.txt
  # from data, for a model without [names]
  sanderling key runs/clicks/model user --invert keys.txt --data 'clicks-*.csv'

Prints a line per value: value, tab, key; with --invert: key, tab, value, which is empty if it is not found. The feature \
spec decides the key (docs/keys.md), so a model or a configuration is needed.")]
pub(crate) struct Args {
    /// Model directory, or run configuration (TOML)
    spec: PathBuf,
    /// Feature
    feature: String,
    /// Values of the feature, as in the data
    #[arg(required_unless_present = "invert", conflicts_with = "invert")]
    values: Vec<String>,
    /// File with a key per line, decimal or hexadecimal (0x...), to find the values of; - for standard input
    #[arg(long, value_name = "FILE")]
    invert: Option<PathBuf>,
    /// Input files to search for the values of --invert [default: the names in the model]
    #[arg(long, value_name = "FILE", requires = "invert")]
    data: Vec<String>,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

#[derive(Serialize)]
struct Keys {
    feature: String,
    keys: Vec<KeyOf>,
}

#[derive(Serialize)]
struct KeyOf {
    value: Option<String>,
    key: u64,
    hex: String,
}

impl KeyOf {
    fn new(key: u64, value: Option<String>) -> KeyOf {
        KeyOf { value, key, hex: format!("{key:016x}") }
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let is_model = args.spec.is_dir() || saved_model::is_missing(&args.spec);
    let saved = if is_model { Some(SavedRows::open(&args.spec)?) } else { None };
    let mut reading = match &saved {
        Some(saved) => saved.reading().cloned().ok_or_else(|| {
            let reason =
                "keeps no feature spec here, which decides the keys; name its configuration".to_owned();
            LearnError::Model { path: args.spec.clone(), reason }
        })?,
        None => (&Config::read_data(&args.spec, &args.reading.set, &crate::DEEP_MODELS, |_| {})?).into(),
    };
    args.reading.apply(&mut reading.data);
    let keys = match &args.invert {
        Some(file) => {
            let keys = keys_of(file)?;
            let values = values_of(args, &reading, saved.as_ref(), &keys)?;
            keys.into_iter().map(|key| KeyOf::new(key, values.get(key))).collect()
        }
        None => {
            let key = |value: &String| {
                Ok(KeyOf::new(
                    reading.key(&args.feature, Field::Text(value.as_bytes()))?,
                    Some(value.clone()),
                ))
            };
            args.values.iter().map(key).collect::<Result<Vec<_>, Failure>>()?
        }
    };
    if args.json {
        output::json(&Keys { feature: args.feature.clone(), keys })?;
        return Ok(0);
    }
    let missing = keys.iter().filter(|key| key.value.is_none()).count();
    let line = |key: &KeyOf| {
        let value = key.value.as_deref().unwrap_or_default();
        if args.invert.is_some() { format!("{}\t{value}", key.key) } else { format!("{value}\t{}", key.key) }
    };
    output::text(&keys.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    if missing > 0 && !args.quiet {
        note!("{missing} of {} keys were not found", keys.len());
    }
    Ok(0)
}

/// The keys in a file, one per line, in their order.
fn keys_of(file: &Path) -> Result<Vec<u64>, Failure> {
    let failed = |source| LearnError::Io { path: file.to_path_buf(), source };
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|it| it.take(FILE_BYTES_MAX).read_to_string(&mut text)),
    };
    read.map_err(failed)?;
    let parse = |(line, number): (&str, u64)| {
        let line = line.trim();
        let key = match line.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => line.parse().ok(),
        };
        key.ok_or_else(|| {
            let file = file.display();
            Failure::Usage(format!(
                "{file}:{number}: {line:?} is no key: a number from 0 to 2^64 - 1, or 0x and hex digits"
            ))
        })
    };
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines.map(parse).collect()
}

/// The values of keys.
enum Values {
    Names(Names),
    Found(BTreeMap<u64, String>),
}

impl Values {
    fn get(&self, key: u64) -> Option<String> {
        match self {
            Values::Names(names) => names.get(key).map(str::to_owned),
            Values::Found(found) => found.get(&key).cloned(),
        }
    }
}

fn values_of(
    args: &Args,
    reading: &Reading,
    saved: Option<&SavedRows>,
    keys: &[u64],
) -> Result<Values, Failure> {
    let Some(feature) = reading.spec.feature.iter().find(|feature| feature.name == args.feature) else {
        return Err(Failure::Usage(format!("{}: no feature {:?}", args.spec.display(), args.feature)));
    };
    if !args.data.is_empty() {
        return search(args, reading, keys).map(Values::Found);
    }
    let names = saved.map(|saved| saved.names(feature.table())).transpose()?.unwrap_or_default();
    if names.is_empty() {
        let advice = "name files to search with --data, or train with [names] in the configuration";
        return Err(Failure::Usage(format!(
            "{}: has no names of {:?}; {advice}",
            args.spec.display(),
            args.feature
        )));
    }
    Ok(Values::Names(names))
}

/// Finds the values of keys in data.
#[derive(Debug)]
struct Search {
    wanted: BTreeSet<u64>,
    found: Mutex<BTreeMap<u64, String>>,
}

impl NoteName for Search {
    fn note(&self, _: usize, key: u64, text: &[u8]) {
        if self.wanted.contains(&key) {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.entry(key).or_insert_with(|| String::from_utf8_lossy(text).into_owned());
        }
    }
}

fn search(args: &Args, reading: &Reading, keys: &[u64]) -> Result<BTreeMap<u64, String>, Failure> {
    let Reading { data: reading, mut spec } = reading.clone();
    spec.feature.retain(|feature| feature.name == args.feature);
    spec.weight = None;
    spec.negatives = None;
    let search = Arc::new(Search { wanted: keys.iter().copied().collect(), found: Mutex::default() });
    let options = sanderling_sample::EncodeOptions {
        missing: &reading.missing,
        label: LabelUse::Optional,
        down_sample: false,
    };
    let encoder =
        sanderling_sample::Encoder::new(&spec, &options)?.noting(&(Arc::clone(&search) as Arc<dyn NoteName>));
    let encoder = Arc::new(encoder);
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let mut reader = Reader::with_bad_rows(&args.data, &reading, &encoder, bad_rows)?;
    let (bar, mut batch) = (Bar::new(args.quiet), encoder.new_batch());
    while reader.next(&mut batch)? {
        batch.clear();
        bar.scan("searching", reader.source().bytes_read(), reader.source().bytes_total());
        if search.found.lock().unwrap_or_else(PoisonError::into_inner).len() == search.wanted.len() {
            break;
        }
    }
    bar.finish();
    Ok(std::mem::take(&mut search.found.lock().unwrap_or_else(PoisonError::into_inner)))
}
