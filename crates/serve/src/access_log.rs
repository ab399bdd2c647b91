//! The access log: a line of JSON per request, written by a thread of its own. Lines that would wait too long are dropped
//! and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

use serde::Serialize;

/// Lines that wait to be written; a further one is dropped.
const QUEUE_MAX: usize = 4096;

/// A request as the log has it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) peer: String,
    pub(crate) protocol: &'static str,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) code: String,
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) rows: u64,
    pub(crate) ms: f64,
}

/// Seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// The log of a server. Its thread ends when it is dropped and all lines are written.
#[derive(Debug)]
pub(crate) struct AccessLog {
    queue: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Appends to a file; `-` is standard output.
    ///
    /// # Errors
    /// The file cannot be opened, or the system has no thread left.
    pub(crate) fn start(path: &Path) -> io::Result<AccessLog> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file: Box<dyn Write + Send> = match path.as_os_str() == "-" {
            true => Box::new(io::stdout()),
            false => Box::new(open(path).map_err(named)?),
        };
        AccessLog::to(file)
    }

    fn to(file: Box<dyn Write + Send>) -> io::Result<AccessLog> {
        let (queue, lines) = sync_channel(QUEUE_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let failed = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || run(&lines, file, &failed))?;
        Ok(AccessLog { queue, dropped })
    }

    /// Adds a line, unless too many wait.
    pub(crate) fn write(&self, line: Line) {
        if self.queue.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were not written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn run(lines: &Receiver<Line>, file: Box<dyn Write + Send>, failed: &AtomicU64) {
    let mut file = BufWriter::new(file);
    while let Ok(line) = lines.recv() {
        let mut next = Some(line);
        let mut written = 0;
        while let Some(line) = next {
            written += 1;
            let text = serde_json::to_string(&line).unwrap_or_default();
            // An error shows at the flush, too.
            let _ = writeln!(file, "{text}");
            next = lines.try_recv().ok();
        }
        if file.flush().is_err() {
            failed.fetch_add(written, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Blocks until it may write.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(path: &str) -> Line {
        Line {
            time: 1.5,
            peer: "127.0.0.1:1".to_owned(),
            protocol: "http",
            method: "POST".to_owned(),
            path: path.to_owned(),
            code: "200".to_owned(),
            model: "clicks".to_owned(),
            version: "1".to_owned(),
            rows: 2,
            ms: 0.25,
        }
    }

    #[test]
    fn a_slow_file_drops_lines_and_delays_nobody() {
        let ((go, may_go), (written, found)) = (channel(), channel());
        let log = AccessLog::to(Box::new(Slow(may_go, written))).unwrap();
        let sent = 3 * QUEUE_MAX as u64;
        (0..sent).for_each(|at| log.write(line(&format!("/{at}\n"))));
        assert!(log.dropped() > 0);
        let dropped = log.dropped();
        drop((go, log));
        let text = String::from_utf8(found.iter().flatten().collect()).unwrap();
        assert_eq!(text.lines().count() as u64, sent - dropped);
        let first = r#"{"time":1.5,"peer":"127.0.0.1:1","protocol":"http","method":"POST","path":"/0\n","code":"200","model":"clicks","version":"1","rows":2,"ms":0.25}"#;
        assert_eq!(text.lines().next(), Some(first));
    }
}
