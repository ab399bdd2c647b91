//! How fast text becomes batches: libsvm with every instruction set of this machine, beside counting line feeds (the
//! floor) and, for CSV, a spec that reads one column (nearly all cutting) and one that hashes all of them.
//!
//! `cargo run --release -p sanderling-formats --example parse_speed [-- --tiny | FILE.libsvm]`
//!
//! Rounds are interleaved and medians printed, one thread. It makes its own text unless a file is named; it knows no
//! generator of realistic data.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sanderling_formats::{
    BLOCK_BYTES, BadRowPolicy, BadRows, Block, DataConfig, Decoder, Format, Isa, Reader, count_newlines,
};
use sanderling_random::SplitMix64;
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, Spec};

const TEXT_BYTES: usize = 64 << 20;
const TINY_TEXT_BYTES: usize = 1 << 20;
const ROUNDS: usize = 15;
const TINY_ROUNDS: usize = 3;
const NUMERIC_FEATURES: u64 = 13;
const CATEGORICAL_FEATURES: u64 = 26;

type Failure = Box<dyn std::error::Error>;

/// Lines of 39 features: 13 numbers of one to four digits, a third with two decimals, and 26 ids of one to eight
/// digits.
fn libsvm_text(bytes: usize) -> Result<String, Failure> {
    let (mut random, mut text) = (SplitMix64::new(7), String::new());
    while text.len() < bytes {
        write!(text, "{}", u8::from(random.below(4) == 0))?;
        for feature in 1..=NUMERIC_FEATURES {
            let digits = 1 + random.below(4) as u32;
            let whole = random.below(10_u64.pow(digits));
            match random.below(3) {
                0 => write!(text, " {feature}:{whole}.{:02}", random.below(100))?,
                _ => write!(text, " {feature}:{whole}")?,
            }
        }
        for feature in 0..CATEGORICAL_FEATURES {
            let vocabulary = 10_u64.pow(2 + (feature % 6) as u32);
            write!(text, " {}:1", 14 + feature * 1_000_000 + random.below(vocabulary))?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn csv_text(bytes: usize) -> Result<String, Failure> {
    let mut random = SplitMix64::new(8);
    let mut text = "label".to_string();
    (1..=CATEGORICAL_FEATURES + NUMERIC_FEATURES).try_for_each(|n| write!(text, ",f{n}"))?;
    text.push('\n');
    while text.len() < bytes {
        write!(text, "{}", random.below(2))?;
        (0..NUMERIC_FEATURES).try_for_each(|_| write!(text, ",{}", random.below(1000)))?;
        (0..CATEGORICAL_FEATURES).try_for_each(|_| write!(text, ",{:08x}", random.below(1 << 32)))?;
        text.push('\n');
    }
    Ok(text)
}

fn encoder(spec: &Spec) -> Result<Arc<Encoder>, Failure> {
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Ok(Arc::new(Encoder::new(spec, &options)?))
}

/// Cuts a text into blocks of whole lines, as a source would.
fn blocks(text: &[u8]) -> Vec<Block> {
    let (mut rest, mut blocks) = (text, Vec::new());
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(BLOCK_BYTES)];
        let end = window.iter().rposition(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
        blocks.push(Block::of_text(&rest[..end], 1));
        rest = &rest[end..];
    }
    blocks
}

/// Name, bytes per round, and what to time.
type Contestant<'a> = (String, usize, Box<dyn FnMut() -> Result<usize, Failure> + 'a>);

fn race(mut contestants: Vec<Contestant<'_>>, rounds: usize) -> Result<(), Failure> {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    for _ in 0..=rounds {
        for ((_, _, run), times) in contestants.iter_mut().zip(&mut times) {
            let start = Instant::now();
            std::hint::black_box(run()?);
            times.push(start.elapsed().as_secs_f64());
        }
    }
    for ((name, bytes, _), times) in contestants.iter().zip(&mut times) {
        // The first round warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let speed = |time: f64| *bytes as f64 / time / 1e9;
        let (median, best) = (speed(times[times.len() / 2]), speed(times[0]));
        println!("{name:34} {median:7.3} GB/s   (best {best:.3})");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let argument = std::env::args().nth(1);
    let is_tiny = argument.as_deref() == Some("--tiny");
    let (bytes, rounds) = if is_tiny { (TINY_TEXT_BYTES, TINY_ROUNDS) } else { (TEXT_BYTES, ROUNDS) };
    let text = match &argument {
        Some(file) if !is_tiny => std::fs::read(file)?,
        _ => libsvm_text(bytes)?.into_bytes(),
    };
    let sparse = encoder(&Spec::libsvm())?;
    let blocks = blocks(&text);
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let folder = std::env::temp_dir().join(format!("parse_speed_{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let csv = csv_text(bytes)?;
    let csv_file = folder.join("text.csv");
    let libsvm_file = folder.join("text.libsvm");
    std::fs::write(&csv_file, &csv)?;
    std::fs::write(&libsvm_file, &text)?;
    let all: Vec<String> =
        (1..=CATEGORICAL_FEATURES + NUMERIC_FEATURES).map(|n| format!("\"f{n}\"")).collect();
    let one_column = encoder(&toml::from_str("[[feature]]\nname = \"f39\"")?)?;
    let all_columns = encoder(&toml::from_str(&format!("[[feature]]\neach = [{}]", all.join(", ")))?)?;
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for &isa in &isas {
        let blocks = &blocks;
        let count = move || Ok(blocks.iter().map(|block| count_newlines(isa, block.text())).sum());
        contestants.push((format!("count line feeds, {isa:?}"), text.len(), Box::new(count)));
    }
    for &isa in &isas {
        let bad_rows = Arc::new(BadRows::new(BadRowPolicy::Fail));
        let mut decoder = Decoder::with_isa(Arc::clone(&sparse), bad_rows, isa);
        let mut batch: Batch = sparse.new_batch();
        let blocks = &blocks;
        let decode = move || {
            let mut rows = 0;
            for block in blocks {
                batch.clear();
                decoder.decode_lines(block, false, Path::new("text"), &mut batch)?;
                rows += batch.len();
            }
            Ok(rows)
        };
        contestants.push((format!("libsvm, {isa:?}"), text.len(), Box::new(decode)));
    }
    let files = [
        ("libsvm from a file", Format::Libsvm, &libsvm_file, text.len(), &sparse),
        ("CSV from a file, 1 column of 40", Format::Csv, &csv_file, csv.len(), &one_column),
        ("CSV from a file, 40 columns", Format::Csv, &csv_file, csv.len(), &all_columns),
    ];
    for (name, format, file, bytes, encoder) in files {
        let config = DataConfig { format: Some(format), ..DataConfig::default() };
        let mut batch = encoder.new_batch();
        let read = move || {
            let mut reader = Reader::open(&[file.to_string_lossy().into_owned()], &config, encoder)?;
            let mut rows = 0;
            while reader.next(&mut batch)? {
                rows += batch.len();
                batch.clear();
            }
            Ok(rows)
        };
        contestants.push((name.to_string(), bytes, Box::new(read)));
    }
    println!(
        "{} MB of libsvm text, {} bytes a line",
        text.len() >> 20,
        text.len() / count_newlines(isas[0], &text)
    );
    let raced = race(contestants, rounds);
    std::fs::remove_dir_all(&folder)?;
    raced
}
