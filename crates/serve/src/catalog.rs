//! The served models by name, version and alias, and the pointer by which all of them are replaced in one step.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{Kind, ServeError, listed, quoted};
use crate::models::ServedModel;

/// The alias of the version that answers requests without one.
pub const LIVE: &str = "live";

/// The versions of one model.
#[derive(Default, Clone)]
struct Versions {
    loaded: BTreeMap<u64, Arc<ServedModel>>,
    aliases: BTreeMap<String, u64>,
}

impl Versions {
    /// The version that answers requests without one: the live one, or the latest.
    fn unpinned(&self) -> Option<&Arc<ServedModel>> {
        let live = self.aliases.get(LIVE).and_then(|version| self.loaded.get(version));
        live.or_else(|| self.loaded.last_key_value().map(|(_, model)| model))
    }

    /// A version by number or alias.
    fn named(&self, version: &str) -> Option<&Arc<ServedModel>> {
        let number = self.aliases.get(version).copied().or_else(|| version.parse().ok());
        number.and_then(|number| self.loaded.get(&number))
    }
}

/// Served models by name, version and alias. A copy shares the models.
#[derive(Default, Clone)]
pub struct Models(BTreeMap<String, Versions>);

impl Models {
    /// A set of models; of two with one name and version the latter counts.
    pub fn new(models: impl IntoIterator<Item = ServedModel>) -> Models {
        let mut all = Models::default();
        models.into_iter().for_each(|model| all.insert(Arc::new(model)));
        all
    }

    /// Adds a version, or replaces the one of its name and number.
    pub fn insert(&mut self, model: Arc<ServedModel>) {
        self.0.entry(model.name.clone()).or_default().loaded.insert(model.version, model);
    }

    /// Keeps of a model the versions and aliases given; aliases of other versions are dropped.
    pub(crate) fn retain(&mut self, name: &str, aliases: BTreeMap<String, u64>, keeps: impl Fn(u64) -> bool) {
        let Some(versions) = self.0.get_mut(name) else { return };
        versions.loaded.retain(|version, _| keeps(*version));
        versions.aliases = aliases;
        versions.aliases.retain(|_, version| versions.loaded.contains_key(version));
        if versions.loaded.is_empty() {
            self.0.remove(name);
        }
    }

    /// Has an alias name a version. It has no effect while the version is not loaded.
    #[must_use]
    pub fn with_alias(mut self, name: &str, alias: &str, version: u64) -> Models {
        self.0.entry(name.to_owned()).or_default().aliases.insert(alias.to_owned(), version);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(|versions| versions.loaded.is_empty())
    }

    /// All models.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.0.values().flat_map(|versions| versions.loaded.values())
    }

    /// The versions of a model.
    pub(crate) fn versions(&self, name: &str) -> impl Iterator<Item = u64> {
        self.0.get(name).into_iter().flat_map(|versions| versions.loaded.keys().copied())
    }

    /// Names of models.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All aliases as model, alias and version.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.0.iter().flat_map(|(name, versions)| {
            versions.aliases.iter().map(move |(alias, version)| (&**name, &**alias, *version))
        })
    }

    /// The aliases of a version.
    pub(crate) fn aliases_of(&self, model: &ServedModel) -> impl Iterator<Item = &str> {
        let aliases = self.0.get(&model.name).into_iter().flat_map(|versions| &versions.aliases);
        let version = model.version;
        aliases.filter(move |(_, named)| **named == version).map(|(alias, _)| &**alias)
    }

    /// One version of a model, if it is loaded.
    pub(crate) fn get(&self, name: &str, version: u64) -> Option<&Arc<ServedModel>> {
        self.0.get(name)?.loaded.get(&version)
    }

    /// A model by name and version; a version is a number or an alias, and may also follow the name: `clicks@12`.
    ///
    /// An empty name means the only one, an empty version the live one, or the latest where none is live.
    ///
    /// # Errors
    /// No such model or version.
    pub(crate) fn find(&self, name: &str, version: &str) -> Result<Arc<ServedModel>, ServeError> {
        let (name, version) = match name.split_once('@') {
            Some((name, pinned)) if version.is_empty() => (name, pinned),
            _ => (name, version),
        };
        let names = || listed(self.names());
        let versions = match (name, self.0.len()) {
            (_, 0) => return Err(ServeError::new(Kind::NotReady, "no model is loaded yet; try again")),
            ("", 1) => self.0.values().next(),
            ("", _) => {
                return Err(ServeError::invalid(format!("name a model; the served models are {}", names())));
            }
            (name, _) => self.0.get(name),
        };
        let Some(versions) = versions else {
            let text = format!("no model {}; the served models are {}", quoted(name), names());
            return Err(ServeError::new(Kind::NotFound, text));
        };
        let found = if version.is_empty() { versions.unpinned() } else { versions.named(version) };
        found.cloned().ok_or_else(|| {
            let numbers = versions.loaded.keys().map(u64::to_string);
            let served: Vec<String> = numbers.chain(versions.aliases.keys().cloned()).collect();
            let text = format!("no version {}; served are {}", quoted(version), served.join(", "));
            ServeError::new(Kind::NotFound, text)
        })
    }
}

/// Memory of the tables of models; a shared table counts once.
pub(crate) fn bytes_of<'a>(models: impl Iterator<Item = &'a Arc<ServedModel>>) -> u64 {
    let tables = models.flat_map(|model| model.all_tables());
    let tables: BTreeMap<_, u64> = tables.map(|table| (Arc::as_ptr(table), table.bytes())).collect();
    tables.values().sum()
}

/// The models at present. A request keeps those that it began with.
#[derive(Default)]
pub(crate) struct ModelTable(RwLock<Arc<Models>>);

impl ModelTable {
    pub(crate) fn current(&self) -> Arc<Models> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all models in one step; returns those before.
    pub(crate) fn replace(&self, models: Models) -> Arc<Models> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, Arc::new(models))
    }
}
