//! The columns of a columnar file that are read, and the output columns that they make up. It reads no data.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::{DataType, Field as SchemaField, Schema, SchemaRef};

use sanderling_sample::SampleError;

use super::{bad_file, cells};
use crate::folder::partitions;

/// A column to read.
pub(super) struct Asked<'a> {
    pub(super) name: &'a str,
    pub(super) optional: bool,
}

/// The source of an output column.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// An index into the columns read.
    Column(usize),
    /// An optional column that the file lacks, or a missing value in its path.
    Nothing,
    /// The file's path.
    Path(String),
}

/// The columns that are read, in file order, and how they make up the output.
pub(super) struct Projection {
    /// Indices of top-level columns, ascending, each once.
    pub(super) read: Vec<usize>,
    pub(super) order: Vec<Source>,
    pub(super) schema: SchemaRef,
}

impl Projection {
    pub(super) fn new(
        path: &Path,
        schema: &Schema,
        asked: Option<&[Asked<'_>]>,
    ) -> Result<Projection, SampleError> {
        let Some(asked) = asked else {
            let read: Vec<usize> = (0..schema.fields().len()).collect();
            let order = (0..read.len()).map(Source::Column).collect();
            return Ok(Projection {
                read,
                order,
                schema: Arc::new(nullable(schema.fields().iter().cloned())),
            });
        };
        let in_path = partitions(path);
        let in_path = |name: &str| in_path.iter().find(|partition| partition.name == name);
        let mut found = Vec::with_capacity(asked.len());
        for Asked { name, optional } in asked {
            let mut matches = (0..schema.fields().len()).filter(|&index| schema.field(index).name() == name);
            let index = matches.next();
            if matches.next().is_some() {
                return Err(bad_file(path, format!("has more than one column {name:?}; rename one")));
            }
            match index {
                None if !optional && in_path(name).is_none() => {
                    let reason = format!("has no column {name:?}; its columns are {}", names(schema));
                    return Err(bad_file(path, reason));
                }
                Some(index) if !cells::is_supported(schema.field(index).data_type()) => {
                    let kind = schema.field(index).data_type();
                    let reason = format!(
                        "column {name:?} has type {kind}; expected numbers, text, booleans, times or lists of them"
                    );
                    return Err(bad_file(path, reason));
                }
                index => found.push(index),
            }
        }
        let mut read: Vec<usize> = found.iter().copied().flatten().collect();
        read.sort_unstable();
        read.dedup();
        let source = |index: &Option<usize>, asked: &Asked<'_>| match index {
            Some(index) => read.binary_search(index).map_or(Source::Nothing, Source::Column),
            None => in_path(asked.name)
                .and_then(|partition| partition.value.clone())
                .map_or(Source::Nothing, Source::Path),
        };
        let order: Vec<Source> = found.iter().zip(asked).map(|(index, asked)| source(index, asked)).collect();
        let fields =
            found.iter().zip(asked).zip(&order).map(|((index, asked), source)| match (index, source) {
                (Some(index), _) => Arc::clone(&schema.fields()[*index]),
                (None, Source::Path(_)) => Arc::new(SchemaField::new(asked.name, DataType::Utf8, true)),
                (None, _) => Arc::new(SchemaField::new(asked.name, DataType::Null, true)),
            });
        let schema = Arc::new(nullable(fields));
        Ok(Projection { read, order, schema })
    }
}

impl Projection {
    /// Takes the columns of the file out that the function accepts, and returns what it gives by output column.
    pub(super) fn take_flat<T>(&mut self, flat: impl Fn(usize) -> Option<T>) -> Vec<Option<T>> {
        let read = std::mem::take(&mut self.read);
        let taken = self.order.iter_mut().map(|source| {
            let Source::Column(index) = *source else { return None };
            let taken = flat(read[index]);
            *source = if taken.is_some() { Source::Nothing } else { Source::Column(read[index]) };
            taken
        });
        let taken = taken.collect();
        let left = self.order.iter().filter_map(|source| match source {
            Source::Column(column) => Some(*column),
            _ => None,
        });
        self.read = left.collect();
        self.read.sort_unstable();
        for source in &mut self.order {
            if let Source::Column(column) = source {
                *column = self.read.partition_point(|read| read < column);
            }
        }
        taken
    }
}

/// Makes all columns nullable: a null in a column that is declared without nulls is a missing field, not an error.
pub(super) fn nullable(fields: impl Iterator<Item = Arc<SchemaField>>) -> Schema {
    Schema::new(fields.map(|field| field.as_ref().clone().with_nullable(true)).collect::<Vec<_>>())
}

/// At most this many column names are listed in an error.
const NAMES_LISTED_MAX: usize = 50;

fn names(schema: &Schema) -> String {
    let listed: Vec<&str> =
        schema.fields().iter().take(NAMES_LISTED_MAX).map(|field| field.name().as_str()).collect();
    let more = schema.fields().len().saturating_sub(NAMES_LISTED_MAX);
    if more == 0 { listed.join(", ") } else { format!("{}, and {more} more", listed.join(", ")) }
}
