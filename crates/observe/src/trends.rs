//! Recent values of metrics, one point a second, a minute and an hour, from the text that Prometheus reads. Bounded in
//! memory. Knows neither a clock nor what the metrics mean.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::pattern::matches;

/// Points of each span of a trend: 60 s, 60 min, 24 h.
const POINTS: [usize; 3] = [60, 60, 24];
/// Points that make one of the next span.
const POINTS_PER_NEXT: u32 = 60;
/// Series with trends, of at most 0.6 KiB each. Further ones have their present value only.
pub const TRENDS_MAX: usize = 4096;
/// Series. Further ones are counted only.
pub const SERIES_MAX: usize = 1 << 16;

/// A span of a trend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// 60 points, one a second.
    Minute,
    /// 60 points, one a minute.
    Hour,
    /// 24 points, one an hour.
    Day,
}

/// A bounded number of points per span, the oldest first.
#[derive(Debug, Clone, Default)]
struct Trend {
    points: [VecDeque<f32>; 3],
    /// Sum and number of the points that make the next one of a span.
    open: [(f32, u32); 3],
}

impl Trend {
    fn note(&mut self, value: f32) {
        let mut value = value;
        for ((points, points_max), (sum, count)) in self.points.iter_mut().zip(POINTS).zip(&mut self.open) {
            if points.len() == points_max {
                points.pop_front();
            }
            points.push_back(value);
            (*sum, *count) = (*sum + value, *count + 1);
            if *count < POINTS_PER_NEXT {
                return;
            }
            value = *sum / POINTS_PER_NEXT as f32;
            (*sum, *count) = (0.0, 0);
        }
    }
}

/// One series: the name of a metric with its labels.
#[derive(Debug, Clone)]
pub struct Series {
    value: f64,
    is_counter: bool,
    trend: Option<Box<Trend>>,
    round: u64,
}

impl Series {
    /// The last value.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Whether it only grows. The points of a counter are its growth per second.
    #[must_use]
    pub fn is_counter(&self) -> bool {
        self.is_counter
    }

    /// The points of a span, the oldest first. `None`: there were too many series, see [`TRENDS_MAX`].
    #[must_use]
    pub fn points(&self, span: Span) -> Option<Vec<f32>> {
        Some(self.trend.as_ref()?.points[span as usize].iter().copied().collect())
    }

    /// The average of the last seconds; `None` before the first point.
    #[must_use]
    pub fn recent(&self, seconds: usize) -> Option<f64> {
        let points = &self.trend.as_ref()?.points[Span::Minute as usize];
        let taken = points.len().min(seconds);
        let sum: f64 = points.iter().rev().take(taken).map(|&point| f64::from(point)).sum();
        (taken > 0).then(|| sum / taken as f64)
    }

    fn note(&mut self, value: f64, elapsed: Duration) {
        let before = std::mem::replace(&mut self.value, value);
        let Some(trend) = &mut self.trend else { return };
        let point = match self.is_counter {
            // A counter that fell has begun anew.
            true => (value - before).max(0.0) / elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            false => value,
        };
        if point.is_finite() {
            trend.note(point as f32);
        }
    }
}

/// The series of a process and their trends.
#[derive(Debug, Default)]
pub struct Trends {
    series: BTreeMap<String, Series>,
    with_trend: usize,
    left_out: usize,
    round: u64,
}

impl Trends {
    /// Notes an exposition, this long after the last one. Series that are gone from it are forgotten.
    ///
    /// When there are too many series for all to have a trend, those of metrics with few series come first: numbers of the
    /// process before numbers of each table.
    pub fn note(&mut self, exposition: &str, elapsed: Duration) {
        self.round += 1;
        let (mut new, mut sizes) = (Vec::new(), HashMap::<&str, usize>::new());
        for sample in samples(exposition) {
            *sizes.entry(sample.metric).or_default() += 1;
            match self.series.get_mut(sample.name) {
                Some(series) => {
                    series.round = self.round;
                    if series.trend.is_none() && self.with_trend < TRENDS_MAX {
                        (series.trend, self.with_trend) = (Some(Box::default()), self.with_trend + 1);
                    }
                    series.note(sample.value, elapsed);
                }
                None => new.push(sample),
            }
        }
        let (round, with_trend) = (self.round, &mut self.with_trend);
        self.series.retain(|_, series| {
            let stays = series.round == round;
            *with_trend -= usize::from(!stays && series.trend.is_some());
            stays
        });
        new.sort_by_key(|sample| sizes[sample.metric]);
        self.left_out = new.len().saturating_sub(SERIES_MAX - self.series.len());
        for Sample { name, value, is_counter, .. } in new {
            if self.series.len() == SERIES_MAX {
                break;
            }
            let trend = (self.with_trend < TRENDS_MAX).then(Box::<Trend>::default);
            self.with_trend += usize::from(trend.is_some());
            let mut series = Series { value, is_counter, trend, round: self.round };
            if !is_counter {
                series.note(value, elapsed);
            }
            self.series.insert(name.to_owned(), series);
        }
    }

    /// A series by its name with labels, as it stands in the exposition.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Series> {
        self.series.get(name)
    }

    /// The series whose name fits a pattern, ascending by name. `*` is any text; a pattern without `*` fits names that
    /// contain it.
    pub fn find<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a str, &'a Series)> {
        self.series.iter().map(|(name, series)| (&**name, series)).filter(|(name, _)| fits(name, pattern))
    }

    /// Series without a trend, and series that are not even counted here.
    #[must_use]
    pub fn without_trend(&self) -> (usize, usize) {
        (self.series.len() - self.with_trend, self.left_out)
    }
}

/// Whether a name fits a pattern.
fn fits(name: &str, pattern: &str) -> bool {
    if pattern.contains('*') { matches(pattern, name) } else { name.contains(pattern) }
}

/// One line of an exposition.
struct Sample<'a> {
    name: &'a str,
    metric: &'a str,
    value: f64,
    is_counter: bool,
}

fn samples(exposition: &str) -> impl Iterator<Item = Sample<'_>> {
    let mut kind = "";
    exposition.lines().filter_map(move |line| {
        if line.starts_with('#') {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                kind = family.rsplit(' ').next().unwrap_or_default();
            }
            return None;
        }
        // Text of labels may hold spaces; the value holds none.
        let (name, value) = line.rsplit_once(' ')?;
        let metric = name.split('{').next().unwrap_or_default();
        let adds_up = kind == "summary" && (metric.ends_with("_sum") || metric.ends_with("_count"));
        Some(Sample { name, metric, value: value.parse().ok()?, is_counter: kind == "counter" || adds_up })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exposition;

    const SECOND: Duration = Duration::from_secs(1);

    fn text(gauge: f64, counter: u64) -> String {
        let mut text = Exposition::default();
        text.single("a_rows", "gauge", "Rows.", gauge);
        text.family("b_total", "counter", "Pushes.");
        text.sample("b_total", &[("table", "x y} 7")], counter);
        text.finish()
    }

    #[test]
    fn points_of_a_second_become_those_of_minutes_and_hours() {
        let mut trends = Trends::default();
        for second in 0..60 * 60 * 3_u32 {
            trends.note(&text(f64::from(second / 60), u64::from(second) * 5), SECOND);
        }
        let (gauge, counter) =
            (trends.get("a_rows").expect("noted"), trends.get("b_total{table=\"x y} 7\"}").expect("noted"));
        assert_eq!((gauge.value(), gauge.is_counter(), counter.is_counter()), (179.0, false, true));
        assert_eq!(gauge.points(Span::Minute), Some(vec![179.0; 60]));
        assert_eq!(gauge.points(Span::Hour), Some((120..180_u8).map(f32::from).collect()));
        assert_eq!(gauge.points(Span::Day), Some(vec![29.5, 89.5, 149.5]));
        assert_eq!((gauge.recent(10), counter.recent(10)), (Some(179.0), Some(5.0)));
        // The first value of a counter has nothing before it, so its minutes end a second later.
        assert_eq!(counter.points(Span::Hour).map(|points| points.len()), Some(60));
        assert_eq!(counter.points(Span::Day), Some(vec![5.0; 2]));
    }

    #[test]
    fn a_counter_that_begins_anew_has_not_grown() {
        let mut trends = Trends::default();
        for counter in [10, 30, 5, 6] {
            trends.note(&text(0.0, counter), SECOND * 2);
        }
        let series = trends.find("b_total").next().expect("noted").1;
        assert_eq!(series.points(Span::Minute), Some(vec![10.0, 0.0, 0.5]));
        trends.note("a_rows 1\n", SECOND);
        assert_eq!(trends.find("").map(|(name, _)| name).collect::<Vec<_>>(), ["a_rows"]);
        assert_eq!(trends.with_trend, 1);
    }

    #[test]
    fn metrics_with_few_series_have_trends_first() {
        let mut text = Exposition::default();
        text.family("many", "gauge", "");
        (0..SERIES_MAX).for_each(|at| text.sample("many", &[("at", &at.to_string())], at));
        text.single("one", "gauge", "", 1);
        let text = text.finish();
        let mut trends = Trends::default();
        trends.note(&text, SECOND);
        trends.note(&text, SECOND);
        assert_eq!(trends.get("one").and_then(|one| one.points(Span::Minute)), Some(vec![1.0; 2]));
        assert_eq!(trends.find("*").count(), SERIES_MAX);
        assert_eq!(trends.without_trend(), (SERIES_MAX - TRENDS_MAX, 1));
    }

    #[test]
    fn patterns() {
        for (name, pattern, expected) in [
            ("sanderling_rows", "", true),
            ("sanderling_rows", "rows", true),
            ("sanderling_rows", "sander*", true),
            ("sanderling_rows", "s*_r*s", true),
            ("sanderling_rows", "*", true),
            ("sanderling_rows", "rows*", false),
            ("sanderling_rows", "s*s*s*s", false),
            ("aa", "a*a", true),
            ("a", "a*a", false),
        ] {
            assert_eq!(fits(name, pattern), expected, "{name} {pattern}");
        }
    }
}
