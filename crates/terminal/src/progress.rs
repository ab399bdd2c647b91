//! Progress on standard error: bars on a terminal, elsewhere a line now and then; nothing if `--quiet` asks for it.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

mod lines;
use lines::{Done, Lines};

const OF_BYTES: &str =
    "{msg:.bold} [{wide_bar}] {percent:>3}% {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}";
const OF_ROWS: &str =
    "{msg:.bold} [{wide_bar}] {percent:>3}% {human_pos}/{human_len} rows {per_sec} eta {eta}";
const OF_ROWS_ALONE: &str = "{spinner} {msg:.bold} {human_pos} rows {per_sec}";
const OF_A_STREAM: &str = "{spinner} {msg:.bold} {bytes} {binary_bytes_per_sec}";

/// A bar over the bytes of the input, or over steps.
pub struct Bar {
    bar: ProgressBar,
    shown: bool,
    /// Of a log; None on a terminal, and if nothing is to be said.
    log: Option<Log>,
}

struct Log {
    started: Instant,
    lines: Mutex<Lines>,
}

impl Log {
    fn new() -> Log {
        Log { started: Instant::now(), lines: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, what: &str, done: Done) {
        if let Some(line) = self.lock().next(what, done, self.started.elapsed()) {
            note!("{line}");
        }
    }
}

impl Bar {
    /// Makes a bar: shown on a terminal, as lines elsewhere, silent if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let log = (!quiet && !shown).then(Log::new);
        let bar = Bar { bar, shown, log };
        bar.set_style(OF_BYTES);
        bar
    }

    /// The template is a constant; should it not parse, the plain bar is as good.
    fn set_style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// Shows how many bytes of a named piece of work are read, of how many if that is known.
    pub fn scan(&self, what: &str, bytes_read: u64, bytes_total: Option<u64>) {
        if let Some(log) = &self.log {
            log.say(what, Done::Bytes { read: bytes_read, total: bytes_total });
        }
        // Of a stream, how much has been read is all there is to show.
        self.amount(
            what,
            bytes_read,
            bytes_total,
            if bytes_total.is_some() { OF_BYTES } else { OF_A_STREAM },
        );
    }

    /// Shows how many rows of a named piece of work are used, of how many if that is known.
    pub fn rows(&self, what: &str, used: u64, total: Option<u64>) {
        if let Some(log) = &self.log {
            log.say(what, Done::Rows { used, total });
        }
        self.amount(what, used, total, if total.is_some() { OF_ROWS } else { OF_ROWS_ALONE });
    }

    fn amount(&self, what: &str, done: u64, total: Option<u64>, style: &str) {
        if !self.shown {
            return;
        }
        let begins = self.bar.message() != what;
        if begins {
            self.set_style(style);
        }
        // At once, or for a moment it shows what has been read of one input beside the size of another.
        self.bar.update(|state| {
            state.set_pos(done);
            if let Some(total) = total {
                state.set_len(total);
            }
        });
        if begins {
            // The time of the rows read so far is unknown.
            self.bar.reset_eta();
            self.bar.set_message(what.to_string());
        }
    }

    /// Shows how far a piece of work in steps of about the same length is, and what it is at.
    pub fn steps(&self, what: &str, done: usize, of: usize) {
        if let Some(log) = &self.log {
            log.say(what, Done::Steps { done: done as u64, of: of as u64 });
        }
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
    pub fn line(&self, line: &str) {
        if let Some(log) = &self.log {
            log.lock().note_line(log.started.elapsed());
        }
        self.bar.suspend(|| note!("{line}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// Keeps what is written to it.
    #[derive(Clone, Debug, Default)]
    struct Written(Arc<Mutex<String>>);

    impl TermLike for Written {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_read_of_one_input_is_not_shown_beside_the_size_of_another() {
        let written = Written::default();
        let target = ProgressDrawTarget::term_like(Box::new(written.clone()));
        let bar = Bar { bar: ProgressBar::with_draw_target(None, target), shown: true, log: None };
        bar.set_style(OF_BYTES);
        let scan =
            |what: &str, bytes_read: u64, bytes_total: u64| bar.scan(what, bytes_read, Some(bytes_total));
        scan("pass 1/1", 300 << 10, 300 << 10);
        scan("validating", 10 << 10, 70 << 10);
        let shown = written.0.lock().unwrap().clone();
        assert!(shown.contains("300.00 KiB/300.00 KiB") && shown.contains("10.00 KiB/70.00 KiB"), "{shown}");
        assert!(!shown.contains("300.00 KiB/70.00 KiB"), "{shown}");
        let last = shown.rsplit("validating").next().unwrap();
        assert!(last.contains(" 0 B/s"), "nothing was read in no time: {last}");
    }
}
