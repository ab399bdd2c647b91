//! Inputs as a sequence of units, and units as rows; the module that joins all formats.
//!
//! A [`Source`] reads (in one thread, or in several under a mutex), a [`Decoder`] per thread parses and encodes, and
//! a [`Reader`] is both. It dispatches to the module of each format.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sanderling_sample::{Batch, Encoder, PackedBatch, PackedBuffer, Rows, SampleError};

use crate::bad_rows::BadRows;
use crate::batch_file::{self, BatchFile, Unpacker};
use crate::blocks::{BLOCK_BYTES, Block, LineBlocks};
use crate::columnar::{ColumnarFile, Place, ROWS_PER_BATCH_MAX, RecordEncoder, Records};
use crate::decoded::{Decoded, Origin, append_kept};
use crate::delimited::{self, Layout};
use crate::fit_holdout::check_holdout;
use crate::format::{Compression, DataConfig, Format};
use crate::in_memory::{self, OpenedInMemory};
use crate::input::{self, InputFile};
use crate::libffm;
use crate::libsvm;
use crate::lines::{Lines, Scratch};
use crate::messages;
use crate::patient::Wanted;
use crate::records::{Framing, RecordBlock, RecordBlocks};
use crate::scan::Isa;
use crate::text_kind::TextKind;

/// A row's id is the index of its file times this, plus its line (or row, from 1) in the file.
pub const ROW_ID_FILE_STRIDE: u64 = 1 << 40;

/// The file of a unit, and the layout of its rows.
#[derive(Debug)]
struct FileContext {
    path: PathBuf,
    row_id_base: u64,
    rows: RowLayout,
}

#[derive(Debug)]
enum RowLayout {
    Libsvm,
    Libffm,
    Delimited(Layout),
    Columnar,
    Messages(messages::Layout),
    Batches(Arc<BatchFile>),
    Encoded(Arc<Batch>),
}

/// A piece of an input that can be decoded by itself. Create it with `Unit::default()` and reuse it: it keeps its
/// buffer.
#[derive(Debug, Default)]
pub struct Unit {
    file: Option<Arc<FileContext>>,
    block: Block,
    records: Option<(Records, u64)>,
    messages: RecordBlock,
    batches: Option<batch_file::Block>,
    encoded: Range<usize>,
}

enum Open {
    Text(LineBlocks),
    Columnar(Box<ColumnarFile>),
    Messages(RecordBlocks),
    /// The file, and the block that was returned last.
    Batches(Arc<BatchFile>, Option<batch_file::Block>),
    /// Encoded rows in memory, and how many of them were returned.
    Encoded(Arc<Batch>, usize),
}

/// Inputs in order, as units.
pub struct Source {
    files: Vec<InputFile>,
    next_file: usize,
    config: DataConfig,
    encoder: Arc<Encoder>,
    open: Option<(Open, Arc<FileContext>)>,
    unit_bytes: usize,
    bytes_read: Arc<AtomicU64>,
    wanted: Option<Wanted>,
}

impl Source {
    /// Prepares to read files, globs and `-` (standard input), in this order. Each file is opened when it is reached.
    ///
    /// # Errors
    /// A file that does not exist, a pattern without match, a directory, a file whose format is not known.
    pub fn open(
        patterns: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
    ) -> Result<Source, SampleError> {
        let files = input::expand(patterns)?;
        for file in files.iter().filter(|file| !in_memory::is_in_memory(&file.path)) {
            format_of(file, config)?;
        }
        Ok(Source {
            files,
            next_file: 0,
            config: config.clone(),
            encoder: Arc::clone(encoder),
            open: None,
            unit_bytes: BLOCK_BYTES,
            bytes_read: Arc::default(),
            wanted: None,
        })
    }

    /// Sets the approximate size of units of text and messages, decompressed; a longer line or message makes a longer
    /// unit. Other formats have units of their own.
    #[must_use]
    pub fn with_unit_bytes(self, unit_bytes: usize) -> Source {
        Source { unit_bytes: unit_bytes.max(1), ..self }
    }

    /// Reads only while `wanted` returns true: then standard input and pipes are no longer waited for, and no copy of
    /// a file is finished. It is called now and then while one is silent or being copied.
    #[must_use]
    pub fn while_wanted(self, wanted: Wanted) -> Source {
        Source { wanted: Some(wanted), ..self }
    }

    /// Whether an input is a stream, which can be read only once.
    #[must_use]
    pub fn has_stream(&self) -> bool {
        self.stream().is_some()
    }

    fn stream(&self) -> Option<&Path> {
        self.files.iter().find(|file| file.bytes.is_none()).map(|file| file.path.as_path())
    }

    /// Size of all inputs as stored, unless one of them is a stream.
    #[must_use]
    pub fn bytes_total(&self) -> Option<u64> {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Stored bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// The counter of [`Source::bytes_read`], for other threads.
    #[must_use]
    pub fn bytes_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_read)
    }

    /// Replaces `unit` with the next unit; `false` at the end of the last input.
    ///
    /// # Errors
    /// A file that cannot be opened, read or decompressed, lacks a column, or has a line beyond
    /// [`crate::LINE_BYTES_MAX`] or a record beyond [`crate::RECORD_BYTES_MAX`]; a stream, or a file that is copied
    /// first, that is not wanted any more.
    pub fn next_unit(&mut self, unit: &mut Unit) -> Result<bool, SampleError> {
        self.next_piece(unit).map_err(|error| match &self.wanted {
            // The reader fails in this case, and each format words the error differently.
            Some(wanted) if self.has_stream() && !wanted() => SampleError::Unwanted,
            _ => error,
        })
    }

    fn next_piece(&mut self, unit: &mut Unit) -> Result<bool, SampleError> {
        loop {
            if let Some((open, file)) = &mut self.open {
                let more = match open {
                    Open::Text(lines) => lines.next_block(&mut unit.block)?,
                    Open::Columnar(columnar) => {
                        let first_row = columnar.rows_read() + 1;
                        unit.records = columnar.next_records()?.map(|records| (records, first_row));
                        unit.records.is_some()
                    }
                    Open::Messages(records) => records.next_block(&mut unit.messages)?,
                    Open::Batches(batches, last) => {
                        unit.batches = batches.block_after(last.as_ref());
                        if let Some(block) = &unit.batches {
                            self.bytes_read.fetch_add(batches.stored_bytes(block), Ordering::Relaxed);
                            *last = Some(block.clone());
                        }
                        unit.batches.is_some()
                    }
                    Open::Encoded(batch, done) => {
                        unit.encoded = *done..batch.len().min(*done + ROWS_PER_BATCH_MAX);
                        *done = unit.encoded.end;
                        !unit.encoded.is_empty()
                    }
                };
                if more {
                    unit.file = Some(Arc::clone(file));
                    return Ok(true);
                }
                // Columnar files are not read front to back, so they count when they are done; batch files add their
                // bytes outside of blocks.
                let bytes = match open {
                    Open::Columnar(_) | Open::Encoded(..) => {
                        self.files[self.next_file - 1].bytes.unwrap_or(0)
                    }
                    Open::Batches(batches, _) => batches.bytes_besides_blocks(),
                    Open::Text(_) | Open::Messages(_) => 0,
                };
                self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                self.open = None;
            }
            if self.next_file == self.files.len() {
                unit.file = None;
                return Ok(false);
            }
            self.open = Some(self.open_file(self.next_file)?);
            self.next_file += 1;
        }
    }

    fn open_file(&self, index: usize) -> Result<(Open, Arc<FileContext>), SampleError> {
        let file = &self.files[index];
        let path = &file.path;
        if let Some(found) = in_memory::find(path) {
            let input = found?;
            let (open, rows) = match input.open(&self.encoder)? {
                OpenedInMemory::Batches(schema, batches) => {
                    let file = ColumnarFile::in_memory(&input.path, &schema, batches, &self.encoder)?;
                    (Open::Columnar(Box::new(file)), RowLayout::Columnar)
                }
                OpenedInMemory::Encoded(batch) => {
                    (Open::Encoded(Arc::clone(&batch), 0), RowLayout::Encoded(batch))
                }
            };
            return Ok((open, Self::context(index, input.path.clone(), rows)));
        }
        let format = format_of(file, &self.config)?;
        check_holdout(&self.encoder, format, path)?;
        if let Some(message) = format.message() {
            let layout = messages::Layout::open(message, path, &self.encoder)?;
            let records = RecordBlocks::new(
                input::open(file, &self.bytes_read, self.wanted.as_ref())?,
                path,
                Framing::of(message),
            )
            .with_block_bytes(self.unit_bytes);
            return Ok((
                Open::Messages(records),
                Self::context(index, path.clone(), RowLayout::Messages(layout)),
            ));
        }
        if format == Format::Batch {
            let batches = Arc::new(BatchFile::open(path, &self.encoder, self.wanted.as_ref())?);
            let layout = RowLayout::Batches(Arc::clone(&batches));
            return Ok((Open::Batches(batches, None), Self::context(index, path.clone(), layout)));
        }
        let (open, rows) = if format.is_text() {
            let stream = input::open(file, &self.bytes_read, self.wanted.as_ref())?;
            let mut lines = LineBlocks::new(stream, path).with_block_bytes(self.unit_bytes);
            let rows = match format {
                Format::Libsvm => RowLayout::Libsvm,
                Format::Libffm => RowLayout::Libffm,
                _ => {
                    let layout = Layout::open(&mut lines, path, format, &self.config, &self.encoder)?;
                    RowLayout::Delimited(layout)
                }
            };
            (Open::Text(lines), rows)
        } else {
            let compression = Compression::of_path(path);
            let columnar =
                ColumnarFile::open_records(path, format, compression, &self.encoder, self.wanted.as_ref())?;
            (Open::Columnar(Box::new(columnar)), RowLayout::Columnar)
        };
        Ok((open, Self::context(index, path.clone(), rows)))
    }

    fn context(index: usize, path: PathBuf, rows: RowLayout) -> Arc<FileContext> {
        let row_id_base = index as u64 * ROW_ID_FILE_STRIDE;
        Arc::new(FileContext { path, row_id_base, rows })
    }
}

/// Extensions of JSON files, which no format reads.
const JSON_EXTENSIONS: [&str; 3] = ["json", "jsonl", "ndjson"];

fn format_of(file: &InputFile, config: &DataConfig) -> Result<Format, SampleError> {
    let extension = file.path.extension().and_then(|extension| extension.to_str());
    if config.format.is_none() && extension.is_some_and(|extension| JSON_EXTENSIONS.contains(&extension)) {
        return Err(TextKind::Json.error(&file.path));
    }
    config.format_of(&file.path).ok_or_else(|| SampleError::BadFile {
        path: file.path.clone(),
        reason: format!(
            "its name does not tell the format; set data.format, or --format, to one of {}",
            Format::names()
        ),
    })
}

/// Parses and encodes units; one per thread.
pub struct Decoder {
    encoder: Arc<Encoder>,
    bad_rows: Arc<BadRows>,
    isa: Isa,
    scratch: Scratch,
    unpacker: Unpacker,
    buffer: PackedBuffer,
    records: RecordEncoder,
}

impl Decoder {
    /// Creates a decoder with the fastest instructions of this machine.
    #[must_use]
    pub fn new(encoder: Arc<Encoder>, bad_rows: Arc<BadRows>) -> Decoder {
        Self::with_isa(encoder, bad_rows, Isa::detect())
    }

    /// Creates a decoder with given instructions, for tests and measurements.
    ///
    /// # Panics
    /// If the machine lacks them.
    #[must_use]
    pub fn with_isa(encoder: Arc<Encoder>, bad_rows: Arc<BadRows>, isa: Isa) -> Decoder {
        assert!(isa.is_available(), "{isa:?} is not available");
        let (scratch, unpacker, buffer, records) = Default::default();
        Decoder { encoder, bad_rows, isa, scratch, unpacker, buffer, records }
    }

    /// Appends every row of the unit to the batch; bad rows go to the account.
    ///
    /// # Errors
    /// A bad row that the policy does not let pass, or a spec that does not fit the format.
    pub fn decode(&mut self, unit: &Unit, batch: &mut Batch) -> Result<(), SampleError> {
        let Some(file) = &unit.file else {
            return Ok(());
        };
        if let Some((file, packed)) = self.load(unit)? {
            self.append_kept(unit, file, &packed.rows(), batch)?;
            self.buffer = packed.into_buffer();
            return Ok(());
        }
        let lines = Lines {
            encoder: &self.encoder,
            bad_rows: &self.bad_rows,
            path: &file.path,
            row_id_base: file.row_id_base,
            isa: self.isa,
        };
        match (&file.rows, &unit.records) {
            (RowLayout::Columnar, Some((records, first_row))) => {
                let first_row_id = file.row_id_base + first_row;
                let place = Place { path: &file.path, first_row: *first_row, first_row_id };
                let on_bad = |error, batch: &mut Batch| self.bad_rows.reject(error, batch);
                self.records.encode(&self.encoder, records, place, batch, on_bad)
            }
            (RowLayout::Columnar, None) => Ok(()),
            (RowLayout::Libsvm, _) => libsvm::decode(&lines, &unit.block, &mut self.scratch, batch),
            (RowLayout::Libffm, _) => libffm::decode(&lines, &unit.block, &mut self.scratch, batch),
            (RowLayout::Delimited(layout), _) => {
                delimited::decode(&lines, layout, &unit.block, &mut self.scratch.marks, batch)
            }
            (RowLayout::Messages(layout), _) => messages::decode(&lines, layout, &unit.messages, batch),
            (RowLayout::Batches(_), _) => Ok(()),
            (RowLayout::Encoded(rows), _) => {
                let (path, rows_before) = (file.path.as_path(), unit.encoded.start as u64);
                let origin = Origin { path, row_id_base: file.row_id_base, rows_before };
                let rows = Rows::new(rows, unit.encoded.clone());
                append_kept(&self.encoder, &self.bad_rows, &origin, &rows, batch)
            }
        }
    }

    /// Replaces the rows of `into` with those of the unit, without a copy if they can be used in place.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_in_place(&mut self, unit: &Unit, into: &mut Decoded) -> Result<(), SampleError> {
        if let Some(buffer) = into.clear() {
            self.buffer = buffer;
        }
        let Some((file, packed)) = self.load(unit)? else {
            return self.decode(unit, &mut into.batch);
        };
        if self.encoder.keeps_all(packed.rows().labels()) {
            into.packed = Some(packed);
            return Ok(());
        }
        self.append_kept(unit, file, &packed.rows(), &mut into.batch)?;
        self.buffer = packed.into_buffer();
        Ok(())
    }

    /// Loads the unit's block, if it is one of a batch file.
    fn load<'u>(&mut self, unit: &'u Unit) -> Result<Option<(&'u FileContext, PackedBatch)>, SampleError> {
        let (Some(file), Some(block)) = (&unit.file, &unit.batches) else { return Ok(None) };
        let RowLayout::Batches(batches) = &file.rows else { return Ok(None) };
        let buffer = std::mem::take(&mut self.buffer);
        Ok(Some((file, batches.load(block, &mut self.unpacker, buffer)?)))
    }

    fn append_kept(
        &self,
        unit: &Unit,
        file: &FileContext,
        rows: &Rows<'_>,
        batch: &mut Batch,
    ) -> Result<(), SampleError> {
        let rows_before = unit.batches.as_ref().map_or(0, |block| block.rows_before);
        let origin = Origin { path: &file.path, row_id_base: file.row_id_base, rows_before };
        append_kept(&self.encoder, &self.bad_rows, &origin, rows, batch)
    }

    /// Appends the rows of libsvm lines, or of libffm ones, that are already in memory.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_lines(
        &mut self,
        block: &Block,
        is_libffm: bool,
        path: &Path,
        batch: &mut Batch,
    ) -> Result<(), SampleError> {
        let (encoder, bad_rows, isa) = (&*self.encoder, &*self.bad_rows, self.isa);
        let lines = Lines { encoder, bad_rows, path, row_id_base: 0, isa };
        let decode = if is_libffm { libffm::decode } else { libsvm::decode };
        decode(&lines, block, &mut self.scratch, batch)
    }
}

/// A source and a decoder, for one thread.
pub struct Reader {
    source: Source,
    decoder: Decoder,
    unit: Unit,
}

impl Reader {
    /// Prepares to read; see [`Source::open`].
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open(
        patterns: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
    ) -> Result<Reader, SampleError> {
        let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
        Self::with_bad_rows(patterns, config, encoder, bad_rows)
    }

    /// Prepares to read with a given account of bad rows; ignores `config.on_bad_row`.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn with_bad_rows(
        patterns: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
        bad_rows: Arc<BadRows>,
    ) -> Result<Reader, SampleError> {
        let source = Source::open(patterns, config, encoder)?;
        let decoder = Decoder::new(Arc::clone(encoder), bad_rows);
        Ok(Reader { source, decoder, unit: Unit::default() })
    }

    /// The first input that is a stream, which can be read only once.
    #[must_use]
    pub fn stream(&self) -> Option<&Path> {
        self.source.stream()
    }

    /// Appends the rows of the next unit to the batch, perhaps none if all are left out; `false` at the end.
    ///
    /// # Errors
    /// As [`Source::next_unit`] and [`Decoder::decode`].
    pub fn next(&mut self, batch: &mut Batch) -> Result<bool, SampleError> {
        if !self.source.next_unit(&mut self.unit)? {
            return Ok(false);
        }
        self.decoder.decode(&self.unit, batch)?;
        Ok(true)
    }

    /// The source of the rows, for progress.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The account of bad rows.
    #[must_use]
    pub fn bad_rows(&self) -> &BadRows {
        &self.decoder.bad_rows
    }
}
