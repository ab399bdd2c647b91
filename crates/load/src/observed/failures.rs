//! Failures by kind, each with the first message. Knows nothing of what may fail.

/// The most kinds that are told apart; further ones are counted together.
const KINDS_MAX: usize = 64;
/// Kind under which further kinds are counted.
const OTHER: &str = "other";
/// The most bytes of a message that are kept.
const MESSAGE_BYTES_MAX: usize = 2000;

/// Counts while a run goes on.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    kinds: Vec<FailureCount>,
}

/// How often something failed in one way.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FailureCount {
    /// A short name.
    pub kind: String,
    /// How often.
    pub count: u64,
    /// The message of the first.
    pub first: String,
}

impl Failures {
    /// None yet.
    #[must_use]
    pub fn new() -> Failures {
        Failures::default()
    }

    /// Counts one.
    pub fn note(&mut self, kind: &str, message: &str) {
        self.add(kind, 1, message);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Failures) {
        for failure in &other.kinds {
            self.add(&failure.kind, failure.count, &failure.first);
        }
    }

    /// By kind, the most frequent first.
    #[must_use]
    pub fn counts(mut self) -> Vec<FailureCount> {
        self.kinds.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.kind.cmp(&b.kind)));
        self.kinds
    }

    fn add(&mut self, kind: &str, count: u64, message: &str) {
        let known = |kinds: &[FailureCount], kind: &str| kinds.iter().position(|known| known.kind == kind);
        let full = self.kinds.len() >= KINDS_MAX - 1;
        let kind = if full && known(&self.kinds, kind).is_none() { OTHER } else { kind };
        match known(&self.kinds, kind) {
            Some(at) => self.kinds[at].count += count,
            None => {
                let mut end = message.len().min(MESSAGE_BYTES_MAX);
                while !message.is_char_boundary(end) {
                    end -= 1;
                }
                self.kinds.push(FailureCount {
                    kind: kind.to_owned(),
                    count,
                    first: message[..end].to_owned(),
                });
            }
        }
    }
}
