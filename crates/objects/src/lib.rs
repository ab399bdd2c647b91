//! Bytes by url: the objects of stores (`s3://`, `gs://`, `az://`) and the files of web servers (`http://`, `https://`),
//! found by name or pattern and read as streams that fetch ahead.
//!
//! Requests, signatures, credentials and retries are the `object_store` crate's, which is async; here a small runtime runs it,
//! and callers see plain blocking functions. The crate knows no format and writes nothing.

mod error;
mod find;
mod network;
mod place;
mod store;
mod stream;

#[cfg(test)]
mod tests;

pub use error::ObjectError;
pub use find::Found;
pub use stream::ObjectStream;

/// Files looked for at a time, where many are named.
pub const LOOKUPS_AT_ONCE: usize = 16;
/// A pattern ends with an error after it has looked through so many names.
pub const NAMES_LOOKED_THROUGH_MAX: usize = 1_000_000;
/// Pieces of a file that are fetched before they are asked for.
pub const PIECES_AHEAD: usize = 4;
/// The first piece of a file has this many bytes, each later one twice as many as the one before it, up to
/// [`PIECE_BYTES_MAX`]: who looks at the first lines only should not wait for more.
pub const PIECE_BYTES_FIRST: u64 = 1 << 20;
/// A piece has at most this many bytes.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;
/// A request that fails in a way that may pass is sent again this often at most, with growing pauses between.
pub const RETRIES_MAX: usize = 6;
/// Nor is it sent again after this many seconds.
pub const RETRY_S_MAX: u64 = 60;
/// A server that says nothing for so many seconds is not waited for.
pub const SILENCE_S_MAX: u64 = 30;
/// Nor is a connection that takes longer to be made, in seconds.
pub const CONNECT_S_MAX: u64 = 5;
/// Stores and web servers that stay connected.
pub const STORES_MAX: usize = 64;

/// The files that names and patterns stand for, in the order given, the matches of one pattern sorted by name.
///
/// In the path of a url `*`, `?` and `[` make a pattern, as they do in the names of local files; in that of a web server `?`
/// begins the query and only the other two do. A name that is there as it stands is no pattern.
///
/// # Errors
/// Whatever is not there, may not be read or cannot be listed; the first in the order given.
pub fn find(names: &[&str]) -> Result<Vec<Vec<Found>>, ObjectError> {
    find::find(&network::of_process()?, names)
}

/// Opens a file for reading front to back. No lock is held and nothing runs while nobody reads, but for the pieces that are
/// fetched ahead.
///
/// # Errors
/// It is not there, may not be read, or its server does not answer.
pub fn open(url: &str) -> Result<ObjectStream, ObjectError> {
    ObjectStream::open(&network::of_process()?, url)
}
