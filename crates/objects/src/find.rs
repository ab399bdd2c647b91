//! Resolves names and patterns to files, several names at a time. Opens nothing.

use std::io::ErrorKind;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use glob::{MatchOptions, Pattern};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::ObjectError;
use crate::network::Network;
use crate::place::{Kind, Place};
use crate::store::{Store, store_of};
use crate::{LOOKUPS_AT_ONCE, NAMES_LOOKED_THROUGH_MAX};

/// A `*` stays within a directory, as in names of local files; `**` does not.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The answer of a server without such a file. The library reports status 405, by which servers refuse HEAD, in the
/// same way.
const MISSING: &str = "status code: 404";

/// An existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its url.
    pub url: String,
    /// Its size as stored.
    pub bytes: u64,
}

pub(crate) fn find(network: &Arc<Network>, names: &[&str]) -> Result<Vec<Vec<Found>>, ObjectError> {
    let mut wanted = Vec::with_capacity(names.len());
    for &url in names {
        let place = Place::parse(url)?;
        let store = store_of(network, &place, url)?;
        wanted.push((url.to_string(), place, store));
    }
    let lookups =
        stream::iter(wanted)
            .map(|(url, place, store)| async move {
                Lookup { url: &url, place: &place, store: &store }.find().await
            })
            .buffered(LOOKUPS_AT_ONCE);
    network.start(lookups.try_collect()).wait(names.first().unwrap_or(&""))
}

/// One name to look for.
struct Lookup<'a> {
    url: &'a str,
    place: &'a Place,
    store: &'a Store,
}

impl Lookup<'_> {
    async fn find(&self) -> Result<Vec<Found>, ObjectError> {
        let Some(pattern_at) = self.place.pattern_at() else {
            return Ok(vec![self.one().await?]);
        };
        // A name may contain pattern characters, and an existing file of that name wins. With permission to list but
        // not to read, a missing file and a forbidden one look alike.
        match self.one().await {
            Ok(found) => return Ok(vec![found]),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::PermissionDenied) => {}
            Err(error) => return Err(error),
        }
        let pattern =
            Pattern::new(&self.place.key).map_err(|error| self.wrong(format!("is no pattern: {error}")))?;
        let listed = match &self.store.pages {
            Some(pages) => self.list_pages(&**pages, pattern_at).await?,
            None => self.list_directory(pattern_at).await?,
        };
        let mut files: Vec<(Path, u64)> = listed
            .into_iter()
            .filter(|file| pattern.matches_with(file.location.as_ref(), MATCHING))
            .map(|file| (file.location, file.size))
            .collect();
        if files.is_empty() {
            return Err(ObjectError::new(self.url, ErrorKind::NotFound, "no file matches this pattern"));
        }
        // Directory by directory, like local files.
        files.sort_unstable_by(|(a, _), (b, _)| a.as_ref().split('/').cmp(b.as_ref().split('/')));
        let found = files.into_iter().map(|(path, bytes)| Found { url: self.place.url_of(&path), bytes });
        Ok(found.collect())
    }

    /// The file of exactly this name, if it exists.
    async fn one(&self) -> Result<Found, ObjectError> {
        let path = self.place.path(self.url)?;
        let asked = self.store.objects.head(&path).await;
        let meta = match asked {
            // Signed urls are often signed for GET only, and some servers do not support HEAD.
            Err(error) if self.place.kind == Kind::Web && !error.to_string().contains(MISSING) => {
                self.size_by_get(&path).await.map_err(|error| self.failed(&error))?
            }
            asked => asked.map_err(|error| self.failed(&error))?,
        };
        Ok(Found { url: self.url.to_string(), bytes: meta.size })
    }

    async fn size_by_get(&self, path: &Path) -> Result<ObjectMeta, Error> {
        let first_byte = GetOptions { range: Some((0..1).into()), ..GetOptions::default() };
        match self.store.objects.get_opts(path, first_byte).await {
            // The answer is the whole file, of which only the header is read.
            Err(Error::NotSupported { .. }) => Ok(self.store.objects.get(path).await?.meta),
            got => Ok(got?.meta),
        }
    }

    /// Lists by the part of the name before the pattern; only that directory if the pattern goes no deeper.
    async fn list_pages(
        &self,
        store: &dyn PaginatedListStore,
        pattern_at: usize,
    ) -> Result<Vec<ObjectMeta>, ObjectError> {
        let (prefix, pattern) = self.place.key.split_at(pattern_at);
        let delimiter = (!is_deep(pattern)).then_some("/".into());
        let (mut listed, mut seen, mut page_token) = (Vec::new(), 0, None);
        loop {
            let options = PaginatedListOptions {
                delimiter: delimiter.clone(),
                page_token,
                ..PaginatedListOptions::default()
            };
            let prefix = (!prefix.is_empty()).then_some(prefix);
            let page = store.list_paginated(prefix, options).await.map_err(|error| self.failed(&error))?;
            seen += page.result.objects.len() + page.result.common_prefixes.len();
            if seen > NAMES_LOOKED_THROUGH_MAX {
                return Err(self.too_many());
            }
            listed.extend(page.result.objects);
            page_token = page.page_token;
            if page_token.is_none() {
                return Ok(listed);
            }
        }
    }

    /// Lists the directory of the pattern, for servers that list whole directories only.
    async fn list_directory(&self, pattern_at: usize) -> Result<Vec<ObjectMeta>, ObjectError> {
        let (literal, pattern) = self.place.key.split_at(pattern_at);
        let directory = literal.rsplit_once('/').map_or("", |(directory, _)| directory);
        let directory =
            Path::parse(directory).map_err(|error| self.wrong(format!("cannot be listed: {error}")))?;
        let store = &self.store.objects;
        let listed = if is_deep(pattern) {
            let files = store.list(Some(&directory)).take(NAMES_LOOKED_THROUGH_MAX + 1);
            files.try_collect().await
        } else {
            store.list_with_delimiter(Some(&directory)).await.map(|listed| listed.objects)
        };
        let listed: Vec<ObjectMeta> = listed.map_err(|error| {
            let mut failed = self.failed(&error);
            if self.place.kind == Kind::Web {
                let more = "web servers do not list their files, unless they speak WebDAV: name the files one by one";
                failed.reason = format!("{more}; {}", failed.reason);
            }
            failed
        })?;
        if listed.len() > NAMES_LOOKED_THROUGH_MAX { Err(self.too_many()) } else { Ok(listed) }
    }

    fn failed(&self, error: &Error) -> ObjectError {
        ObjectError::of(self.url, self.place.kind, error)
    }

    fn wrong(&self, reason: String) -> ObjectError {
        ObjectError::new(self.url, ErrorKind::InvalidInput, reason)
    }

    fn too_many(&self) -> ObjectError {
        self.wrong(format!(
            "more than {NAMES_LOOKED_THROUGH_MAX} names would have to be looked through; let the pattern begin with more of \
             the name"
        ))
    }
}

/// Whether a pattern goes into directories below its own.
fn is_deep(pattern: &str) -> bool {
    pattern.contains('/') || pattern.contains("**")
}
