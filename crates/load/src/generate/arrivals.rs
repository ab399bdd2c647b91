//! When requests are due in an open loop: their times since the start, from a law and a mean rate. Knows no
//! clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sanderling_observe::numbers::time;
use sanderling_random::Rng;

use super::{GenerateError, Purpose, within};

/// Largest mean rate: one per nanosecond, the unit of time.
const RATE_MAX: f64 = 1e9;
/// Largest factor of a burst.
const FACTOR_MAX: f64 = 1e6;
/// Longest period of bursts and waves.
const PERIOD_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const NS_PER_S: f64 = 1e9;

/// How arrivals are spread over time. The mean rate is another number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Independent: exponential gaps.
    Poisson,
    /// Equal gaps.
    Uniform,
    /// All of a period's come at its beginning, in one `factor`-th of it, as a Poisson process of `factor`
    /// times the rate.
    Burst {
        /// At least 1.
        factor: f64,
        /// From burst to burst.
        period: Duration,
    },
    /// A Poisson process whose rate is the mean one times `1 + amplitude * sin(2 pi t / period)`.
    Sine {
        /// From 0 to 1.
        amplitude: f64,
        /// From wave to wave.
        period: Duration,
    },
}

impl Arrivals {
    fn check(&self) -> Result<(), GenerateError> {
        let period = match *self {
            Arrivals::Poisson | Arrivals::Uniform => return Ok(()),
            Arrivals::Burst { factor, period } => {
                let allowed = |factor| (1.0..=FACTOR_MAX).contains(&factor);
                within("the factor of a burst", factor, "from 1 to 1000000", allowed)?;
                period
            }
            Arrivals::Sine { amplitude, period } => {
                let allowed = |amplitude| (0.0..=1.0).contains(&amplitude);
                within("the amplitude of a sine", amplitude, "from 0 to 1", allowed)?;
                period
            }
        };
        let allowed = |_| !period.is_zero() && period <= PERIOD_MAX;
        within("the period of arrivals", period.as_secs_f64(), "more than 0 s and at most 7 days", allowed)?;
        Ok(())
    }
}

impl fmt::Display for Arrivals {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrivals::Poisson => f.write_str("poisson"),
            Arrivals::Uniform => f.write_str("uniform"),
            Arrivals::Burst { factor, period } => write!(f, "burst:{factor}:{period:?}"),
            Arrivals::Sine { amplitude, period } => write!(f, "sine:{amplitude}:{period:?}"),
        }
    }
}

impl FromStr for Arrivals {
    type Err = GenerateError;

    /// `poisson`, `uniform`, `burst:FACTOR:PERIOD` or `sine:AMPLITUDE:PERIOD`, where a period is a number
    /// with `us`, `ms`, `s`, `m` or `h`.
    fn from_str(text: &str) -> Result<Self, GenerateError> {
        let wrong = |reason: String| GenerateError::Arrivals { text: text.to_owned(), reason };
        let parts: Vec<&str> = text.split(':').collect();
        let arrivals = match parts[..] {
            ["poisson"] => Arrivals::Poisson,
            ["uniform"] => Arrivals::Uniform,
            [name @ ("burst" | "sine"), number, period] => {
                let number = number.parse().map_err(|_| wrong(format!("{number:?} is not a number")))?;
                let period = time(period)
                    .ok_or_else(|| wrong(format!("{period:?} is not a time such as 250ms, 1s or 5m")))?;
                if name == "burst" {
                    Arrivals::Burst { factor: number, period }
                } else {
                    Arrivals::Sine { amplitude: number, period }
                }
            }
            ["poisson" | "uniform", ..] => return Err(wrong(format!("{} takes no numbers", parts[0]))),
            ["burst" | "sine", ..] => return Err(wrong(format!("{} takes a number and a period", parts[0]))),
            _ => return Err(wrong("there is no such law".to_owned())),
        };
        arrivals.check().map_err(|error| wrong(error.to_string()))?;
        Ok(arrivals)
    }
}

/// The intended times of cycles 0, 1, 2 and so on: a function of law, rate and seed. Every thread walks the
/// whole sequence, which takes some ten nanoseconds a step, and takes the cycles that are its own.
#[derive(Debug, Clone)]
pub struct ArrivalTimes {
    law: Arrivals,
    per_s: f64,
    rng: Rng,
    cycle: u64,
    /// Of equal gaps, how much of one comes before the first.
    phase: f64,
    /// Time so far: nanoseconds, and a part of one. Two numbers, so that small gaps add up without loss.
    ns: u64,
    part: f64,
}

impl ArrivalTimes {
    /// At a mean rate per second, which need not be a whole number; if it is, equal gaps are exact to the
    /// nanosecond in all of their multiples. `first` is the first cycle of whoever waits for these times: clients that share a
    /// load would otherwise all call at the same times. With equal gaps who has cycle 0 begins at 0, and others within a gap.
    ///
    /// # Errors
    /// If the rate is not above 0 and at most 10^9, or the law's numbers are impossible.
    pub fn new(law: &Arrivals, per_s: f64, seed: u64, first: u64) -> Result<Self, GenerateError> {
        law.check()?;
        let per_s = within("the rate per second", per_s, "more than 0 and at most 10^9", |rate| {
            rate > 0.0 && rate <= RATE_MAX
        })?;
        let mut rng = Rng::new(seed, Purpose::Arrivals as u64, first);
        let phase = if *law == Arrivals::Uniform && first > 0 { rng.unit() } else { 0.0 };
        Ok(ArrivalTimes { law: *law, per_s, rng, cycle: 0, phase, ns: 0, part: 0.0 })
    }

    /// The next cycle's intended time since the start; never earlier than the one before.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so an Option would only be in the way")]
    pub fn next(&mut self) -> Duration {
        let cycle = self.cycle;
        self.cycle += 1;
        match self.law {
            Arrivals::Uniform => {
                // Correctly rounded, so a quotient that is a whole number comes out as one.
                Duration::from_nanos(((cycle as f64 + self.phase) * NS_PER_S / self.per_s).round() as u64)
            }
            Arrivals::Poisson => Duration::from_nanos(self.step(self.per_s)),
            Arrivals::Burst { factor, period } => {
                let (flat, period) = (self.step(self.per_s), period.as_nanos() as u64);
                let within = ((flat % period) as f64 + self.part) / factor;
                Duration::from_nanos(flat - flat % period + within as u64)
            }
            Arrivals::Sine { amplitude, period } => {
                // Thinning (Lewis and Shedler 1979): arrivals of the highest rate, of which some are taken.
                let period_ns = period.as_nanos() as u64;
                loop {
                    let ns = self.step(self.per_s * (1.0 + amplitude));
                    let phase = (ns % period_ns) as f64 / period_ns as f64;
                    let share = 1.0 + amplitude * (std::f64::consts::TAU * phase).sin();
                    if self.rng.unit() * (1.0 + amplitude) < share {
                        return Duration::from_nanos(ns);
                    }
                }
            }
        }
    }

    /// Goes on by an exponential gap; the whole nanoseconds so far.
    fn step(&mut self, per_s: f64) -> u64 {
        self.part -= (1.0 - self.rng.unit()).ln() * (NS_PER_S / per_s);
        let whole = self.part as u64;
        self.part -= whole as f64;
        self.ns = self.ns.saturating_add(whole);
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::chi_square;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn times(law: &Arrivals, per_s: f64, seed: u64, count: usize) -> Vec<Duration> {
        let mut times = ArrivalTimes::new(law, per_s, seed, 0).unwrap();
        (0..count).map(|_| times.next()).collect()
    }

    #[test]
    fn equal_gaps_are_exact() {
        for (per_s, cycle, ns) in [
            (1000.0, 0, 0),
            (1000.0, 1, 1_000_000),
            (1000.0, 123_456, 123_456_000_000),
            (3.0, 1, 333_333_333),
            (3.0, 300_000, 100_000_000_000_000),
            (7.0, 700_001, 100_000_142_857_143),
            (0.5, 3, 6_000_000_000),
            (1e9, 77, 77),
        ] {
            let times = times(&Arrivals::Uniform, per_s, 1, cycle + 1);
            assert_eq!(times[cycle].as_nanos(), ns, "{per_s} per second, cycle {cycle}");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        for (per_s, seed) in [(1000.0, 1), (25_000.5, 2), (0.1, 3)] {
            const CELLS: usize = 50;
            let times = times(&Arrivals::Poisson, per_s, seed, 200_000);
            let gaps: Vec<f64> =
                times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * per_s).collect();
            let n = gaps.len() as f64;
            let mean = gaps.iter().sum::<f64>() / n;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n;
            // Of an exponential law of mean 1, the variance of squares about the mean is 8.
            assert!((mean - 1.0).abs() < 5.0 / n.sqrt(), "mean gap {mean}");
            assert!((variance - 1.0).abs() < 5.0 * (8.0 / n).sqrt(), "variance {variance}");
            let mut seen = vec![0; CELLS];
            for gap in &gaps {
                // The distribution function makes the law uniform.
                seen[(((1.0 - (-gap).exp()) * CELLS as f64) as usize).min(CELLS - 1)] += 1;
            }
            chi_square::check(&format!("{per_s} per second"), &seen, &[1.0; CELLS]);
            // Neighbouring gaps do not know of each other.
            let together: f64 = gaps.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
            assert!((together / n / variance).abs() < 5.0 / n.sqrt(), "correlation {}", together / n);
        }
    }

    #[test]
    fn bursts_and_waves_have_their_shape_and_the_mean_rate() {
        const CELLS: usize = 40;
        /// `weight` of each fortieth of the period.
        fn check(text: &str, per_s: f64, weight: impl Fn(f64, f64) -> f64) {
            let law: Arrivals = text.parse().unwrap();
            let (Arrivals::Burst { period, .. } | Arrivals::Sine { period, .. }) = law else {
                unreachable!()
            };
            let all = times(&law, per_s, 5, 200_000);
            assert!(all.is_sorted(), "{text}");
            let mean = all.len() as f64 / all[all.len() - 1].as_secs_f64();
            // A period more or less at the end, and chance.
            let off = 5.0 / (all.len() as f64).sqrt() + 2.0 * period.as_secs_f64() * per_s / all.len() as f64;
            assert!((mean / per_s - 1.0).abs() < off, "{text}: {mean} per second of {per_s}");
            let mut seen = [0; CELLS];
            let whole = (all[all.len() - 1].as_nanos() / period.as_nanos()) * period.as_nanos();
            for time in all.iter().take_while(|time| time.as_nanos() < whole) {
                let phase = (time.as_nanos() % period.as_nanos()) as f64 / period.as_nanos() as f64;
                seen[(phase * CELLS as f64) as usize] += 1;
            }
            let weights: Vec<f64> =
                (0..CELLS).map(|i| weight(i as f64 / CELLS as f64, (i + 1) as f64 / CELLS as f64)).collect();
            chi_square::check(text, &seen, &weights);
        }
        let burst =
            |factor: f64| move |from: f64, to: f64| (to.min(1.0 / factor) - from.min(1.0 / factor)) * factor;
        check("burst:10:1s", 10_000.0, burst(10.0));
        check("burst:3:250ms", 5_000.0, burst(3.0));
        check("burst:1:1s", 5_000.0, burst(1.0));
        // The integral of 1 + a sin(2 pi x).
        let sine = |amplitude: f64| {
            move |from: f64, to: f64| {
                let turn = std::f64::consts::TAU;
                to - from + amplitude / turn * ((turn * from).cos() - (turn * to).cos())
            }
        };
        check("sine:0.5:2s", 10_000.0, sine(0.5));
        check("sine:1:100ms", 3_000.0, sine(1.0));
        check("sine:0:1s", 3_000.0, sine(0.0));
    }

    #[test]
    fn times_are_a_function_of_law_rate_and_seed() {
        for law in ["poisson", "burst:2:1s", "sine:0.3:1s"] {
            let law = law.parse().unwrap();
            assert_eq!(times(&law, 100.0, 1, 50), times(&law, 100.0, 1, 50), "{law}");
            assert_ne!(times(&law, 100.0, 1, 50), times(&law, 100.0, 2, 50), "{law}");
        }
        assert_eq!(times(&Arrivals::Uniform, 9.0, 1, 50), times(&Arrivals::Uniform, 9.0, 2, 50));
    }

    #[test]
    fn clients_that_share_a_load_call_at_other_times() {
        for law in ["poisson", "uniform", "burst:2:1s", "sine:0.3:1s"] {
            let law = law.parse().unwrap();
            let first = |cycle| ArrivalTimes::new(&law, 100.0, 1, cycle).unwrap().next();
            assert!(first(0) != first(1000) && first(1000) != first(2000), "{law}");
            assert_eq!(first(1000), first(1000), "{law}");
        }
        // The gaps are the same.
        let mut times = ArrivalTimes::new(&Arrivals::Uniform, 100.0, 1, 1000).unwrap();
        let (one, other) = (times.next(), times.next());
        assert!(
            one < SECOND / 100 && (other - one).as_nanos().abs_diff(10_000_000) <= 1,
            "{one:?} {other:?}"
        );
    }

    #[test]
    fn names_are_parsed_and_printed() {
        let (burst, sine) = (
            |factor, period| Arrivals::Burst { factor, period },
            |amplitude, period| Arrivals::Sine { amplitude, period },
        );
        for (text, law) in [
            ("poisson", Arrivals::Poisson),
            ("uniform", Arrivals::Uniform),
            ("burst:10:1s", burst(10.0, SECOND)),
            ("burst:2.5:0.25s", burst(2.5, SECOND / 4)),
            ("burst:2:250ms", burst(2.0, SECOND / 4)),
            ("sine:0.5:60s", sine(0.5, SECOND * 60)),
            ("sine:1:1.5m", sine(1.0, SECOND * 90)),
            ("sine:0:2h", sine(0.0, SECOND * 7200)),
            ("sine:0:700us", sine(0.0, SECOND / 10_000 * 7)),
        ] {
            assert_eq!(text.parse::<Arrivals>().unwrap(), law, "{text}");
            assert_eq!(law.to_string().parse::<Arrivals>().unwrap(), law, "{law}");
        }
        for (text, reason) in [
            ("", "no such law"),
            ("normal:1:1s", "no such law"),
            ("poisson:3", "takes no numbers"),
            ("burst", "takes a number and a period"),
            ("burst:10", "takes a number and a period"),
            ("burst:10:1s:2", "takes a number and a period"),
            ("burst:ten:1s", "\"ten\" is not a number"),
            ("burst:10:1", "\"1\" is not a time"),
            ("burst:10:1d", "\"1d\" is not a time"),
            ("burst:10:-1s", "is not a time"),
            ("burst:10:0s", "more than 0 s"),
            ("burst:10:169h", "at most 7 days"),
            ("burst:0.5:1s", "from 1 to 1000000"),
            ("burst:NaN:1s", "from 1 to 1000000"),
            ("sine:1.5:1s", "from 0 to 1"),
            ("sine:-0.1:1s", "from 0 to 1"),
        ] {
            let error = text.parse::<Arrivals>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("there are poisson"), "{text:?}: {error}");
        }
        for per_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
            assert!(ArrivalTimes::new(&Arrivals::Poisson, per_s, 1, 0).is_err(), "{per_s}");
        }
        assert!(ArrivalTimes::new(&burst(0.5, SECOND), 1.0, 1, 0).is_err());
    }
}
