//! Limits on the pages of a Parquet file, checked before the parquet crate decompresses them, since that crate trusts
//! the sizes in page headers. Texts are read as views into their pages: a file of some hundred bytes may name a long
//! text a million times. Knows headers, codecs and the lengths of texts, no values.

pub(super) mod header;
pub(super) mod lengths;

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::{DataType, Field, FieldRef, Schema};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::ROWS_PER_BATCH_MAX;
use super::seekable::Seekable;
use super::unpacked::{self, UNPACKED_FREE_BYTES, ends_within};
use header::Header;

/// Approximate bytes of a batch of rows, by the sizes that the file declares.
const BATCH_BYTES: u64 = 64 << 20;
/// Memory of a list element beside its bytes: its levels, a view, a field.
const ELEMENT_BYTES: u64 = 32;
/// Memory of a dictionary entry beside its bytes.
const ENTRY_BYTES: u64 = 16;
/// Memory of a text's length that is stored apart from the text.
const LENGTH_BYTES: u64 = 8;
/// Most bytes from one byte of gzip, and of lz4.
const GZIP_RATIO_MAX: u64 = 1032;
const LZ4_RATIO_MAX: u64 = 255;
const BROTLI_BUFFER_BYTES: usize = 4096;

/// The metadata of a file, with views for texts of any kind.
pub(super) fn metadata_of(source: &Seekable) -> Result<ArrowReaderMetadata, ParquetError> {
    let read = ArrowReaderMetadata::load(source, ArrowReaderOptions::new())?;
    let fields: Vec<FieldRef> = read.schema().fields().iter().map(in_views).collect();
    let viewed = Schema::new_with_metadata(fields, read.schema().metadata().clone());
    let options = ArrowReaderOptions::new().with_schema(Arc::new(viewed));
    ArrowReaderMetadata::try_new(Arc::clone(read.metadata()), options)
}

fn in_views(field: &FieldRef) -> FieldRef {
    use DataType as D;
    let kind = match field.data_type() {
        D::Utf8 | D::LargeUtf8 => D::Utf8View,
        D::Binary | D::LargeBinary => D::BinaryView,
        D::Dictionary(_, value) => match value.as_ref() {
            D::Utf8 | D::LargeUtf8 | D::Utf8View => D::Utf8View,
            D::Binary | D::LargeBinary | D::BinaryView => D::BinaryView,
            _ => return Arc::clone(field),
        },
        D::List(item) => D::List(in_views(item)),
        D::LargeList(item) => D::LargeList(in_views(item)),
        D::ListView(item) => D::ListView(in_views(item)),
        D::LargeListView(item) => D::LargeListView(in_views(item)),
        D::FixedSizeList(item, size) => D::FixedSizeList(in_views(item), *size),
        D::Map(entries, is_sorted) => D::Map(in_views(entries), *is_sorted),
        D::Struct(fields) => D::Struct(fields.iter().map(in_views).collect()),
        _ => return Arc::clone(field),
    };
    let viewed = Field::new(field.name(), kind, field.is_nullable());
    Arc::new(viewed.with_metadata(field.metadata().clone()))
}

/// The cost of the pages of one batch of rows.
#[derive(Debug, Default)]
pub(super) struct Budget {
    stored_bytes: AtomicU64,
    unpacked_bytes: AtomicU64,
}

impl Budget {
    /// Starts another batch.
    pub(super) fn begin(&self) {
        self.stored_bytes.store(0, Ordering::Relaxed);
        self.unpacked_bytes.store(0, Ordering::Relaxed);
    }

    fn charge(&self, stored: u64, unpacked: u64) -> Result<(), ParquetError> {
        let stored = self.stored_bytes.fetch_add(stored, Ordering::Relaxed).saturating_add(stored);
        let before = self.unpacked_bytes.load(Ordering::Relaxed);
        let unpacked = before.saturating_add(unpacked);
        self.unpacked_bytes.store(unpacked, Ordering::Relaxed);
        let max = unpacked::bytes_max(stored);
        if unpacked <= max {
            return Ok(());
        }
        Err(refused(format!(
            "the pages of a batch of rows take {unpacked} bytes in memory and {stored} in the file, at most {max} are \
             allowed; write it with smaller pages"
        )))
    }
}

fn refused(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

/// A column of a row group.
#[derive(Clone, Debug)]
struct Chunk {
    bytes: Range<u64>,
    codec: Compression,
    is_repeated: bool,
    is_optional: bool,
    /// Bytes of a fixed-length value, otherwise 0.
    width: u64,
}

/// A file whose pages are checked before they are read.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    source: Seekable,
    /// In the order of the file.
    chunks: Arc<Vec<Chunk>>,
    budget: Arc<Budget>,
    /// Page headers that were read, by the start of their pages.
    headers: Arc<Mutex<HashMap<u64, Header>>>,
}

impl Pages {
    /// Creates the checked file for the columns that are read; also returns how many rows to read at a time.
    pub(super) fn new(
        source: Seekable,
        metadata: &ParquetMetaData,
        mask: &ProjectionMask,
    ) -> Result<(Pages, usize), String> {
        let (mut chunks, mut rows, mut bytes, mut width) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        for group in metadata.row_groups() {
            rows = rows.saturating_add(u64::try_from(group.num_rows()).unwrap_or_default());
            let mut group_width = 0_u64;
            for (_, column) in group.columns().iter().enumerate().filter(|(at, _)| mask.leaf_included(*at)) {
                let descr = column.column_descr();
                let (start, length) = column.byte_range();
                let fixed = match descr.physical_type() {
                    Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(descr.type_length()).unwrap_or_default(),
                    _ => 0,
                };
                let is_repeated = descr.max_rep_level() > 0;
                let values = u64::try_from(column.num_values()).unwrap_or_default();
                let elements = if is_repeated { values.saturating_mul(ELEMENT_BYTES + fixed) } else { 0 };
                let unpacked = u64::try_from(column.uncompressed_size()).unwrap_or_default();
                bytes = bytes.saturating_add(unpacked).saturating_add(elements);
                group_width = group_width.saturating_add(fixed);
                chunks.push(Chunk {
                    bytes: start..start.saturating_add(length),
                    codec: column.compression(),
                    is_repeated,
                    is_optional: descr.max_def_level() > 0,
                    width: fixed,
                });
            }
            width = width.max(group_width);
        }
        if width > UNPACKED_FREE_BYTES {
            return Err(format!("a row has {width} bytes, at most {UNPACKED_FREE_BYTES} are read"));
        }
        chunks.sort_by_key(|chunk| chunk.bytes.start);
        if chunks.windows(2).any(|pair| pair[0].bytes.end > pair[1].bytes.start) {
            return Err("two of its columns share bytes; the file is damaged".to_string());
        }
        let row_bytes = (bytes / rows.max(1)).saturating_add(width).max(1);
        let at_a_time = (BATCH_BYTES / row_bytes).clamp(1, ROWS_PER_BATCH_MAX as u64) as usize;
        let (chunks, budget, headers) = (Arc::new(chunks), Arc::default(), Arc::default());
        Ok((Pages { source, chunks, budget, headers }, at_a_time))
    }

    pub(super) fn budget(&self) -> Arc<Budget> {
        Arc::clone(&self.budget)
    }

    /// The page whose header begins at `start`: the header, the stored bytes, and the end of the page.
    pub(super) fn page_at(&self, start: u64) -> Result<(Header, Bytes, u64), ParquetError> {
        let (length, header) =
            header::read(&self.source, start).ok_or_else(|| refused("a page whose header does not read"))?;
        let place = start.saturating_add(length);
        let stored = usize::try_from(header.stored_bytes).map_err(|_| refused("a page of negative size"))?;
        self.headers().insert(place, header.clone());
        Ok((header, self.get_bytes(place, stored)?, place.saturating_add(stored as u64)))
    }

    fn headers(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Header>> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk_at(&self, offset: u64) -> Option<&Chunk> {
        let behind = self.chunks.partition_point(|chunk| chunk.bytes.start <= offset);
        self.chunks.get(behind.checked_sub(1)?).filter(|chunk| chunk.bytes.contains(&offset))
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.source.len_bytes()
    }
}

impl ChunkReader for Pages {
    type T = <Seekable as ChunkReader>::T;

    /// Called for the header of a page, and again once its length is known.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let mut headers = self.headers();
        if !headers.contains_key(&start)
            && let Some((length, header)) = header::read(&self.source, start)
        {
            headers.insert(start + length, header);
        }
        self.source.get_read(start)
    }

    /// Called for a page.
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let header = self.headers().remove(&start).filter(|header| header.stored_bytes == length as u64);
        let header = header.ok_or_else(|| refused("a page whose header does not read"))?;
        let chunk = self.chunk_at(start).ok_or_else(|| refused("a page outside its column"))?;
        let is_packed = !matches!(chunk.codec, Compression::UNCOMPRESSED);
        let mut cost = if is_packed { header.unpacked_bytes } else { 0 }.saturating_add(header.stored_bytes);
        if header.is_dictionary {
            if header.values > header.unpacked_bytes {
                return Err(refused(format!(
                    "a dictionary declares {} values in {cost} bytes",
                    header.values
                )));
            }
            cost = cost.saturating_add(header.values.saturating_mul(ENTRY_BYTES));
        } else if chunk.is_repeated {
            cost = cost.saturating_add(header.values.saturating_mul(ELEMENT_BYTES + chunk.width));
        }
        if header.has_lengths() {
            cost = cost.saturating_add(header.values.saturating_mul(LENGTH_BYTES));
        }
        self.budget.charge(header.stored_bytes, cost)?;
        let page = self.source.get_bytes(start, length)?;
        check_size(chunk, &header, &page)?;
        if header.has_lengths() {
            let texts = lengths::sum(chunk.codec, chunk.is_repeated, chunk.is_optional, &header, &page);
            self.budget.charge(0, texts.map_err(refused)?)?;
        }
        Ok(page)
    }
}

/// Checks that a page decompresses to at most the size in its header, for decoders that would not stop there.
fn check_size(chunk: &Chunk, header: &Header, page: &[u8]) -> Result<(), ParquetError> {
    let packed = page.get(header.level_bytes..).unwrap_or_default();
    let max = header.unpacked_bytes;
    let is_small = |ratio: u64| (packed.len() as u64).saturating_mul(ratio) <= UNPACKED_FREE_BYTES;
    let stream: Box<dyn Read + '_> = match chunk.codec {
        Compression::GZIP(_) if !is_small(GZIP_RATIO_MAX) => Box::new(MultiGzDecoder::new(packed)),
        Compression::LZ4 if !is_small(LZ4_RATIO_MAX) => Box::new(FrameDecoder::new(packed)),
        Compression::BROTLI(_) => Box::new(brotli::Decompressor::new(packed, BROTLI_BUFFER_BYTES)),
        _ => return Ok(()),
    };
    if header.is_packed && !ends_within(stream, max) {
        return Err(refused(format!("a page unpacks to more than the {max} bytes that it declares")));
    }
    Ok(())
}
