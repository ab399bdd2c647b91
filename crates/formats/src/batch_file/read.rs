//! Reading a batch file, which is mapped: the index is checked when the file is opened, a block when it is loaded. It
//! knows no thread and no bad-row policy.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zstd::bulk::Decompressor;

use sanderling_sample::spec::Label;
use sanderling_sample::{Encoder, MappedFile, PackedBatch, PackedBuffer, SampleError, Spec};

use super::{
    ALIGN_BYTES, BLOCK_BYTES_MAX, BlockCompression, BlockHeader, ENTRY_BYTES, FRAME_BYTES, FileHeader, Frame,
    SPEC_BYTES_MAX, Trailer, agreement, bad_file, crc, io_error, u64_at,
};
use crate::format::Compression;
use crate::input::{self, InputFile};
use crate::patient::Wanted;
use crate::temporary;

/// An open batch file.
#[derive(Debug)]
pub struct BatchFile {
    path: PathBuf,
    map: Arc<MappedFile>,
    spec: Spec,
    index: Range<usize>,
    rows: u64,
    /// Per feature of the encoder, the column of the file.
    order: Arc<[usize]>,
}

/// One block of a file.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its number, the first being 0.
    number: usize,
    /// Rows of the file before it.
    pub(crate) rows_before: u64,
    pub(crate) rows: u64,
}

impl BatchFile {
    /// Opens a file without an encoder. A url is copied first, while it is wanted.
    pub fn open_plain(path: &Path, wanted: Option<&Wanted>) -> Result<BatchFile, SampleError> {
        let bad = |reason: String| bad_file(path, reason);
        if path.as_os_str() == input::STDIN {
            return Err(bad_file(
                path,
                "batch files are mapped: name the file itself, or read the source of it",
            ));
        }
        if Compression::of_path(path) != Compression::None {
            let reason = "batch files are mapped: unpack it into a file, or read the source of it instead";
            return Err(bad_file(path, reason));
        }
        let is_local = input::is_local(path);
        // Checked before opening, which on a pipe may wait for its writer.
        if is_local && !path.metadata().map_err(io_error(path))?.is_file() {
            return Err(bad_file(path, "batch files are mapped: a pipe has to be written into a file first"));
        }
        let file = if is_local {
            File::open(path).map_err(io_error(path))?
        } else {
            temporary::copy_of(path, wanted)?
        };
        let map = MappedFile::open(&file).map_err(io_error(path))?;
        let bytes = map.bytes();
        let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) else {
            return Err(bad_file(
                path,
                format!("has {} bytes, which is too short for a batch file", bytes.len()),
            ));
        };
        let header = FileHeader::parse(first).map_err(bad)?;
        let trailer = Trailer::parse(last).map_err(bad)?;
        let spec_bytes = header.spec_bytes as usize;
        let spec = spec_at(&header, &bytes[FRAME_BYTES..]).map_err(bad)?;
        let index =
            index_of(bytes, &trailer, FRAME_BYTES + spec_bytes).map_err(|what| bad(what.to_string()))?;
        let (path, rows, order) = (path.to_path_buf(), trailer.rows, Arc::default());
        Ok(BatchFile { path, map: Arc::new(map), spec, index, rows, order })
    }

    /// Opens a file for an encoder; its rows must have been encoded by the encoder's spec.
    pub(crate) fn open(
        path: &Path,
        encoder: &Encoder,
        wanted: Option<&Wanted>,
    ) -> Result<BatchFile, SampleError> {
        let mut file = Self::open_plain(path, wanted)?;
        file.order = agreement::order(&file.spec, encoder).map_err(|reason| bad_file(path, reason))?;
        Ok(file)
    }

    /// The spec by which the rows were encoded.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Rows of the file.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The block after the given one, or the first.
    pub fn block_after(&self, block: Option<&Block>) -> Option<Block> {
        let number = block.map_or(0, |block| block.number + 1);
        let rows_before = block.map_or(0, |block| block.rows_before + block.rows);
        let entry = self.index.start + number * ENTRY_BYTES;
        (entry < self.index.end).then(|| Block {
            number,
            rows_before,
            rows: u64_at(self.map.bytes(), entry + 8),
        })
    }

    /// Bytes of the block in the file, its header among them.
    pub(crate) fn stored_bytes(&self, block: &Block) -> u64 {
        let at = |number: usize| u64_at(self.map.bytes(), self.index.start + number * ENTRY_BYTES);
        let is_last = self.index.start + (block.number + 1) * ENTRY_BYTES >= self.index.end;
        let end = if is_last { self.index.start as u64 } else { at(block.number + 1) };
        end.saturating_sub(at(block.number))
    }

    /// Bytes of the file outside of blocks: header, spec, index and trailer.
    pub(crate) fn bytes_besides_blocks(&self) -> u64 {
        let first = self
            .block_after(None)
            .map_or(self.index.start as u64, |_| u64_at(self.map.bytes(), self.index.start));
        first + (self.map.bytes().len() - self.index.start) as u64
    }

    /// Checks a block, decompresses it and shows its columns in the order of the encoder.
    pub(crate) fn load(
        &self,
        block: &Block,
        unpacker: &mut Unpacker,
        buffer: PackedBuffer,
    ) -> Result<PackedBatch, SampleError> {
        let mut batch = self.load_all(block, unpacker, buffer)?;
        batch.set_order(&self.order);
        Ok(batch)
    }

    /// Loads a block with the columns in the order of the file.
    pub fn load_all(
        &self,
        block: &Block,
        unpacker: &mut Unpacker,
        buffer: PackedBuffer,
    ) -> Result<PackedBatch, SampleError> {
        self.load_plain(block, unpacker, buffer).map_err(|reason| self.bad_block(block, &reason))
    }

    fn bad_block(&self, block: &Block, reason: &str) -> SampleError {
        let (number, first) = (block.number + 1, block.rows_before + 1);
        let reason =
            format!("block {number}, from row {first} on: {reason}: the file is damaged; convert again");
        bad_file(&self.path, reason)
    }

    fn load_plain(
        &self,
        block: &Block,
        unpacker: &mut Unpacker,
        mut buffer: PackedBuffer,
    ) -> Result<PackedBatch, String> {
        let bytes = self.map.bytes();
        // The index was checked: there is room for a header.
        let at = u64_at(bytes, self.index.start + block.number * ENTRY_BYTES) as usize;
        let header: Option<&Frame> = bytes.get(at..).and_then(<[u8]>::first_chunk);
        let header = header.and_then(BlockHeader::parse).ok_or("its header does not fit its checksum")?;
        let start = at + FRAME_BYTES;
        let end = usize::try_from(header.stored_bytes).ok().and_then(|bytes| start.checked_add(bytes));
        let payload = end.filter(|&end| end <= self.index.start).map(|end| start..end);
        let payload = payload.ok_or("it is longer than the file")?;
        let stored = &bytes[payload.clone()];
        if crc(stored) != header.crc {
            return Err("it does not fit its checksum".to_string());
        }
        let compression = BlockCompression::ALL.get(header.compression as usize).map(|(_, which)| *which);
        let batch = match compression {
            Some(BlockCompression::None) if header.stored_bytes != header.raw_bytes => {
                return Err("it has two lengths".to_string());
            }
            Some(BlockCompression::None) => PackedBatch::parse_mapped(&self.map, payload, buffer),
            Some(compression) => {
                let raw_bytes = usize::try_from(header.raw_bytes).ok().filter(|&raw| raw <= BLOCK_BYTES_MAX);
                let raw_bytes = raw_bytes.ok_or_else(|| {
                    format!("{} bytes unpacked, at most {BLOCK_BYTES_MAX}", header.raw_bytes)
                })?;
                let unpacked = unpacker.unpack(compression, stored, buffer.resize(raw_bytes));
                if unpacked != Some(raw_bytes) {
                    return Err("it does not unpack to the length that it says".to_string());
                }
                PackedBatch::parse(buffer)
            }
            None => return Err(format!("its compression {} is unknown", header.compression)),
        };
        let batch = batch.map_err(|error| error.to_string())?;
        let rows = batch.len() as u64;
        if rows != u64::from(header.rows) || rows != block.rows || batch.columns() != self.spec.feature.len()
        {
            return Err("it has other rows or columns than its header, the index or the spec say".to_string());
        }
        let columns = batch.rows();
        let has_values = |column: usize| columns.values(column).is_some();
        let features = &self.spec.feature;
        let unfit = (0..features.len()).find(|&column| has_values(column) != features[column].has_values());
        if let Some(column) = unfit {
            let (has, should) = if has_values(column) { ("", "no ") } else { ("no ", "") };
            let name = &features[column].name;
            return Err(format!(
                "the keys of {name:?} have {has}values, and by the spec they have {should}values"
            ));
        }
        Ok(batch)
    }
}

/// Checks the positions of the blocks and returns the range of the index.
fn index_of(bytes: &[u8], trailer: &Trailer, header_bytes: usize) -> Result<Range<usize>, &'static str> {
    const DAMAGED: &str = "the index of its blocks is damaged; convert again";
    let end = bytes.len() - FRAME_BYTES;
    let start = usize::try_from(trailer.index_at).ok().filter(|&start| start <= end).ok_or(DAMAGED)?;
    let blocks = usize::try_from(trailer.blocks).ok().and_then(|blocks| blocks.checked_mul(ENTRY_BYTES));
    let index_bytes = blocks.filter(|&bytes| bytes <= end - start).ok_or(DAMAGED)?;
    let index = &bytes[start..start + index_bytes];
    let align = ALIGN_BYTES as usize;
    if crc(index) != trailer.index_crc
        || !start.is_multiple_of(align)
        || start + index_bytes.next_multiple_of(align) != end
    {
        return Err(DAMAGED);
    }
    let (mut free, mut rows) = (header_bytes.next_multiple_of(align) as u64, 0_u64);
    for entry in index.chunks_exact(ENTRY_BYTES) {
        let at = u64_at(entry, 0);
        let header_end =
            at.checked_add(FRAME_BYTES as u64).filter(|&end| end <= start as u64).ok_or(DAMAGED)?;
        if at < free || !at.is_multiple_of(ALIGN_BYTES) {
            return Err(DAMAGED);
        }
        free = header_end;
        rows = rows.checked_add(u64_at(entry, 8)).ok_or(DAMAGED)?;
    }
    if rows != trailer.rows {
        return Err("its blocks do not have as many rows as it says; convert again");
    }
    Ok(start..start + index_bytes)
}

/// The spec, which is behind the header.
fn spec_at(header: &FileHeader, bytes: &[u8]) -> Result<Spec, String> {
    let spec_bytes = spec_bytes_of(header)?;
    let json = bytes.get(..spec_bytes).filter(|json| crc(json) == header.spec_crc);
    let json = json.ok_or("its spec does not fit its checksum: the file is damaged")?;
    let spec: Spec = serde_json::from_slice(json).map_err(|error| format!("its spec: {error}"))?;
    spec.expand().map_err(|error| format!("its {error}"))
}

fn spec_bytes_of(header: &FileHeader) -> Result<usize, String> {
    let spec_bytes = header.spec_bytes as usize;
    if spec_bytes > SPEC_BYTES_MAX {
        return Err(format!("its spec has {spec_bytes} bytes, at most {SPEC_BYTES_MAX}"));
    }
    Ok(spec_bytes)
}

/// The spec by which the rows of the first batch file were encoded.
///
/// # Errors
/// `Io`, or `BadFile` if it is not a complete batch file.
pub fn spec_of(inputs: &[String]) -> Result<Spec, SampleError> {
    // At least one: `expand` sees to that.
    spec_in(&input::expand(inputs)?[0])
}

/// The spec by which the rows of a batch file were encoded.
pub(crate) fn spec_in(file: &InputFile) -> Result<Spec, SampleError> {
    let path = &file.path;
    if input::is_local(path) || file.is_stdin() {
        return Ok(BatchFile::open_plain(path, None)?.spec);
    }
    // Only the beginning of a url is fetched.
    let bad = |reason: String| bad_file(path, reason);
    let mut stream = input::open(file, &Arc::default(), None)?;
    let mut frame: Frame = [0; FRAME_BYTES];
    stream.read_exact(&mut frame).map_err(io_error(path))?;
    let header = FileHeader::parse(&frame).map_err(bad)?;
    let mut json = vec![0; spec_bytes_of(&header).map_err(bad)?];
    stream.read_exact(&mut json).map_err(io_error(path))?;
    spec_at(&header, &json).map_err(bad)
}

/// Completes a spec without features from batch files. Its own label and weight stay: rows that were encoded by
/// others are refused when they are read.
///
/// # Errors
/// As of [`spec_of`].
pub fn completed(spec: &Spec, inputs: &[String]) -> Result<Spec, SampleError> {
    let file = spec_of(inputs)?;
    let label = if spec.label == Label::default() { file.label } else { spec.label.clone() };
    let weight = spec.weight.clone().or(file.weight);
    Ok(Spec { label, weight, negatives: spec.negatives.clone(), feature: file.feature })
}

/// Working memory of one thread that unpacks blocks.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<Decompressor<'static>>,
}

impl Unpacker {
    /// Decompresses into `out` and returns the bytes filled; `None` if the data is damaged.
    fn unpack(&mut self, compression: BlockCompression, packed: &[u8], out: &mut [u8]) -> Option<usize> {
        match compression {
            BlockCompression::None => None,
            BlockCompression::Lz4 => lz4_flex::block::decompress_into(packed, out).ok(),
            BlockCompression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(Decompressor::new().ok()?),
                };
                zstd.decompress_to_buffer(packed, out).ok()
            }
        }
    }
}
