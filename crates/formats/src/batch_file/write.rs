//! Writing a batch file, under another name until it is complete. It knows nothing of the origin of rows.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk::Compressor;

use sanderling_files::OutputFile;
use sanderling_sample::{PackedBuffer, Rows, SampleError, Spec, pack, packed_bytes_max};

use super::{
    ALIGN_BYTES, BLOCK_BYTES_MAX, BlockCompression, BlockHeader, FRAME_BYTES, FileHeader, SPEC_BYTES_MAX,
    Trailer, bad_file, crc, io_error,
};

/// Larger blocks are split: a reader needs memory for a whole one.
const BLOCK_BYTES_AIM: usize = 16 << 20;
const ZSTD_LEVEL: i32 = 3;

/// Options of writing a batch file.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchFileOptions {
    /// Compression of the blocks.
    pub compression: BlockCompression,
    /// Whether to replace an existing file.
    pub overwrite: bool,
}

/// Counts of a finished file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows.
    pub rows: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the blocks before they were compressed.
    pub raw_bytes: u64,
    /// Bytes of the blocks after compression.
    pub stored_bytes: u64,
}

/// A batch file that is being written. Dropped before [`BatchFileWriter::finish`], it leaves nothing behind.
pub struct BatchFileWriter {
    path: PathBuf,
    options: BatchFileOptions,
    out: BufWriter<OutputFile>,
    buffer: PackedBuffer,
    compressed: Vec<u8>,
    lz4: CompressTable,
    zstd: Option<Compressor<'static>>,
    /// Position and rows of each block.
    index: Vec<u8>,
    written: Written,
}

impl BatchFileWriter {
    /// Starts a temporary file beside `path`; `spec` is the spec by which its rows are encoded.
    ///
    /// # Errors
    /// `Io`; `BadFile` if the file exists and may not be replaced; `Spec`.
    pub fn create(
        path: &Path,
        spec: &Spec,
        options: BatchFileOptions,
    ) -> Result<BatchFileWriter, SampleError> {
        if !options.overwrite && path.is_file() {
            return Err(bad_file(path, "exists already; replace it with --force"));
        }
        let failed = io_error(path);
        let json = serde_json::to_vec(&spec.expand()?).map_err(|error| failed(error.into()))?;
        if json.len() > SPEC_BYTES_MAX {
            let reason = format!("the spec is {} bytes long as JSON, at most {SPEC_BYTES_MAX}", json.len());
            return Err(SampleError::Spec(reason));
        }
        let zstd = match options.compression {
            BlockCompression::Zstd => Some(Compressor::new(ZSTD_LEVEL).map_err(&failed)?),
            _ => None,
        };
        let mut writer = BatchFileWriter {
            path: path.to_path_buf(),
            options,
            out: BufWriter::with_capacity(1 << 20, OutputFile::create(path).map_err(&failed)?),
            buffer: PackedBuffer::new(),
            compressed: Vec::new(),
            lz4: CompressTable::large(),
            zstd,
            index: Vec::new(),
            written: Written::default(),
        };
        let header = FileHeader { spec_bytes: json.len() as u32, spec_crc: crc(&json) };
        writer.put(&header.to_bytes())?;
        writer.put_aligned(&json)?;
        Ok(writer)
    }

    /// Adds rows as a block, or as several if they are very large; no rows add no block.
    ///
    /// # Errors
    /// `Io`; `BadFile` if a single row is larger than a block may be.
    pub fn write(&mut self, rows: &Rows<'_>) -> Result<(), SampleError> {
        if rows.len() > 1 && packed_bytes_max(rows) > BLOCK_BYTES_AIM {
            let half = rows.len() / 2;
            self.write(&rows.slice(0..half))?;
            return self.write(&rows.slice(half..rows.len()));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_block(rows, &mut buffer);
        self.buffer = buffer;
        written
    }

    fn write_block(&mut self, rows: &Rows<'_>, buffer: &mut PackedBuffer) -> Result<(), SampleError> {
        pack(rows, buffer).map_err(|error| bad_file(&self.path, format!("a block of rows: {error}")))?;
        let raw = buffer.bytes();
        if raw.len() > BLOCK_BYTES_MAX {
            let reason = format!(
                "row {} needs {} bytes; a block has at most {BLOCK_BYTES_MAX}",
                self.written.rows + 1,
                raw.len()
            );
            return Err(bad_file(&self.path, reason));
        }
        let bytes = self.compress(raw)?;
        // An incompressible block stays plain, so that it is used in place.
        let (compression, compressed) = match bytes.filter(|bytes| *bytes < raw.len()) {
            Some(bytes) => {
                self.compressed.truncate(bytes);
                (self.options.compression, std::mem::take(&mut self.compressed))
            }
            None => (BlockCompression::None, Vec::new()),
        };
        let stored = if compression == BlockCompression::None { raw } else { &compressed };
        let header = BlockHeader {
            compression: compression as u32,
            rows: rows.len() as u32,
            crc: crc(stored),
            stored_bytes: stored.len() as u64,
            raw_bytes: raw.len() as u64,
        };
        self.index.extend(self.written.bytes.to_le_bytes());
        self.index.extend((rows.len() as u64).to_le_bytes());
        self.put(&header.to_bytes())?;
        self.put_aligned(stored)?;
        self.compressed = compressed;
        self.written.rows += rows.len() as u64;
        self.written.blocks += 1;
        self.written.raw_bytes += raw.len() as u64;
        self.written.stored_bytes += header.stored_bytes;
        Ok(())
    }

    /// Compresses into `self.compressed` and returns the length.
    fn compress(&mut self, raw: &[u8]) -> Result<Option<usize>, SampleError> {
        let out = &mut self.compressed;
        match (self.options.compression, &mut self.zstd) {
            (BlockCompression::Lz4, _) => {
                out.resize(get_maximum_output_size(raw.len()), 0);
                // It fails only without enough room.
                Ok(compress_into_with_table(raw, out, &mut self.lz4).ok())
            }
            (BlockCompression::Zstd, Some(zstd)) => {
                out.resize(zstd::zstd_safe::compress_bound(raw.len()), 0);
                zstd.compress_to_buffer(raw, &mut out[..]).map(Some).map_err(io_error(&self.path))
            }
            _ => Ok(None),
        }
    }

    /// Writes the index and gives the file its name.
    ///
    /// # Errors
    /// `Io`; a file of that name was made in the meantime.
    pub fn finish(mut self) -> Result<Written, SampleError> {
        let index = std::mem::take(&mut self.index);
        let Written { rows, blocks, bytes: index_at, .. } = self.written;
        self.put_aligned(&index)?;
        let trailer = Trailer { index_at, blocks, rows, index_crc: crc(&index) };
        self.put(&trailer.to_bytes())?;
        let failed = io_error(&self.path);
        let file = self.out.into_inner().map_err(|error| failed(error.into_error()))?;
        if self.options.overwrite { file.finish() } else { file.finish_new() }.map_err(failed)?;
        Ok(self.written)
    }

    /// Rows written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.written.rows
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SampleError> {
        self.out.write_all(bytes).map_err(io_error(&self.path))?;
        self.written.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes bytes and pads with zeros to the next aligned position.
    fn put_aligned(&mut self, bytes: &[u8]) -> Result<(), SampleError> {
        self.put(bytes)?;
        let zeros = self.written.bytes.next_multiple_of(ALIGN_BYTES) - self.written.bytes;
        self.put(&[0; FRAME_BYTES][..zeros as usize])
    }
}
