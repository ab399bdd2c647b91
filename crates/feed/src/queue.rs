//! The queue: threads that read a minibatch, look it up and queue it for the trainer, in the order of the input or of
//! completion. It tells hubs which minibatches are used up. Does not know how a minibatch is read or looked up.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use sanderling_client::Origin;
use sanderling_formats::DataConfig;
use sanderling_hub::Served;
use sanderling_loader::STAGES;
use sanderling_observe::Stages;
use sanderling_sample::Spec;

use crate::embedding::Embedding;
use crate::error::FeedError;
use crate::line::{Fed, Shared};
use crate::options::QueueOptions;
use crate::reader::Reader;
use crate::source::Source;
use crate::statistics::{Account, FeedStatistics};
use crate::ticket::Ticket;

/// Why a queue without tables cannot take what a hub feeds.
const NO_TABLES: &str = "this queue looks nothing up; give it an embedding over tables on those servers";

/// Minibatches in line, and the threads that see to it that there are some.
pub struct FeedQueue {
    shared: Arc<Shared>,
    account: Account,
    threads: Option<JoinHandle<()>>,
    /// The minibatch that the trainer works on; used up when it asks for the next one.
    in_hand: Mutex<Option<Arc<Ticket>>>,
    /// Where its threads are.
    origin: Origin,
}

impl FeedQueue {
    /// Starts reading. With tables, minibatches come looked up.
    ///
    /// # Errors
    /// Impossible options, several passes over what can be read only once, and a feature of the tables that the data does not
    /// have. What goes wrong with the input is said by [`FeedQueue::next`].
    pub fn open(
        source: Source,
        embedding: Option<Arc<Embedding>>,
        options: QueueOptions,
    ) -> Result<FeedQueue, FeedError> {
        options.check()?;
        if options.passes > 1
            && let Some(name) = source.read_once()
        {
            let reason =
                format!("{}: {name} can be read only once; write its rows to a file", options.passes);
            return Err(FeedError::Option { option: "passes", reason });
        }
        if let Some(embedding) = &embedding {
            embedding.columns(&source.names)?;
        }
        let (fed, hub) = source.fed();
        for fed in fed {
            let can = embedding.as_ref().map_or(Err(NO_TABLES.to_owned()), |it| it.check_fed(fed));
            can.map_err(|reason| {
                let (hub, feature, table) = (hub.clone(), fed.feature.clone(), fed.table.clone());
                FeedError::FedByHub { hub, feature, table, reason }
            })?;
        }
        let stages = Stages::new(&STAGES);
        let reader = Reader::new(source.kind, stages.clone());
        let shared = Arc::new(Shared::new(source.names, reader, embedding, options, stages));
        let running = Arc::clone(&shared);
        let threads = std::thread::spawn(move || running.run());
        let account = shared.accounts.open();
        Ok(FeedQueue {
            account,
            shared,
            threads: Some(threads),
            in_hand: Mutex::default(),
            origin: Origin::here(),
        })
    }

    /// Names of the columns of its minibatches.
    #[must_use]
    pub fn names(&self) -> &Arc<[String]> {
        &self.shared.names
    }

    /// The reading options and the feature spec in use, fitted boundaries included.
    ///
    /// `None` for hubs of an older version, which do not send them.
    #[must_use]
    pub fn reading(&self) -> Option<(&DataConfig, &Spec)> {
        self.shared.reader.reading()
    }

    /// The hubs that minibatches come from; none if they come from files.
    #[must_use]
    pub fn hubs(&self) -> &[Served] {
        self.shared.reader.served()
    }

    /// Waits for the next minibatch; `None` at the end of the last pass. The minibatch before counts as used up: its
    /// hub is told once its push, if any, is applied.
    ///
    /// # Errors
    /// Errors of the input, and [`FeedError::Unpushed`] if a push of a hub's minibatch has failed. The queue ends
    /// with an error.
    pub fn next(&self) -> Result<Option<Fed>, FeedError> {
        if !self.origin.is_here() {
            return Err(FeedError::Forked);
        }
        let since = Instant::now();
        self.hold(None);
        let shared = &self.shared;
        self.check_loss()?;
        let ready = match shared.take() {
            Ok(Some(ready)) => ready,
            over => {
                // A push that failed while this waited may be why.
                self.check_loss()?;
                return over.map(|_| None);
            }
        };
        self.account.note(|measured| measured.queue_empty.record(since.elapsed()));
        if let Some(ticket) = &ready.ticket {
            ticket.give();
        }
        let ticket = ready.ticket.clone();
        self.hold(ready.ticket);
        // Tables of this process are asked here, of which there is no span.
        let was_left = matches!(ready.fed, Fed::Sampled(_));
        let fed = shared.look_up_left(ready.fed, &self.account)?;
        if let (true, Some(ticket), Fed::LookedUp(_)) = (was_left, ticket, &fed) {
            ticket.note_lookup();
        }
        Ok(Some(fed))
    }

    /// It ends with the first minibatch that is lost.
    fn check_loss(&self) -> Result<(), FeedError> {
        self.shared.reader.check_loss().inspect_err(|_| self.end())
    }

    fn hold(&self, ticket: Option<Arc<Ticket>>) {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) = ticket;
    }

    /// Estimated rows of the current pass over all ranks, from the bytes read so far.
    ///
    /// `None` before the first minibatch, for streams and hubs, and unless minibatches are in order.
    #[must_use]
    pub fn pass_rows(&self) -> Option<u64> {
        self.shared.reader.pass_rows()
    }

    /// The statistics so far.
    #[must_use]
    pub fn statistics(&self) -> FeedStatistics {
        self.shared.statistics()
    }

    /// The statistics for another thread, also after the queue is gone.
    pub fn watch(&self) -> impl Fn() -> FeedStatistics + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.statistics()
    }

    /// Reads no more and forgets what is ready; the next minibatch is none. The one in hand counts as used up once its push, if
    /// there is one, has been applied, which is waited for; then hubs hear farewell, and give the others what is left.
    pub fn close(&self) {
        self.hold(None);
        self.end();
    }

    /// Closes the queue without using up the minibatch in hand: another trainer gets it with the rest.
    pub fn close_unused(&self) {
        let in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ticket) = in_hand {
            ticket.take_back();
        }
        self.end();
    }

    fn end(&self) {
        if let Some(embedding) = &self.shared.embedding {
            embedding.wait();
        }
        self.shared.close();
    }
}

impl Drop for FeedQueue {
    /// As [`FeedQueue::close`]; but who drops it without a word may be on the way out with an error, so what is in hand counts as
    /// used up only if something was pushed of it.
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The threads are the parent's, and so is what is in hand.
            std::mem::forget(self.threads.take());
            return;
        }
        if let Some(in_hand) = &*self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
            && !in_hand.is_pushed()
        {
            in_hand.take_back();
        }
        self.close();
        if let Some(threads) = self.threads.take() {
            let _ = threads.join();
        }
    }
}
