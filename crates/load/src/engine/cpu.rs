//! Processor time of this process and of the calling thread. Knows not what it was spent on.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of the process so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Times {
    pub(super) user_s: f64,
    pub(super) system_s: f64,
}

impl Times {
    pub(super) fn now() -> Times {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let per_s = rustix::param::clock_ticks_per_second().max(1) as f64;
        read(&stat, per_s).unwrap_or_default()
    }

    pub(super) fn since(self, before: Times) -> Times {
        Times { user_s: self.user_s - before.user_s, system_s: self.system_s - before.system_s }
    }
}

/// The 14th and 15th fields; the second one, the program's name, may have spaces and is in brackets.
fn read(stat: &str, per_s: f64) -> Option<Times> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / per_s);
    Some(Times { user_s: seconds()?, system_s: seconds()? })
}

/// Processor time of the calling thread so far.
pub(super) fn thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_whatever_the_program_is_called() {
        let stat = "7 (a ) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(read(stat, 100.0), Some(Times { user_s: 2.5, system_s: 0.5 }));
        for bad in ["", "7 (x) S 1", "7 (x) S 1 2 3 4 5 6 7 8 9 10 a b"] {
            assert_eq!(read(bad, 100.0), None, "{bad}");
        }
        let before = (Times::now(), thread());
        while thread() < before.1 + Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        // Which of the two ticks are counted as is a matter of what the processor did when the clock struck.
        let Times { user_s, system_s } = Times::now().since(before.0);
        assert!(user_s + system_s > 0.0);
    }
}
