//! Reports the servers that the connections of a thread wait for. Knows no frame.

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

    /// An attempt that began then has come to nothing.
    pub(super) fn failed(&self, at: usize, since_us: u64) {
        self.outages.failed(at % self.servers, self.at(since_us));
    }
}
