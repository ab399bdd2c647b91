//! Arrow IPC, file and stream format: walks the messages, checks every declared length before allocating for it, and
//! leaves the arrays to the arrow crate. Knows no feature, no row, no policy.
//!
//! The framing is read here because the crate's own readers size their buffers by declared lengths, and a wrong
//! length in a damaged file must become an error. Format: <https://arrow.apache.org/docs/format/Columnar.html>.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary, read_footer_length};
use arrow_ipc::{Block, Message, MessageHeader, root_as_footer, root_as_message};
use arrow_schema::ArrowError;
use arrow_schema::SchemaRef;

use super::seekable::Seekable;
use super::unpacked;

/// The most rows that a record batch may declare; they need not have any bytes.
const ROWS_PER_MESSAGE_MAX: i64 = 1 << 32;

/// `ARROW1` opens and closes the file format; the stream format has no magic.
pub(super) const MAGIC: &[u8] = b"ARROW1";
/// The padded length of the file format's magic; a stream follows.
const MAGIC_BYTES_PADDED: u64 = 8;
/// Footer length (4 bytes) and magic.
const TRAILER_BYTES: u64 = 10;
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Record batches of one file in order.
pub(super) struct IpcFile {
    file: Seekable,
    schema: SchemaRef,
    projection: Option<Vec<usize>>,
    dictionaries: HashMap<i64, ArrayRef>,
    place: Place,
}

enum Place {
    /// File format: the positions of the record batches that are left.
    Blocks(std::vec::IntoIter<Block>),
    /// Stream format: the position of the next message.
    Stream(u64),
    End,
}

fn damaged(what: impl Into<String>) -> ArrowError {
    ArrowError::IpcError(what.into())
}

impl IpcFile {
    /// Reads the schema, and in the file format all dictionaries.
    pub(super) fn open(file: Seekable) -> Result<IpcFile, ArrowError> {
        let mut magic = [0; 6];
        if file.len_bytes() >= MAGIC_BYTES_PADDED {
            file.read_at(0, &mut magic)?;
        }
        if magic == MAGIC { Self::open_file(file) } else { Self::open_stream(file) }
    }

    fn open_file(file: Seekable) -> Result<IpcFile, ArrowError> {
        let cut_short = || damaged("does not close with ARROW1: the file was cut short or never finished");
        let trailer_at = file
            .len_bytes()
            .checked_sub(TRAILER_BYTES)
            .filter(|&at| at >= MAGIC_BYTES_PADDED)
            .ok_or_else(cut_short)?;
        let mut trailer = [0; TRAILER_BYTES as usize];
        file.read_at(trailer_at, &mut trailer)?;
        if !trailer.ends_with(MAGIC) {
            return Err(cut_short());
        }
        let footer_bytes = read_footer_length(trailer)?;
        let footer_at = trailer_at
            .checked_sub(footer_bytes as u64)
            .ok_or_else(|| damaged(format!("declares a footer of {footer_bytes} bytes, more than it has")))?;
        let mut footer = vec![0; footer_bytes];
        file.read_at(footer_at, &mut footer)?;
        let footer = root_as_footer(&footer)
            .map_err(|error| ArrowError::ParseError(format!("footer does not parse: {error}")))?;
        let schema = footer.schema().ok_or_else(|| damaged("footer has no schema"))?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(damaged("was written with the other byte order"));
        }
        let schema = Arc::new(try_fb_to_schema(schema)?);
        let batches = footer.recordBatches().ok_or_else(|| damaged("footer lists no record batches"))?;
        let batches: Vec<Block> = batches.iter().copied().collect();
        let mut reader = IpcFile {
            file,
            schema,
            projection: None,
            dictionaries: HashMap::new(),
            place: Place::Blocks(batches.into_iter()),
        };
        for block in footer.dictionaries().into_iter().flatten() {
            let Some((message, _)) = reader.message_at(block_offset(block)?)? else {
                return Err(damaged("footer points at an empty message"));
            };
            reader.take_dictionary(&message)?;
        }
        Ok(reader)
    }

    fn open_stream(file: Seekable) -> Result<IpcFile, ArrowError> {
        let empty = Arc::new(arrow_schema::Schema::empty());
        let mut reader = IpcFile {
            file,
            schema: empty,
            projection: None,
            dictionaries: HashMap::new(),
            place: Place::End,
        };
        let no_schema = || damaged("opens with neither ARROW1 (file format) nor a schema (stream format)");
        let (message, next) =
            reader.message_at(0).map_err(|_| no_schema())?.ok_or_else(|| damaged("holds no schema"))?;
        let parsed = message.parse()?;
        let schema = parsed.header_as_schema().ok_or_else(no_schema)?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(damaged("was written with the other byte order"));
        }
        reader.schema = Arc::new(try_fb_to_schema(schema)?);
        reader.place = Place::Stream(next);
        Ok(reader)
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Decodes only these columns from here on.
    pub(super) fn project(&mut self, columns: Vec<usize>) {
        self.projection = Some(columns);
    }

    /// The next record batch, in the columns of the projection.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            match &mut self.place {
                Place::End => return Ok(None),
                Place::Blocks(blocks) => {
                    let Some(block) = blocks.next() else {
                        self.place = Place::End;
                        return Ok(None);
                    };
                    let Some((message, _)) = self.message_at(block_offset(&block)?)? else {
                        return Err(damaged("footer points at an empty message"));
                    };
                    return self.take_batch(&message).map(Some);
                }
                Place::Stream(offset) => {
                    let offset = *offset;
                    let Some((message, next)) = self.message_at(offset)? else {
                        self.place = Place::End;
                        return Ok(None);
                    };
                    self.place = Place::Stream(next);
                    match message.parse()?.header_type() {
                        MessageHeader::RecordBatch => return self.take_batch(&message).map(Some),
                        MessageHeader::DictionaryBatch => self.take_dictionary(&message)?,
                        other => return Err(damaged(format!("expected a record batch, found {other:?}"))),
                    }
                }
            }
        }
    }

    /// The message at an offset, and its end; `None` at the end marker of a stream.
    fn message_at(&self, offset: u64) -> Result<Option<(RawMessage, u64)>, ArrowError> {
        let cut_short = |what: &str| damaged(format!("is cut short in {what} at byte {offset}"));
        let mut word = [0; 4];
        let mut at = offset;
        if !self.file.holds(at, 4) {
            // A closed stream may legally lack its end marker, but then nothing tells it from a truncated one.
            return Err(damaged(format!(
                "stops at byte {offset} without an end marker: cut short, or its writer was never closed"
            )));
        }
        self.file.read_at(at, &mut word)?;
        at += 4;
        if word == CONTINUATION {
            // Writers before Arrow 0.15 leave the continuation marker out.
            if !self.file.holds(at, 4) {
                return Err(cut_short("the length of a message"));
            }
            self.file.read_at(at, &mut word)?;
            at += 4;
        }
        let header_bytes = u64::from(u32::from_le_bytes(word));
        if header_bytes == 0 {
            let behind = self.file.len_bytes() - at;
            // In the file format the footer follows, which the walk does not reach.
            if behind > 0 {
                return Err(damaged(format!("{behind} bytes follow the end marker of the stream")));
            }
            return Ok(None);
        }
        if !self.file.holds(at, header_bytes) {
            return Err(cut_short("the header of a message"));
        }
        let mut header = vec![0; header_bytes as usize];
        self.file.read_at(at, &mut header)?;
        at += header_bytes;
        let body_bytes = {
            let message = root_as_message(&header)
                .map_err(|error| damaged(format!("message at byte {offset} does not parse: {error}")))?;
            u64::try_from(message.bodyLength())
                .map_err(|_| damaged(format!("message at byte {offset} has a body of negative length")))?
        };
        if !self.file.holds(at, body_bytes) {
            return Err(cut_short("the body of a message"));
        }
        let mut body = MutableBuffer::from_len_zeroed(body_bytes as usize);
        self.file.read_at(at, &mut body)?;
        let message = RawMessage { header, body: body.into() };
        message.check_buffers()?;
        Ok(Some((message, at + body_bytes)))
    }

    fn take_dictionary(&mut self, message: &RawMessage) -> Result<(), ArrowError> {
        let parsed = message.parse()?;
        let batch =
            parsed.header_as_dictionary_batch().ok_or_else(|| damaged("expected a dictionary batch"))?;
        read_dictionary(&message.body, batch, &self.schema, &mut self.dictionaries, &parsed.version())
    }

    fn take_batch(&self, message: &RawMessage) -> Result<RecordBatch, ArrowError> {
        let parsed = message.parse()?;
        let batch = parsed.header_as_record_batch().ok_or_else(|| damaged("expected a record batch"))?;
        if batch.length() < 0 {
            return Err(damaged("a record batch declares a negative number of rows"));
        }
        let schema = Arc::clone(&self.schema);
        RecordBatchDecoder::try_new(&message.body, batch, schema, &self.dictionaries, &parsed.version())?
            .with_projection(self.projection.as_deref())
            .read_record_batch()
    }
}

fn block_offset(block: &Block) -> Result<u64, ArrowError> {
    u64::try_from(block.offset()).map_err(|_| damaged("footer points before the start of the file"))
}

/// Flatbuffer header and body of one message.
struct RawMessage {
    header: Vec<u8>,
    body: Buffer,
}

impl RawMessage {
    fn parse(&self) -> Result<Message<'_>, ArrowError> {
        root_as_message(&self.header).map_err(|error| damaged(format!("message does not parse: {error}")))
    }

    /// Checks that every buffer is within the body, and that a compressed one declares a size that may be allocated.
    fn check_buffers(&self) -> Result<(), ArrowError> {
        let message = self.parse()?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|it| it.data()),
            _ => None,
        };
        let Some(batch) = batch else { return Ok(()) };
        if batch.length() > ROWS_PER_MESSAGE_MAX {
            return Err(damaged(format!("a record batch declares {} rows", batch.length())));
        }
        let mut unpacked_bytes = 0;
        for buffer in batch.buffers().into_iter().flatten() {
            let bytes = usize::try_from(buffer.offset())
                .ok()
                .zip(usize::try_from(buffer.length()).ok())
                .and_then(|(start, length)| self.body.get(start..start.checked_add(length)?))
                .ok_or_else(|| damaged("a buffer reaches outside its message"))?;
            if batch.compression().is_some()
                && let Some(prefix) = bytes.first_chunk::<8>()
            {
                // -1: not compressed.
                let unpacked = i64::from_le_bytes(*prefix);
                let is_too_much = match u64::try_from(unpacked) {
                    Ok(bytes) => {
                        unpacked_bytes += u128::from(bytes);
                        unpacked_bytes > u128::from(unpacked::bytes_max(self.body.len() as u64))
                    }
                    Err(_) => unpacked < -1,
                };
                if is_too_much {
                    return Err(damaged(format!(
                        "a compressed buffer declares {unpacked} bytes in a message of {}; allowed are {} in all",
                        self.body.len(),
                        unpacked::bytes_max(self.body.len() as u64)
                    )));
                }
            }
        }
        Ok(())
    }
}
