//! Feeds a hub's keys to parameter servers, over connections that are renewed when a server restarts. The hub decides
//! which minibatch is fed when, and which trainer gets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sanderling_client::{
    ClientError, Cluster, ConnectOptions, Fault, FeedAhead, FeedFeature, Feedable, RemoteTable,
};
use sanderling_hub::FedFeature;
use sanderling_hub::service::{FedColumns, Feeding, KeyFeeder};
use sanderling_store::Pooling;

use crate::error::FeedError;
use crate::fed::saves_by_hub;
use crate::pooling::FeaturePooling;

/// Waits between attempts begin with this and double.
const AGAIN_MIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(500);
/// Shortest time that an attempt gets, whatever the patience.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A feature that is to be fed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedTo {
    /// Its name.
    pub feature: String,
    /// Its table on the servers, which need not be there yet.
    pub table: String,
    /// How a sample's rows become one: a sum or a mean.
    pub pooling: String,
    /// Whether only where the trainer's link has fewer bytes by it, by minibatch; else always.
    pub where_it_saves: bool,
}

/// See the top of this file.
pub struct ServerFeeder {
    /// Addresses, or a registry with a cluster.
    servers: String,
    connect: ConnectOptions,
    /// The fed features, by column.
    features: Vec<(u32, Pooling, FeedTo)>,
    patience: Duration,
    open: Option<Open>,
    on_trouble: Box<dyn Fn(&str) + Send>,
}

struct Open {
    feeder: FeedAhead,
    /// One per feature.
    tables: Vec<RemoteTable>,
}

impl FeedTo {
    /// As trainers are told.
    #[must_use]
    pub fn told(&self) -> FedFeature {
        let FeedTo { feature, table, pooling, .. } = self.clone();
        FedFeature { feature, table, pooling }
    }

    fn pooling(&self) -> Result<Pooling, FeedError> {
        match FeaturePooling::named(&self.pooling) {
            Some(FeaturePooling::Linear(pooling)) => Ok(pooling),
            other => {
                let why = match other {
                    Some(FeaturePooling::Max) => {
                        "a largest coordinate of several servers' has no gradient that they could spread"
                    }
                    Some(_) => "a row per key is not pooled, and the trainer needs the keys for it",
                    None => "there is no such pooling",
                };
                let FeedTo { feature, pooling, .. } = self;
                let reason = format!(
                    "feature {feature:?} cannot be fed with pooling {pooling:?}: {why}; sum and mean can"
                );
                Err(FeedError::Option { option: "feed", reason })
            }
        }
    }
}

impl ServerFeeder {
    /// Reaches the servers ([`Cluster::of`]), to say at once if one is not there. `columns` are the hub's features,
    /// in order; `patience` is how long servers and tables may be away later. What is in the way then is told once to
    /// `on_trouble`.
    ///
    /// # Errors
    /// A feature that cannot be fed, or a server that cannot be reached.
    pub fn new(
        servers: &str,
        connect: ConnectOptions,
        features: Vec<FeedTo>,
        columns: &[String],
        patience: Duration,
        on_trouble: impl Fn(&str) + Send + 'static,
    ) -> Result<ServerFeeder, FeedError> {
        let mut by_column = Vec::new();
        for feature in features {
            let column = crate::sampled::column(columns, &feature.feature)?;
            by_column.push((column as u32, feature.pooling()?, feature));
        }
        by_column.sort_by_key(|(column, _, _)| *column);
        // One attempt must not outlast all of them.
        let within = patience.max(ATTEMPT_MIN);
        let (timeout, connect_timeout) = (connect.timeout.min(within), connect.connect_timeout.min(within));
        let connect = ConnectOptions { timeout, connect_timeout, ..connect };
        Cluster::of(servers, connect.clone())?;
        let on_trouble = Box::new(on_trouble);
        Ok(ServerFeeder {
            servers: servers.to_owned(),
            connect,
            features: by_column,
            patience,
            open: None,
            on_trouble,
        })
    }

    fn open(&self) -> Result<Open, ClientError> {
        let cluster = Cluster::of(&self.servers, self.connect.clone())?;
        let tables = self.features.iter().map(|(_, _, to)| RemoteTable::open(&cluster, &to.table));
        Ok(Open { tables: tables.collect::<Result<_, _>>()?, feeder: FeedAhead::new(&cluster)? })
    }

    fn try_feed(&mut self, minibatches: &mut [Feeding<'_>]) -> Result<(), ClientError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.open()?,
        };
        for Feeding { rows, fed } in minibatches {
            *fed = FedColumns { batch: open.feeder.next_batch(), ..FedColumns::default() };
            fed.placement_version = open.feeder.placement_version();
            for ((column, pooling, to), table) in self.features.iter().zip(&open.tables) {
                let at = *column as usize;
                let of = FeedFeature {
                    table,
                    feature: *column,
                    keys: rows.keys(at),
                    offsets: rows.offsets(at),
                    values: rows.values(at),
                    pooling: *pooling,
                };
                let choose: Option<&dyn Fn(&Feedable) -> bool> =
                    if to.where_it_saves { Some(&saves_by_hub) } else { None };
                if let Some(keys) = open.feeder.begin(fed.batch, &of, choose)? {
                    fed.columns.push(*column);
                    fed.servers = keys.len() as u32;
                    fed.keys.extend_from_slice(keys);
                }
            }
        }
        open.feeder.finish()?;
        // Only what has not failed is used again.
        self.open = Some(open);
        Ok(())
    }
}

impl KeyFeeder for ServerFeeder {
    fn feed(&mut self, minibatches: &mut [Feeding<'_>], stopped: &AtomicBool) -> Result<(), String> {
        let (since, mut again) = (Instant::now(), AGAIN_MIN);
        let mut is_told = false;
        loop {
            let Err(error) = self.try_feed(minibatches) else { return Ok(()) };
            if !passes(&error) {
                return Err(error.to_string());
            }
            if since.elapsed() >= self.patience {
                let patience = self.patience.as_secs();
                return Err(format!(
                    "{error}; it was tried for {patience} s, make tables before trainers subscribe"
                ));
            }
            if !is_told {
                (self.on_trouble)(&error.to_string());
                is_told = true;
            }
            let until = Instant::now() + again;
            while Instant::now() < until {
                if stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(LOOK.min(again));
            }
            again = (2 * again).min(AGAIN_MAX);
        }
    }
}

/// Whether it may be otherwise soon: servers are started anew, and tables are made by trainers.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::Refused { fault, .. } => fault.is_transient() || *fault == Fault::UnknownTable,
        ClientError::Restarted { .. }
        | ClientError::Late { .. }
        | ClientError::Lost { .. }
        | ClientError::Cluster { .. } => true,
        _ => false,
    }
}
