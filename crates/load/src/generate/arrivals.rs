//! When requests are due in an open loop: their times since the start, from a law and a mean rate. Knows no clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sanderling_sample::random::Rng;

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
    /// All of a period's come at its beginning, in one `factor`-th of it, as a Poisson process of `factor` times the rate.
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

    /// `poisson`, `uniform`, `burst:FACTOR:PERIOD` or `sine:AMPLITUDE:PERIOD`, where a period is a number with `us`,
    /// `ms`, `s`, `m` or `h`.
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

/// A number and a unit.
fn time(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// The intended times of cycles 0, 1, 2 and so on: a function of law, rate and seed. Every thread walks the whole sequence,
/// which takes some ten nanoseconds a step, and takes the cycles that are its own.
#[derive(Debug, Clone)]
pub struct ArrivalTimes {
    law: Arrivals,
    per_s: f64,
    rng: Rng,
    cycle: u64,
    /// Time so far: nanoseconds, and a part of one. Two numbers, so that small gaps add up without loss.
    ns: u64,
    part: f64,
}

impl ArrivalTimes {
    /// At a mean rate per second, which need not be a whole number; if it is, equal gaps are exact to the nanosecond in all
    /// of their multiples.
    ///
    /// # Errors
    /// If the rate is not above 0 and at most 10^9, or the law's numbers are impossible.
    pub fn new(law: &Arrivals, per_s: f64, seed: u64) -> Result<Self, GenerateError> {
        law.check()?;
        let per_s = within("the rate per second", per_s, "more than 0 and at most 10^9", |rate| {
            rate > 0.0 && rate <= RATE_MAX
        })?;
        let rng = Rng::new(seed, Purpose::Arrivals as u64, 0);
        Ok(ArrivalTimes { law: *law, per_s, rng, cycle: 0, ns: 0, part: 0.0 })
    }

    /// The next cycle's intended time since the start; never earlier than the one before.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so an Option would only be in the way")]
    pub fn next(&mut self) -> Duration {
        let cycle = self.cycle;
        self.cycle += 1;
        match self.law {
            Arrivals::Uniform => {
                // Correctly rounded, so a quotient that is a whole number comes out as one.
                Duration::from_nanos((cycle as f64 * NS_PER_S / self.per_s).round() as u64)
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
