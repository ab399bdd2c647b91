//! `sanderling export`: the rows of a saved table, or the dense part of a deep model, as a file of another program.

mod rows;

use std::path::{Path, PathBuf};

use sanderling_formats::Compression;
use sanderling_learner::{LearnError, SavedRows, is_deep};
use serde::Serialize;

use crate::deep::{DeepModels, not_here};
use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use rows::{Layout, RowWriter};

/// Rows between two looks at the progress.
const ROWS_PER_LOOK: u64 = 1 << 16;

/// Write the rows of a table to a Parquet, npy or TSV file, or the dense part of a deep model to an ONNX file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # key, name, frequency and weights of every row
  sanderling export runs/clicks/model --table movie -o movies.parquet
  # the 1000 rows that were trained most often, as text
  sanderling export runs/clicks/model --table movie --top 1000 -o - | head
  # the dense part of a deep model, after which sanderling serve takes the model
  sanderling export runs/clicks/model --onnx

Formats, by the name of the output:
  .parquet  columns key, name, frequency, weights (a list); name is null without [names] in the configuration
  .npy      a structured array: rows = numpy.load(FILE); rows[\"key\"], rows[\"frequency\"], rows[\"weights\"]
  .tsv      a header, then a line per row; - writes TSV to standard output

Rows are in the order of their frequency with --top, otherwise in that of the saved file. The first weight of a row of \
a built-in model is its linear weight, the others are its factors. For neighbours of millions of rows, build an index \
from the weights: faiss.IndexFlatIP, or usearch.Index.

--onnx writes dense.onnx and serving.json into the model directory. An input has the name of its feature: the pooled row of \
an embedding, or a number. It needs the Python package with torch and onnxscript: pip install 'sanderling[torch,onnx]'.")]
pub(crate) struct Args {
    /// Model directory, such as runs/clicks/model, also of a deep model
    model: PathBuf,
    /// Name of the table or feature; may be left out for a single table
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Output file; its ending selects the format; - for TSV on standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "onnx")]
    output: Option<PathBuf>,
    /// Write the dense part of a deep model into its directory
    #[arg(long, conflicts_with_all = ["table", "output", "top", "force"])]
    onnx: bool,
    /// Number of rows to write, the most frequent ones first [default: all]
    #[arg(long, value_name = "N", value_parser = crate::quantity::count)]
    top: Option<u64>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Print a summary as a JSON object on the last line of standard output; needs --output FILE
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
struct Exported {
    table: String,
    rows: u64,
    dim: usize,
    /// Rows with a name.
    named: u64,
    bytes: Option<u64>,
    output: PathBuf,
}

pub(crate) fn run(args: &Args, deep: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    match &args.output {
        Some(output) => rows_of(args, output),
        None => dense_part(args, deep),
    }
}

/// Exports the dense part of a deep model.
fn dense_part(args: &Args, deep: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    if !is_deep(&args.model) {
        let path = args.model.display();
        return Err(Failure::Usage(format!(
            "--onnx: {path} is no deep model; serve takes lr, fm and ffm models as they are"
        )));
    }
    let exported = deep.ok_or_else(|| not_here(&args.model))?.export_onnx(&args.model)?;
    if args.json {
        output::json(&exported)?;
    } else if !args.quiet {
        let (inputs, file) = (exported.inputs.len(), exported.output.display());
        note!(
            "dense part with {inputs} inputs in {file}; sanderling serve {} takes it",
            args.model.display()
        );
    }
    Ok(0)
}

/// Exports the rows of a table.
fn rows_of(args: &Args, file: &Path) -> Result<u8, Failure> {
    let to_stdout = file.as_os_str() == "-";
    if args.json && to_stdout {
        return Err(Failure::Usage(
            "--json needs --output FILE: the rows themselves go to standard output".into(),
        ));
    }
    if Compression::of_path(file) != Compression::None {
        let name = file.display();
        return Err(Failure::Usage(format!(
            "--output {name}: compressed output is not supported; .parquet is small"
        )));
    }
    output::not_a_url("--output", file)?;
    let layout = Layout::of(file).ok_or_else(|| {
        let name = file.display();
        Failure::Usage(format!("--output {name}: end the name in .parquet, .npy or .tsv"))
    })?;
    if !to_stdout {
        output::not_there(file, args.force)?;
        output::check(file)?;
    }
    let saved = SavedRows::open(&args.model)?;
    let table = saved.table(args.table.as_deref())?;
    let names = saved.names(&table.name)?;
    let rows = args.top.map_or(table.rows, |top| top.min(table.rows));
    let not_written = |error: &std::io::Error| output::not_written(file, error);
    let mut writer = RowWriter::create(file, layout, table.dim, rows).map_err(|error| not_written(&error))?;
    let bar = Bar::new(args.quiet || to_stdout);
    let (mut done, mut named) = (0, 0);
    let failed = |source| LearnError::Io { path: file.to_owned(), source };
    let mut write = |key: u64, frequency: u32, weights: &[f32]| {
        let name = names.get(key);
        named += u64::from(name.is_some());
        writer.write(key, name, frequency, weights).map_err(failed)?;
        done += 1;
        if done % ROWS_PER_LOOK == 0 {
            bar.rows("exporting", done, Some(rows));
        }
        Ok(())
    };
    match args.top {
        None => saved.for_each_row(&table.name, |row| write(row.key, row.frequency, row.weights))?,
        Some(_) => {
            let top = rows::most_frequent(&saved, &table.name, rows)?;
            top.iter().try_for_each(|row| write(row.key, row.frequency, &row.weights))?;
        }
    }
    bar.finish();
    let bytes = writer.finish().map_err(|error| not_written(&error))?;
    let (table, dim, output) = (table.name.clone(), table.dim, file.to_owned());
    let exported = Exported { table, rows: done, dim, named, bytes, output };
    if args.json {
        output::json(&exported)?;
    } else if !to_stdout && !args.quiet {
        let (rows, table) = (output::count(exported.rows), &exported.table);
        note!("{rows} rows of table {table:?} in {}", file.display());
    }
    Ok(0)
}
