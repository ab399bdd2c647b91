//! The queue: threads that each read a minibatch, look it up and put it in line for the trainer, in the order of the input
//! or as they come; and what the hub of a minibatch is told of it. Knows not how a minibatch is read or looked up.

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
    /// What the trainer works on: used up when it asks for the next one.
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

    /// How the input is read and the spec as it is used, fitted boundaries included; None of hubs of an older version, which
    /// do not say it.
    #[must_use]
    pub fn reading(&self) -> Option<(&DataConfig, &Spec)> {
        self.shared.reader.reading()
    }

    /// The hubs that minibatches come from; none if they come from files.
    #[must_use]
    pub fn hubs(&self) -> &[Served] {
        self.shared.reader.served()
    }

    /// The next minibatch; None at the end of the last pass. Waits for it. To ask for it is to say that the one before was
    /// used up: its hub hears of that when its push, if there is one, has been applied.
    ///
    /// # Errors
    /// What went wrong with the input; and [`FeedError::Unpushed`], if a push of a hub's minibatch has failed. It is the end.
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
        self.hold(ready.ticket);
        Ok(Some(ready.fed))
    }

    /// It ends with the first minibatch that is lost.
    fn check_loss(&self) -> Result<(), FeedError> {
        self.shared.reader.check_loss().inspect_err(|_| self.end())
    }

    fn hold(&self, ticket: Option<Arc<Ticket>>) {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) = ticket;
    }

    /// Rows of the pass that is read at the moment, all ranks together: an estimate from the bytes read so far. None before the
    /// first minibatch, of streams and hubs, and unless minibatches are in order.
    #[must_use]
    pub fn pass_rows(&self) -> Option<u64> {
        self.shared.reader.pass_rows()
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> FeedStatistics {
        self.shared.statistics()
    }

    /// The same for whoever asks from another thread, also after the queue is gone.
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

    /// The same for who has not used the one in hand: others get it with the rest.
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
