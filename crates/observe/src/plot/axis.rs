//! Ranges and ticks: round numbers, linear or logarithmic, and how they are written. Knows nothing of what is drawn.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::Ranged;

/// How a number becomes a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear,
    /// Base 10; values that are not positive have no position.
    Log,
}

impl Scale {
    /// The position of a value, if it has one.
    pub(super) fn position(self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => (value.abs() <= POSITION_MAX).then_some(value),
            Self::Log => (value > 0.0 && value.is_finite()).then(|| value.log10()),
        }
    }
}

/// An axis in positions, with its ticks and their labels.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) range: Range<f64>,
    ticks: Vec<f64>,
    labels: Vec<String>,
}

/// Space beyond the data, as a part of their span.
const PADDING: f64 = 0.06;
/// A span below this part of the values themselves is rounding noise, and is widened.
const SPAN_MIN: f64 = 1e-9;
/// A logarithmic axis over fewer decades than this has ticks as a linear one.
const LOG_SPAN_MIN: f64 = 0.7;
/// Numbers beyond this have no position, so that spans stay finite.
const POSITION_MAX: f64 = 1e300;

impl Axis {
    /// An axis over positions, about `wanted` ticks; `pad` leaves room beyond the data.
    pub(super) fn over(positions: impl Iterator<Item = f64>, scale: Scale, wanted: usize, pad: bool) -> Self {
        let clamped = positions.map(|position| position.clamp(-POSITION_MAX, POSITION_MAX));
        let (mut low, mut high) =
            clamped.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let size = low.abs().max(high.abs());
        if high - low <= size * SPAN_MIN || high == low {
            let half = if scale == Scale::Log { 0.5 } else { (size * 0.05).max(1e-6) };
            (low, high) = (low - half, high + half);
        } else if pad {
            let margin = (high - low) * PADDING;
            (low, high) = (low - margin, high + margin);
        }
        Self::between(low..high, scale, wanted)
    }

    /// An axis with given ends.
    pub(super) fn between(range: Range<f64>, scale: Scale, wanted: usize) -> Self {
        let (ticks, labels) = match scale {
            Scale::Linear => linear_ticks(&range, wanted),
            Scale::Log => log_ticks(&range, wanted),
        };
        Self { range, ticks, labels }
    }

    /// Other ticks than round numbers; those outside of the range are left out.
    pub(super) fn set_ticks(&mut self, ticks: impl Iterator<Item = (f64, String)>) {
        let inside = ticks.filter(|(position, _)| (self.range.start..=self.range.end).contains(position));
        (self.ticks, self.labels) = inside.unzip();
    }

    /// The label of the last tick.
    pub(super) fn last_label(&self) -> &str {
        self.labels.last().map_or("", String::as_str)
    }

    /// Characters of the longest label.
    pub(super) fn label_characters(&self) -> usize {
        self.labels.iter().map(|label| label.chars().count()).max().unwrap_or(0)
    }
}

/// Plotters asks the axis itself for its ticks and labels.
impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, limit: (i32, i32)) -> i32 {
        // A value far outside, such as a rounding error of a tiny range, has no pixel that fits into a number.
        let size = self.range.end - self.range.start;
        let near = position.max(self.range.start - size).min(self.range.end + size);
        RangedCoordf64::from(self.range.clone()).map(&near, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, position: &f64) -> String {
        let at = self.ticks.iter().position(|tick| tick == position);
        at.map_or_else(String::new, |at| self.labels[at].clone())
    }
}

/// The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn linear_ticks(range: &Range<f64>, wanted: usize) -> (Vec<f64>, Vec<String>) {
    let step = round_step((range.end - range.start) / wanted.max(1) as f64);
    let slack = step * 1e-6;
    let first = ((range.start - slack) / step).ceil();
    let ticks: Vec<f64> = (0..=2 * wanted + 2)
        .map(|i| (first + i as f64) * step)
        .take_while(|&tick| tick <= range.end + slack)
        // -0 would be written with its sign, and a tick past the end by rounding would be drawn outside.
        .map(|tick| if tick.abs() < slack { 0.0 } else { tick.clamp(range.start, range.end) })
        .collect();
    let labels = ticks.iter().map(|&tick| number(tick, step)).collect();
    (ticks, labels)
}

/// Decades; with few of them also 2 and 5 times each; with many, every second, third, ...
fn log_ticks(range: &Range<f64>, wanted: usize) -> (Vec<f64>, Vec<String>) {
    let span = range.end - range.start;
    if span <= LOG_SPAN_MIN {
        // Too little for even 1, 2 and 5: round numbers as on a linear axis, in logarithmic places.
        let (ticks, labels) = linear_ticks(&(10f64.powf(range.start)..10f64.powf(range.end)), wanted);
        return (ticks.into_iter().map(f64::log10).collect(), labels);
    }
    let stride = (span / wanted.max(1) as f64).ceil().max(1.0);
    let factors: &[f64] = if span <= wanted as f64 / 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let first = (range.start / stride).floor() * stride;
    let (mut ticks, mut labels) = (Vec::new(), Vec::new());
    for i in 0..=wanted + 2 {
        let decade = first + i as f64 * stride;
        for factor in factors {
            let tick = decade + factor.log10();
            if range.contains(&tick) || tick == range.end {
                let value = factor * 10f64.powf(decade);
                ticks.push(tick);
                labels.push(number(value, value));
            }
        }
    }
    (ticks, labels)
}

/// Writes a tick: as many digits as the step needs, and k, M, G for thousands.
fn number(value: f64, step: f64) -> String {
    let size = value.abs().max(step);
    let (divisor, suffix) = match size {
        s if !(1e-6..1e15).contains(&s) => return format!("{value:.1e}"),
        s if s >= 1e12 => (1e12, "T"),
        s if s >= 1e9 => (1e9, "G"),
        s if s >= 1e6 => (1e6, "M"),
        s if s >= 1e4 || (s >= 1e3 && step >= 1e3) => (1e3, "k"),
        _ => (1.0, ""),
    };
    if value == 0.0 {
        return if step < 1.0 { number_digits(0.0, step) } else { "0".to_owned() };
    }
    format!("{}{suffix}", number_digits(value / divisor, step / divisor))
}

fn number_digits(value: f64, step: f64) -> String {
    let digits = (0..12).find(|&digits| {
        let scaled = step * 10f64.powi(digits);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0) && scaled >= 0.5
    });
    format!("{value:.*}", digits.unwrap_or(12) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linear_labels() {
        fn check(range: Range<f64>, wanted: usize, expected: &str) {
            let axis = Axis::between(range.clone(), Scale::Linear, wanted);
            assert_eq!(axis.labels.join(" "), expected, "{range:?}");
        }
        check(0.0..1.0, 5, "0.0 0.2 0.4 0.6 0.8 1.0");
        check(0.93..0.97, 4, "0.93 0.94 0.95 0.96 0.97");
        check(-1.0..1.0, 4, "-1.0 -0.5 0.0 0.5 1.0");
        check(0.0..60_000.0, 6, "0 10k 20k 30k 40k 50k 60k");
        check(0.0..2_500_000.0, 5, "0 500k 1.0M 1.5M 2.0M 2.5M");
        check(0.0..6.0, 6, "0 1 2 3 4 5 6");
        check(0.0..0.01, 4, "0.0000 0.0025 0.0050 0.0075 0.0100");
    }

    #[test]
    fn log_labels() {
        fn check(low: f64, high: f64, wanted: usize, expected: &str) {
            let axis = Axis::between(low.log10()..high.log10(), Scale::Log, wanted);
            assert_eq!(axis.labels.join(" "), expected, "{low}..{high}");
        }
        check(1.0, 100.0, 6, "1 2 5 10 20 50 100");
        check(1.0, 1e6, 6, "1 10 100 1k 10k 100k 1M");
        check(100.0, 1e12, 5, "100 10k 1M 100M 10G 1T");
    }

    #[test]
    fn degenerate_data_still_make_an_axis() {
        fn check(values: &[f64], scale: Scale) {
            let axis = Axis::over(values.iter().filter_map(|&x| scale.position(x)), scale, 5, true);
            assert!(axis.range.start < axis.range.end, "{values:?} {axis:?}");
            assert!(axis.range.start.is_finite() && axis.range.end.is_finite(), "{values:?} {axis:?}");
        }
        for scale in [Scale::Linear, Scale::Log] {
            check(&[], scale);
            check(&[0.0], scale);
            check(&[0.7, 0.7], scale);
            check(&[f64::NAN, f64::INFINITY], scale);
            check(&[f64::MAX, f64::MIN], scale);
            check(&[1e-300, 1e300], scale);
            check(&[-5.0], scale);
        }
    }

    proptest! {
        #[test]
        fn ticks_lie_inside_in_order_and_are_few(low in -1e9f64..1e9, span in 1e-6f64..1e9, wanted in 1usize..12) {
            let axis = Axis::between(low..low + span, Scale::Linear, wanted);
            prop_assert!(axis.ticks.iter().all(|tick| (low..=low + span).contains(tick)));
            prop_assert!(axis.ticks.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(axis.ticks.len() <= wanted + 1);
        }
    }
}
