//! How a trainer reaches its hubs, and how much it asks of them. Opens nothing.

use std::time::Duration;

use sanderling_transport::{SPIN_US_DEFAULT, TlsClient};
use sanderling_wire::Compression;

/// How hubs are reached, and how much is asked of each.
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    /// Minibatches of one hub that are here, or asked for, and not acknowledged, from 1; a hub may grant fewer.
    pub window: u32,
    /// This trainer's place, for hubs that assign minibatches in turn. Hubs then take strict turns, too.
    pub rank: Option<u32>,
    /// Bearer token, or empty.
    pub token: String,
    /// Whom to trust, for TLS on TCP.
    pub tls: Option<TlsClient>,
    /// A connection on which nothing comes for so long, though something was asked, is given up for another.
    pub timeout: Duration,
    /// A hub that could not be reached for so long is gone: an error.
    pub patience: Duration,
    /// How long waits stay awake at most before they sleep, in microseconds.
    pub spin_us: u32,
    /// Another number with every start of the trainer.
    pub instance: u64,
    /// How minibatches of 1 KiB and more are compressed, for slow links; never in shared memory. A hub of before sends them
    /// plain.
    pub compression: Option<Compression>,
    /// Whether minibatches are of use whose keys the hub has fed to parameter servers ([`Delivered::fed`](crate::Delivered::fed)).
    /// A hub that does so refuses others.
    pub takes_fed: bool,
}

impl Default for SubscribeOptions {
    fn default() -> SubscribeOptions {
        SubscribeOptions {
            window: 8,
            rank: None,
            token: String::new(),
            tls: None,
            timeout: Duration::from_secs(20),
            patience: Duration::from_secs(60),
            spin_us: SPIN_US_DEFAULT,
            instance: sanderling_observe::unique(),
            compression: None,
            takes_fed: false,
        }
    }
}
