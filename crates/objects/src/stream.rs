//! A file of a store as a stream: pieces are fetched by requests of their own, a few ahead of the reader, so that
//! neither a slow network nor a slow reader stalls the other. Without range support it is one request.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResult, ObjectMeta, ObjectStoreExt};

use crate::error::ObjectError;
use crate::network::{Network, Started};
use crate::place::{Kind, Place};
use crate::store::{Store, store_of};
use crate::{PIECE_BYTES_FIRST, PIECE_BYTES_MAX, PIECES_AHEAD};

/// The answer of a server to a range of an empty file.
const OUT_OF_RANGE: &str = "status code: 416";

/// A file that is being read. Dropping it cancels the pieces under way.
pub struct ObjectStream {
    network: Arc<Network>,
    file: Arc<File>,
    rest: Rest,
    /// Bytes received and not read yet.
    ready: Bytes,
}

/// The file, and how to request it.
struct File {
    url: String,
    kind: Kind,
    store: Store,
    path: Path,
}

/// The part that is not received yet.
enum Rest {
    /// Pieces; the ones under way with their ranges.
    Pieces {
        /// The metadata of the first answer.
        meta: ObjectMeta,
        coming: VecDeque<(Range<u64>, Started<Bytes>)>,
        /// The start of the next piece to request.
        next_at: u64,
        next_bytes: u64,
    },
    /// One answer, with its next piece under way.
    Whole(Started<(Bytes, Answer)>),
    Nothing,
}

/// The body of one answer, and how many bytes are left.
struct Answer {
    stream: BoxStream<'static, Result<Bytes, Error>>,
    bytes_left: u64,
}

impl fmt::Debug for ObjectStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStream").field("url", &self.file.url).finish_non_exhaustive()
    }
}

impl ObjectStream {
    pub(crate) fn open(network: &Arc<Network>, url: &str) -> Result<ObjectStream, ObjectError> {
        let place = Place::parse(url)?;
        let store = store_of(network, &place, url)?;
        let file = Arc::new(File { url: url.to_string(), kind: place.kind, store, path: place.path(url)? });
        let first = Arc::clone(&file);
        let rest = match network.start(async move { first.begin().await }).wait(url)? {
            Begun::Empty => Rest::Nothing,
            Begun::Whole(answer) => Rest::Whole(network.start(Arc::clone(&file).go_on(answer))),
            Begun::Ranges(first) => {
                let (meta, range) = (first.meta.clone(), first.range.clone());
                let (file, piece) = (Arc::clone(&file), range.clone());
                let started = network.start(async move { file.body(first, &piece).await });
                Rest::Pieces {
                    meta,
                    next_at: range.end,
                    next_bytes: (2 * PIECE_BYTES_FIRST).min(PIECE_BYTES_MAX),
                    coming: VecDeque::from([(range, started)]),
                }
            }
        };
        let mut stream = ObjectStream { network: Arc::clone(network), file, rest, ready: Bytes::new() };
        stream.fetch_ahead();
        Ok(stream)
    }

    /// Requests pieces until enough are under way.
    fn fetch_ahead(&mut self) {
        let Rest::Pieces { meta, coming, next_at, next_bytes } = &mut self.rest else { return };
        while coming.len() < PIECES_AHEAD && *next_at < meta.size {
            let range = *next_at..meta.size.min(*next_at + *next_bytes);
            let (file, piece, of) = (Arc::clone(&self.file), range.clone(), meta.clone());
            let started = self.network.start(async move { file.piece(piece, &of).await });
            *next_at = range.end;
            *next_bytes = (2 * *next_bytes).min(PIECE_BYTES_MAX);
            coming.push_back((range, started));
        }
    }

    /// Waits for the next bytes; none at the end.
    fn receive(&mut self) -> Result<(), ObjectError> {
        // After an error the stream ends: bytes behind a gap are not the file.
        match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Nothing => {}
            Rest::Pieces { meta, mut coming, next_at, next_bytes } => {
                if let Some((_, started)) = coming.pop_front() {
                    self.ready = started.wait(&self.file.url)?;
                    self.rest = Rest::Pieces { meta, coming, next_at, next_bytes };
                    self.fetch_ahead();
                }
            }
            Rest::Whole(started) => {
                let (bytes, answer) = started.wait(&self.file.url)?;
                if !bytes.is_empty() {
                    self.rest = Rest::Whole(self.network.start(Arc::clone(&self.file).go_on(answer)));
                }
                self.ready = bytes;
            }
        }
        Ok(())
    }
}

impl Read for ObjectStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.ready.is_empty() {
            self.receive()?;
        }
        let count = out.len().min(self.ready.len());
        self.ready.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// How a file can be read, with its first bytes.
enum Begun {
    Ranges(GetResult),
    Whole(Answer),
    Empty,
}

impl File {
    async fn begin(&self) -> Result<Begun, ObjectError> {
        match self.get(0..PIECE_BYTES_FIRST).await {
            Ok(first) => Ok(Begun::Ranges(first)),
            Err(Error::NotSupported { .. }) => {
                let all = self.store.objects.get(&self.path).await.map_err(|error| self.failed(&error))?;
                let bytes_left = all.meta.size;
                Ok(Begun::Whole(Answer { stream: all.into_stream(), bytes_left }))
            }
            Err(error) => {
                if error.to_string().contains(OUT_OF_RANGE)
                    && self.store.objects.head(&self.path).await.is_ok_and(|meta| meta.size == 0)
                {
                    return Ok(Begun::Empty);
                }
                Err(self.failed(&error))
            }
        }
    }

    async fn get(&self, range: Range<u64>) -> Result<GetResult, Error> {
        let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
        self.store.objects.get_opts(&self.path, options).await
    }

    /// A piece after the first, checked to be of the same version of the file.
    async fn piece(&self, range: Range<u64>, of: &ObjectMeta) -> Result<Bytes, ObjectError> {
        let got = self.get(range.clone()).await.map_err(|error| self.failed(&error))?;
        let is = &got.meta;
        if (is.size, &is.e_tag, is.last_modified) != (of.size, &of.e_tag, of.last_modified) {
            return Err(ObjectError::changed(&self.url));
        }
        self.body(got, &range).await
    }

    async fn body(&self, got: GetResult, range: &Range<u64>) -> Result<Bytes, ObjectError> {
        let bytes = got.bytes().await.map_err(|error| self.failed(&error))?;
        if bytes.len() as u64 != range.end - range.start { Err(self.cut_short()) } else { Ok(bytes) }
    }

    /// The next bytes of an answer, up to the largest piece; none at its end.
    async fn go_on(self: Arc<Self>, mut answer: Answer) -> Result<(Bytes, Answer), ObjectError> {
        let mut piece = BytesMut::new();
        while (piece.len() as u64) < PIECE_BYTES_MAX {
            match answer.stream.next().await {
                Some(Ok(bytes)) => piece.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(self.failed(&error)),
                None if answer.bytes_left > piece.len() as u64 => return Err(self.cut_short()),
                None => break,
            }
        }
        answer.bytes_left = answer.bytes_left.saturating_sub(piece.len() as u64);
        Ok((piece.freeze(), answer))
    }

    fn cut_short(&self) -> ObjectError {
        ObjectError::new(&self.url, ErrorKind::UnexpectedEof, "the server sent less than it said: try again")
    }

    fn failed(&self, error: &Error) -> ObjectError {
        ObjectError::of(&self.url, self.kind, error)
    }
}
