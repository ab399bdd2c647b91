//! Folders of data files as Spark and Hive write them: which files hold data, and which columns are in their paths
//! (`day=2024-01-01/part-0.parquet`). Opens no file.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use sanderling_files::without_query;
use sanderling_sample::SampleError;

/// Partitions may be nested this deep.
const PARTITIONS_DEEP_MAX: usize = 32;

/// The name that Hive and Spark write for a missing value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Whether a file or folder of this name holds no data: `_SUCCESS`, `_temporary`, `.part-0.crc`. A partition column
/// may begin with `_`.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
}

/// Whether a pattern skips a match: a hidden file, or one in a hidden folder that its wildcards do not name.
pub(crate) fn passes_over(pattern: &str, found: &Path) -> bool {
    let found = found.to_string_lossy();
    let literal = pattern.split('/').take_while(|part| !part.contains(['*', '?', '['])).count();
    // Counted from the end, since a match may be spelled differently (`./x*` as `x1`); `**` matches any depth.
    let parts = found.split('/').count();
    let literal = if pattern.contains("**") {
        literal
    } else {
        parts.saturating_sub(pattern.split('/').count() - literal)
    };
    let named = |part: &str| {
        let last = pattern.rsplit('/').next().unwrap_or_default();
        last.chars().next().is_some_and(|first| part.starts_with(first))
    };
    found.split('/').skip(literal).any(|part| is_hidden(part) && !named(part))
}

/// The data files of a folder and its partitions, sorted by name.
///
/// # Errors
/// A folder that cannot be listed, holds no data, or holds folders that are no partitions.
pub(crate) fn data_files(folder: &Path) -> Result<Vec<PathBuf>, SampleError> {
    let mut files = Vec::new();
    list(folder, PARTITIONS_DEEP_MAX, &mut files)?;
    if files.is_empty() {
        let reason =
            "is a folder without data files (names that begin with \".\" or \"_\" are none)".to_string();
        return Err(SampleError::BadFile { path: folder.to_path_buf(), reason });
    }
    Ok(files)
}

fn list(folder: &Path, deep_max: usize, files: &mut Vec<PathBuf>) -> Result<(), SampleError> {
    let failed = |source| SampleError::Io { path: folder.to_path_buf(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !is_hidden(&entry.file_name().to_string_lossy()) {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    for path in paths {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        if !is_partition(&path) || deep_max == 0 {
            let how = path.join("*");
            let reason = format!(
                "is a folder in a folder of data, and no partition (key=value); name its files: {}",
                how.display()
            );
            return Err(SampleError::BadFile { path, reason });
        }
        list(&path, deep_max - 1, files)?;
    }
    Ok(())
}

/// Whether a folder is one of the partitions of another.
pub(crate) fn is_partition(folder: &Path) -> bool {
    partition(&folder.file_name().unwrap_or_default().to_string_lossy()).is_some()
}

/// A column whose value is in the path of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The name of the column.
    pub name: String,
    /// `None`: a missing value.
    pub value: Option<String>,
}

/// The columns in the path of a file or url. The last one of a repeated name counts.
pub fn partitions(path: &Path) -> Vec<Partition> {
    let path = without_query(path).to_string_lossy().into_owned();
    let (folders, _) = path.rsplit_once('/').unwrap_or_default();
    let mut found: Vec<Partition> = Vec::new();
    for partition in folders.split('/').filter_map(partition) {
        found.retain(|other| other.name != partition.name);
        found.push(partition);
    }
    found
}

fn partition(folder: &str) -> Option<Partition> {
    let (name, value) = folder.split_once('=')?;
    let value = (value != NO_VALUE && !value.is_empty()).then(|| unescaped(value));
    (!name.is_empty()).then(|| Partition { name: unescaped(name), value })
}

/// Decodes the percent signs that Hive writes, such as `%3A`.
fn unescaped(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_the_path() {
        let check = |path: &str, expected: &[(&str, Option<&str>)]| {
            let found = partitions(Path::new(path));
            let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.value.as_deref())).collect();
            assert_eq!(found, expected, "{path}");
        };
        check("clicks/day=2024-01-01/hour=7/part-0.csv", &[("day", Some("2024-01-01")), ("hour", Some("7"))]);
        check("s3://b/a%20b=x%3Ay%2/_c=1/p", &[("a b", Some("x:y%2")), ("_c", Some("1"))]);
        check("day=__HIVE_DEFAULT_PARTITION__/p", &[("day", None)]);
        check("a=1/a=2/p", &[("a", Some("2"))]);
        check("day=1.csv", &[]);
        check("=x/p", &[]);
        check("https://h/x/p.csv?a=1/b=2/c", &[]);
    }

    #[test]
    fn patterns_pass_over_what_holds_no_data() {
        let check = |pattern: &str, found: &str, expected: bool| {
            assert_eq!(passes_over(pattern, Path::new(found)), expected, "{pattern} {found}");
        };
        check("a/*", "a/part-0", false);
        check("a/*", "a/_SUCCESS", true);
        check("a/*", "a/.part-0.crc", true);
        check("./*", "_SUCCESS", true);
        check("a/_*", "a/_SUCCESS", false);
        check("a/.*", "a/.x", false);
        check("_a/.b/*", "_a/.b/x", false);
        check("a/**", "a/_temporary/0/part-0", true);
        check("a/**", "a/_day=1/part-0", false);
        check("s3://b/a/*", "s3://b/a/_SUCCESS", true);
    }
}
