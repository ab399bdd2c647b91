//! One synthetic row and the hidden factorization machine that decides its label. It knows no file format.
//!
//! Weights and factors are hashes of (seed, id), so nothing is stored per id. They fade with the rank of an id: ids
//! too rare to be learned carry no signal either.

use std::ops::Range;

use sanderling_random::{Rng, Zipf, below, mix};

use super::{CATEGORICAL, NUMERIC, SynthConfig};

/// Rows that share one random stream, and the unit of work of a thread. Part of what a seed means.
pub(super) const CHUNK_ROWS: u64 = 1024;
/// Rows drawn to set the scales and the intercept.
const CALIBRATION_ROWS: u64 = 32_768;
/// Random streams, which must be distinct.
const STREAM_ROWS: u64 = 1;
const STREAM_CALIBRATION: u64 = 2;
const STREAM_TRUTH: u64 = 3;
/// From about this rank on, weights and factors fade as one over the root of the rank.
const FADE_RANK: f64 = 300.0;
/// Factor coordinates that one hash yields.
const LANES: usize = 4;
/// Values a numeric feature is interpolated between, equally probable.
const QUANTILES: usize = 1024;
/// Counts whose logarithm is looked up.
const LOG_TABLE: usize = 4096;
/// Tells the model that drifts in from the first one.
const OTHER_MODEL: u64 = 0x6472_6980_0000_0000;
/// Reads as "missing" in `Row::counts`.
const MISSING: u32 = u32::MAX;

/// Median and spread of log counts, and the share of missing values, after Criteo's I1..I13.
const NUMERIC_SHAPES: [(f64, f64, f64); NUMERIC] = [
    (2.0, 0.9, 0.45),
    (4.0, 1.3, 0.0),
    (6.0, 0.9, 0.21),
    (5.0, 0.7, 0.22),
    (4000.0, 1.1, 0.03),
    (60.0, 1.0, 0.22),
    (5.0, 0.9, 0.04),
    (9.0, 0.6, 0.0),
    (40.0, 0.8, 0.04),
    (0.8, 0.4, 0.45),
    (2.5, 0.6, 0.04),
    (0.7, 0.5, 0.76),
    (6.0, 0.8, 0.22),
];

/// Distinct values of C1..C26 in the full Criteo Kaggle set; other vocabularies bend this curve.
const CRITEO_CARDINALITIES: [u32; CATEGORICAL] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992,
    5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Global ids below this belong to numeric features: 1..=13 carry the value, 14..=26 say that it is missing.
pub(super) const FIRST_CATEGORICAL_ID: u32 = 1 + 2 * NUMERIC as u32;

/// One generated example, with the probability that its label was drawn with.
#[derive(Debug, Clone, Default)]
pub struct Row {
    label: bool,
    probability: f64,
    logit: f64,
    counts: [u32; NUMERIC],
    hundredths: [u32; NUMERIC],
    ids: Vec<u32>,
    ends: [u32; CATEGORICAL],
    amplitudes: Vec<f32>,
}

impl Row {
    /// The label drawn.
    #[must_use]
    pub fn label(&self) -> bool {
        self.label
    }

    /// The true probability of a positive label.
    #[must_use]
    pub fn probability(&self) -> f64 {
        self.probability
    }

    /// The true log-odds.
    pub(super) fn logit(&self) -> f64 {
        self.logit
    }

    /// Numeric feature `index` (0..13) as a count; `None` is missing.
    #[must_use]
    pub fn count(&self, index: usize) -> Option<u32> {
        Some(self.counts[index]).filter(|&count| count != MISSING)
    }

    /// `ln(1 + count)` in hundredths; only meaningful when the count is there.
    pub(super) fn log_hundredths(&self, index: usize) -> u32 {
        self.hundredths[index]
    }

    /// The values of categorical feature `index` (0..26) as ids that no other feature has, without duplicates.
    #[must_use]
    pub fn ids(&self, index: usize) -> &[u32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.ids[start as usize..self.ends[index] as usize]
    }
}

struct Categorical {
    zipf: Zipf,
    first_id: u32,
    size: u32,
    /// id = first + (rank * step + shift) % size: frequent ids lie scattered, as they do in real logs.
    step: u64,
    shift: u64,
    values_max: u32,
}

struct Numeric {
    /// Boundaries of the quantiles, `QUANTILES + 1` of them.
    quantiles: Vec<f32>,
    missing_below: u32,
    weight: f32,
    missing_weight: f32,
}

/// The random stream and the hidden model of a seed.
pub struct Generator {
    seed: u64,
    numeric: Vec<Numeric>,
    categorical: Vec<Categorical>,
    log_table: Vec<u16>,
    salt: u64,
    rank: usize,
    linear_scale: f64,
    interaction_scale: f64,
    intercept: f64,
    /// Angle between the hidden models of successive days.
    drift: f64,
    day_rows: u64,
}

/// The share of each of two independent models in that of a day; `None`: the first one alone.
type Mix = Option<(f32, f32)>;

impl Generator {
    /// Builds the tables and calibrates the hidden model; the config must have been validated.
    pub(super) fn build(config: &SynthConfig) -> Self {
        let mut rng = Rng::new(config.seed, STREAM_TRUTH, 0);
        let mut signed = || (rng.next() as i64 as f64 / 2f64.powi(63)) as f32;
        let numeric = NUMERIC_SHAPES
            .iter()
            .map(|&(median, spread, missing)| Numeric {
                quantiles: (0..=QUANTILES).map(|i| count_quantile(median, spread, i)).collect(),
                missing_below: (missing * 2f64.powi(32)) as u32,
                weight: 0.5 * signed() / spread as f32,
                missing_weight: signed(),
            })
            .collect();
        let mut first_id = FIRST_CATEGORICAL_ID;
        let mut categorical = Vec::with_capacity(CATEGORICAL);
        for (index, size) in vocabularies(config.vocabulary).into_iter().enumerate() {
            let fade = |rank: u64| (1.0 / (1.0 + rank as f64 / FADE_RANK).sqrt()) as f32;
            categorical.push(Categorical {
                zipf: Zipf::with_amplitudes(u64::from(size), config.zipf_exponent, fade),
                first_id,
                size,
                step: coprime(size, rng.next()),
                shift: rng.next() % u64::from(size),
                values_max: if index < config.multi_valued { config.values_max } else { 1 },
            });
            first_id += size;
        }
        let log_table = (0..LOG_TABLE).map(|count| hundredths_of_log(count as u32) as u16).collect();
        let (seed, salt, rank) = (config.seed, rng.next(), config.rank);
        let mut generator = Generator {
            seed,
            numeric,
            categorical,
            log_table,
            salt,
            rank,
            linear_scale: 1.0,
            interaction_scale: 1.0,
            intercept: 0.0,
            drift: config.drift * std::f64::consts::FRAC_PI_2,
            day_rows: if config.day_rows > 0 { config.day_rows } else { config.rows.max(1) },
        };
        generator.calibrate(config);
        generator
    }

    /// Distinct values of each categorical feature.
    #[must_use]
    pub fn vocabularies(&self) -> Vec<u32> {
        self.categorical.iter().map(|feature| feature.size).collect()
    }

    /// One more than the largest id that a row can hold.
    #[must_use]
    pub fn ids_end(&self) -> u32 {
        self.categorical.last().map_or(FIRST_CATEGORICAL_ID, |feature| feature.first_id + feature.size)
    }

    /// Categorical values that a row can hold at most.
    pub(super) fn values_max(&self) -> usize {
        self.categorical.iter().map(|feature| feature.values_max as usize).sum()
    }

    /// Calls `each` with every row of a range of the endless stream.
    pub fn for_each_row(&self, rows: Range<u64>, mut each: impl FnMut(&Row)) {
        let mut row = Row::default();
        for chunk in rows.start / CHUNK_ROWS..rows.end.div_ceil(CHUNK_ROWS) {
            let mut rng = Rng::new(self.seed, STREAM_ROWS, chunk);
            let first = chunk * CHUNK_ROWS;
            // Rows before the range are drawn and dropped: a chunk has one stream.
            for index in first..(first + CHUNK_ROWS).min(rows.end) {
                self.draw_features(&mut rng, &mut row);
                let (linear, interaction) = self.score(&row, self.mix_of(index));
                row.logit = self.intercept
                    + self.linear_scale * f64::from(linear)
                    + self.interaction_scale * f64::from(interaction);
                row.probability = sigmoid(row.logit);
                row.label = rng.unit() < row.probability;
                if index >= rows.start {
                    each(&row);
                }
            }
        }
    }

    #[inline]
    fn draw_features(&self, rng: &mut Rng, row: &mut Row) {
        for (index, feature) in self.numeric.iter().enumerate() {
            let bits = rng.next();
            let quantile = (bits & (QUANTILES as u64 - 1)) as usize;
            let fraction = ((bits >> 10) & 0x3f_ffff) as f32 * (1.0 / (1u32 << 22) as f32);
            let (low, high) = (feature.quantiles[quantile], feature.quantiles[quantile + 1]);
            let count = (low + (high - low) * fraction) as u32;
            let missing = ((bits >> 32) as u32) < feature.missing_below;
            row.counts[index] = if missing { MISSING } else { count };
            row.hundredths[index] = match self.log_table.get(count as usize) {
                Some(&hundredths) => u32::from(hundredths),
                None => hundredths_of_log(count),
            };
        }
        row.ids.clear();
        row.amplitudes.clear();
        for (index, feature) in self.categorical.iter().enumerate() {
            let first = row.ids.len();
            let values =
                if feature.values_max == 1 { 1 } else { 1 + below(rng.next() as u32, feature.values_max) };
            for _ in 0..values {
                let (rank, amplitude) = feature.zipf.draw(rng);
                let scattered = (rank * feature.step + feature.shift) % u64::from(feature.size);
                let id = feature.first_id + scattered as u32;
                if values == 1 || !row.ids[first..].contains(&id) {
                    row.ids.push(id);
                    row.amplitudes.push(amplitude);
                }
            }
            row.ends[index] = row.ids.len() as u32;
        }
    }

    /// The hidden model of a row's day turns from one random model to another: its spread stays, and days that are further
    /// apart have less in common.
    #[inline]
    fn mix_of(&self, index: u64) -> Mix {
        let angle = self.drift * (index / self.day_rows) as f64;
        (angle != 0.0).then(|| (angle.cos() as f32, angle.sin() as f32))
    }

    /// The linear and the pairwise part of the hidden model of a day, unscaled:
    /// `sum w_i x_i` and `1/2 sum_k ((sum_i v_ik)^2 - sum_i v_ik^2)`.
    #[inline]
    fn score(&self, row: &Row, mix_of_day: Mix) -> (f32, f32) {
        let mut linear = 0.0f32;
        for (index, feature) in self.numeric.iter().enumerate() {
            linear += if row.counts[index] == MISSING {
                feature.missing_weight
            } else {
                feature.weight * (row.hundredths[index] as f32 * 0.01)
            };
        }
        let mut interaction = 0.0f32;
        for first in (0..self.rank.max(1)).step_by(LANES) {
            let (mut sum, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
            for (&id, &amplitude) in row.ids.iter().zip(&row.amplitudes) {
                let at = u64::from(id) << 8 | first as u64;
                let hash = mix(self.salt ^ at);
                let other = mix_of_day.map(|shares| (shares, mix(self.salt ^ OTHER_MODEL ^ at)));
                // A number of both models' 16 bits.
                let drawn = |bits: fn(u64, usize) -> i16, lane: usize| match other {
                    None => f32::from(bits(hash, lane)),
                    Some(((one, two), other)) => {
                        one * f32::from(bits(hash, lane)) + two * f32::from(bits(other, lane))
                    }
                };
                for lane in 0..LANES {
                    let factor =
                        drawn(|hash, lane| (hash >> (16 * lane)) as i16, lane) * (1.0 / 32768.0) * amplitude;
                    sum[lane] += factor;
                    squares[lane] += factor * factor;
                }
                if first == 0 {
                    let weight = drawn(|hash, _| (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as i16, 0);
                    linear += weight * (1.0 / 32768.0) * amplitude;
                }
            }
            for lane in 0..LANES.min(self.rank.saturating_sub(first)) {
                interaction += 0.5 * (sum[lane] * sum[lane] - squares[lane]);
            }
        }
        (linear, interaction)
    }

    /// Sets the scales so that both parts have the spread asked for, and the intercept so that the mean probability
    /// is the positive rate.
    fn calibrate(&mut self, config: &SynthConfig) {
        let mut rng = Rng::new(self.seed, STREAM_CALIBRATION, 0);
        let mut row = Row::default();
        let parts: Vec<(f64, f64)> = (0..CALIBRATION_ROWS)
            .map(|_| {
                self.draw_features(&mut rng, &mut row);
                let (linear, interaction) = self.score(&row, None);
                (f64::from(linear), f64::from(interaction))
            })
            .collect();
        let n = parts.len() as f64;
        let scale = |part: fn(&(f64, f64)) -> f64, wanted: f64| {
            let mean = parts.iter().map(part).sum::<f64>() / n;
            let spread = (parts.iter().map(|p| (part(p) - mean).powi(2)).sum::<f64>() / n).sqrt();
            if spread > 0.0 { wanted / spread } else { 0.0 }
        };
        self.linear_scale = scale(|p| p.0, config.linear_std);
        self.interaction_scale = scale(|p| p.1, config.interaction_std);
        let scores: Vec<f64> =
            parts.iter().map(|p| self.linear_scale * p.0 + self.interaction_scale * p.1).collect();
        let (mut low, mut high) = (-1e3, 1e3);
        for _ in 0..60 {
            self.intercept = 0.5 * (low + high);
            let mean = scores.iter().map(|s| sigmoid(self.intercept + s)).sum::<f64>() / n;
            if mean < config.positive_rate { low = self.intercept } else { high = self.intercept }
        }
    }
}

#[inline]
fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

fn hundredths_of_log(count: u32) -> u32 {
    (f64::from(count).ln_1p() * 100.0).round() as u32
}

/// Counts are log-logistic: heavy-tailed, with a quantile function in closed form. The last boundary is cut so that
/// the tail ends.
fn count_quantile(median: f64, spread: f64, index: usize) -> f32 {
    let share = (index as f64 / QUANTILES as f64).min(1.0 - 0.05 / QUANTILES as f64);
    (median * (share / (1.0 - share)).powf(spread)).min(1e9) as f32
}

/// Sizes of the 26 vocabularies, which add up to `total`: Criteo's, each raised to the power that fits.
fn vocabularies(total: u32) -> Vec<u32> {
    let sizes = |power: f64| -> Vec<u64> {
        CRITEO_CARDINALITIES.iter().map(|&size| (f64::from(size).powf(power) as u64).max(2)).collect()
    };
    let (mut low, mut high) = (0.0, 2.0);
    for _ in 0..60 {
        let power = 0.5 * (low + high);
        if sizes(power).iter().sum::<u64>() <= u64::from(total) { low = power } else { high = power }
    }
    let mut sizes = sizes(low);
    let rest = u64::from(total) - sizes.iter().sum::<u64>();
    // C3 is the largest; it takes the rounding error.
    sizes[2] += rest;
    sizes.into_iter().map(|size| size as u32).collect()
}

/// A step that visits every residue of `size`, drawn from `bits`.
fn coprime(size: u32, bits: u64) -> u64 {
    let size = u64::from(size);
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut step = bits % size;
    while gcd(step, size) != 1 {
        step += 1;
    }
    step
}
