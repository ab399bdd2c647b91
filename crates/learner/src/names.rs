//! Names of keys: the texts that keys of chosen features are hashes of, kept within a limit while a model is trained and
//! saved beside its tables. Knows no table.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sanderling_sample::NoteName;

use crate::config::NamesConfig;

/// The blob of a model that has the names.
pub(crate) const NAMES_BLOB: &str = "names.tsv";
/// The name of the key of a missing value.
const MISSING: &str = "(missing)";
/// Keys that were noted lately, by slot: a key that is there needs no lock.
const SLOTS: usize = 1 << 20;
/// Locks of the names, by key.
const SHARDS: usize = 16;
/// Memory of a name besides its text.
const NAME_BYTES: usize = 64;
/// Longer texts are cut.
const TEXT_BYTES_MAX: usize = 1024;

/// Texts by feature and key.
type Shard = HashMap<(usize, u64), Box<str>>;

/// Collects names while rows are encoded.
#[derive(Debug)]
pub struct NameCollector {
    features: Vec<String>,
    /// By feature of the encoder: its place in `features`.
    places: Vec<Option<usize>>,
    noted: Box<[AtomicU64]>,
    shards: Vec<Mutex<Shard>>,
    bytes: AtomicU64,
    max_bytes: u64,
    is_full: AtomicBool,
}

impl NameCollector {
    /// Collects for features of an encoder, whose names are given in its order.
    pub fn new<'a>(config: &NamesConfig, encoded: impl Iterator<Item = &'a str>) -> NameCollector {
        let place = |name: &str| config.features.iter().position(|feature| feature == name);
        NameCollector {
            features: config.features.clone(),
            places: encoded.map(place).collect(),
            noted: (0..SLOTS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicU64::new(0),
            max_bytes: config.max_bytes,
            is_full: AtomicBool::new(false),
        }
    }

    /// Adds the names that an earlier session has saved; an error is the text of what is wrong.
    ///
    /// # Errors
    /// They are no names.
    pub fn restore(&self, blob: &[u8]) -> Result<(), String> {
        each_line(blob, |feature, key, text| {
            if let Some(place) = self.features.iter().position(|name| name == feature) {
                self.keep(place, key, &text);
            }
        })
    }

    /// The name of a key of one of some features.
    #[must_use]
    pub fn find(&self, features: &[&str], key: u64) -> Option<String> {
        let names = lock(&self.shards[key as usize % SHARDS]);
        let places = self.features.iter().enumerate().filter(|(_, name)| features.contains(&name.as_str()));
        places.filter_map(|(place, _)| names.get(&(place, key))).map(ToString::to_string).next()
    }

    /// Whether names were left out for want of room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// The names as a blob: feature, key and text by line, in the order of features and keys.
    #[must_use]
    pub fn to_blob(&self) -> Vec<u8> {
        let mut all: Vec<((usize, u64), Box<str>)> = Vec::new();
        for shard in &self.shards {
            all.extend(lock(shard).iter().map(|(at, text)| (*at, text.clone())));
        }
        all.sort_unstable_by_key(|(at, _)| *at);
        let mut blob = String::new();
        for ((place, key), text) in all {
            let _ = writeln!(blob, "{}\t{key}\t{}", escaped(&self.features[place]), escaped(&text));
        }
        blob.into_bytes()
    }

    #[cold]
    fn keep(&self, place: usize, key: u64, text: &str) {
        let mut names = lock(&self.shards[key as usize % SHARDS]);
        if names.contains_key(&(place, key)) {
            return;
        }
        let bytes = (text.len() + NAME_BYTES) as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.max_bytes {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.is_full.store(true, Ordering::Relaxed);
            return;
        }
        names.insert((place, key), text.into());
    }
}

impl NoteName for NameCollector {
    #[inline]
    fn note(&self, feature: usize, key: u64, text: &[u8]) {
        let Some(place) = self.places.get(feature).copied().flatten() else { return };
        let mark = key.wrapping_add(place as u64);
        let slot = &self.noted[mark as usize % SLOTS];
        if slot.load(Ordering::Relaxed) == mark || self.is_full() {
            return;
        }
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)]);
        self.keep(place, key, if text.is_empty() { MISSING } else { &text });
        slot.store(mark, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names of keys, by key.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<u64, String>);

impl Names {
    /// Reads the names of some features; an error is the text of what is wrong.
    pub(crate) fn read(blob: &[u8], features: &[&str]) -> Result<Names, String> {
        let mut names = HashMap::new();
        each_line(blob, |feature, key, text| {
            if features.contains(&feature) {
                names.entry(key).or_insert(text);
            }
        })?;
        Ok(Names(names))
    }

    /// The name of a key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&str> {
        self.0.get(&key).map(String::as_str)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn each_line(blob: &[u8], mut each: impl FnMut(&str, u64, String)) -> Result<(), String> {
    let text = std::str::from_utf8(blob).map_err(|_| "is not text".to_owned())?;
    for (line, number) in text.lines().zip(1..) {
        let mut parts = line.splitn(3, '\t');
        let parts = (parts.next(), parts.next().and_then(|key| key.parse().ok()), parts.next());
        let (Some(feature), Some(key), Some(text)) = parts else {
            return Err(format!("line {number} is not a feature, a key and a text"));
        };
        each(&unescaped(feature), key, unescaped(text));
    }
    Ok(())
}

/// A text without tabs and line ends.
fn escaped(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '\t' => to.push_str("\\t"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            c => to.push(c),
        }
    }
    to
}

fn unescaped(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => to.push(match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            }),
            c => to.push(c),
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(max_bytes: u64) -> NameCollector {
        let config = NamesConfig { features: vec!["movie".to_owned(), "a\tb".to_owned()], max_bytes };
        NameCollector::new(&config, ["user", "a\tb", "movie"].into_iter())
    }

    #[test]
    fn names_come_back_as_they_were_noted() {
        let texts = ["Heat", "a\tb", "line\nend\r", "\\t", "größe", "", "Heat 2"];
        let names = collector(1 << 20);
        for (key, text) in (10..).zip(texts) {
            names.note(2, key, text.as_bytes());
            names.note(1, key + 100, text.as_bytes());
            names.note(0, key, b"not asked for");
            names.note(2, key, b"another text of a key in use");
        }
        names.note(2, 5, b"\xff\xfe");
        let blob = names.to_blob();
        let found = Names::read(&blob, &["movie"]).unwrap();
        for (key, text) in (10..).zip(texts) {
            assert_eq!(found.get(key), Some(if text.is_empty() { MISSING } else { text }));
        }
        assert_eq!(found.get(5), Some("\u{fffd}\u{fffd}"));
        assert_eq!(found.get(110), None);
        assert_eq!(Names::read(&blob, &["a\tb"]).unwrap().get(111), Some("a\tb"));
        let again = collector(1 << 20);
        again.restore(&blob).unwrap();
        assert_eq!(again.to_blob(), blob);
        assert!(Names::read(b"movie\tx\tHeat\n", &[]).is_err());
    }

    #[test]
    fn names_stay_within_their_limit() {
        let names = collector(10 * (NAME_BYTES as u64 + 4));
        (0..100).for_each(|key| names.note(2, key, b"four"));
        assert!(names.is_full());
        assert_eq!(names.to_blob().split(|byte| *byte == b'\n').count(), 10 + 1);
        let threads = collector(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|key| threads.note(2, key, key.to_string().as_bytes())));
            }
        });
        assert_eq!(threads.to_blob().split(|byte| *byte == b'\n').count(), 1000 + 1);
        assert!(!threads.is_full());
    }
}
