//! A list with an entry per server that grows while threads read it. Entries are made in chunks and never move, so that
//! reading is an atomic load. Knows no server.

use std::sync::OnceLock;

use sanderling_wire::limit::SERVERS_MAX;

/// Entries of a chunk.
const CHUNK: usize = 64;

/// See the top of this file. It has room for [`SERVERS_MAX`] servers.
#[derive(Debug)]
pub(crate) struct ByServer<T> {
    chunks: [OnceLock<Box<[T]>>; SERVERS_MAX / CHUNK],
}

impl<T> Default for ByServer<T> {
    fn default() -> ByServer<T> {
        ByServer { chunks: [const { OnceLock::new() }; SERVERS_MAX / CHUNK] }
    }
}

impl<T: Default> ByServer<T> {
    /// The entry of a server; `None` if none of its chunk was ever used.
    #[inline]
    pub(crate) fn get(&self, server: usize) -> Option<&T> {
        self.chunks.get(server / CHUNK)?.get()?.get(server % CHUNK)
    }

    /// The entry of a server, which is made.
    ///
    /// # Panics
    /// If the server is [`SERVERS_MAX`] or beyond.
    #[inline]
    pub(crate) fn at(&self, server: usize) -> &T {
        let chunk = self.chunks[server / CHUNK]
            .get_or_init(|| std::iter::repeat_with(T::default).take(CHUNK).collect());
        &chunk[server % CHUNK]
    }

    /// All entries that were made, each with its server.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter_map(|(at, chunk)| Some((at * CHUNK, chunk.get()?)));
        chunks.flat_map(|(first, chunk)| (first..).zip(&chunk[..]))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn entries_are_made_when_they_are_used_and_stay() {
        let list = ByServer::<AtomicU32>::default();
        assert!(list.get(0).is_none() && list.get(SERVERS_MAX).is_none());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let list = &list;
                scope.spawn(move || {
                    for server in (thread..SERVERS_MAX).step_by(4) {
                        list.at(server).fetch_add(server as u32, Ordering::Relaxed);
                    }
                });
            }
        });
        let found: Vec<u32> = list.iter().map(|(_, entry)| entry.load(Ordering::Relaxed)).collect();
        assert_eq!(found, (0..SERVERS_MAX as u32).collect::<Vec<_>>());
        assert!(list.iter().all(|(at, entry)| std::ptr::eq(list.get(at).unwrap(), entry)));
    }
}
