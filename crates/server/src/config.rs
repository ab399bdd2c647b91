//! What one can choose of a server, as a TOML file says it, and the check that it makes sense. Opens nothing.

use std::path::PathBuf;
use std::time::Duration;

use sanderling_transport::{Address, user_dir};
use sanderling_wire::limit;

use crate::limit::{CHECKPOINTS_MAX_DEFAULT, FRAME_BYTES_MAX_DEFAULT};

/// Most shards of a cluster.
const SHARDS_MAX: u16 = limit::SERVERS_MAX as u16;
/// Most worker threads.
const WORKERS_MAX: usize = 1024;

/// What a server is made from. The defaults are those of one server on this machine alone.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: Vec<Address>,
    /// Also for clients of this host, over shared memory and a unix socket.
    pub local: bool,
    /// Where the unix socket is.
    pub runtime_dir: PathBuf,
    /// May other machines connect?
    pub expose: bool,
    /// May they do so without TLS and token?
    pub insecure: bool,
    /// Certificate and key, PEM files, for TLS on TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// What clients must say.
    pub token: Option<String>,
    /// Are clients admitted without it that the kernel says are processes of this user, on this host?
    pub admit_this_user: bool,
    /// Names by which clients of the control plane reach it, beside those that it listens at.
    pub hosts: Vec<String>,
    /// Which shard it is, from 0.
    pub shard: u16,
    /// How many there are.
    pub shards: u16,
    /// Addresses of all shards, in their order, as clients reach them; may be empty.
    pub peers: Vec<String>,
    /// Below which checkpoints are; none: nothing is saved.
    pub data: Option<PathBuf>,
    /// The checkpoint to start from; none: the latest, if there is one.
    pub restore: Option<String>,
    /// Most checkpoints that it keeps, beside the one that it saves by itself.
    pub checkpoints_max: usize,
    /// How often it saves by itself.
    pub save_every: Option<Duration>,
    /// Threads that serve; 0: one per processor.
    pub workers: usize,
    /// Is each of them bound to a processor?
    pub pin: bool,
    /// How long they wait awake, in microseconds.
    pub spin_us: u32,
    /// Most bytes of a table, whatever its configuration says.
    pub table_budget_bytes: Option<u64>,
    /// Longest frame.
    pub frame_bytes_max: u32,
    /// A client that takes nothing for so long is closed.
    pub write_timeout: Duration,
    /// How long a server that is told to stop goes on answering.
    pub drain_within: Duration,
    /// Name in lists and logs.
    pub name: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Vec::new(),
            local: true,
            runtime_dir: user_dir(),
            expose: false,
            insecure: false,
            tls: None,
            token: None,
            admit_this_user: false,
            hosts: Vec::new(),
            shard: 0,
            shards: 1,
            peers: Vec::new(),
            data: None,
            restore: None,
            checkpoints_max: CHECKPOINTS_MAX_DEFAULT,
            save_every: None,
            workers: 0,
            pin: false,
            spin_us: sanderling_transport::SPIN_US_DEFAULT,
            table_budget_bytes: None,
            frame_bytes_max: FRAME_BYTES_MAX_DEFAULT,
            write_timeout: Duration::from_secs(10),
            drain_within: Duration::from_secs(10),
            name: String::new(),
        }
    }
}

impl Config {
    /// Does it make sense?
    ///
    /// # Errors
    /// Says what does not, and what would.
    pub fn check(&self) -> Result<(), String> {
        let frame = self.frame_bytes_max as usize;
        let problem = if self.listen.is_empty() {
            "nothing to listen at; name an address such as 127.0.0.1:7000".to_owned()
        } else if self.shards == 0 || self.shards > SHARDS_MAX || self.shard >= self.shards {
            format!(
                "shard {}/{}: shards are numbered from 0, and there are 1 to {SHARDS_MAX}",
                self.shard, self.shards
            )
        } else if !self.peers.is_empty() && self.peers.len() != usize::from(self.shards) {
            format!("{} peers for {} shards; name them all, or none", self.peers.len(), self.shards)
        } else if let Some(peer) = self.peers.iter().find(|peer| peer.len() > limit::URL_BYTES_MAX) {
            format!("peer {peer:?}: longer than {} bytes", limit::URL_BYTES_MAX)
        } else if let Some((peer, error)) = self.peers.iter().find_map(|peer| {
            let error = peer.parse::<Address>().err()?;
            Some((peer, error))
        }) {
            format!("peer {peer:?}: {error}")
        } else if self.workers > WORKERS_MAX {
            format!("{} workers; at most {WORKERS_MAX} are possible", self.workers)
        } else if !(limit::FRAME_BYTES_MIN..=limit::FRAME_BYTES_MAX).contains(&frame) {
            let (min, max) = (limit::FRAME_BYTES_MIN, limit::FRAME_BYTES_MAX);
            format!("frames of at most {frame} bytes; {min} to {max} are possible")
        } else if self.data.is_none() && (self.save_every.is_some() || self.restore.is_some()) {
            "saving and restoring need a folder for checkpoints (data)".to_owned()
        } else if self.save_every.is_some_and(|every| every < Duration::from_secs(1)) {
            "saving more often than once a second is not possible".to_owned()
        } else if self
            .token
            .as_ref()
            .is_some_and(|token| token.is_empty() || token.len() > limit::TOKEN_BYTES_MAX)
        {
            format!("the token must have 1 to {} bytes", limit::TOKEN_BYTES_MAX)
        } else if self.name.len() > limit::NAME_BYTES_MAX {
            format!("the name must have at most {} bytes", limit::NAME_BYTES_MAX)
        } else {
            return Ok(());
        };
        Err(problem)
    }
}
