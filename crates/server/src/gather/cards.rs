//! Tables whose rows network cards gather: registers their memory as they grow, builds replies of rows in place, and
//! measures whether that is faster. It knows no connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::{ABSENT_ROW, Absent, RowHold, RowPlaces, Table};
use sanderling_transport::{Card, CardMemory, GatherDomain, GatherFrame, Part};

use super::{Gather, GatherStatus};
use crate::event::Event;

/// Size of a registered piece of a table's rows, about.
const PIECE_BYTES: usize = 64 << 20;
/// Rows from which on a table is measured, and the growth after which it is measured again.
const MEASURED_ROWS_MIN: usize = 4096;
const MEASURED_GROWTH: usize = 16;
/// Rows of a measured pull, their size at most, and the number of such pulls.
const MEASURED_KEYS: usize = 512;
const MEASURED_BYTES_MAX: usize = 512 << 10;
const MEASURED_PULLS: usize = 8;
/// Memory that is written between measurements, to have the rows out of the caches.
const FLUSHED_BYTES: usize = 64 << 20;
/// The card must take so many times less than the CPU.
const ADVANTAGE_MIN: f64 = 2.0;

/// The cards' part of a table.
#[derive(Debug)]
pub(crate) struct TableCards {
    /// Why no card can gather this table.
    refused: Option<&'static str>,
    by_card: AtomicBool,
    pulls: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The registered memory of each card.
    cards: Vec<(Card, Arc<Registered>)>,
    /// Why the card cannot gather any more.
    failure: Option<String>,
    measured: Option<Measured>,
    /// Why there is no measurement.
    unmeasured: Option<String>,
    /// An event to report.
    news: bool,
}

/// Nanoseconds per row, at so many rows.
#[derive(Debug, Clone, Copy)]
struct Measured {
    rows: usize,
    cpu_ns: f64,
    nic_ns: f64,
}

/// Pieces of a table's rows that a card may read.
#[derive(Debug, Clone, Default)]
struct Registered {
    /// A piece has this power of two of rows.
    rows_log2: u32,
    pieces: Vec<Option<Piece>>,
}

#[derive(Debug, Clone)]
struct Piece {
    /// Behind its last row.
    end: u64,
    memory: Arc<CardMemory>,
}

/// Kept until the card has read the rows of a reply.
struct Kept {
    _hold: RowHold,
    _memory: Arc<Registered>,
}

impl Registered {
    fn new(places: &RowPlaces) -> Registered {
        Registered { rows_log2: (PIECE_BYTES / places.stride_bytes).max(1).ilog2(), pieces: Vec::new() }
    }

    /// The card's key of a row's memory.
    fn key(&self, row: u32) -> Option<u32> {
        let piece = self.pieces.get((row >> self.rows_log2) as usize)?.as_ref()?;
        (u64::from(row) < piece.end).then(|| piece.memory.key())
    }

    /// Registers the piece of a row, as far as it has rows.
    fn register(&mut self, row: u32, table: &Arc<Table>, card: &Card) -> Result<(), String> {
        let (places, number) = (table.row_places(), (row >> self.rows_log2) as usize);
        let first = (number as u64) << self.rows_log2;
        let end = places.rows.min(first + (1 << self.rows_log2));
        let start = places.start + first as usize * places.stride_bytes;
        let bytes = (end - first) as usize * places.stride_bytes;
        let memory = Arc::new(card.register(start, bytes, Arc::clone(table) as Arc<_>)?);
        self.pieces.resize(self.pieces.len().max(number + 1), None);
        self.pieces[number] = Some(Piece { end, memory });
        Ok(())
    }
}

impl TableCards {
    pub(super) fn new(wanted: Gather, refused: Option<&'static str>) -> TableCards {
        let by_card = AtomicBool::new(wanted == Gather::Nic && refused.is_none());
        TableCards { refused, by_card, pulls: AtomicU64::new(0), known: Mutex::default() }
    }

    /// Whether the card gathers rows of this table.
    #[inline]
    pub(crate) fn is_by_card(&self) -> bool {
        self.by_card.load(Ordering::Relaxed)
    }

    // Each change is one step.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of these rows, registered with the card.
    fn registered(&self, table: &Arc<Table>, card: &Card, rows: &[u32]) -> Option<Arc<Registered>> {
        let known = &mut *self.known();
        if known.failure.is_some() {
            return None;
        }
        let at = match known.cards.iter().position(|(other, _)| other == card) {
            Some(at) => at,
            None => {
                known.cards.push((card.clone(), Arc::new(Registered::new(&table.row_places()))));
                known.cards.len() - 1
            }
        };
        let present = || rows.iter().copied().filter(|&row| row != ABSENT_ROW);
        let all = &mut known.cards[at].1;
        if present().any(|row| all.key(row).is_none()) {
            let mut more = (**all).clone();
            for row in present() {
                if more.key(row).is_none()
                    && let Err(reason) = more.register(row, table, card)
                {
                    known.failure = Some(reason);
                    known.news = true;
                    self.by_card.store(false, Ordering::Relaxed);
                    return None;
                }
            }
            *all = Arc::new(more);
        }
        Some(Arc::clone(all))
    }

    /// Holds the rows of keys, and appends a part for each to `parts`: its memory, or its initial weights in `own`.
    /// `absent` gets the positions of keys without a row.
    fn hold(
        &self,
        table: &Arc<Table>,
        card: &Card,
        (keys, absent): (&[u64], Absent),
        own: &mut Vec<u8>,
        parts: &mut Vec<Part>,
        mut note_absent: impl FnMut(&mut Vec<u8>, usize),
    ) -> Option<Kept> {
        let mut rows = Vec::new();
        let hold = table.hold(keys, &mut rows)?;
        let memory = self.registered(table, card, &rows)?;
        let RowPlaces { start, stride_bytes, weight_bytes, .. } = table.row_places();
        let mut weights = vec![0.0_f32; weight_bytes / size_of::<f32>()];
        for (at, (&row, &key)) in rows.iter().zip(keys).enumerate() {
            if row == ABSENT_ROW {
                note_absent(own, at);
                table.absent_weights(absent, key, &mut weights);
                own.extend_from_slice(bytemuck::cast_slice(&weights));
                parts.push(Part::Own { bytes: weight_bytes });
            } else {
                let at = start + row as usize * stride_bytes;
                parts.push(Part::Memory { at, bytes: weight_bytes, key: memory.key(row)? });
            }
        }
        Some(Kept { _hold: hold, _memory: memory })
    }

    /// A reply to a pull that begins with `head`, in which `set_absent` sets the bit of a key, and ends with padding.
    pub(crate) fn frame(
        &self,
        table: &Arc<Table>,
        card: &Card,
        pull: (&[u64], Absent),
        head: Vec<u8>,
        frame_bytes: usize,
        set_absent: impl FnMut(&mut Vec<u8>, usize),
    ) -> Option<GatherFrame> {
        let (mut own, mut parts) = (head, Vec::with_capacity(pull.0.len() + 2));
        parts.push(Part::Own { bytes: own.len() });
        let rows_at = own.len();
        let kept = self.hold(table, card, pull, &mut own, &mut parts, set_absent)?;
        let row_bytes = table.dim() * size_of::<f32>();
        let padding = frame_bytes - rows_at - pull.0.len() * row_bytes;
        if padding > 0 {
            own.resize(own.len() + padding, 0);
            parts.push(Part::Own { bytes: padding });
        }
        Some(GatherFrame { own, parts, keep: Arc::new(kept) })
    }

    /// Counts a pull whose rows the card gathers.
    pub(crate) fn count(&self) {
        self.pulls.fetch_add(1, Ordering::Relaxed);
    }

    /// Measures, when that is due, and decides.
    pub(super) fn look(&self, wanted: Gather, table: &Arc<Table>, domain: &GatherDomain) -> Option<Event> {
        if wanted == Gather::Cpu || self.refused.is_some() {
            return None;
        }
        let rows = table.len();
        let is_due = {
            let known = self.known();
            let again = known.measured.map_or(MEASURED_ROWS_MIN, |before| before.rows * MEASURED_GROWTH);
            rows >= again && known.failure.is_none() && known.unmeasured.is_none()
        };
        if is_due && let Some(card) = domain.cards().first() {
            match self.measure(table, card) {
                Ok((cpu_ns, nic_ns)) => {
                    let is_by_card = wanted == Gather::Nic || cpu_ns > ADVANTAGE_MIN * nic_ns;
                    self.by_card.store(is_by_card, Ordering::Relaxed);
                    let known = &mut *self.known();
                    (known.measured, known.news) = (Some(Measured { rows, cpu_ns, nic_ns }), true);
                }
                Err(reason) => {
                    let known = &mut *self.known();
                    (known.unmeasured, known.news) = (Some(reason), true);
                }
            }
            if !self.is_by_card() {
                // A measurement has pinned memory.
                self.known().cards.clear();
            }
        }
        let is_new = std::mem::take(&mut self.known().news);
        is_new.then(|| {
            let GatherStatus { by, because, .. } = self.status(wanted);
            Event::GatheredBy { table: table.name().to_owned(), by, because }
        })
    }

    /// Nanoseconds per row of pulls by the CPU, and by the card over a connection to itself. Rows are not in the caches.
    fn measure(&self, table: &Arc<Table>, card: &Card) -> Result<(f64, f64), String> {
        let RowPlaces { weight_bytes, .. } = table.row_places();
        let keys_per_pull = (MEASURED_BYTES_MAX / weight_bytes).clamp(1, MEASURED_KEYS);
        let keys = table.random_keys(keys_per_pull * MEASURED_PULLS, &mut (table.len() as u64));
        let mut out = vec![0.0; keys_per_pull * table.dim()];
        flush();
        let per_row = |took: Duration| took.as_nanos() as f64 / keys.len().max(1) as f64;
        let start = Instant::now();
        for keys in keys.chunks(keys_per_pull) {
            let pulled = table.pull(keys, Absent::Zero, &mut out[..keys.len() * table.dim()], None);
            pulled.map_err(|error| error.to_string())?;
        }
        let cpu_ns = per_row(start.elapsed());
        let mut loopback = card.loopback()?;
        flush();
        let mut took = Duration::ZERO;
        for (number, keys) in keys.chunks(keys_per_pull).enumerate() {
            // The first one registers memory.
            for _ in 0..if number == 0 { 2 } else { 1 } {
                let start = Instant::now();
                let (mut own, mut parts) = (Vec::new(), Vec::new());
                let kept = self.hold(table, card, (keys, Absent::Zero), &mut own, &mut parts, |_, _| {});
                let _kept = kept.ok_or_else(|| self.why_not_held())?;
                loopback.gather(&parts)?;
                took += start.elapsed();
                if number == 0 {
                    took = start.elapsed();
                }
            }
        }
        Ok((cpu_ns, per_row(took)))
    }

    fn why_not_held(&self) -> String {
        self.known().failure.clone().unwrap_or_else(|| {
            "the table has no free rows that could stand in for rows that are being sent".to_owned()
        })
    }

    pub(super) fn status(&self, wanted: Gather) -> GatherStatus {
        let known = self.known();
        let by = if self.is_by_card() { "nic" } else { "cpu" };
        let because = match (wanted, self.refused, &known.failure, known.measured) {
            (Gather::Cpu, ..) => "--gather cpu".to_owned(),
            (_, Some(refused), ..) => refused.to_owned(),
            (_, _, Some(failure), _) => failure.clone(),
            (Gather::Nic, ..) => "--gather nic".to_owned(),
            (Gather::Auto, _, _, Some(_)) => "measured".to_owned(),
            (Gather::Auto, ..) => match &known.unmeasured {
                Some(reason) => format!("not measured: {reason}"),
                None => format!("not measured below {MEASURED_ROWS_MIN} rows"),
            },
        };
        GatherStatus {
            by,
            because,
            cpu_ns_per_row: known.measured.map(|measured| measured.cpu_ns),
            nic_ns_per_row: known.measured.map(|measured| measured.nic_ns),
            nic_pulls: self.pulls.load(Ordering::Relaxed),
        }
    }
}

/// Has most of what the caches hold written back.
fn flush() {
    std::hint::black_box(vec![1_u8; FLUSHED_BYTES]);
}
