//! Formats, compressions, and the `[data]` settings that choose among them.
//!
//! It knows names and extensions only: nothing here opens a file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use sanderling_files::without_query;

use crate::in_memory::is_in_memory;

/// The layout of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `label index:value index:value ...`, blanks between; also what libFM reads.
    Libsvm,
    /// `label field:index:value field:index:value ...`, as field-aware factorization machines read it.
    Libffm,
    /// Comma separated, quotes where needed, blanks around a field do not count.
    Csv,
    /// Tab separated; quotes and blanks are ordinary bytes.
    Tsv,
    /// Tab separated without header: label, I1..I13, C1..C26.
    Criteo,
    /// Apache Parquet.
    Parquet,
    /// Apache Arrow IPC, file or stream.
    Arrow,
    /// TensorFlow's record files of tf.Example.
    TfRecord,
    /// Length-delimited messages of `docs/formats/sample.proto`.
    Protobuf,
    /// Batch files: encoded rows in blocks that are mapped; see `docs/batch-format.md`.
    Batch,
}

impl Format {
    /// Every format, by its name in the settings.
    pub const ALL: [(&'static str, Format); 10] = [
        ("libsvm", Format::Libsvm),
        ("libffm", Format::Libffm),
        ("csv", Format::Csv),
        ("tsv", Format::Tsv),
        ("criteo", Format::Criteo),
        ("parquet", Format::Parquet),
        ("arrow", Format::Arrow),
        ("tfrecord", Format::TfRecord),
        ("protobuf", Format::Protobuf),
        ("batch", Format::Batch),
    ];

    /// The format of a file's extension, below a compression suffix: `clicks.csv.gz` is CSV.
    #[must_use]
    pub fn of_path(path: impl AsRef<Path>) -> Option<Format> {
        let path = without_query(path.as_ref());
        let stem = match Compression::of_path(path) {
            Compression::None => path.to_path_buf(),
            Compression::Gzip | Compression::Zstd => path.with_extension(""),
        };
        match stem.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "libsvm" | "svm" | "libfm" | "fm" => Some(Format::Libsvm),
            "libffm" | "ffm" => Some(Format::Libffm),
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "criteo" => Some(Format::Criteo),
            "parquet" | "pq" => Some(Format::Parquet),
            "arrow" | "arrows" | "ipc" | "feather" => Some(Format::Arrow),
            "tfrecord" | "tfrecords" => Some(Format::TfRecord),
            "protobuf" | "pb" => Some(Format::Protobuf),
            "batch" => Some(Format::Batch),
            _ => None,
        }
    }

    /// Whether the file is lines of text.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Format::Libsvm | Format::Libffm) || self.is_delimited()
    }

    /// Whether the file is lines of fields between separators.
    #[must_use]
    pub fn is_delimited(self) -> bool {
        matches!(self, Format::Csv | Format::Tsv | Format::Criteo)
    }

    /// The message type of a record, for formats of records.
    #[must_use]
    pub fn message(self) -> Option<Message> {
        match self {
            Format::TfRecord => Some(Message::Example),
            Format::Protobuf => Some(Message::Sample),
            _ => None,
        }
    }

    /// The names of all formats, for messages.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(|(name, _)| name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Format::ALL.iter().find(|(_, format)| format == self).map_or("?", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Format::ALL.iter().find(|(name, _)| *name == text);
        found
            .map(|&(_, format)| format)
            .ok_or_else(|| format!("no format {text:?}: one of {}", Format::names()))
    }
}

/// The message type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// tf.Example.
    Example,
    /// The message of `docs/formats/sample.proto`.
    Sample,
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip, one or several members.
    Gzip,
    /// Zstandard, one or several frames.
    Zstd,
}

impl Compression {
    /// The compression of a file's extension.
    #[must_use]
    pub fn of_path(path: impl AsRef<Path>) -> Compression {
        match without_query(path.as_ref()).extension().and_then(|extension| extension.to_str()) {
            Some("gz" | "gzip") => Compression::Gzip,
            Some("zst" | "zstd") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// The most bytes that [`Compression::of_magic`] looks at.
    pub(crate) const MAGIC_BYTES_MAX: usize = 4;

    /// The compression that the first bytes of a file show.
    #[must_use]
    pub fn of_magic(start: &[u8]) -> Compression {
        match start {
            // Two bytes alone might be the length of a first record; 8 is the only method.
            [0x1f, 0x8b, 8, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            // A skippable frame, as pzstd writes first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::None,
        }
    }
}

/// The policy for rows that cannot be read. As text: `fail`, `skip`, `skip:100`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum BadRowPolicy {
    /// The first bad row ends the run.
    #[default]
    Fail,
    /// Bad rows are counted and skipped, at most `max` of them.
    Skip {
        /// The most bad rows.
        max: u64,
    },
}

impl fmt::Display for BadRowPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRowPolicy::Fail => f.write_str("fail"),
            BadRowPolicy::Skip { max: u64::MAX } => f.write_str("skip"),
            BadRowPolicy::Skip { max } => write!(f, "skip:{max}"),
        }
    }
}

impl FromStr for BadRowPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("on_bad_row is \"fail\", \"skip\" or \"skip:100\", not {text:?}");
        match text {
            "fail" => Ok(BadRowPolicy::Fail),
            "skip" => Ok(BadRowPolicy::Skip { max: u64::MAX }),
            _ => {
                let max = text.strip_prefix("skip:").ok_or_else(wrong)?;
                Ok(BadRowPolicy::Skip { max: max.parse().map_err(|_| wrong())? })
            }
        }
    }
}

impl TryFrom<String> for BadRowPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BadRowPolicy> for String {
    fn from(policy: BadRowPolicy) -> String {
        policy.to_string()
    }
}

/// How input files are read: the `[data]` table of a configuration, without the file names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// The format of text files; by default the format of each file's extension. The extension of a binary format
    /// wins over it. Standard input needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// CSV and TSV: whether the first line names the columns. By default it does unless `columns` is given; with
    /// `columns`, a first line that repeats those names is taken for a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// CSV and TSV: the separator, one or several ASCII characters (`::`); by default a comma or a tab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// CSV and TSV: the names of the columns in file order. They win over a header. A file with neither has the
    /// columns `1`, `2`, `3`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// CSV and TSV: lines that start with this ASCII character are comments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<char>,
    /// Texts that mean "no value".
    pub missing: Vec<String>,
    /// The policy for rows that cannot be read.
    pub on_bad_row: BadRowPolicy,
}

impl DataConfig {
    /// The format of a file, if the settings or its name tell.
    ///
    /// If they disagree, the extension of a binary format wins: a converted file can be read with the configuration
    /// of the text that it was made from. Inputs in memory have no format.
    #[must_use]
    pub fn format_of(&self, path: impl AsRef<Path>) -> Option<Format> {
        if is_in_memory(&path) {
            return None;
        }
        let named = Format::of_path(path);
        named.filter(|format| !format.is_text()).or(self.format).or(named)
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        DataConfig {
            format: None,
            header: None,
            separator: None,
            columns: None,
            comment: None,
            missing: vec![String::new(), "?".to_string()],
            on_bad_row: BadRowPolicy::Fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_tells_the_format() {
        let rows = [
            ("a.csv", Some(Format::Csv)),
            ("a.b/clicks.TSV.gz", Some(Format::Tsv)),
            ("x.libfm.zst", Some(Format::Libsvm)),
            ("x.ffm", Some(Format::Libffm)),
            ("x.pq", Some(Format::Parquet)),
            ("day-1.tfrecords.gz", Some(Format::TfRecord)),
            ("x.pb.zst", Some(Format::Protobuf)),
            ("x.batch", Some(Format::Batch)),
            ("s3://bucket/x.batch", Some(Format::Batch)),
            ("https://host/x.csv.gz?signature=a.b/c", Some(Format::Csv)),
            ("x.gz", None),
            ("csv", None),
        ];
        for (path, format) in rows {
            assert_eq!(Format::of_path(path), format, "{path}");
        }
    }

    #[test]
    fn names_of_binary_files_are_believed() {
        let check = |set: Option<Format>, path: &str, format: Option<Format>| {
            assert_eq!(
                DataConfig { format: set, ..DataConfig::default() }.format_of(path),
                format,
                "{set:?} {path}"
            );
        };
        check(None, "x.csv", Some(Format::Csv));
        check(None, "-", None);
        check(Some(Format::Tsv), "-", Some(Format::Tsv));
        check(Some(Format::Tsv), "x.csv", Some(Format::Tsv));
        check(Some(Format::Csv), "x.batch", Some(Format::Batch));
        check(Some(Format::Csv), "x.parquet", Some(Format::Parquet));
        check(Some(Format::Batch), "x.csv", Some(Format::Batch));
    }

    #[test]
    fn the_settings_read_and_write_as_toml() {
        let config: DataConfig = toml::from_str("format = \"criteo\"\non_bad_row = \"skip:7\"").unwrap();
        assert_eq!(config.format, Some(Format::Criteo));
        assert_eq!(config.on_bad_row, BadRowPolicy::Skip { max: 7 });
        assert_eq!(config.missing, ["", "?"]);
        let back: DataConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(back, config);
        for wrong in ["on_bad_row = \"skip:x\"", "format = \"xls\"", "seperator = \",\""] {
            assert!(toml::from_str::<DataConfig>(wrong).is_err(), "{wrong}");
        }
    }
}
