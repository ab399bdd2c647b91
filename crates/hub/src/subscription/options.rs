//! Options of a subscription. Opens nothing.

use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::SpanQueue;
use sanderling_transport::{SPIN_US_DEFAULT, TlsClient};
use sanderling_wire::Compression;

/// Options of a subscription.
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    /// Most minibatches of one hub that are here or asked for and not acknowledged, at least 1; a hub may grant
    /// fewer.
    pub window: u32,
    /// This trainer's rank, for hubs that assign minibatches by rank. Hubs then take strict turns, too.
    pub rank: Option<u32>,
    /// Bearer token, or empty.
    pub token: String,
    /// The certificates to trust; enables TLS on TCP.
    pub tls: Option<TlsClient>,
    /// A connection is replaced when a request gets no answer for this long.
    pub timeout: Duration,
    /// A hub that cannot be reached for this long is an error.
    pub patience: Duration,
    /// Busy-poll time before blocking, in microseconds.
    pub spin_us: u32,
    /// A number that differs with every start of the trainer.
    pub instance: u64,
    /// Compression of minibatches of 1 KiB and more, for slow links; never used in shared memory. Hubs of older
    /// versions send plain minibatches.
    pub compression: Option<Compression>,
    /// Whether the trainer takes minibatches whose keys the hub fed to parameter servers
    /// ([`Delivered::fed`](crate::Delivered::fed)). A hub that feeds refuses trainers that do not.
    pub takes_fed: bool,
    /// Where spans of traced minibatches go, of which hubs hear ([`Acknowledger::acknowledge_traced`]); `None`: nowhere.
    ///
    /// [`Acknowledger::acknowledge_traced`]: crate::Acknowledger::acknowledge_traced
    pub spans: Option<Arc<SpanQueue>>,
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
            spans: None,
        }
    }
}
