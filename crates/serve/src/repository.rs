//! Has a server serve what a folder of models says: loads versions beside those that answer, moves aliases, drops old
//! versions. One thread does it all, in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sanderling_observe::machine::available_bytes;
use sanderling_observe::numbers::bytes as bytes_text;
use tokio::sync::oneshot;

use crate::catalog::{LIVE, Models, bytes_of};
use crate::error::{Kind, ServeError, quoted};
use crate::folder::{self, Content, NamedContent, NewLink};
use crate::models::ServedModel;
use crate::publisher::Publisher;

/// Orders that may wait; a further one is refused.
const ORDERS_MAX: usize = 16;
/// Time after which a version that did not load is tried again, though it is the same.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// Time for the requests of a dropped version; later its memory is freed by the last of them.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// Interval of looks at the requests of a dropped version.
const DRAIN_EVERY: Duration = Duration::from_millis(2);

/// A folder of models to serve.
#[derive(Debug, Clone)]
pub struct RepositoryConfig {
    /// The folder: `NAME/VERSION` are model directories, links `NAME/ALIAS` name versions.
    pub folder: PathBuf,
    /// Interval of looks at the folder; zero: only on request.
    pub every: Duration,
    /// Memory for the tables of all loaded versions; none: the memory that is available.
    pub memory_bytes: Option<u64>,
}

/// The state of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Loading,
    /// Not loaded, with the reason.
    Unavailable(String),
}

/// A change that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Does what the folder says now.
    Follow,
    /// Has an alias name a version, and records it in the folder.
    Point { alias: String, version: u64 },
    /// Removes an alias, also in the folder.
    Remove { alias: String },
    /// Drops a model that is not in the folder any more.
    Forget,
}

struct Order {
    name: String,
    change: Change,
    done: oneshot::Sender<Result<(), ServeError>>,
}

/// Where a server's requests find the repository.
pub(crate) struct Repository {
    orders: Mutex<Option<SyncSender<Order>>>,
    status: Arc<Status>,
}

/// The state of each version at the last look.
#[derive(Default)]
struct Status(Mutex<BTreeMap<(String, u64), State>>);

impl Status {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u64), State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Repository {
    /// Follows a folder. Returns when the first look is done, whatever it found; `note` gets a line for each event.
    ///
    /// # Errors
    /// The folder cannot be read, or the system has no thread left.
    pub(crate) fn start(
        config: RepositoryConfig,
        publisher: Publisher,
        note: impl FnMut(&str) + Send + 'static,
    ) -> std::io::Result<Repository> {
        let (sender, orders) = sync_channel(ORDERS_MAX);
        let status = Arc::<Status>::default();
        let content = folder::read(&config.folder)?;
        let mut keeper = Keeper {
            config,
            publisher,
            status: Arc::clone(&status),
            failed: BTreeMap::new(),
            seen: Content::default(),
            note: Box::new(note),
        };
        for (name, named) in &content.0 {
            // Noted and in the index; the other models are served.
            let _ = keeper.follow(name, named, true);
        }
        keeper.describe(&content);
        keeper.seen = content;
        std::thread::Builder::new().name("models".to_owned()).spawn(move || keeper.run(&orders))?;
        Ok(Repository { orders: Mutex::new(Some(sender)), status })
    }

    /// Takes no further order. The thread ends after the one under way.
    pub(crate) fn stop(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<SyncSender<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a change and waits for it.
    pub(crate) async fn change(&self, name: String, change: Change) -> Result<(), ServeError> {
        let (done, outcome) = oneshot::channel();
        let stopped = || ServeError::new(Kind::NotReady, "the server is about to stop");
        let sent = match &*self.lock() {
            None => return Err(stopped()),
            Some(orders) => orders.try_send(Order { name, change, done }),
        };
        match sent {
            Ok(()) => outcome.await.map_err(|_| stopped())?,
            Err(TrySendError::Full(_)) => {
                Err(ServeError::new(Kind::Overloaded, "too many changes of versions wait; try again later"))
            }
            Err(TrySendError::Disconnected(_)) => Err(stopped()),
        }
    }

    /// All versions of the folder and of the server.
    pub(crate) fn index(&self) -> BTreeMap<(String, u64), State> {
        self.status.lock().clone()
    }
}

/// Why a version did not load, and of which content.
struct Failure {
    reason: String,
    saved: Option<SystemTime>,
    at: Instant,
}

/// The thread that follows the folder.
struct Keeper {
    config: RepositoryConfig,
    publisher: Publisher,
    status: Arc<Status>,
    failed: BTreeMap<(String, u64), Failure>,
    /// The folder at the last look.
    seen: Content,
    note: Box<dyn FnMut(&str) + Send>,
}

impl Keeper {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let every = if self.config.every.is_zero() { Duration::MAX } else { self.config.every };
            let order = match every {
                Duration::MAX => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                every => orders.recv_timeout(every),
            };
            match order {
                Ok(Order { name, change, done }) => {
                    // The client may be gone.
                    let _ = done.send(self.change(&name, &change));
                }
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what the folder says, if two looks agree: a link may be absent while it is replaced.
    fn look(&mut self) {
        let content = match folder::read(&self.config.folder) {
            Ok(content) => content,
            Err(error) => return self.note_folder(&error),
        };
        if content == self.seen {
            for (name, named) in &content.0 {
                let _ = self.follow(name, named, false);
            }
        }
        self.describe(&content);
        self.seen = content;
    }

    fn note_folder(&mut self, error: &std::io::Error) {
        let folder = self.config.folder.display();
        (self.note)(&format!("{folder}: {error}; the loaded versions are served on"));
    }

    fn change(&mut self, name: &str, change: &Change) -> Result<(), ServeError> {
        let internal = |error: std::io::Error| {
            ServeError::new(Kind::Internal, format!("the folder of models: {error}; nothing has changed"))
        };
        let root = self.config.folder.clone();
        let content = folder::read(&root).map_err(internal)?;
        let done = match (content.0.get(name), change) {
            (None, Change::Forget) => {
                self.publish(name, |models| models.retain(name, BTreeMap::new(), |_| false));
                Ok(())
            }
            (None, _) => {
                let text = format!("no model {} in the folder of models", quoted(name));
                Err(ServeError::new(Kind::NotFound, text))
            }
            (Some(_), Change::Forget) => {
                let text = format!(
                    "{}: remove it from the folder of models first, or it would be loaded again",
                    quoted(name)
                );
                Err(ServeError::invalid(text))
            }
            (Some(named), Change::Follow) => self.follow(name, named, true),
            (Some(named), Change::Point { alias, version }) => {
                if named.versions.contains(version) {
                    let link = NewLink::prepare(&root, name, alias, *version).map_err(internal)?;
                    let mut named = named.clone();
                    named.bad_links.remove(alias);
                    named.aliases.insert(alias.clone(), *version);
                    let followed = self.follow(name, &named, true);
                    let models = self.publisher.models();
                    // Another version may have failed.
                    match models.aliases().any(|found| found == (name, &**alias, *version)) {
                        true => link.commit().map_err(internal),
                        false => followed,
                    }
                } else {
                    let text = format!("no version {version} of {} in the folder of models", quoted(name));
                    Err(ServeError::new(Kind::NotFound, text))
                }
            }
            (Some(named), Change::Remove { alias }) => {
                folder::remove_link(&root, name, alias).map_err(internal)?;
                let mut named = named.clone();
                named.bad_links.remove(alias);
                named.aliases.remove(alias);
                self.follow(name, &named, true)
            }
        };
        if let Ok(content) = folder::read(&root) {
            self.describe(&content);
            self.seen = content;
        }
        done
    }

    /// Loads what a model's folder wants, moves its aliases in one step, and drops versions without one.
    ///
    /// A version that does not load, or a link that names nothing, leaves its alias where it is.
    fn follow(&mut self, name: &str, named: &NamedContent, tries_again: bool) -> Result<(), ServeError> {
        let before = self.publisher.models();
        let is_loaded = |version: u64| before.get(name, version).is_some();
        let mut failed = None;
        let mut loaded: BTreeMap<u64, Arc<ServedModel>> = BTreeMap::new();
        for version in named.wanted() {
            if is_loaded(version) {
                continue;
            }
            match self.load(name, version, &before, &loaded, tries_again) {
                Ok(model) => _ = loaded.insert(version, Arc::new(model)),
                Err(reason) => failed = Some(reason),
            }
        }
        let mut aliases = named.aliases.clone();
        aliases.retain(|_, version| is_loaded(*version) || loaded.contains_key(version));
        for (_, alias, version) in before.aliases().filter(|(model, ..)| *model == name) {
            if named.bad_links.contains_key(alias) || named.aliases.contains_key(alias) {
                aliases.entry(alias.to_owned()).or_insert(version);
            }
        }
        let mut keeps: BTreeSet<u64> = aliases.values().copied().collect();
        if !aliases.contains_key(LIVE) {
            // The latest, or what answers now if that did not load.
            let latest =
                named.versions.last().filter(|version| is_loaded(**version) || loaded.contains_key(version));
            let latest =
                latest.filter(|_| !named.bad_links.contains_key(LIVE) && !named.aliases.contains_key(LIVE));
            let present = before.find(name, "").ok().map(|model| model.version);
            keeps.extend(latest.copied().or(present));
        }
        let is_same = loaded.is_empty()
            && before.versions(name).eq(keeps.iter().copied())
            && before
                .aliases()
                .filter(|(model, ..)| *model == name)
                .map(|(_, alias, version)| (alias, version))
                .eq(aliases.iter().map(|(alias, version)| (&**alias, *version)));
        drop(before);
        if !is_same {
            self.publish(name, |models| {
                loaded.into_values().for_each(|model| models.insert(model));
                models.retain(name, aliases, |version| keeps.contains(&version));
            });
        }
        failed.map_or(Ok(()), |reason: String| Err(ServeError::new(Kind::Invalid, reason)))
    }

    /// Loads and warms a version beside those in memory.
    fn load(
        &mut self,
        name: &str,
        version: u64,
        before: &Models,
        loaded: &BTreeMap<u64, Arc<ServedModel>>,
        tries_again: bool,
    ) -> Result<ServedModel, String> {
        let path = folder::version_path(&self.config.folder, name, version);
        let saved = folder::saved_at(&path);
        let key = (name.to_owned(), version);
        if let Some(failure) = self.failed.get(&key).filter(|_| !tries_again)
            && failure.saved == saved
            && failure.at.elapsed() < TRY_AGAIN
        {
            return Err(failure.reason.clone());
        }
        self.status.lock().insert(key.clone(), State::Loading);
        let started = Instant::now();
        let models: Vec<&Arc<ServedModel>> = before.iter().chain(loaded.values()).collect();
        let admit = |bytes| self.admit(bytes, &models);
        let model = ServedModel::load_beside(&path, Some(name), version, &models, admit)
            .map_err(|error| error.to_string())
            .and_then(|model| model.warm(self.publisher.threads).map(|()| model));
        match model {
            Ok(model) => {
                self.failed.remove(&key);
                let (rows, took) = (model.rows(), started.elapsed().as_secs_f64());
                (self.note)(&format!("{name}@{version} loaded in {took:.1} s: {rows} rows"));
                Ok(model)
            }
            Err(reason) => {
                self.status.lock().insert(key.clone(), State::Unavailable(reason.clone()));
                (self.note)(&format!("{name}@{version} is not loaded: {reason}"));
                let at = Instant::now();
                self.failed.insert(key, Failure { reason: reason.clone(), saved, at });
                Err(reason)
            }
        }
    }

    /// Whether tables of so many bytes fit beside the loaded ones.
    fn admit(&self, bytes: u64, models: &[&Arc<ServedModel>]) -> Result<(), String> {
        let left = match self.config.memory_bytes {
            Some(budget) => budget.saturating_sub(bytes_of(models.iter().copied())),
            None => available_bytes().unwrap_or(u64::MAX),
        };
        if bytes <= left {
            return Ok(());
        }
        let (needed, left) = (bytes_text(bytes), bytes_text(left));
        Err(match self.config.memory_bytes {
            Some(budget) => format!(
                "its tables need {needed}; of the budget of {} (--memory) {left} are left: drop a version or raise it",
                bytes_text(budget)
            ),
            None => format!("its tables need {needed}; {left} of memory are available: drop a version"),
        })
    }

    /// Replaces the models in one step, waits for the requests of those that left, and frees them here: a scoring
    /// thread would spend its time on it.
    fn publish(&mut self, name: &str, change: impl FnOnce(&mut Models)) {
        let mut models = Models::clone(&self.publisher.models());
        change(&mut models);
        let of = |models: &Models| -> Vec<(String, u64)> {
            let aliases = models.aliases().filter(|(model, ..)| *model == name);
            aliases.map(|(_, alias, version)| (alias.to_owned(), version)).collect()
        };
        let after = of(&models);
        let before = self.publisher.publish(models);
        let moved = of(&before);
        for (alias, version) in after.iter().filter(|alias| !moved.contains(alias)) {
            (self.note)(&format!("{name}@{alias} is {name}@{version}"));
        }
        let current = self.publisher.models();
        let is_gone = |model: &&Arc<ServedModel>| current.get(&model.name, model.version).is_none();
        let retired: Vec<Arc<ServedModel>> = before.iter().filter(is_gone).map(Arc::clone).collect();
        drop((before, current));
        for model in retired {
            let until = Instant::now() + DRAIN_WITHIN;
            while Arc::strong_count(&model) > 1 && Instant::now() < until {
                std::thread::sleep(DRAIN_EVERY);
            }
            (self.note)(&format!("{}@{} dropped", model.name, model.version));
        }
    }

    /// Notes the state of all versions.
    fn describe(&self, content: &Content) {
        let models = self.publisher.models();
        let mut states = BTreeMap::new();
        for (name, named) in &content.0 {
            for version in &named.versions {
                let key = (name.clone(), *version);
                let reason = match self.failed.get(&key) {
                    Some(failure) => failure.reason.clone(),
                    None => "no alias names it".to_owned(),
                };
                states.insert(key, State::Unavailable(reason));
            }
        }
        for model in models.iter() {
            states.insert((model.name.clone(), model.version), State::Ready);
        }
        *self.status.lock() = states;
    }
}
