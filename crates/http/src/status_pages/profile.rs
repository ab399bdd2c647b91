//! `/profile?seconds=`: what the processor does for some seconds, one request at a time. Takes no sample itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;

use super::model::{Cell, Column, Page, Part, Table};

/// Longest profile.
pub(super) const SECONDS_MAX: u64 = 60;
/// Profiles that the page offers.
const SECONDS: [u64; 3] = [5, 15, 60];

/// A profile: a table of functions as text, and a flame graph as SVG.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Functions by share.
    pub text: String,
    /// The flame graph.
    pub svg: Vec<u8>,
}

type Run = dyn Fn(Duration) -> Result<Profile, String> + Send + Sync;

/// Profiles the process for a time. It waits that long.
#[derive(Clone)]
pub struct Profiler {
    run: Arc<Run>,
    is_running: Arc<AtomicBool>,
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Profiler").finish_non_exhaustive()
    }
}

impl Profiler {
    /// A profiler that calls a function. Calls do not overlap.
    pub fn new(run: impl Fn(Duration) -> Result<Profile, String> + Send + Sync + 'static) -> Profiler {
        Profiler { run: Arc::new(run), is_running: Arc::default() }
    }

    /// Profiles for so many seconds. The error is a status and a reason.
    pub(super) async fn profile(&self, seconds: &str) -> Result<Profile, (StatusCode, String)> {
        let seconds = seconds.parse().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
        let Some(seconds) = seconds else {
            let reason = format!("seconds: a whole number from 1 to {SECONDS_MAX} is expected");
            return Err((StatusCode::BAD_REQUEST, reason));
        };
        if self.is_running.swap(true, Ordering::SeqCst) {
            let reason = "another profile is being taken; try again when it is done".to_owned();
            return Err((StatusCode::CONFLICT, reason));
        }
        let (run, running) = (Arc::clone(&self.run), Running(Arc::clone(&self.is_running)));
        let done = tokio::task::spawn_blocking(move || {
            // Also after a panic, and when the client is gone.
            let _running = running;
            run(Duration::from_secs(seconds))
        });
        let done = done.await.unwrap_or_else(|error| Err(format!("a bug: {error}")));
        done.map_err(|reason| (StatusCode::INTERNAL_SERVER_ERROR, reason))
    }
}

/// Clears the mark of a profile under way.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The page without seconds.
pub(super) fn page() -> Page {
    let mut table = Table::new("CPU profile", [Column::text("profile"), Column::text("content")]);
    for seconds in SECONDS {
        let path = format!("/profile?seconds={seconds}");
        let content = format!("The stacks of all threads for {seconds} s.");
        table.row([Cell::link(&path, &path), Cell::text(content)]);
    }
    let note = "A browser gets a flame graph, curl a table of functions. Sampling costs a few percent of the processor while it \
                runs.";
    Page::new("profile", [Part::Table(table), Part::Note(note.to_owned())])
}
