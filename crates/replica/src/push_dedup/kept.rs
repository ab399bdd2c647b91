//! The push history of a server whose tables outlive it, in a file that the next server reads.
//!
//! A client has a slot: its number, its floor, its highest sequence, and a mark per sequence of the window. A push is
//! marked before its first row changes, so that a retry after a kill is never applied twice: a push that was done is
//! answered as before, one that was under way is refused as stale. Evicted clients are not kept.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, compiler_fence};
use std::sync::{Arc, Mutex};

use sanderling_store::{KeptBytes, StoreError};

use super::saved::{SavedClient, WORDS};
use super::{ClientPushes, Mark, Outcome, PushDedup, SavedPushDedup, lock};
use crate::limit::{PUSH_CLIENTS_MAX, PUSH_WINDOW};

/// Positions in a slot. Floor and highest sequence are stored plus one; 0 is none. A slot is in use if `USED` is 1. There
/// are two highest sequences, of which `SELECTED` says the present one, because a number is not stored at once.
const USED: usize = 0;
const SELECTED: usize = 1;
const CLIENT: usize = 8;
const FLOOR: usize = 16;
const HIGHEST: [usize; 2] = [24, 32];
const MARKS: usize = 64;
const SLOT_BYTES: usize = MARKS + PUSH_WINDOW as usize;

/// Marks of a sequence.
const NEW: u8 = 0;
const DONE: u8 = 1;
/// The push may have been applied, or was applied except for some keys.
const UNKNOWN: u8 = 2;

/// The slots of all clients.
#[derive(Debug)]
pub(super) struct KeptWindows {
    bytes: KeptBytes,
    free: Mutex<Vec<usize>>,
}

/// The slot of a client.
#[derive(Debug)]
pub(super) struct KeptWindow {
    windows: Arc<KeptWindows>,
    slot: usize,
}

/// Orders stores for a later process, which finds those of a prefix of the program.
fn in_order() {
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

fn get(bytes: &[AtomicU8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte].load(Relaxed)))
}

fn set(bytes: &[AtomicU8], at: usize, value: u64) {
    bytes[at..].iter().zip(value.to_le_bytes()).for_each(|(to, byte)| to.store(byte, Relaxed));
}

impl KeptWindows {
    fn slot(&self, slot: usize) -> &[AtomicU8] {
        &self.bytes[slot * SLOT_BYTES..][..SLOT_BYTES]
    }

    /// Gives a client a slot without marks; `None` if none is free.
    pub(super) fn take(self: &Arc<Self>, client: u64, floor: Option<u64>) -> Option<KeptWindow> {
        let slot = lock(&self.free).pop()?;
        let bytes = self.slot(slot);
        bytes.iter().for_each(|byte| byte.store(0, Relaxed));
        set(bytes, CLIENT, client);
        set(bytes, FLOOR, floor.map_or(0, |floor| floor.saturating_add(1)));
        in_order();
        bytes[USED].store(1, Relaxed);
        Some(KeptWindow { windows: Arc::clone(self), slot })
    }

    /// Replaces all clients, at the start of a server.
    pub(super) fn replace<'a>(self: &Arc<Self>, clients: impl Iterator<Item = &'a Arc<ClientPushes>>) {
        (0..PUSH_CLIENTS_MAX).for_each(|slot| self.slot(slot)[USED].store(0, Relaxed));
        *lock(&self.free) = (0..PUSH_CLIENTS_MAX).collect();
        for client_pushes in clients {
            let window = &mut *lock(&client_pushes.window);
            window.kept = self.take(client_pushes.client, window.floor);
            let Some(kept) = &window.kept else { continue };
            for (place, mark) in (0..).zip(&window.marks) {
                match mark {
                    Mark::None => {}
                    Mark::UnderWay | Mark::Unknown => kept.begin(place),
                    Mark::Done(outcome) => kept.finish(place, Some(*outcome)),
                }
            }
            window.highest.into_iter().for_each(|highest| kept.advance(highest, 0));
        }
    }

    /// The client of a slot, if one uses it.
    fn client(&self, slot: usize) -> Option<SavedClient> {
        let bytes = self.slot(slot);
        if bytes[USED].load(Relaxed) == 0 {
            return None;
        }
        let highest = HIGHEST[usize::from(bytes[SELECTED].load(Relaxed) & 1)];
        let [floor, highest] = [FLOOR, highest].map(|at| get(bytes, at).checked_sub(1));
        let (mut applied, mut unknown) = (vec![0; WORDS], vec![0; WORDS]);
        for (place, mark) in bytes[MARKS..].iter().enumerate() {
            match mark.load(Relaxed) {
                NEW => {}
                DONE => applied[place / 64] |= 1 << (place % 64),
                _ => unknown[place / 64] |= 1 << (place % 64),
            }
        }
        Some(SavedClient { client: get(bytes, CLIENT), floor, highest, applied, unknown, full: Vec::new() })
    }
}

impl KeptWindow {
    fn bytes(&self) -> &[AtomicU8] {
        self.windows.slot(self.slot)
    }

    /// Frees the slot for another client.
    pub(super) fn free(self) {
        self.bytes()[USED].store(0, Relaxed);
        lock(&self.windows.free).push(self.slot);
    }

    fn mark(&self, sequence: u64, mark: u8) {
        in_order();
        self.bytes()[MARKS + (sequence % PUSH_WINDOW) as usize].store(mark, Relaxed);
        in_order();
    }

    /// Records a new highest sequence, and that the `new` sequences up to it have not been seen.
    pub(super) fn advance(&self, highest: u64, new: u64) {
        let all = || (0..new).map(|step| highest.wrapping_sub(step));
        // In between, none of them may look done.
        all().for_each(|sequence| self.mark(sequence, UNKNOWN));
        let (bytes, selected) = (self.bytes(), self.bytes()[SELECTED].load(Relaxed) & 1);
        set(bytes, HIGHEST[usize::from(selected ^ 1)], highest.saturating_add(1));
        in_order();
        bytes[SELECTED].store(selected ^ 1, Relaxed);
        all().for_each(|sequence| self.mark(sequence, NEW));
    }

    /// Marks a push that is about to be applied.
    pub(super) fn begin(&self, sequence: u64) {
        self.mark(sequence, UNKNOWN);
    }

    /// Marks the outcome of a push.
    pub(super) fn finish(&self, sequence: u64, outcome: Option<Outcome>) {
        let mark = match outcome {
            None => NEW,
            Some(Outcome::Applied | Outcome::NotFinite { .. }) => DONE,
            Some(Outcome::Full { .. }) => UNKNOWN,
        };
        self.mark(sequence, mark);
    }
}

impl PushDedup {
    /// Restores the history of an earlier server from a file, and keeps it there from now on.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or there is no space for it.
    pub fn keep(&self, path: &Path) -> Result<(), StoreError> {
        let bytes = KeptBytes::open(path, PUSH_CLIENTS_MAX * SLOT_BYTES)?;
        let windows = KeptWindows { bytes, free: Mutex::default() };
        let found: Vec<(usize, Option<SavedClient>)> =
            (0..PUSH_CLIENTS_MAX).map(|slot| (slot, windows.client(slot))).collect();
        let (used, free): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, client)| client.is_some());
        *lock(&windows.free) = free.into_iter().map(|(slot, _)| slot).collect();
        let slots: Vec<(u64, usize)> =
            used.iter().filter_map(|(slot, client)| Some((client.as_ref()?.client, *slot))).collect();
        let clients = used.into_iter().filter_map(|(_, client)| client).collect();
        self.restore(SavedPushDedup { clients, past: Vec::new() });
        let windows = Arc::new(windows);
        for (client, slot) in slots {
            let kept = KeptWindow { windows: Arc::clone(&windows), slot };
            if let Some(client_pushes) = lock(&self.clients).present.get(&client) {
                lock(&client_pushes.window).kept = Some(kept);
            }
        }
        let _ = self.kept.set(windows);
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::push_dedup::Verdict;

    fn kept(path: &Path) -> PushDedup {
        let push_dedup = PushDedup::default();
        push_dedup.keep(path).expect("a file");
        push_dedup
    }

    fn begin(push_dedup: &PushDedup, client: u64, sequence: u64) -> Verdict {
        push_dedup.begin(&mut None, client, sequence)
    }

    fn finish(push_dedup: &PushDedup, client: u64, sequence: u64, outcome: Option<Outcome>) {
        let client_pushes = Arc::clone(&lock(&push_dedup.clients).present[&client]);
        client_pushes.finish(sequence, outcome);
    }

    /// Checks the answers of the next server.
    #[test]
    fn a_retry_after_a_kill_is_answered_and_never_applied_twice() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("pushes");
        let (applied, full) = (Some(Outcome::Applied), Some(Outcome::Full { rejected: 1 }));
        let known = Verdict::Known(Outcome::Applied);
        let first = kept(&path);
        for (sequence, outcome) in
            [(5, applied), (7, None), (8, full), (9, applied), (5 + PUSH_WINDOW, applied)]
        {
            assert_eq!(begin(&first, 1, sequence), Verdict::Apply);
            finish(&first, 1, sequence, outcome);
        }
        assert_eq!(begin(&first, 1, 6 + PUSH_WINDOW), Verdict::Apply);
        assert_eq!(begin(&first, 2, u64::MAX - 1), Verdict::Apply);
        drop(first);
        for _ in 0..2 {
            let next = kept(&path);
            for (client, sequence, expected) in [
                (1, 5, Verdict::Stale),
                (1, 9, known),
                (1, 8, Verdict::Stale),
                (1, 5 + PUSH_WINDOW, known),
                (1, 6 + PUSH_WINDOW, Verdict::Stale),
                (2, u64::MAX - 1, Verdict::Stale),
            ] {
                assert_eq!(begin(&next, client, sequence), expected, "{client} {sequence}");
            }
            drop(next);
        }
        let next = kept(&path);
        for sequence in [10, 7 + PUSH_WINDOW] {
            assert_eq!(begin(&next, 1, sequence), Verdict::Apply, "{sequence}");
        }
        assert_eq!(next.client_count(), 2);
    }
}
