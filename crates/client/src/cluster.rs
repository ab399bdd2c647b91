//! The servers of a cluster: their identity, the transport to each, and the placement of keys. It is made once; every
//! thread gets a [`Session`] of its own with copies of what it needs. Knows no table.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sanderling_observe::{LatencySummary, LatencyTable};
use sanderling_registry::{Registry, RegistryUrl};
use sanderling_transport::Address;
use sanderling_wire::{Reply, Request, StatsScope, limit};

use crate::connection_set::{ConnectionSet, Targets, is_reached};
use crate::engine::{Engine, Subject};
use crate::error::ClientError;
use crate::locations::Locations;
use crate::options::ConnectOptions;
use crate::origin::Origin;
use crate::outage::Outages;
use crate::placement::Placement;
use crate::reach::faster_way;
use crate::rpc_state::{HedgeCounters, HedgeCounts, Hedging, Needs, Peer};
use crate::session::Session;
use crate::statistics::CallTimes;
use crate::stop::Stop;

/// Sessions that wait to be used again by whoever has none of their own.
const IDLE_SESSIONS_MAX: usize = 64;

const NOT_HEDGED: Option<fn() -> Hedging> = None;

/// One server of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The address at which it was given.
    pub address: Address,
    /// Where it is talked to: the same, or a faster way on this host.
    pub way: Address,
    /// Its identity.
    pub peer: Peer,
}

/// How long a command took on a server, from when it was taken up until its answer was ready. The sum is exact to half a
/// nanosecond per request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    /// The server's address.
    pub server: String,
    /// The command's name.
    pub command: String,
    /// The numbers, since the start of the server.
    pub summary: LatencySummary,
}

/// The calls of this process to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCalls {
    /// The server's address, as it was given.
    pub server: String,
    /// How it is reached: `shm`, `unix`, `tcp` or `tls`.
    pub transport: String,
    /// The numbers, since this process began; all 0 before the first answer.
    pub summary: LatencySummary,
}

/// The servers of a cluster, by shard. Cheap to share.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    placement: Arc<Placement>,
    /// Where groups are, and the present placement; None: addresses and placement stay.
    pub(crate) locations: Option<Arc<Locations>>,
    options: Arc<ConnectOptions>,
    hedges: Arc<HedgeCounters>,
    times: Arc<CallTimes>,
    idle: Mutex<Vec<Session>>,
    /// Which servers are away, for all connections together.
    pub(crate) outages: Arc<Outages>,
    /// Where its connections are of use.
    origin: Origin,
}

/// Parses the comma-separated addresses of servers, each as [`Address`] reads it.
///
/// The path of a unix socket cannot contain a comma.
pub fn addresses(text: &str) -> Result<Vec<Address>, ClientError> {
    text.split(',').map(|one| Ok(one.trim().parse()?)).collect()
}

/// Whether [`Cluster::of`] can read a text; it does not look whether the servers are there.
///
/// # Errors
/// It is neither a list of addresses nor the URL of a registry.
pub fn check_servers(text: &str) -> Result<(), ClientError> {
    match RegistryUrl::is_url(text) {
        true => RegistryUrl::parse(text)
            .map(drop)
            .map_err(|error| ClientError::Cluster { reason: error.to_string() }),
        false => addresses(text).map(drop),
    }
}

impl Cluster {
    /// Connects to the servers that a text names: [`addresses`], or a registry with a cluster, such as
    /// `keeper://127.0.0.1:7400/ads`, `etcd://` or `registry://ads`.
    ///
    /// In a cluster, requests go to the primary of each group, also after another replica has become it, and to the group
    /// that has the key's slot, also after slots have moved to groups that were added.
    pub fn of(text: &str, options: ConnectOptions) -> Result<Arc<Cluster>, ClientError> {
        if !RegistryUrl::is_url(text) {
            return Cluster::connect(&addresses(text)?, options);
        }
        let url =
            RegistryUrl::parse(text).map_err(|error| ClientError::Cluster { reason: error.to_string() })?;
        let token = Some(&*options.token).filter(|token| !token.is_empty());
        let registry =
            url.open_of_cluster(token).map_err(|error| ClientError::Cluster { reason: error.to_string() })?;
        Cluster::in_registry(registry, options)
    }

    /// Connects to the cluster of a registry, as [`Cluster::of`] with the URL of one.
    pub fn in_registry(
        registry: Arc<dyn Registry>,
        options: ConnectOptions,
    ) -> Result<Arc<Cluster>, ClientError> {
        let within = options.connect_timeout.min(options.timeout);
        let locations = Locations::open(registry, within, options.stop.as_ref())?;
        let options = Arc::new(options);
        let ask_group = |group: usize| {
            let address = || locations.of(group, 0).unwrap_or(Address::Embedded);
            let targets = Targets { addresses: &[address()], groups: Some((&locations, group)) };
            let Known { peer, .. } = ask(targets, &options)?;
            // By now a faster way may be known.
            let way = address();
            Ok(Server { address: way.clone(), way, peer })
        };
        let placement = locations.placement();
        let groups = placement.with_slots().into_iter();
        let servers = groups.map(ask_group).collect::<Result<_, ClientError>>()?;
        options.pull_from.check(&options, true)?;
        Ok(Cluster::new(servers, placement, options, Some(locations)))
    }

    /// Reaches every server, learns who it is, and checks that together they are all shards of one cluster. Of a single
    /// address the server is asked where the other shards are.
    pub fn connect(addresses: &[Address], options: ConnectOptions) -> Result<Arc<Cluster>, ClientError> {
        let options = Arc::new(options);
        let addresses: Vec<Address> = addresses.iter().flat_map(Address::each).collect();
        let alone = addresses.len() == 1;
        let mut found = Vec::new();
        let mut addresses = VecDeque::from(addresses);
        while let Some(address) = addresses.pop_front() {
            let Known { mut peer, placement, urls } = ask_at(&address, &options)?;
            if alone && found.is_empty() {
                addresses.extend(others(&address, &peer, &urls)?);
            }
            let mut way = address.clone();
            if let Some(local) = faster_way(&address, &peer, &options)
                // Not from another user's process or container on this host: there it would be tried for long.
                && is_reached(&local, &options)
                // The way of another server, or of none: this one is still where it was.
                && let Ok(Known { peer: again, .. }) = ask_at(&local, &options)
                && (again.server_id, again.boot_id) == (peer.server_id, peer.boot_id)
            {
                (way, peer) = (local, again);
            }
            found.push((Server { address, way, peer }, placement));
        }
        Cluster::of_servers(found, options)
    }

    fn of_servers(
        mut found: Vec<(Server, Placement)>,
        options: Arc<ConnectOptions>,
    ) -> Result<Arc<Cluster>, ClientError> {
        found.sort_by_key(|(server, _)| server.peer.shard);
        let (servers, mut placements): (Vec<Server>, Vec<Placement>) = found.into_iter().unzip();
        check_shards(&servers)?;
        placements.sort_by_key(|placement| placement.version);
        let placement = match placements.pop() {
            Some(newest) if newest.version > 0 => newest,
            _ => Placement::even(servers.len()),
        };
        if placement.servers != servers.len() {
            let reason = format!(
                "placement {} is for {} servers, there are {}; name all of them",
                placement.version,
                placement.servers,
                servers.len()
            );
            return Err(ClientError::Cluster { reason });
        }
        options.pull_from.check(&options, false)?;
        Ok(Cluster::new(servers, Arc::new(placement), options, None))
    }

    fn new(
        servers: Vec<Server>,
        placement: Arc<Placement>,
        options: Arc<ConnectOptions>,
        locations: Option<Arc<Locations>>,
    ) -> Arc<Cluster> {
        let (hedges, times, idle) = (Arc::default(), Arc::default(), Mutex::default());
        let origin = Origin::here();
        let outages = Outages::new(options.timeout, options.on_wait.clone(), locations.is_some());
        Arc::new(Cluster { servers, placement, locations, options, hedges, times, idle, outages, origin })
    }

    /// The servers, by shard; of a registry, those of the groups that had rows when it was connected to.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server of each key as of now.
    #[must_use]
    pub fn placement(&self) -> Arc<Placement> {
        self.locations.as_ref().map_or_else(|| Arc::clone(&self.placement), |it| it.placement())
    }

    /// The shards that have rows as of now.
    #[must_use]
    pub fn shards(&self) -> Vec<usize> {
        match &self.locations {
            Some(locations) => locations.placement().with_slots(),
            None => (0..self.servers.len()).collect(),
        }
    }

    /// Name of a shard for messages: the address of its server, or the group and its registry.
    #[must_use]
    pub fn shard_name(&self, shard: usize) -> String {
        let server = self.servers.iter().find(|server| server.peer.shard as usize == shard);
        match (&self.locations, server) {
            (Some(locations), _) => locations.name(shard),
            (None, server) => server.map_or_else(String::new, |server| server.address.to_string()),
        }
    }

    /// The registry with the cluster, if it has one.
    #[must_use]
    pub fn registry(&self) -> Option<String> {
        self.locations.as_ref().map(|locations| locations.url())
    }

    /// The stop check of waits for servers.
    #[must_use]
    pub fn stop(&self) -> Option<&Stop> {
        self.options.stop.as_ref()
    }

    /// The transports in use: `shm`, `unix`, `tcp` or `tls`, joined by a plus where they differ.
    #[must_use]
    pub fn transport(&self) -> String {
        let tls = self.options.tls.is_some();
        let mut names: Vec<&str> = self.servers.iter().map(|server| way_name(&server.way, tls)).collect();
        names.sort_unstable();
        names.dedup();
        names.join("+")
    }

    /// Connections of their own for one thread.
    pub fn session(self: &Arc<Cluster>) -> Result<Session, ClientError> {
        Ok(Session::new(self.recorded_engine()?))
    }

    /// The requests of one thread, of which it is noted how long answers take.
    pub(crate) fn recorded_engine(&self) -> Result<Engine, ClientError> {
        let mut engine = self.engine()?;
        engine.connections.record(self.times.recorder());
        Ok(engine)
    }

    /// The requests of one thread.
    pub(crate) fn engine(&self) -> Result<Engine, ClientError> {
        let hedging = self.options.hedge.map(|hedge| move || Hedging::new(hedge, &self.hedges));
        self.engine_with(self.options.timeout, hedging)
    }

    /// Requests that may take so long: for what is not done row by row.
    pub(crate) fn patient_engine(&self, timeout: Duration) -> Result<Engine, ClientError> {
        self.engine_with(timeout, NOT_HEDGED)
    }

    fn engine_with(
        &self,
        timeout: Duration,
        hedging: Option<impl FnMut() -> Hedging>,
    ) -> Result<Engine, ClientError> {
        self.check_process()?;
        let placement = self.placement();
        let way = |shard: usize| {
            let known = self.servers.iter().find(|server| server.peer.shard as usize == shard);
            let now = || self.locations.as_ref().and_then(|locations| locations.of(shard, 0));
            known.map(|server| server.way.clone()).or_else(now).unwrap_or(Address::Embedded)
        };
        let ways: Vec<Address> = (0..placement.servers).map(way).collect();
        let groups = self.locations.as_ref().map(|locations| (locations, 0));
        let targets = Targets { addresses: &ways, groups };
        let mut connections = ConnectionSet::new(targets, &self.options, timeout, &self.outages, hedging)?;
        for server in &self.servers {
            connections.expect(server.peer.shard as usize, &server.peer);
        }
        Ok(Engine::new(connections, placement, self.locations.clone()))
    }

    /// Latencies of all threads by command, in microseconds, retries included.
    ///
    /// A *single RPC call* is one message; *all RPC calls of one request* end with the last answer.
    #[must_use]
    pub fn latencies(&self) -> LatencyTable {
        self.times.table()
    }

    /// Latencies of single RPC calls of all threads by server, retries included.
    #[must_use]
    pub fn server_latencies(&self) -> Vec<ServerCalls> {
        let (times, tls) = (self.times.by_server(), self.options.tls.is_some());
        let of = |server: &Server| ServerCalls {
            server: server.address.to_string(),
            transport: way_name(&server.way, tls).to_owned(),
            summary: times.get(&(server.peer.shard as usize)).copied().unwrap_or_default(),
        };
        self.servers.iter().map(of).collect()
    }

    /// Statistics of the executed commands, by server and command, since the start of each server.
    ///
    /// They count the commands of all clients.
    pub fn server_statistics(self: &Arc<Cluster>) -> Result<Vec<ServerCommand>, ClientError> {
        let mut all = Vec::new();
        self.with_session(|session| {
            session.follow_placement();
            for at in session.engine.with_rows() {
                let server = self.address_of(at);
                let row = |latency: &sanderling_wire::Latency<'_>| ServerCommand {
                    server: server.clone(),
                    command: latency.name.to_owned(),
                    summary: LatencySummary {
                        count: latency.count,
                        sum_ns: latency.count.saturating_mul(latency.average_ns),
                        average_ns: latency.average_ns,
                        min_ns: latency.min_ns,
                        max_ns: latency.max_ns,
                        p50_ns: latency.p50_ns,
                        p95_ns: latency.p95_ns,
                        p99_ns: latency.p99_ns,
                        p999_ns: latency.p999_ns,
                    },
                };
                let request = Request::Stats(StatsScope::Commands);
                all.append(&mut session.ask(at, "", &request, |reply| match reply {
                    Reply::Stats(said) => Some(said.latencies.iter().map(row).collect()),
                    _ => None,
                })?);
            }
            Ok(all)
        })
    }

    /// Address of a shard's server, or of the primary of its group.
    fn address_of(&self, shard: usize) -> String {
        match self.locations.as_ref().and_then(|locations| locations.of(shard, 0)) {
            Some(address) => address.to_string(),
            None => self.shard_name(shard),
        }
    }

    /// Pushes that were under way when a server ended: whether they were applied is unknown.
    #[must_use]
    pub fn unknown_pushes(&self) -> u64 {
        self.outages.unknown_pushes()
    }

    /// Hedging counts of all threads.
    #[must_use]
    pub fn hedges(&self) -> HedgeCounts {
        self.hedges.counts()
    }

    fn check_process(&self) -> Result<(), ClientError> {
        if self.origin.is_here() {
            return Ok(());
        }
        let reason = "its connections were made before this process was forked, and are its parent's: connect anew here, \
                      or start processes by \"spawn\"";
        Err(ClientError::Cluster { reason: reason.to_owned() })
    }

    /// Lends a session for one request, to those who have none of their own.
    pub(crate) fn with_session<T>(
        self: &Arc<Cluster>,
        work: impl FnOnce(&mut Session) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.check_process()?;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let lent = idle().pop();
        let mut session = lent.map_or_else(|| self.session(), Ok)?;
        let result = work(&mut session);
        let mut idle = idle();
        if idle.len() < IDLE_SESSIONS_MAX {
            idle.push(session);
        }
        result
    }
}

/// A server's identity and its view of the cluster.
struct Known {
    peer: Peer,
    placement: Placement,
    /// Where the servers of the placement are, in its order; empty where that is not known.
    urls: Vec<String>,
}

fn ask_at(address: &Address, options: &Arc<ConnectOptions>) -> Result<Known, ClientError> {
    ask(Targets { addresses: std::slice::from_ref(address), groups: None }, options)
}

/// Asks a server for its identity and its placement.
fn ask(targets: Targets<'_>, options: &Arc<ConnectOptions>) -> Result<Known, ClientError> {
    let timeout = options.connect_timeout.min(options.timeout);
    let outages = Outages::new(timeout, options.on_wait.clone(), targets.groups.is_some());
    let connections = ConnectionSet::new(targets, options, timeout, &outages, NOT_HEDGED)?;
    let mut engine = Engine::new(connections, Arc::new(Placement::even(1)), None);
    let (placement, urls) =
        engine.ask(0, &Subject::Nothing, Needs::Nothing, &Request::Placement, |reply| {
            let Reply::Placement(map) = reply else { return None };
            let urls = map.servers.iter().map(|server| server.url.to_owned()).collect();
            let placement = match map.slots.is_empty() {
                true => Placement::even(1),
                false => Placement::new(map.version, map.servers.len(), map.slots.to_vec()),
            };
            Some((placement, urls))
        })?;
    let peer = engine.connections.peer(0).cloned().ok_or_else(|| engine.misfit(0))?;
    Ok(Known { peer, placement, urls })
}

/// Where the other shards are, if the server at an address says so.
fn others(address: &Address, peer: &Peer, urls: &[String]) -> Result<Vec<Address>, ClientError> {
    if peer.shards <= 1 || urls.len() != peer.shards as usize || urls.iter().any(String::is_empty) {
        return Ok(Vec::new());
    }
    let beside = (0..).zip(urls).filter(|(shard, _)| *shard != peer.shard);
    let read = |(shard, url): (u32, &String)| {
        url.parse::<Address>().map_err(|error| {
            let reason =
                format!("{address}: it says that shard {shard} is at {url:?}, which is no address: {error}");
            ClientError::Cluster { reason }
        })
    };
    beside.map(read).collect()
}

fn way_name(way: &Address, tls: bool) -> &'static str {
    match way {
        Address::Embedded => "embedded",
        Address::Shm(_) => "shm",
        Address::Unix(_) => "unix",
        Address::Tcp(_) if tls => "tls",
        Address::Tcp(_) => "tcp",
        Address::Rdma(_) => "rdma",
    }
}

fn check_shards(servers: &[Server]) -> Result<(), ClientError> {
    let wrong = |reason: String| Err(ClientError::Cluster { reason });
    if servers.is_empty() || servers.len() > limit::SERVERS_MAX {
        return wrong(format!("{} servers; 1 to {} are possible", servers.len(), limit::SERVERS_MAX));
    }
    for (shard, server) in servers.iter().enumerate() {
        let (address, peer) = (&server.address, &server.peer);
        if peer.shards as usize != servers.len() {
            let advice = match servers.len() {
                1 => ", or start all of them with --peers, so that one says where the others are",
                _ => "",
            };
            return wrong(format!(
                "{address}: it is shard {} of {}, but {} servers were named; name each shard once{advice}",
                peer.shard,
                peer.shards,
                servers.len()
            ));
        }
        if peer.shard as usize != shard {
            let reason = "name each shard once";
            return wrong(format!("{address}: shard {} was named twice; {reason}", peer.shard));
        }
    }
    Ok(())
}
