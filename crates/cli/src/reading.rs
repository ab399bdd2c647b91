//! Options about how input files are read, shared by all commands that read some.

use std::path::Path;

use clap::Args;
use sanderling_sample::{BadRowPolicy, BadRows, DataConfig, Format};

use crate::failure::Failure;
use crate::output;

/// How to read the input; each option wins over the model's or the configuration's own setting.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct ReadArgs {
    /// libsvm, csv, tsv, criteo, parquet, arrow, tfrecord, protobuf or batch [default: by the file's extension]
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// Column separator of CSV and TSV, one character
    #[arg(long, value_name = "CHAR")]
    pub(crate) separator: Option<char>,
    /// Whether CSV and TSV files begin with a line of column names; true: use those, not the saved `columns`
    #[arg(long, value_name = "true|false")]
    pub(crate) header: Option<bool>,
    /// Column names, separated by commas, for files that do not name them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) columns: Option<Vec<String>>,
    /// Lines of CSV and TSV files that start with this character are comments
    #[arg(long, value_name = "CHAR")]
    pub(crate) comment: Option<char>,
    /// What to do with rows that cannot be read: fail, skip or skip:MAX
    #[arg(long, value_name = "POLICY")]
    pub(crate) on_bad_row: Option<BadRowPolicy>,
}

impl ReadArgs {
    /// Lays the options over the settings.
    pub(crate) fn apply(&self, config: &mut DataConfig) {
        if self.format.is_some() {
            config.format = self.format;
        }
        if self.separator.is_some() {
            config.separator = self.separator;
        }
        if self.header.is_some() {
            config.header = self.header;
        }
        if self.columns.is_some() {
            config.columns.clone_from(&self.columns);
        } else if self.header == Some(true) {
            // The file's own names, not those that other files of the configuration needed.
            config.columns = None;
        }
        if self.comment.is_some() {
            config.comment = self.comment;
        }
        if let Some(policy) = self.on_bad_row {
            config.on_bad_row = policy;
        }
    }
}

/// Says on standard error how many rows were left out and why the first of them were.
pub(crate) fn report_bad_rows(bad_rows: &BadRows) {
    let count = bad_rows.count();
    if count > 0 {
        note!("{} bad rows were left out; the first of them:", output::count(count));
        bad_rows.messages().iter().for_each(|message| note!("  {message}"));
    }
}

/// Refuses an output that would replace one of the input files.
pub(crate) fn not_an_input(output: &Path, inputs: &[String]) -> Result<(), Failure> {
    let inputs = sanderling_sample::input::expand(inputs)?;
    output::not_over("--output", output, inputs.iter().map(|input| input.path.as_path()))
}
