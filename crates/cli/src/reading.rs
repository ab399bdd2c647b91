//! Options for reading input files, shared by all commands that read any.

use std::path::Path;

use clap::Args;
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Format};

use crate::failure::Failure;
use crate::output;

/// Input options; each overrides the setting of the model or the configuration.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct ReadArgs {
    /// Input format: libsvm, libffm, csv, tsv, criteo, parquet, arrow, tfrecord, protobuf or batch
    /// [default: by file extension]
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// Column separator of CSV and TSV: one or more ASCII characters, such as :: [default: comma or tab, by format]
    #[arg(long, value_name = "TEXT")]
    pub(crate) separator: Option<String>,
    /// Header line in CSV and TSV files; true overrides configured columns [default: false with columns, else true]
    #[arg(long, value_name = "true|false")]
    pub(crate) header: Option<bool>,
    /// Column names in file order, separated by commas, for files without a header
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) columns: Option<Vec<String>>,
    /// First character of comment lines in CSV and TSV [default: none]
    #[arg(long, value_name = "CHAR")]
    pub(crate) comment: Option<char>,
    /// Action on a bad row: fail, skip, or skip:N (skip up to N rows per pass, then fail) [default: fail]
    #[arg(long, value_name = "POLICY")]
    pub(crate) on_bad_row: Option<BadRowPolicy>,
}

impl ReadArgs {
    /// Overrides settings of `config` by the options.
    pub(crate) fn apply(&self, config: &mut DataConfig) {
        if self.format.is_some() {
            config.format = self.format;
        }
        if self.separator.is_some() {
            config.separator.clone_from(&self.separator);
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

    /// Refuses options that no input uses, as far as formats are known. Settings in a configuration are not refused: they may
    /// belong to other inputs.
    pub(crate) fn check_used<'a>(
        &self,
        config: &DataConfig,
        inputs: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), Failure> {
        let mut first = None;
        for input in inputs {
            match config.format_of(input) {
                Some(format) if !format.is_delimited() => first = first.or(Some((format, input))),
                _ => return Ok(()),
            }
        }
        first.map_or(Ok(()), |(format, input)| self.check_used_by(format, input))
    }

    /// Refuses options that one input of this format does not use.
    pub(crate) fn check_used_by(&self, format: Format, input: &str) -> Result<(), Failure> {
        let given: Vec<&str> = [
            ("--separator", self.separator.is_some()),
            ("--header", self.header.is_some()),
            ("--columns", self.columns.is_some()),
            ("--comment", self.comment.is_some()),
        ]
        .into_iter()
        .filter_map(|(option, is_given)| is_given.then_some(option))
        .collect();
        if given.is_empty() || format.is_delimited() {
            return Ok(());
        }
        let given = given.join(", ");
        Err(Failure::Usage(format!("{given}: only for CSV and TSV, and {input} is {format}")))
    }
}

/// Reports the number of bad rows, and the reasons of the first ones, on standard error.
pub(crate) fn report_bad_rows(bad_rows: &BadRows) {
    let headers = bad_rows.headers();
    if headers > 0 {
        note!("{} repeated header lines were skipped", output::count(headers));
    }
    report_skipped(bad_rows.count(), &bad_rows.messages());
}

/// Reports this number of bad rows, and the reasons of the first ones, on standard error; nothing for 0.
pub(crate) fn report_skipped(count: u64, messages: &[String]) {
    if count > 0 {
        note!("{} bad rows were skipped; the first:", output::count(count));
        messages.iter().for_each(|message| note!("  {message}"));
    }
}

/// Refuses an output that would replace one of the input files; `option` names it in the error.
pub(crate) fn not_an_input(option: &str, output: &Path, inputs: &[String]) -> Result<(), Failure> {
    let inputs = sanderling_formats::input::expand(inputs)?;
    Ok(output::not_over(option, output, inputs.iter().map(|input| input.path.as_path()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_nothing_has_a_use_for() {
        let check = |args: ReadArgs, inputs: &[&str], expected: Option<&str>| {
            let mut config = DataConfig::default();
            args.apply(&mut config);
            let inputs: Vec<String> = inputs.iter().map(ToString::to_string).collect();
            let found = args.check_used(&config, &inputs).map_err(|error| error.to_string());
            assert_eq!(found.err().as_deref(), expected, "{inputs:?}");
        };
        let columns = || ReadArgs { columns: Some(vec!["a".to_string()]), ..ReadArgs::default() };
        let text = "--columns: only for CSV and TSV, and a.parquet is parquet";
        check(columns(), &["a.parquet", "b.arrow"], Some(text));
        check(ReadArgs::default(), &["a.parquet"], None);
        check(columns(), &["a.parquet", "b.csv.gz"], None);
        // The formats of the files are not known yet.
        check(columns(), &["a.parquet", "data/*"], None);
        check(columns(), &[], None);
        let two = ReadArgs { header: Some(true), comment: Some('#'), ..ReadArgs::default() };
        let text = "--header, --comment: only for CSV and TSV, and data/*.svm is libsvm";
        check(two, &["data/*.svm"], Some(text));
        let given = ReadArgs {
            format: Some(Format::TfRecord),
            separator: Some(";".to_string()),
            ..ReadArgs::default()
        };
        check(given, &["-"], Some("--separator: only for CSV and TSV, and - is tfrecord"));
    }
}
