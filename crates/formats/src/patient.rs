//! Standard input and pipes, which may be silent for as long as they like: who waits for one looks now and then whether the
//! rows are still wanted. Knows no format.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Says whether an input is still to be read.
pub type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often it is asked while a stream is silent.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A stream that fails once nobody wants it any more, be it silent.
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

    /// What is at a path. A pipe is there before anybody writes to it.
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
                // Nothing came, or a signal, which may be why it is not wanted any more.
                Ok(0) | Err(Errno::INTR) => continue,
                found => found?,
            };
            match self.stream.read(buffer) {
                // Somebody else has read it.
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
        // Nobody writes.
        let mut pipe = Patient::open(&path, Some(&wanted)).unwrap();
        assert_eq!(pipe.read(&mut [0; 8]).unwrap_err().to_string(), "it is not wanted any more");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        // Somebody writes late, and no more.
        asked.store(0, Ordering::Relaxed);
        let mut pipe = Patient::open(&path, Some(&wanted)).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"1 1:1\n").unwrap();
        let mut found = [0; 8];
        assert_eq!(pipe.read(&mut found).unwrap(), 6);
        assert!(pipe.read(&mut found).is_err());
        // To its end, however long that takes, if nobody says when it is not wanted.
        let mut pipe = Patient::open(&path, None).unwrap();
        writer.write_all(b"0 2:1\n").unwrap();
        drop(writer);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0 2:1\n");
    }
}
