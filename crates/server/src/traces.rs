//! Sampled and slow requests with their stages, and the keys of sampled requests. Each worker keeps its latest ones; a
//! reader takes those of all workers. A request that is neither sampled nor slow costs a subtraction and a comparison.
//! With an exporter, they become spans of distributed traces, too.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::{SpanContext, SpanQueue};
use sanderling_replica::SlotWork;
use sanderling_wire::{Kind, Request};

use crate::clock::unix_ms;
use crate::hot_keys::HotKeys;
use crate::key_shares::{KeyShares, KeySharesByTable};
use crate::limit::TRACES_MAX;

mod held;
pub(crate) use held::HeldTrace;

mod marks;
use marks::Marks;

mod span_tree;

/// A request that was sampled or slow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTrace {
    /// End of the work on it, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Name of the command.
    pub command: &'static str,
    /// The client's own name, or its host.
    pub peer: String,
    /// Number of the table. None: it is about none, or it was not sampled.
    pub table: Option<u32>,
    /// Number of keys, as far as it was sampled.
    pub keys: Option<usize>,
    /// Length of its frame.
    pub bytes: usize,
    /// Whether it took as long as slow requests do.
    pub is_slow: bool,
    /// Its trace, if a client or an exporter traces it.
    pub trace: Option<u128>,
    /// Stages in their order, with names.
    pub stages: Vec<(&'static str, Duration)>,
}

impl RequestTrace {
    /// Time of all stages.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.stages.iter().map(|(_, time)| *time).sum()
    }
}

/// The keys that occur most in sampled requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotKeyList {
    /// Table, key and count, the highest count first.
    pub keys: Vec<(u32, u64, u64)>,
    /// The most that a count is too small.
    pub error: u64,
    /// Keys that were looked at, of late.
    pub total: u64,
}

/// Which requests are noted. It may change at any time.
#[derive(Debug)]
pub(crate) struct TraceSettings {
    /// One in this many requests is sampled. 0: none.
    pub(crate) every: AtomicU32,
    /// Time from which on a request is slow, in microseconds. 0: none is.
    pub(crate) slow_us: AtomicU64,
}

/// The latest requests of a worker.
#[derive(Debug, Default)]
struct Kept {
    slow: VecDeque<RequestTrace>,
    sampled: VecDeque<RequestTrace>,
    hot: HotKeys,
    shares: KeySharesByTable,
    work: SlotWork,
    halved: Option<Instant>,
}

impl Kept {
    fn add(&mut self, trace: RequestTrace) {
        let list = if trace.is_slow { &mut self.slow } else { &mut self.sampled };
        if list.len() == TRACES_MAX {
            list.pop_front();
        }
        list.push_back(trace);
    }
}

/// The requests that all workers keep.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) settings: Arc<TraceSettings>,
    workers: Mutex<Vec<Arc<Mutex<Kept>>>>,
    spans: Option<Arc<SpanQueue>>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traces {
    /// `spans`: where those of an exporter go.
    pub(crate) fn new(every: u32, slow: Duration, spans: Option<Arc<SpanQueue>>) -> Traces {
        let slow_us = AtomicU64::new(u64::try_from(slow.as_micros()).unwrap_or(u64::MAX));
        let settings = Arc::new(TraceSettings { every: AtomicU32::new(every), slow_us });
        Traces { settings, workers: Mutex::default(), spans }
    }

    /// The spans of an exporter.
    pub(crate) fn spans(&self) -> Option<&SpanQueue> {
        self.spans.as_deref()
    }

    /// The tracer of a further worker.
    pub(crate) fn tracer(&self) -> Tracer {
        let kept = Arc::<Mutex<Kept>>::default();
        lock(&self.workers).push(Arc::clone(&kept));
        let (settings, spans) = (Arc::clone(&self.settings), self.spans.clone());
        Tracer { settings, kept, spans, ..Tracer::default() }
    }

    /// The requests that the workers keep, the latest first.
    pub(crate) fn list(&self) -> Vec<RequestTrace> {
        let mut all = Vec::new();
        for kept in lock(&self.workers).iter() {
            let kept = lock(kept);
            all.extend(kept.slow.iter().chain(&kept.sampled).cloned());
        }
        all.sort_by_key(|trace| std::cmp::Reverse(trace.unix_ms));
        all
    }

    /// The keys that occur most in sampled requests.
    pub(crate) fn hot_keys(&self) -> HotKeyList {
        let mut sum = HotKeys::default();
        for kept in lock(&self.workers).iter() {
            // The lock of a worker is held for the copy only.
            let hot = lock(kept).hot.clone();
            sum.merge(&hot);
        }
        HotKeyList { keys: sum.sorted(), error: sum.error(), total: sum.total() }
    }

    /// Sampled keys by the number of the table.
    pub(crate) fn key_shares(&self) -> HashMap<u32, KeyShares> {
        let mut sum = KeySharesByTable::default();
        for kept in lock(&self.workers).iter() {
            sum.merge(&lock(kept).shares);
        }
        sum.into_map()
    }

    /// Requests, and the keys of sampled ones by slot.
    pub(crate) fn slot_work(&self) -> SlotWork {
        let mut sum = SlotWork::default();
        lock(&self.workers).iter().for_each(|kept| sum.merge(&lock(kept).work));
        sum
    }
}

/// Notes the requests of one worker. The default notes none.
#[derive(Debug)]
pub(crate) struct Tracer {
    settings: Arc<TraceSettings>,
    kept: Arc<Mutex<Kept>>,
    spans: Option<Arc<SpanQueue>>,
    /// Requests until the next sampled one.
    gap: u32,
    /// Requests that are not counted in `kept` yet.
    uncounted: u64,
    random: u64,
    /// The sampled request under way.
    marks: Option<Marks>,
}

impl Default for Tracer {
    fn default() -> Tracer {
        let settings = Arc::new(TraceSettings { every: AtomicU32::new(0), slow_us: AtomicU64::new(0) });
        let kept = Arc::default();
        Tracer { settings, kept, spans: None, gap: 0, uncounted: 0, random: 1, marks: None }
    }
}

impl Tracer {
    /// A request begins, of this trace of its client.
    pub(crate) fn begin(&mut self, trace: Option<SpanContext>) {
        self.marks = None;
        self.uncounted += 1;
        if let Some(client) = trace {
            let span = Some((client.child(), Some(client.span)));
            self.marks = Some(Marks { span, ..Marks::default() });
            return;
        }
        if self.gap > 0 {
            self.gap -= 1;
            return;
        }
        let every = self.settings.every.load(Ordering::Relaxed);
        if every > 0 {
            let span = self.spans.is_some().then(|| (SpanContext::root(), None));
            self.marks = Some(Marks { span, ..Marks::default() });
        }
        // Gaps vary, so that requests that take turns are sampled alike. Their average is that of the setting.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let span = 2 * u64::from(every.max(1)) - 1;
        self.gap = (self.random % span).try_into().unwrap_or(u32::MAX);
    }

    /// The request is decoded and admitted, after this wait.
    pub(crate) fn decoded(&mut self, request: &Request<'_>, waited: Duration) {
        if let Some(marks) = &mut self.marks {
            marks.decoded(request, waited, self.random as usize);
        }
    }

    /// Notes the name of a traced request's table.
    pub(crate) fn name_table(&mut self, name: impl Fn(u32) -> Option<String>) {
        if let Some(marks) = &mut self.marks
            && marks.span.is_some()
        {
            marks.table_name = marks.table.and_then(name);
        }
    }

    /// The span of the request under way, if an exporter takes it.
    pub(crate) fn context(&self) -> Option<SpanContext> {
        self.spans.as_ref()?;
        self.marks.as_ref()?.span.map(|(own, _)| own)
    }

    /// Looks some keys of a sampled pull up, to learn how many have no row.
    pub(crate) fn look_up(&mut self, has_row: impl Fn(u64) -> bool) {
        if let Some(marks) = &mut self.marks {
            marks.look_up(has_row);
        }
    }

    /// Has the keys of a sampled request counted by slot. `slots` tells how many share out the rows of a table, if some do.
    pub(crate) fn count_slots(&mut self, slots: impl FnOnce(u32) -> Option<usize>) {
        if let Some(marks) = &mut self.marks {
            marks.count_slots(std::mem::take(&mut self.uncounted), slots);
        }
    }

    /// The work on the request is done, and its reply is written.
    pub(crate) fn done(&mut self) {
        if let Some(marks) = &mut self.marks {
            marks.done = Some(Instant::now());
        }
    }

    /// The request ends: its command, its client, its length, and the times of its begin and end.
    pub(crate) fn end(&mut self, kind: Kind, peer: &str, bytes: usize, began: Instant, ended: Instant) {
        let marks = self.marks.take();
        let took = ended.saturating_duration_since(began);
        if marks.is_some() || self.is_slow(took) {
            self.note(Noted { marks, kind, bytes, began, ended, later: None }, peer);
        }
    }

    fn is_slow(&self, took: Duration) -> bool {
        let slow_us = self.settings.slow_us.load(Ordering::Relaxed);
        slow_us > 0 && took >= Duration::from_micros(slow_us)
    }

    /// Keeps a request, and exports its spans.
    fn note(&self, noted: Noted, peer: &str) {
        let Noted { marks, kind, bytes, began, ended, later } = noted;
        let took = ended.saturating_duration_since(began);
        let (mut table, mut keys, mut table_name) = (None, None, None);
        let (mut stages, mut sampled) = (Vec::new(), None);
        // The work is over where the reply begins to wait.
        let worked_until = later.map_or(ended, |(_, since)| since);
        let span = match marks {
            Some(marks) => {
                (table, keys, table_name) = (marks.table, marks.keys, marks.table_name.clone());
                if let (Some(decoded), Some(worked)) = (marks.decoded, marks.worked) {
                    let done = marks.done.unwrap_or(worked_until);
                    stages.extend([
                        ("wait", marks.waited),
                        ("decode", decoded.saturating_duration_since(began)),
                        ("work", done.saturating_duration_since(worked)),
                        ("reply", worked_until.saturating_duration_since(done)),
                    ]);
                }
                sampled.insert(marks).span
            }
            None => self.spans.is_some().then(|| (SpanContext::root(), None)),
        };
        if stages.is_empty() && worked_until > began {
            stages.push(("all", worked_until.saturating_duration_since(began)));
        }
        if let Some((stage, since)) = later {
            stages.push((stage, ended.saturating_duration_since(since)));
        }
        let (trace, is_slow) = (span.map(|(own, _)| own.trace), self.is_slow(took));
        let (command, peer, unix_ms) = (kind.name(), peer.to_owned(), unix_ms());
        let trace = RequestTrace { unix_ms, command, peer, table, keys, bytes, is_slow, trace, stages };
        if let (Some(spans), Some((own, parent))) = (&self.spans, span) {
            spans.add(span_tree::spans(&trace, own, parent, table_name, ended));
        }
        let mut kept = lock(&self.kept);
        if let Some(marks) = &sampled {
            marks.count(&mut kept);
        }
        kept.add(trace);
    }

    /// A request whose reply came later ends, for example a save.
    pub(crate) fn end_late(&self, kind: Kind, peer: &str, took: Duration) {
        if self.is_slow(took) {
            let ended = Instant::now();
            let began = ended.checked_sub(took).unwrap_or(ended);
            let later = Some(("background", began));
            self.note(Noted { marks: None, kind, bytes: 0, began, ended, later }, peer);
        }
    }
}

/// A request that has ended.
#[derive(Debug)]
struct Noted {
    marks: Option<Marks>,
    kind: Kind,
    bytes: usize,
    began: Instant,
    ended: Instant,
    /// The stage that its reply waited in, and since when.
    later: Option<(&'static str, Instant)>,
}

/// The keys of a request for rows.
fn pulled_keys<'a>(request: &Request<'a>) -> Option<&'a [u64]> {
    match request {
        Request::Pull(_) | Request::PullPooled(_) => keys(request),
        _ => None,
    }
}

/// The keys that a request is about, one by one or together.
fn keys<'a>(request: &Request<'a>) -> Option<&'a [u64]> {
    match request {
        Request::Pull(pull) => Some(pull.keys),
        Request::PullPooled(pull) => Some(pull.ragged.keys),
        Request::Push(push) => Some(push.keys),
        Request::PushStep(push) => Some(push.keys),
        Request::Delete(delete) => Some(delete.keys),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sanderling_wire::{Delete, slot_of};

    use super::*;
    use crate::limit::{PUSHED_KEY_WORK, SAMPLED_KEYS_MAX};

    const US: Duration = Duration::from_micros(1);

    /// Notes a request that deletes these keys and takes this long.
    fn note(tracer: &mut Tracer, keys: &[u64], took: Duration) {
        let began = Instant::now();
        tracer.begin(None);
        tracer.decoded(&Request::Delete(Delete { table: 3, keys }), 5 * US);
        tracer.done();
        tracer.end(Kind::Delete, "a", 64, began, began + took);
    }

    #[test]
    fn keys_of_sampled_requests_are_counted_by_slot() {
        let traces = Traces::new(2, Duration::ZERO, None);
        let (mut one, mut other) = (traces.tracer(), traces.tracer());
        let keys = &[1, 2, 3, 3][..];
        for (at, table) in (0..1000).zip([3, 3, 7].into_iter().cycle()) {
            let tracer = if at % 2 == 0 { &mut one } else { &mut other };
            tracer.begin(None);
            let request = Request::Delete(Delete { table, keys });
            tracer.decoded(&request, Duration::ZERO);
            tracer.count_slots(|table| (table == 3).then_some(8));
            let now = Instant::now();
            tracer.end(Kind::Delete, "a", 64, now, now);
        }
        let work = traces.slot_work();
        assert!(work.requests > 980 && (300..700).contains(&work.sampled), "{work:?}");
        let of_key = |key| work.keys[slot_of(key, 8)];
        // Table 7 is not shared out by slots.
        let counted = of_key(1) / PUSHED_KEY_WORK;
        assert!(counted * 10 > work.sampled * 5 && counted * 10 < work.sampled * 8, "{work:?}");
        assert_eq!(work.keys.iter().sum::<u64>(), 4 * counted * PUSHED_KEY_WORK);
        assert_eq!((of_key(2), of_key(3)), (of_key(1), 2 * of_key(1)));
    }

    #[test]
    fn one_in_so_many_requests_is_sampled() {
        let traces = Traces::new(10, Duration::ZERO, None);
        let (mut tracer, keys) = (traces.tracer(), (0..10 * SAMPLED_KEYS_MAX as u64).collect::<Vec<_>>());
        // Every other request is long, as pushes and pulls take turns.
        (0..100_000).for_each(|at| note(&mut tracer, &keys[..1 + at % 2], US));
        let list = traces.list();
        assert_eq!(list.len(), TRACES_MAX);
        let long = list.iter().filter(|trace| trace.keys == Some(2)).count();
        assert!((TRACES_MAX / 4..TRACES_MAX * 3 / 4).contains(&long), "{long} of {TRACES_MAX}");
        let hot = traces.hot_keys();
        assert!((13_000..17_000).contains(&hot.total), "{}", hot.total);
        assert_eq!(hot.keys.len(), 2);
        assert!(hot.keys[0].1 == 0 && hot.keys[0].2 > hot.keys[1].2, "{:?}", hot.keys);

        let trace = &list[0];
        assert_eq!(
            (trace.command, &*trace.peer, trace.table, trace.is_slow),
            ("delete", "a", Some(3), false)
        );
        let stages: Vec<&str> = trace.stages.iter().map(|(stage, _)| *stage).collect();
        assert_eq!((stages, trace.stages[0].1), (vec!["wait", "decode", "work", "reply"], 5 * US));

        traces.settings.every.store(1, Ordering::Relaxed);
        let before = traces.hot_keys().total;
        // The gap of before ends first.
        (0..20).for_each(|_| note(&mut tracer, &keys[..1], US));
        note(&mut tracer, &keys, US);
        let after = traces.hot_keys().total - before;
        assert!((SAMPLED_KEYS_MAX..=SAMPLED_KEYS_MAX + 20).contains(&(after as usize)), "{after}");
    }

    #[test]
    fn slow_requests_are_kept_apart() {
        let traces = Traces::new(0, 100 * US, None);
        let (mut one, other) = (traces.tracer(), traces.tracer());
        note(&mut one, &[1], 99 * US);
        assert_eq!(traces.list(), []);
        (0..=TRACES_MAX).for_each(|_| note(&mut one, &[1], 100 * US));
        other.end_late(Kind::Save, "b", 99 * US);
        other.end_late(Kind::Save, "b", 7000 * US);
        let list = traces.list();
        assert_eq!(list.len(), TRACES_MAX + 1);
        assert!(list.iter().all(|trace| trace.is_slow && trace.keys.is_none()));
        let saved = list.iter().find(|trace| trace.command == "save").expect("it was slow");
        assert_eq!((saved.total(), &saved.stages[..]), (7000 * US, &[("background", 7000 * US)][..]));
        assert_eq!(traces.hot_keys(), HotKeyList::default());
    }
}
