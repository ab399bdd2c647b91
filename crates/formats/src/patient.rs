//! Standard input and pipes, which may be silent for any time: a read checks now and then whether the rows are still
//! wanted. Knows no format.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Returns whether an input is still to be read.
pub type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// Interval of the check while a stream is silent.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A stream that fails once it is not wanted any more, even while it is silent.
pub(crate) struct Patient {
    stream: File,
    wanted: Option<Wanted>,
}

impl Patient {
    /// Standard input.
    pub(crate) fn stdin(wanted: Option<&Wanted>) -> io::Result<Patient> {
        let stream = io::stdin().as_fd().try_clone_to_owned()?.into();
        Ok(Patient { stream, wanted: wanted.cloned() })
    }

    /// Opens a path. Opening a pipe does not wait for its writer.
    pub(crate) fn open(path: &Path, wanted: Option<&Wanted>) -> io::Result<Patient> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let stream = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        Ok(Patient { stream, wanted: wanted.cloned() })
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let timeout = self.wanted.as_ref().map(|_| &POLL);
        loop {
            if self.wanted.as_ref().is_some_and(|wanted| !wanted()) {
                return Err(io::Error::other("it is not wanted any more"));
            }
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], timeout) {
                // A timeout, or a signal, which may have ended the interest.
                Ok(0) | Err(Errno::INTR) => continue,
                found => found?,
            };
            match self.stream.read(buffer) {
                // Another reader took the bytes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_silent_pipe_is_read_until_it_is_not_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let wanted: Wanted = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) < 3);
        // No writer.
        let mut pipe = Patient::open(&path, Some(&wanted)).unwrap();
        assert_eq!(pipe.read(&mut [0; 8]).unwrap_err().to_string(), "it is not wanted any more");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        // A late writer that closes again.
        asked.store(0, Ordering::Relaxed);
        let mut pipe = Patient::open(&path, Some(&wanted)).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"1 1:1\n").unwrap();
        let mut found = [0; 8];
        assert_eq!(pipe.read(&mut found).unwrap(), 6);
        assert!(pipe.read(&mut found).is_err());
        // Without `wanted` it is read to its end, however long that takes.
        let mut pipe = Patient::open(&path, None).unwrap();
        writer.write_all(b"0 2:1\n").unwrap();
        drop(writer);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0 2:1\n");
    }
}
