//! Flat columns of a Parquet file, by page: the thread that holds the file fetches stored pages, and the thread that
//! encodes their rows unpacks and decodes them. Other columns, and pages in other encodings, are left to the parquet crate.

mod page;
mod runs;

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, Schema};
use parquet::basic::{Compression, Encoding};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::cells::Cells;
use super::encode::RawColumn;
use super::pages::Pages;
use super::pages::header::{Header, encoding};
use page::{Dictionary, Kind, Page};

/// Some rows of a flat column, not decoded yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    parts: Vec<(Arc<Page>, Range<usize>)>,
}

impl Piece {
    /// Unpacks pages that no other thread is unpacking. Called for all columns before their cells are wanted, so that
    /// threads whose rows share pages divide them.
    pub(super) fn unpack_unless_busy(&self) {
        self.parts.iter().for_each(|(page, _)| page.unpack_unless_busy());
    }

    /// Decodes the rows.
    ///
    /// # Errors
    /// The reason that a page does not decode.
    pub(super) fn cells(&self) -> Result<Cells, String> {
        if let [(page, rows)] = &self.parts[..] {
            return page.cells(rows);
        }
        let (mut parts, mut end) = (Vec::with_capacity(self.parts.len()), 0);
        for (page, rows) in &self.parts {
            end += rows.len();
            parts.push((end, page.cells(rows)?));
        }
        Ok(Cells::Parts(parts))
    }
}

/// The failure to fetch a page.
#[derive(Debug)]
pub(super) enum Failed {
    /// A page of a kind that only the parquet crate decodes.
    Unsupported,
    /// A page that does not read.
    Damaged(ParquetError),
}

/// A column whose pages are fetched in order.
#[derive(Debug)]
pub(super) struct FlatColumn {
    kind: Arc<Kind>,
    /// Bytes and rows of the column in each row group that is left.
    chunks: std::vec::IntoIter<(Range<u64>, u64)>,
    /// Unread bytes and rows of the present row group.
    bytes: Range<u64>,
    rows: u64,
    dictionary: Option<Arc<Dictionary>>,
    /// The last page, and how many of its rows were given out.
    page: Option<(Arc<Page>, usize)>,
}

impl FlatColumn {
    /// The top-level column of this index in the schema, if all of its row groups are flat.
    pub(super) fn new(metadata: &ParquetMetaData, schema: &Schema, column: usize) -> Option<FlatColumn> {
        let descr = metadata.file_metadata().schema_descr();
        let mut leaves = (0..descr.num_columns()).filter(|leaf| descr.get_column_root_idx(*leaf) == column);
        let leaf = leaves.next().filter(|_| leaves.next().is_none())?;
        let (kind, leaf_descr) = (schema.field(column).data_type(), descr.column(leaf));
        let kind = if let DataType::Dictionary(_, value) = kind { value.as_ref() } else { kind };
        if leaf_descr.max_rep_level() > 0
            || leaf_descr.max_def_level() > 1
            || leaf_descr.path().parts().len() > 1
            || !Kind::is_flat(leaf_descr.physical_type(), kind)
        {
            return None;
        }
        let mut codec = None;
        let mut chunks = Vec::with_capacity(metadata.num_row_groups());
        for group in metadata.row_groups() {
            let chunk = group.column(leaf);
            let is_known = |encoding: Encoding| {
                use Encoding as E;
                #[allow(deprecated, reason = "levels are listed with it, though no page has it")]
                let levels = matches!(encoding, E::RLE | E::BIT_PACKED);
                levels || matches!(encoding, E::PLAIN | E::PLAIN_DICTIONARY | E::RLE_DICTIONARY)
            };
            let is_same = *codec.get_or_insert(chunk.compression()) == chunk.compression();
            if !is_same || !chunk.encodings().all(is_known) || chunk.num_values() != group.num_rows() {
                return None;
            }
            let (start, length) = chunk.byte_range();
            chunks.push((start..start.checked_add(length)?, u64::try_from(group.num_rows()).ok()?));
        }
        let codec = codec.unwrap_or(Compression::UNCOMPRESSED);
        if matches!(codec, Compression::LZ4 | Compression::LZO) {
            return None;
        }
        let is_optional = leaf_descr.max_def_level() > 0;
        let kind = Kind { physical: leaf_descr.physical_type(), kind: kind.clone(), codec, is_optional };
        let (chunks, kind) = (chunks.into_iter(), Arc::new(kind));
        Some(FlatColumn { kind, chunks, bytes: 0..0, rows: 0, dictionary: None, page: None })
    }

    /// The next rows, which the file must have.
    pub(super) fn take(&mut self, pages: &Pages, mut rows: usize) -> Result<Piece, Failed> {
        let mut piece = Piece::default();
        while rows > 0 {
            let (page, used) = match &mut self.page {
                Some((page, used)) if *used < page.len() => (page, used),
                _ => {
                    self.page = Some((self.fetch(pages)?, 0));
                    continue;
                }
            };
            let taken = rows.min(page.len() - *used);
            piece.parts.push((Arc::clone(page), *used..*used + taken));
            *used += taken;
            rows -= taken;
        }
        Ok(piece)
    }

    /// The next page with rows.
    fn fetch(&mut self, pages: &Pages) -> Result<Arc<Page>, Failed> {
        let damaged = |reason: &str| Failed::Damaged(ParquetError::General(reason.to_string()));
        loop {
            if self.bytes.is_empty() {
                if self.rows > 0 {
                    return Err(damaged("a column ends before its row group"));
                }
                (self.bytes, self.rows) =
                    self.chunks.next().ok_or_else(|| damaged("a column ends before the file"))?;
                self.dictionary = None;
                continue;
            }
            let (header, stored, end) = pages.page_at(self.bytes.start).map_err(Failed::Damaged)?;
            if end > self.bytes.end {
                return Err(damaged("a page reaches beyond its column"));
            }
            self.bytes.start = end;
            let kind = Arc::clone(&self.kind);
            match self.use_of(&header) {
                Use::Dictionary => self.dictionary = Some(Arc::new(Dictionary::new(kind, header, stored))),
                Use::Data { .. } if header.values == 0 => {}
                Use::Data { is_indexed } => {
                    self.rows = self
                        .rows
                        .checked_sub(header.values)
                        .ok_or_else(|| damaged("a column has more rows than its row group"))?;
                    let dictionary = self.dictionary.clone().filter(|_| is_indexed);
                    return Ok(Arc::new(Page::new(kind, header, dictionary, stored)));
                }
                Use::Unsupported => return Err(Failed::Unsupported),
                Use::Nothing => {}
            }
        }
    }

    fn use_of(&self, header: &Header) -> Use {
        let is_plain = matches!(header.encoding, encoding::PLAIN);
        let is_indexed = matches!(header.encoding, encoding::PLAIN_DICTIONARY | encoding::RLE_DICTIONARY);
        if header.is_dictionary {
            let is_first = self.dictionary.is_none();
            let is_known = is_plain || header.encoding == encoding::PLAIN_DICTIONARY;
            return if is_first && is_known { Use::Dictionary } else { Use::Unsupported };
        }
        if !header.is_data {
            return Use::Nothing;
        }
        let levels_are_runs =
            header.is_second || !self.kind.is_optional || header.level_encoding == encoding::RUNS;
        if levels_are_runs
            && (is_plain || (is_indexed && self.dictionary.is_some()))
            && header.repeat_bytes == 0
        {
            Use::Data { is_indexed }
        } else {
            Use::Unsupported
        }
    }
}

/// The flat columns of a file.
#[derive(Debug)]
pub(super) struct FlatColumns {
    pub(super) pages: Pages,
    /// By output column.
    pub(super) columns: Vec<Option<FlatColumn>>,
}

impl FlatColumns {
    /// Puts the next rows of the flat columns in their places.
    pub(super) fn take(&mut self, rows: usize, into: &mut [RawColumn]) -> Result<(), Failed> {
        for (column, into) in self.columns.iter_mut().zip(into) {
            if let Some(column) = column {
                *into = RawColumn::Flat(column.take(&self.pages, rows)?);
            }
        }
        Ok(())
    }
}

enum Use {
    Dictionary,
    Data {
        is_indexed: bool,
    },
    /// An index of pages.
    Nothing,
    Unsupported,
}
