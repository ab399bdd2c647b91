//! How fast keys are made on one thread, for the command that says what the generator itself can do. Knows
//! no request.

use std::time::{Duration, Instant};

use super::{At, GenerateError, KeyLaw, KeySource, Seeds};

/// Batches between two looks at the clock.
const BATCHES_PER_LOOK: u64 = 16;

/// Keys per second that one thread makes of a law, in batches of `batch`, measured for about `duration`.
///
/// # Errors
/// As of [`KeySource::new`].
pub fn keys_per_s(law: &KeyLaw, keys: u64, batch: usize, duration: Duration) -> Result<f64, GenerateError> {
    let source = KeySource::new(law, keys, &Seeds::new(1))?;
    let mut out = Vec::with_capacity(batch);
    let (mut cycle, start) = (0, Instant::now());
    loop {
        for _ in 0..BATCHES_PER_LOOK {
            out.clear();
            source.fill(&At { cycle, draw: 0, now: Duration::ZERO }, batch, &mut out)?;
            std::hint::black_box(&out);
            cycle += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return Ok(cycle as f64 * batch as f64 / elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo test --release -p sanderling-load --lib keys_are_made -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement, for release builds"]
    #[allow(clippy::print_stdout, reason = "a measurement that cannot be seen is none")]
    fn keys_are_made_fast() {
        for (law, keys) in [
            (KeyLaw::Zipf { theta: 0.99 }, 10_000_000),
            (KeyLaw::Zipf { theta: 0.99 }, 1_000_000_000),
            (KeyLaw::Zipf { theta: 0.5 }, 1_000_000_000),
            (KeyLaw::Zipf { theta: 1.2 }, KEYS),
            (KeyLaw::Latest { theta: 0.99 }, KEYS),
            (KeyLaw::Uniform, KEYS),
            (KeyLaw::Hotspot { hot_keys: 0.2, hot_draws: 0.8 }, KEYS),
            (KeyLaw::Sequential, KEYS),
        ] {
            for batch in [8, 512, 8192] {
                let rate = keys_per_s(&law, keys, batch, Duration::from_millis(300)).unwrap();
                println!("{law:?} of {keys}, {batch} at once: {:.1} M keys/s", rate / 1e6);
            }
        }
    }

    const KEYS: u64 = 10_000_000;

    #[test]
    fn a_rate_comes_out_and_a_bad_law_does_not() {
        assert!(keys_per_s(&KeyLaw::Uniform, 10, 4, Duration::from_millis(1)).unwrap() > 0.0);
        assert!(keys_per_s(&KeyLaw::Uniform, 0, 4, Duration::from_millis(1)).is_err());
    }
}
