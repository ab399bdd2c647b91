//! Bytes by url: the objects of stores (`s3://`, `gs://`, `az://`) and the files of web servers (`http://`,
//! `https://`), found by name or pattern and read as prefetching streams.
//!
//! The async crate `object_store` does requests, signatures, credentials and retries; a small runtime here runs it
//! behind blocking functions. The crate knows no format and writes nothing.

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

/// Files that are looked up at a time.
pub const LOOKUPS_AT_ONCE: usize = 16;
/// The most names that a pattern is matched against.
pub const NAMES_LOOKED_THROUGH_MAX: usize = 1_000_000;
/// Pieces of a file that are prefetched.
pub const PIECES_AHEAD: usize = 4;
/// Bytes of the first piece of a file; each later piece is twice as long, up to [`PIECE_BYTES_MAX`]. A reader of the
/// first lines does not wait for more.
pub const PIECE_BYTES_FIRST: u64 = 1 << 20;
/// The most bytes of a piece.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;
/// The most retries of a request after a transient error, with growing pauses.
pub const RETRIES_MAX: usize = 6;
/// Seconds after which a request is not retried.
pub const RETRY_S_MAX: u64 = 60;
/// Seconds of silence after which a request fails.
pub const SILENCE_S_MAX: u64 = 30;
/// Seconds after which a connection attempt fails.
pub const CONNECT_S_MAX: u64 = 5;
/// The most stores and web servers that stay open.
pub const STORES_MAX: usize = 64;

/// The files that names and patterns stand for, in the order given; the matches of one pattern sorted by name.
///
/// In the path of a url `*`, `?` and `[` make a pattern, as in names of local files; in that of a web server `?`
/// begins the query and only the other two do. The name of an existing file is no pattern.
///
/// # Errors
/// The first missing, forbidden or unlistable name, in the order given.
pub fn find(names: &[&str]) -> Result<Vec<Vec<Found>>, ObjectError> {
    find::find(&network::of_process()?, names)
}

/// Opens a file for reading front to back. It holds no lock; only prefetching runs in the background.
///
/// # Errors
/// The file is missing or forbidden, or its server does not answer.
pub fn open(url: &str) -> Result<ObjectStream, ObjectError> {
    ObjectStream::open(&network::of_process()?, url)
}
