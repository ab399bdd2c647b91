//! Columns whose values are in the paths of files, as in Hive partitions. Opens no file.

use std::path::PathBuf;

use sanderling_formats::folder::partitions;

use super::column::ColumnStats;
use super::{DataProfile, LABEL_VALUES, limits_of};

/// Adds the columns of the files' paths that the first file lacks; values are counted once per file.
pub(super) fn add_columns(profile: &mut DataProfile, files: &[PathBuf], top: usize) {
    let mut found: Vec<(String, ColumnStats, u64)> = Vec::new();
    for file in files {
        for partition in partitions(file) {
            if profile.columns.iter().any(|column| column.name == partition.name) {
                continue;
            }
            let at = found.iter().position(|(name, ..)| *name == partition.name).unwrap_or_else(|| {
                let stats = ColumnStats::new(&partition.name, limits_of(1));
                found.push((partition.name.clone(), stats, 0));
                found.len() - 1
            });
            let (_, stats, files_with) = &mut found[at];
            *files_with += 1;
            match &partition.value {
                Some(value) => stats.add(value.as_bytes()),
                None => stats.add_missing(),
            }
        }
    }
    let files = files.len() as u64;
    profile.columns.extend(found.into_iter().map(|(_, mut stats, files_with)| {
        stats.add_missing_rows(files - files_with);
        stats.finish(top.max(LABEL_VALUES))
    }));
}
