//! The configuration of a server and its validation. It opens nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::SpanQueue;
use sanderling_store::Durability;
use sanderling_transport::{Address, user_dir};
use sanderling_wire::limit;

use crate::gather::GatherOptions;
use crate::limit::{
    CHECKPOINTS_MAX_DEFAULT, FRAME_BYTES_MAX_DEFAULT, LOSE_DEFAULT, LOSE_MAX, SAMPLE_EVERY_DEFAULT,
    SLOW_DEFAULT,
};

/// Maximum number of shards in a cluster.
const SHARDS_MAX: u16 = limit::SERVERS_MAX as u16;
/// Maximum number of replicas of a shard.
const REPLICAS_MAX: usize = 16;
/// Maximum number of worker threads.
const WORKERS_MAX: usize = 1024;

/// The configuration of a server. The defaults are for one server that only this machine reaches.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen at.
    pub listen: Vec<Address>,
    /// Whether to listen at local addresses (shared memory, unix socket), too.
    pub local: bool,
    /// Folder of the unix socket.
    pub runtime_dir: PathBuf,
    /// Whether other machines may connect.
    pub expose: bool,
    /// Whether other machines may connect without TLS and token.
    pub insecure: bool,
    /// Certificate and key (PEM files) for TLS over TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The shared auth token. None: clients need none.
    pub token: Option<String>,
    /// Whether processes of this user on this host need no token. The kernel tells the user.
    pub admit_this_user: bool,
    /// Further host names under which clients reach the control plane.
    pub hosts: Vec<String>,
    /// Index of this shard, from 0.
    pub shard: u16,
    /// Number of shards.
    pub shards: u16,
    /// Addresses of all shards as clients reach them, in shard order. May be empty.
    pub peers: Vec<String>,
    /// Root folder of the checkpoints. None: nothing is saved.
    pub data: Option<PathBuf>,
    /// Checkpoint to start from. None: `latest`, if there is one.
    pub restore: Option<String>,
    /// Folder, best of a tmpfs, in which tables outlive the server. None: they end with it.
    pub kept: Option<PathBuf>,
    /// Whether to remove the tables in that folder at the start.
    pub forget: bool,
    /// The loss that tables in that folder must survive.
    pub durability: Durability,
    /// Maximum number of named checkpoints, not counting `latest`.
    pub checkpoints_max: usize,
    /// Checkpoint interval.
    pub save_every: Option<Duration>,
    /// Interval of deltas on the last checkpoint.
    pub delta_every: Option<Duration>,
    /// Folder of the delta log, which has the changes since the last checkpoint. None: there is no log.
    pub log: Option<PathBuf>,
    /// Acknowledged pushes of at most this time are lost with the machine. Zero: none, because a push is answered when it
    /// is on disk.
    pub lose: Duration,
    /// Whether to drop the log from its first damage on, instead of refusing to start.
    pub cut_log: bool,
    /// Worker threads. 0: one per processor.
    pub workers: usize,
    /// Whether to pin each worker to a processor.
    pub pin: bool,
    /// Busy-poll time of a worker before it blocks, in microseconds.
    pub spin_us: u32,
    /// Memory limit per table, in bytes. It also bounds tables whose configuration asks for more.
    pub table_budget_bytes: Option<u64>,
    /// The gatherers of rows for replies by RDMA.
    pub gather: GatherOptions,
    /// Maximum frame length, in bytes.
    pub frame_bytes_max: u32,
    /// Close a connection whose send buffer stays full this long.
    pub write_timeout: Duration,
    /// Time to answer pending requests at shutdown.
    pub drain_within: Duration,
    /// Name of the server in lists and logs.
    pub name: String,
    /// One in this many requests is listed with its stages. 0: none.
    pub sample_every: u32,
    /// Time from which on a request is listed as slow. Zero: none is.
    pub slow: Duration,
    /// Where spans of sampled and slow requests, and of those that clients trace, go for an exporter.
    pub spans: Option<Arc<SpanQueue>>,
    /// The server as a replica of its shard. None: it has no other replicas.
    pub replica: Option<ReplicaConfig>,
}

/// A server as one of several replicas of a shard.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Number of this server in its cluster, the same over restarts.
    pub server: u32,
    /// Address at which clients and other replicas reach this server. Empty: the first TCP address.
    pub advertise: String,
    /// Replicas that must have a push before it is acknowledged, the primary included.
    pub min_in_sync: usize,
    /// Whether a push is acknowledged before the other replicas have it. A failover may lose it then.
    pub acknowledge_local: bool,
    /// Time since the primary was heard last for which a replica in sync answers pulls of clients that pull from any.
    pub pull_staleness: Duration,
    /// Trusted certificates (PEM file) of the other replicas, for TLS.
    pub authorities: Option<PathBuf>,
    /// Bytes of rows per second that a move of slots to this server copies.
    pub move_bytes_per_s: u64,
    /// Newest version of messages between servers. None: that of this program. Tests of upgrades set an older one.
    pub speaks: Option<u8>,
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
            kept: None,
            forget: false,
            durability: Durability::Detect,
            checkpoints_max: CHECKPOINTS_MAX_DEFAULT,
            save_every: None,
            delta_every: None,
            log: None,
            lose: LOSE_DEFAULT,
            cut_log: false,
            workers: 0,
            pin: false,
            spin_us: sanderling_transport::SPIN_US_DEFAULT,
            table_budget_bytes: None,
            gather: GatherOptions::default(),
            frame_bytes_max: FRAME_BYTES_MAX_DEFAULT,
            write_timeout: Duration::from_secs(10),
            drain_within: Duration::from_secs(10),
            name: String::new(),
            sample_every: SAMPLE_EVERY_DEFAULT,
            slow: SLOW_DEFAULT,
            spans: None,
            replica: None,
        }
    }
}

impl Config {
    /// The folder of this shard's kept tables.
    pub(crate) fn kept_folder(&self) -> Option<PathBuf> {
        self.kept.as_ref().map(|root| root.join(format!("shard-{}-of-{}", self.shard, self.shards)))
    }

    /// The folder of this shard's log.
    pub(crate) fn log_folder(&self) -> Option<PathBuf> {
        self.log.as_ref().map(|root| root.join(format!("shard-{}-of-{}", self.shard, self.shards)))
    }

    /// The file with the history of the tables beside checkpoints. None: nothing outlives the server, or the history is kept
    /// like the tables.
    pub(crate) fn history_file(&self) -> Option<PathBuf> {
        // Checkpoint names do not begin with a dot.
        let name = format!(".shard-{}-of-{}.history", self.shard, self.shards);
        self.data.as_ref().filter(|_| self.kept.is_none()).map(|root| root.join(name))
    }

    /// Whether clients may connect by RDMA.
    pub(crate) fn listens_by_rdma(&self) -> bool {
        self.listen.iter().any(|address| matches!(address, Address::Rdma(_)))
    }

    /// Whether every acknowledged change outlives the server, however its process ends.
    pub(crate) fn holds_all(&self) -> bool {
        self.kept.is_some() || self.log.is_some() && self.lose.is_zero()
    }

    /// The start of the machine with which kept tables may end; 0: no table outlives the server, or all survive it.
    pub(crate) fn memory_of(&self) -> u64 {
        let ends = self.kept.is_some() && self.durability != Durability::Power;
        if ends { sanderling_observe::machine::host_id() } else { 0 }
    }

    fn check_replica(&self, replica: &ReplicaConfig) -> Option<String> {
        let has_tcp = self.listen.iter().any(|address| matches!(address, Address::Tcp(_)));
        if self.kept.is_some() || self.log.is_some() || self.restore.is_some() {
            Some("kept, log and restore are for a server without other replicas".to_owned())
        } else if replica.min_in_sync == 0 || replica.min_in_sync > REPLICAS_MAX {
            Some(format!("min_in_sync is {}: it must be 1 to {REPLICAS_MAX}", replica.min_in_sync))
        } else if replica.advertise.is_empty() && !has_tcp {
            Some("other replicas need a TCP address: listen at one, or name one to advertise".to_owned())
        } else if self.tls.is_some() && replica.authorities.is_none() {
            Some("replicas that use TLS need the certificates that they trust (ca)".to_owned())
        } else {
            None
        }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The text says which value is wrong and which values are possible.
    pub fn check(&self) -> Result<(), String> {
        let frame = self.frame_bytes_max as usize;
        let problem = if self.listen.is_empty() {
            "nothing to listen at; name an address such as 127.0.0.1:7000".to_owned()
        } else if self.shards == 0 || self.shards > SHARDS_MAX || self.shard >= self.shards {
            format!(
                "shard {}/{}: the index must be below the number of shards, 1 to {SHARDS_MAX}",
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
            format!("{} threads; at most {WORKERS_MAX} are possible", self.workers)
        } else if !(limit::FRAME_BYTES_MIN..=limit::FRAME_BYTES_MAX).contains(&frame) {
            let (min, max) = (limit::FRAME_BYTES_MIN, limit::FRAME_BYTES_MAX);
            format!("frame_max is {frame} bytes: it must be {min} to {max}")
        } else if self.data.is_none()
            && (self.save_every.is_some() || self.delta_every.is_some() || self.restore.is_some())
        {
            "save_every, delta_every and restore need a checkpoint directory (data)".to_owned()
        } else if self.log.is_some() && self.data.is_none() {
            "log needs a checkpoint directory (data), whose checkpoints it continues".to_owned()
        } else if self.log.is_some() && self.kept.is_some() {
            "log and kept exclude each other: kept tables survive the process, a log also the machine"
                .to_owned()
        } else if let Some(problem) = self.replica.as_ref().and_then(|replica| self.check_replica(replica)) {
            problem
        } else if let Some(problem) = self.gather.problem(self.listens_by_rdma()) {
            problem
        } else if self.cut_log && self.log.is_none() {
            "cut_log needs a log".to_owned()
        } else if self.lose > LOSE_MAX {
            format!("lose must be at most {} s", LOSE_MAX.as_secs())
        } else if self.forget && self.kept.is_none() {
            "forget needs a folder of kept tables (kept)".to_owned()
        } else if self.durability != Durability::Detect && self.kept.is_none() {
            "durability needs a folder of kept tables (kept)".to_owned()
        } else if self.save_every.is_some_and(|every| every < Duration::from_secs(1)) {
            "save_every must be at least 1s".to_owned()
        } else if self.delta_every.is_some_and(|every| every < Duration::from_secs(1)) {
            "delta_every must be at least 1s".to_owned()
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
