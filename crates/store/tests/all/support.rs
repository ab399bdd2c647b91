//! Shared by the tests: duration of stress tests, random numbers, and stopping of threads.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sanderling_store::Table;

/// Duration of a stress test: `SANDERLING_TEST_SECONDS`, 0.3 by default.
pub(crate) fn duration() -> Duration {
    let seconds = std::env::var("SANDERLING_TEST_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.3))
}

/// Stops other threads when it is dropped, also by a panic.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The argument of `Maintenance::start` for one table.
pub(crate) fn always(t: &Arc<Table>) -> impl Fn(&mut dyn FnMut(&Table)) + Send + 'static {
    let t = Arc::clone(t);
    move |maintain| maintain(&t)
}

/// A deterministic random generator.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(crate) fn unit(&mut self) -> f64 {
        self.below(1 << 30) as f64 / f64::from(1 << 30)
    }
}
