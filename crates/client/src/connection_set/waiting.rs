//! Reports the servers that the connections of a thread wait for. Knows no frame.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::ConnectionSet;

/// How often it is looked whether a server has been waited for.
const TELL_LOOK: Duration = Duration::from_millis(200);

impl ConnectionSet {
    fn at(&self, us: u64) -> Instant {
        self.start + Duration::from_micros(us)
    }

    /// Says which servers have been waited for, now and then.
    pub(super) fn tell_who_is_waited_for(&mut self) {
        let now = Instant::now();
        if now < self.tell_at || !self.outages.is_told() {
            return;
        }
        self.tell_at = now + TELL_LOOK;
        for (at, link) in self.links.iter().enumerate() {
            let Some((asked_us, is_silent, cause)) = link.rpc.waits() else { continue };
            // Long operations answer nothing meanwhile, so silence is no sign of trouble.
            let is_silent = is_silent && !self.watch.bears_silence();
            let (server, asked) = (at % self.servers, self.at(asked_us));
            let name = &self.names.servers[server];
            let cause = cause.strip_prefix(&format!("{name}: ")).unwrap_or(cause);
            self.outages.notice(server, name, asked, is_silent, cause);
        }
    }

    /// Gives up those of these links whose servers are silent, if it is to stop.
    pub(super) fn give_up_if_told(&mut self, links: Range<usize>) {
        let Some((since, grace)) = self.watch.look() else { return };
        let (now_us, told_us) = (self.now_us(), since.duration_since(self.start).as_micros() as u64);
        for link in &mut self.links[links] {
            link.rpc.stop(now_us, told_us, grace.as_micros() as u64);
        }
    }

    /// An attempt that began then has come to nothing.
    pub(super) fn failed(&self, at: usize, since_us: u64) {
        if !self.is_reader(at) {
            self.outages.failed(at % self.servers, self.at(since_us));
        }
    }
}
