//! Lines for standard error that no thread waits for: who reads it slowly, or not at all, must not stop saves, answers or the
//! end of a server. Knows nothing of what is said.

use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of lines that wait to be written; beyond that lines are dropped, and counted.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Time that waiting lines get when a server is ready, and at its end.
const FINISH_WITHIN: Duration = Duration::from_secs(1);
/// Time that waiting lines get at the end of another command: its reader may be a pager.
const FINISH_COMMAND_WITHIN: Duration = Duration::from_secs(5);

/// The log of this process, once it is started.
static LOG: OnceLock<Log> = OnceLock::new();
/// Whether this process is a server.
static IS_SERVER: AtomicBool = AtomicBool::new(false);

/// Lines on their way to whoever reads them.
#[derive(Debug, Default)]
struct Log {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<String>,
    bytes: usize,
    dropped: u64,
    /// Is a line being written?
    writing: bool,
    /// Has a wait for the writer been in vain, with nothing written since?
    is_stuck: bool,
}

/// Makes [`say`] non-blocking in a server.
pub fn start() {
    IS_SERVER.store(true, Ordering::Relaxed);
    spawn();
}

/// Makes [`say`] non-blocking in a command whose standard error is a pipe or a file. A terminal is read, and its progress bars
/// need lines in their place.
pub fn start_unless_terminal() {
    if !std::io::stderr().is_terminal() {
        spawn();
    }
}

/// Starts the thread that writes, also messages of panics.
fn spawn() {
    let thread = std::thread::Builder::new().name("log".to_owned());
    // Without a thread it is as before.
    if LOG.get().is_some()
        || thread.spawn(|| LOG.get_or_init(Log::default).write_all_to(std::io::stderr())).is_err()
    {
        return;
    }
    LOG.get_or_init(Log::default);
    std::panic::set_hook(Box::new(|panic| say(format!("{panic}\n{}", Backtrace::capture()))));
}

/// Writes a line to standard error: now, or by the thread of the log once that is started.
pub fn say(line: String) {
    part(line + "\n");
}

/// Writes text to standard error as [`say`] does, without ending the line.
pub fn part(text: String) {
    match LOG.get() {
        Some(log) => log.put(text),
        // There is nowhere to say that it failed.
        None => drop(std::io::stderr().lock().write_all(text.as_bytes())),
    }
}

/// Waits until what was said is written, but not for long, and not again while nothing is written.
pub fn finish() {
    if let Some(log) = LOG.get() {
        let is_server = IS_SERVER.load(Ordering::Relaxed);
        log.finish(if is_server { FINISH_WITHIN } else { FINISH_COMMAND_WITHIN });
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: String) {
        let mut waiting = self.lock();
        if waiting.bytes + line.len() > WAITING_BYTES_MAX {
            waiting.dropped += 1;
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.changed.notify_all();
    }

    fn write_all_to(&self, mut out: impl Write) {
        loop {
            let mut waiting = self.lock();
            (waiting.writing, waiting.is_stuck) = (false, false);
            self.changed.notify_all();
            let mut waiting = self
                .changed
                .wait_while(waiting, |waiting| waiting.lines.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            waiting.writing = true;
            let line = waiting.lines.pop_front().unwrap_or_default();
            waiting.bytes -= line.len();
            let dropped = std::mem::take(&mut waiting.dropped);
            drop(waiting);
            let more = match dropped {
                0 => String::new(),
                lines => format!("{lines} lines were dropped here, because standard error was not read\n"),
            };
            // One write, so that lines of other threads do not come between; its error cannot be reported.
            let _ = out.write_all((line + &more).as_bytes());
        }
    }

    fn finish(&self, within: Duration) {
        let until = Instant::now() + within;
        let mut waiting = self.lock();
        while !waiting.is_stuck && (waiting.writing || !waiting.lines.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                waiting.is_stuck = true;
                return;
            }
            let waited = self.changed.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_line_waits_for_no_reader_and_what_is_dropped_is_counted() {
        let log: &Log = Box::leak(Box::default());
        let (reader, writer) = std::io::pipe().expect("a pipe");
        std::thread::spawn(|| log.write_all_to(writer));
        let line = "x".repeat(999) + "\n";
        let said = 3 * WAITING_BYTES_MAX / line.len();
        (0..said).for_each(|_| log.put(line.clone()));
        let begun = Instant::now();
        log.finish(Duration::from_millis(10));
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody reads, and it ends");

        let (mut whole, mut dropped) = (0, 0);
        for read in BufReader::new(reader).lines() {
            let read = read.expect("text");
            match read.split_once(" lines were dropped") {
                Some((count, _)) => dropped += count.parse::<usize>().expect("a count"),
                None if read == "the last" => break,
                None => {
                    assert_eq!(read, line.trim_end());
                    whole += 1;
                }
            }
            if whole + dropped == said {
                log.put("the last\n".to_owned());
            }
        }
        assert!(dropped > 0 && whole * line.len() > WAITING_BYTES_MAX / 2, "{whole} {dropped}");
        log.finish(Duration::from_secs(60));
        assert!(log.lock().lines.is_empty());
    }
}
