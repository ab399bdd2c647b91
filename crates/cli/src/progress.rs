//! Progress bars on standard error; silent where that is no terminal or `--quiet` asks for it.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sanderling_learner::ScanProgress;

/// A bar over the bytes of the input, or over steps.
pub(crate) struct Bar {
    bar: ProgressBar,
    shown: bool,
}

impl Bar {
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let bar = Bar { bar, shown };
        bar.set_style(
            "{msg:.bold} [{wide_bar}] {percent:>3}% {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}",
        );
        bar
    }

    /// The template is a constant; should it not parse, the plain bar is as good.
    fn set_style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// Shows how far a named piece of work is.
    pub(crate) fn scan(&self, what: &str, scan: ScanProgress) {
        if !self.shown {
            return;
        }
        match scan.bytes_total {
            Some(total) => self.bar.set_length(total),
            // A stream: how much has been read is all there is to show.
            None => self.set_style("{spinner} {msg:.bold} {bytes} {binary_bytes_per_sec}"),
        }
        if self.bar.message() != what {
            self.bar.set_message(what.to_string());
            self.bar.reset_eta();
        }
        self.bar.set_position(scan.bytes_read);
    }

    /// Shows how far a piece of work in steps of about the same length is, and what it is at.
    pub(crate) fn steps(&self, what: &str, done: usize, of: usize) {
        if !self.shown {
            return;
        }
        if self.bar.length() != Some(of as u64) {
            self.set_style("[{wide_bar}] {percent:>3}% {msg:.bold} eta {eta}");
            self.bar.set_length(of as u64);
        }
        self.bar.set_message(what.to_string());
        self.bar.set_position(done as u64);
    }

    /// Prints a line above the bar.
    pub(crate) fn line(&self, line: &str) {
        self.bar.suspend(|| note!("{line}"));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
