//! The options of `sanderling ps`, from the command line and from a file. Starts nothing.

use std::path::{Path, PathBuf};

use sanderling_server::{Config, GatherOptions};
use sanderling_transport::Address;
use serde::Deserialize;

use super::balance::Rebalance;
use super::cluster::{Acknowledge, ClusterOptions};
use crate::failure::Failure;
use crate::output;
use crate::quantity;
use crate::renamed;
use crate::token::read_server_token;

/// Default address.
const LISTEN_DEFAULT: &str = "127.0.0.1:7000";
/// Default address of a server of a cluster.
const LISTEN_IN_CLUSTER: &str = "127.0.0.1:0";

/// Requested address of the control plane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    No,
    /// Next to the first TCP address, if that port is free.
    IfPossible,
    At(Address),
}

/// Options of the command line and the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Options {
    /// Addresses to listen on, comma-separated: host:port, unix:PATH or shm:NAME [default: 127.0.0.1:7000]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Control plane address, host:port [default: host of the first TCP address, port + 100]
    #[arg(long, value_name = "ADDR", conflicts_with = "no_control")]
    control: Option<String>,
    /// Run without a control plane
    #[arg(long)]
    no_control: bool,
    /// Shard index, from 0, and number of shards, such as 1/2 [default: 0/1]
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// Addresses of all shards by index, comma-separated, for clients that know only one [default: none]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    peers: Vec<String>,
    /// Server name in lists and logs [default: the shard, such as 0/1]
    #[arg(long)]
    name: Option<String>,
    /// Cluster to join: this server is a replica of one of its groups; needs --registry [default: none]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shard", "peers"], help_heading = "Cluster")]
    pub(super) cluster: Option<String>,
    /// Registry of the cluster: keeper://HOST:PORT or etcd://HOST:PORT,... [default: $SANDERLING_REGISTRY]
    #[arg(long, value_name = "URL", help_heading = "Cluster")]
    pub(super) registry: Option<String>,
    /// Number of groups, which share the keys; the first server of a cluster decides [default: 2]
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    pub(super) groups: Option<u32>,
    /// Number of servers per group; the first server of a cluster decides [default: 2]
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    pub(super) replicas: Option<u32>,
    /// Replicas in sync, the primary included, below which pushes wait [default: 1]
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    pub(super) min_in_sync: Option<usize>,
    /// When a push is acknowledged: in-sync, by every replica in sync; local, by the primary alone [default: in-sync]
    #[arg(long, value_name = "WHEN", hide_possible_values = true, help_heading = "Cluster")]
    pub(super) acknowledge: Option<Acknowledge>,
    /// Time since the primary was heard last for which a replica in sync answers pulls of --ps-pull-from any, for example
    /// 500ms; 0s: never [default: 2s]
    #[arg(long, value_name = "TIME", help_heading = "Cluster")]
    pub(super) pull_staleness: Option<String>,
    /// Megabytes of rows per second that a move of slots to this server copies [default: 100]
    #[arg(long, value_name = "MB", help_heading = "Cluster")]
    pub(super) move_rate: Option<u32>,
    /// Slots move by measured load: on, by themselves; plan, the log says when they should; off [default: plan]
    #[arg(long, value_name = "WHEN", hide_possible_values = true, help_heading = "Cluster")]
    pub(super) rebalance: Option<Rebalance>,
    /// Time for which a group has too much load before slots move, such as 10m, at least 5s [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Cluster")]
    pub(super) rebalance_after: Option<String>,
    /// Address at which clients and other servers reach this one [default: the first TCP address]
    #[arg(long, value_name = "ADDR", help_heading = "Cluster")]
    pub(super) advertise: Option<String>,
    /// CA bundle (PEM) to verify other servers of the cluster, with TLS
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(super) ca_file: Option<PathBuf>,
    /// Checkpoint directory; "latest" is restored at start and saved at exit [default: no checkpoints]
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub(super) data: Option<PathBuf>,
    /// Checkpoint to restore at start, by name, or NAME@2 for its first 2 deltas; needs --data [default: latest, if there is one]
    #[arg(long, value_name = "NAME", help_heading = "Checkpoints")]
    restore: Option<String>,
    /// Directory, best of a tmpfs, or device (/dev/dax0.0) in which tables outlive the server: the next start finds them; fdstore: has systemd keep them [default: none]
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    kept: Option<PathBuf>,
    /// Loss that tables in --kept must survive: detect, process, power (needs DAX) or emulate (its cost, anywhere) [default: detect]
    #[arg(long, value_name = "WHAT", help_heading = "Checkpoints")]
    durability: Option<String>,
    /// Remove the tables in --kept at start, for example before --restore
    #[arg(long, help_heading = "Checkpoints")]
    forget: bool,
    /// Maximum number of named checkpoints besides latest; further saves are refused [default: 64]
    #[arg(long, value_name = "N", help_heading = "Checkpoints")]
    checkpoints_max: Option<usize>,
    /// Checkpoint interval, such as 10m, at least 1s; needs --data [default: at exit only]
    #[arg(long, value_name = "TIME", help_heading = "Checkpoints")]
    save_every: Option<String>,
    /// Interval of delta checkpoints, such as 10s, at least 1s; needs --data [default: full checkpoints only]
    #[arg(long, value_name = "TIME", help_heading = "Checkpoints")]
    delta_every: Option<String>,
    /// Directory of the delta log, on a disk: changes since the checkpoint, for the next start; needs --data [default: none]
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    log: Option<PathBuf>,
    /// Time whose acknowledged pushes may be lost with the machine, with --log; 0s: none, pushes wait for the disk [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "Checkpoints")]
    lose: Option<String>,
    /// Drop the log from its first damage on, instead of refusing to start
    #[arg(long, help_heading = "Checkpoints")]
    cut_log: bool,
    /// Memory limit per table, such as 4GiB; at the limit the table's eviction policy applies [default: none]
    #[arg(long, value_name = "BYTES", help_heading = "Resources")]
    table_budget: Option<String>,
    /// Gatherer of rows for replies by RDMA: cpu; nic, the network card; auto, as measured; or TABLE=WAY, such as users=nic; comma-separated [default: auto]
    #[arg(long, value_name = "WAY", value_delimiter = ',', help_heading = "Resources")]
    gather: Vec<String>,
    /// Number of server threads [default: one per processor]
    #[arg(long, value_name = "N", help_heading = "Resources")]
    threads: Option<usize>,
    /// Pin each server thread to a processor
    #[arg(long, help_heading = "Resources")]
    pin: bool,
    /// Busy-poll time before a thread blocks, such as 100us; 50us if not given, always 0s on one processor
    #[arg(long, value_name = "TIME", help_heading = "Resources")]
    spin: Option<String>,
    /// Maximum frame size and buffer size per connection, 64KiB to 64MiB [default: 16MiB]
    #[arg(long, value_name = "BYTES", help_heading = "Resources")]
    frame_max: Option<String>,
    /// List one in so many requests at /requests of the control plane, with its stages; 0: none [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Operation")]
    sample_every: Option<u32>,
    /// Time from which on a request is listed at /requests as slow, such as 5ms; 0s: none is [default: 10ms]
    #[arg(long, value_name = "TIME", help_heading = "Operation")]
    slow: Option<String>,
    /// Collector of OpenTelemetry (OTLP over HTTP) for traces of sampled, slow and traced requests, such as
    /// 127.0.0.1:4318 [default: none]
    #[arg(long, value_name = "URL", help_heading = "Operation")]
    pub(super) otlp: Option<String>,
    /// Disconnect a client whose send buffer stays full this long [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Resources")]
    write_timeout: Option<String>,
    /// Time limit to answer pending requests after SIGTERM, Ctrl-C or ctl drain [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Resources")]
    drain_timeout: Option<String>,
    /// File with the shared auth token [default: generated, found by clients of this user on this host]
    #[arg(long, value_name = "FILE", conflicts_with = "no_token", help_heading = "Security")]
    pub(super) token_file: Option<PathBuf>,
    /// Accept a token file that other users can read, such as a mounted secret
    #[arg(long, help_heading = "Security")]
    open_token_file: bool,
    /// Disable the auth token: every user of this host can read, change and drop all tables
    #[arg(long, help_heading = "Security")]
    pub(super) no_token: bool,
    /// Host names that the control plane of a server without a token also accepts, comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Security")]
    allow_host: Vec<String>,
    /// Certificate chain (PEM); enables TLS on TCP
    #[arg(long, value_name = "FILE", requires = "key_file", help_heading = "Security")]
    cert_file: Option<PathBuf>,
    /// Private key of --cert-file (PEM)
    #[arg(long, value_name = "FILE", requires = "cert_file", help_heading = "Security")]
    key_file: Option<PathBuf>,
    /// Allow --listen addresses that other machines reach; needs TLS and a token
    #[arg(long, help_heading = "Security")]
    expose: bool,
    /// Allow --expose without TLS and token: any machine that reaches the port can read and change all tables
    #[arg(long, help_heading = "Security")]
    insecure: bool,
    /// Show status pages although other machines reach the control plane; they need its token [default: hidden there]
    #[arg(long, help_heading = "Security")]
    pub(super) status_pages: bool,
    /// Disable the extra shared-memory and unix addresses for clients of this host
    #[arg(long, help_heading = "Security")]
    no_local: bool,
    /// Directory of the unix socket [default: $XDG_RUNTIME_DIR/sanderling, or /tmp/sanderling-UID]
    #[arg(long, value_name = "DIR", help_heading = "Security")]
    runtime_dir: Option<PathBuf>,
}

impl Options {
    /// The options about a cluster.
    pub(super) fn cluster_options(&self) -> ClusterOptions {
        ClusterOptions {
            cluster: self.cluster.clone(),
            registry: self.registry.clone(),
            groups: self.groups,
            replicas: self.replicas,
            min_in_sync: self.min_in_sync,
            acknowledge: self.acknowledge,
            pull_staleness: self.pull_staleness.clone(),
            move_rate: self.move_rate,
            rebalance: self.rebalance,
            rebalance_after: self.rebalance_after.clone(),
            advertise: self.advertise.clone(),
            ca_file: self.ca_file.clone(),
        }
    }

    /// Reads the file, also as entries.
    pub(super) fn read(path: &Path) -> Result<(Options, toml::Table), Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::Usage(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let table: toml::Table = toml::from_str(&text).unwrap_or_default();
        let options = toml::from_str(&text).map_err(|error| {
            // The file has the names of the options.
            let old = table.keys().find_map(|entry| renamed::entry(entry));
            failed(&old.unwrap_or_else(|| error.to_string()))
        })?;
        Ok((options, table))
    }

    /// These options, and `other` where they are not given.
    pub(super) fn or(self, other: Options) -> Options {
        let list = |one: Vec<String>, other| if one.is_empty() { other } else { one };
        Options {
            listen: list(self.listen, other.listen),
            // --control and --no-control exclude each other.
            no_control: self.no_control || self.control.is_none() && other.no_control,
            control: if self.no_control { None } else { self.control.or(other.control) },
            shard: self.shard.or(other.shard),
            peers: list(self.peers, other.peers),
            name: self.name.or(other.name),
            cluster: self.cluster.or(other.cluster),
            registry: self.registry.or(other.registry),
            groups: self.groups.or(other.groups),
            replicas: self.replicas.or(other.replicas),
            min_in_sync: self.min_in_sync.or(other.min_in_sync),
            acknowledge: self.acknowledge.or(other.acknowledge),
            pull_staleness: self.pull_staleness.or(other.pull_staleness),
            move_rate: self.move_rate.or(other.move_rate),
            rebalance: self.rebalance.or(other.rebalance),
            rebalance_after: self.rebalance_after.or(other.rebalance_after),
            advertise: self.advertise.or(other.advertise),
            ca_file: self.ca_file.or(other.ca_file),
            data: self.data.or(other.data),
            restore: self.restore.or(other.restore),
            kept: self.kept.or(other.kept),
            durability: self.durability.or(other.durability),
            forget: self.forget || other.forget,
            checkpoints_max: self.checkpoints_max.or(other.checkpoints_max),
            save_every: self.save_every.or(other.save_every),
            delta_every: self.delta_every.or(other.delta_every),
            log: self.log.or(other.log),
            lose: self.lose.or(other.lose),
            cut_log: self.cut_log || other.cut_log,
            table_budget: self.table_budget.or(other.table_budget),
            gather: list(self.gather, other.gather),
            threads: self.threads.or(other.threads),
            pin: self.pin || other.pin,
            spin: self.spin.or(other.spin),
            frame_max: self.frame_max.or(other.frame_max),
            sample_every: self.sample_every.or(other.sample_every),
            slow: self.slow.or(other.slow),
            otlp: self.otlp.or(other.otlp),
            write_timeout: self.write_timeout.or(other.write_timeout),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            // --control and --no-control exclude each other.
            no_token: self.no_token || self.token_file.is_none() && other.no_token,
            token_file: if self.no_token { None } else { self.token_file.or(other.token_file) },
            open_token_file: self.open_token_file || other.open_token_file,
            allow_host: list(self.allow_host, other.allow_host),
            cert_file: self.cert_file.or(other.cert_file),
            key_file: self.key_file.or(other.key_file),
            expose: self.expose || other.expose,
            insecure: self.insecure || other.insecure,
            status_pages: self.status_pages || other.status_pages,
            no_local: self.no_local || other.no_local,
            runtime_dir: self.runtime_dir.or(other.runtime_dir),
        }
    }

    /// Address of the control plane.
    pub(super) fn control(&self) -> Result<Wanted, Failure> {
        let address = match (&self.control, self.no_control) {
            (Some(_), true) => {
                return Err(Failure::Usage(
                    "--control and --no-control exclude each other; give one".to_owned(),
                ));
            }
            (None, true) => return Ok(Wanted::No),
            (None, false) => return Ok(Wanted::IfPossible),
            (Some(text), false) => text.parse(),
        };
        address.map(Wanted::At).map_err(|error| Failure::Usage(format!("--control: {error}")))
    }

    pub(super) fn config(self) -> Result<Config, Failure> {
        let mut config = Config::default();
        // Entries of the file have _ instead of -.
        let usage =
            |what: &str, error: String| Failure::Usage(format!("--{}: {error}", what.replace('_', "-")));
        // Clients find the port of a server of a cluster in the registry.
        let default = if self.cluster.is_some() { LISTEN_IN_CLUSTER } else { LISTEN_DEFAULT };
        let listen = if self.listen.is_empty() { vec![default.to_owned()] } else { self.listen };
        for address in &listen {
            config.listen.push(address.parse().map_err(|error| usage("listen", format!("{error}")))?);
        }
        if let Some(text) = &self.shard {
            let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
            (config.shard, config.shards) =
                numbers.ok_or_else(|| usage("shard", format!("{text:?} is not INDEX/COUNT, such as 0/2")))?;
        }
        if let Some(path) = &self.token_file {
            let token = read_server_token(path, self.open_token_file);
            config.token = Some(token.map_err(|error| usage("token_file", error))?);
            if self.no_token {
                return Err(usage("token_file", "excludes --no-token; give one of them".to_owned()));
            }
        }
        config.hosts = self.allow_host;
        if let Some(Address::Tcp(endpoints)) = self.control.as_deref().and_then(|text| text.parse().ok()) {
            config.hosts.extend(endpoints.into_iter().map(|endpoint| endpoint.host));
        }
        let time = |what, text: &Option<String>| {
            text.as_deref().map(quantity::time).transpose().map_err(|error| usage(what, error))
        };
        let bytes = |what, text: &Option<String>| {
            text.as_deref().map(quantity::bytes).transpose().map_err(|error| usage(what, error))
        };
        config.checkpoints_max = self.checkpoints_max.unwrap_or(config.checkpoints_max);
        config.save_every = time("save_every", &self.save_every)?;
        config.delta_every = time("delta_every", &self.delta_every)?;
        config.sample_every = self.sample_every.unwrap_or(config.sample_every);
        config.slow = time("slow", &self.slow)?.unwrap_or(config.slow);
        config.lose = time("lose", &self.lose)?.unwrap_or(config.lose);
        if self.lose.is_some() && self.log.is_none() {
            return Err(usage("lose", "needs --log".to_owned()));
        }
        let write_timeout = self.write_timeout.as_deref().map(quantity::time_above_0).transpose();
        config.write_timeout =
            write_timeout.map_err(|error| usage("write_timeout", error))?.unwrap_or(config.write_timeout);
        config.drain_within = time("drain_timeout", &self.drain_timeout)?.unwrap_or(config.drain_within);
        config.table_budget_bytes = bytes("table_budget", &self.table_budget)?;
        if config.table_budget_bytes == Some(0) {
            let reason = "no table fits in 0 bytes; omit it for no limit";
            return Err(usage("table_budget", reason.to_owned()));
        }
        let (budget, most) = (config.table_budget_bytes.unwrap_or(0), sanderling_store::budget_bytes_max());
        if budget > most {
            let (budget, most) = (output::bytes(budget), output::bytes(most));
            let reason = format!("{budget} is more than the {most} of memory and swap here; lower it");
            return Err(usage("table_budget", reason));
        }
        let gather = GatherOptions::parse(self.gather.iter().map(String::as_str));
        config.gather = gather.map_err(|error| usage("gather", error))?;
        if let Some(frame_bytes_max) = bytes("frame_max", &self.frame_max)? {
            config.frame_bytes_max = u32::try_from(frame_bytes_max).unwrap_or(u32::MAX);
        }
        config.tls = match (self.cert_file, self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(usage("cert_file", "one needs the other: give --key-file, too".to_owned())),
        };
        (config.local, config.expose, config.insecure) = (!self.no_local, self.expose, self.insecure);
        (config.peers, config.data, config.restore) = (self.peers, self.data, self.restore);
        (config.kept, config.forget) = (self.kept, self.forget);
        (config.log, config.cut_log) = (self.log, self.cut_log);
        config.durability = match &self.durability {
            Some(durability) => durability.parse().map_err(|reason| usage("durability", reason))?,
            None => config.durability,
        };
        (config.pin, config.workers) = (self.pin, self.threads.unwrap_or(config.workers));
        config.spin_us = time("spin", &self.spin)?.map_or(config.spin_us, quantity::spin_us);
        config.runtime_dir = self.runtime_dir.unwrap_or(config.runtime_dir);
        config.name = self.name.unwrap_or_else(|| format!("{}/{}", config.shard, config.shards));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file: Options = toml::from_str(
            "listen = ['10.0.0.1:1']\nshard = '1/4'\nthreads = 3\npin = true\nsave_every = '10m'\ndata = '/d'\ntable_budget = '4GiB'",
        )
        .expect("it is a file");
        let line = Options { listen: vec!["127.0.0.1:2".into()], threads: Some(1), ..Options::default() };
        let config = line.or(file).config().expect("it is a configuration");
        assert_eq!(config.listen[0].to_string(), "tcp://127.0.0.1:2");
        assert_eq!((config.shard, config.shards, config.workers, config.pin), (1, 4, 1, true));
        assert_eq!(config.save_every.map(|every| every.as_secs()), Some(600));
        assert_eq!(config.table_budget_bytes, Some(4 << 30));
        assert_eq!((config.name.as_str(), config.local), ("1/4", true));
    }

    #[test]
    fn one_of_file_and_line_says_where_the_control_plane_is() {
        for (file, line, expected) in [
            ("", Options::default(), Ok(Wanted::IfPossible)),
            ("no_control = true", Options::default(), Ok(Wanted::No)),
            ("control = '[::1]:9'", Options { no_control: true, ..Options::default() }, Ok(Wanted::No)),
            ("no_control = true\ncontrol = 'h:1'", Options::default(), Err("exclude each other")),
            ("control = 'h'", Options::default(), Err("control: address \"h\"")),
        ] {
            let file: Options = toml::from_str(file).expect(file);
            match (line.or(file).control(), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (text, expected) in [
            ("listen = ['x']", "listen: address \"x\""),
            ("shard = '1'", "shard: \"1\" is not INDEX/COUNT, such as 0/2"),
            ("save_every = '5 lightyears'", "--save-every: "),
            ("table_budget = '0'", "--table-budget: no table fits in 0 bytes"),
            ("table_budget = '1024TiB'", "--table-budget: 1.00 PiB is more than the "),
            ("write_timeout = '0s'", "--write-timeout: must be more than 0"),
            ("cert_file = 'c'", "one needs the other"),
            ("gather = ['users=card']", "--gather: \"card\" is none of auto, cpu and nic"),
            ("token_file = '/nowhere'", "--token-file: /nowhere"),
        ] {
            let error = toml::from_str::<Options>(text).expect(text).config().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(toml::from_str::<Options>("listne = []").is_err());
    }
}
