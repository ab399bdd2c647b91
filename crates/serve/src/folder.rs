//! A folder of models: `FOLDER/NAME/VERSION` is a model directory, a link `FOLDER/NAME/ALIAS` names a version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::catalog::LIVE;

/// Longest name of a model or an alias.
const NAME_CHARS_MAX: usize = 64;
/// The file whose presence makes a directory a model.
const MANIFEST: &str = "manifest.json";

/// The content of a folder at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content(pub(crate) BTreeMap<String, NamedContent>);

/// The versions and aliases of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamedContent {
    pub(crate) versions: BTreeSet<u64>,
    pub(crate) aliases: BTreeMap<String, u64>,
    /// Links that name no version, with the reason.
    pub(crate) bad_links: BTreeMap<String, String>,
}

impl NamedContent {
    /// The versions to load: those with an alias, and the latest where none is live.
    pub(crate) fn wanted(&self) -> BTreeSet<u64> {
        let is_live = self.aliases.contains_key(LIVE) || self.bad_links.contains_key(LIVE);
        let latest = self.versions.last().filter(|_| !is_live);
        self.aliases.values().chain(latest).copied().collect()
    }
}

/// Whether a text can name a model or an alias: letters, digits, `-`, `_` and `.`, no version number, no hidden file.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    is_plain && !text.is_empty() && !text.starts_with('.') && text.chars().count() <= NAME_CHARS_MAX
}

/// Whether a text can name an alias, which is no version number.
pub(crate) fn is_alias(text: &str) -> bool {
    is_name(text) && text.parse::<u64>().is_err()
}

/// The directory of a version.
pub(crate) fn version_path(root: &Path, name: &str, version: u64) -> PathBuf {
    root.join(name).join(version.to_string())
}

/// When a version was saved last.
pub(crate) fn saved_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path.join(MANIFEST)).and_then(|found| found.modified()).ok()
}

/// Reads a folder. Other files, hidden ones, and directories without a manifest are left out.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn read(root: &Path) -> io::Result<Content> {
    let mut content = Content::default();
    for name in names(root)?.into_iter().filter(|name| is_name(name)) {
        let path = root.join(&name);
        if path.is_dir() {
            content.0.insert(name, read_named(&path)?);
        }
    }
    Ok(content)
}

fn read_named(path: &Path) -> io::Result<NamedContent> {
    let mut named = NamedContent::default();
    let entries = names(path)?;
    for version in entries.iter().filter_map(|entry| number(entry)) {
        if path.join(version.to_string()).join(MANIFEST).is_file() {
            named.versions.insert(version);
        }
    }
    for alias in entries.into_iter().filter(|entry| is_alias(entry)) {
        let Ok(target) = fs::read_link(path.join(&alias)) else { continue };
        let text = target.to_str().unwrap_or_default();
        match number(text.trim_start_matches("./").trim_end_matches('/')) {
            Some(version) if named.versions.contains(&version) => {
                named.aliases.insert(alias, version);
            }
            Some(version) => {
                let reason = format!("names version {version}, which is not there");
                named.bad_links.insert(alias, reason);
            }
            None => {
                let reason = format!("{text:?} is no version; link to a number, such as ln -sfn 12 {alias}");
                named.bad_links.insert(alias, reason);
            }
        }
    }
    Ok(named)
}

/// A version number in its one form: `012` is none.
fn number(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().filter(|number| number.to_string() == text)
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// A link that has been made and takes effect with [`NewLink::commit`]; dropped before, it leaves nothing.
#[derive(Debug)]
pub(crate) struct NewLink {
    new: PathBuf,
    link: PathBuf,
}

impl NewLink {
    /// Prepares to have an alias name a version.
    ///
    /// # Errors
    /// The folder is not writable, or a file that is no link has the alias' name.
    pub(crate) fn prepare(root: &Path, name: &str, alias: &str, version: u64) -> io::Result<NewLink> {
        let (folder, link) = (root.join(name), root.join(name).join(alias));
        if fs::symlink_metadata(&link).is_ok_and(|found| !found.is_symlink()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of this name"));
        }
        let new = folder.join(format!(".{alias}.new"));
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(version.to_string(), &new)?;
        Ok(NewLink { new, link })
    }

    pub(crate) fn commit(self) -> io::Result<()> {
        fs::rename(&self.new, &self.link)
    }
}

impl Drop for NewLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.new);
    }
}

/// Removes the link of an alias; there may be none.
///
/// # Errors
/// The folder is not writable.
pub(crate) fn remove_link(root: &Path, name: &str, alias: &str) -> io::Result<()> {
    let link = root.join(name).join(alias);
    match fs::symlink_metadata(&link) {
        Ok(found) if found.is_symlink() => fs::remove_file(&link),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(versions: &[&str], links: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for version in versions {
            let path = root.path().join("clicks").join(version);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(MANIFEST), "{}").unwrap();
        }
        for (alias, target) in links {
            std::os::unix::fs::symlink(target, root.path().join("clicks").join(alias)).unwrap();
        }
        root
    }

    #[test]
    fn versions_with_an_alias_are_wanted_else_the_latest() {
        let check = |versions: &[&str], links: &[(&str, &str)], wanted: &[u64], bad: &[&str]| {
            let found = read(folder(versions, links).path()).unwrap().0.remove("clicks").unwrap();
            assert_eq!(found.wanted(), wanted.iter().copied().collect(), "{versions:?} {links:?}");
            let found: Vec<&str> = found.bad_links.keys().map(String::as_str).collect();
            assert_eq!(found, bad, "{versions:?} {links:?}");
        };
        check(&["1", "2", "10"], &[], &[10], &[]);
        check(&["1", "2", "10"], &[("live", "2")], &[2], &[]);
        check(&["1", "2", "10"], &[("live", "2/"), ("shadow", "./10")], &[2, 10], &[]);
        // Without a live version, the latest besides.
        check(&["1", "2", "10"], &[("old", "1")], &[1, 10], &[]);
        // A live link that names nothing must not make the latest version live.
        check(&["1", "2"], &[("live", "3")], &[], &["live"]);
        check(&["1", "2"], &[("live", "../other/1"), ("old", "1")], &[1], &["live"]);
        check(&["1", "02", ".3", "x"], &[], &[1], &[]);
    }

    #[test]
    fn a_link_is_replaced_in_one_step_or_left() {
        let root = folder(&["1", "2"], &[("live", "1")]);
        let live = || read(root.path()).unwrap().0["clicks"].aliases.get(LIVE).copied();
        drop(NewLink::prepare(root.path(), "clicks", LIVE, 2).unwrap());
        assert_eq!(live(), Some(1));
        NewLink::prepare(root.path(), "clicks", LIVE, 2).unwrap().commit().unwrap();
        assert_eq!((live(), names(&root.path().join("clicks")).unwrap().len()), (Some(2), 3));
        remove_link(root.path(), "clicks", LIVE).unwrap();
        remove_link(root.path(), "clicks", LIVE).unwrap();
        assert_eq!(live(), None);
        let (kept, error) = (root.path().join("clicks/live"), "a file of this name");
        fs::write(&kept, "").unwrap();
        let found = NewLink::prepare(root.path(), "clicks", LIVE, 2).unwrap_err();
        assert!(found.to_string().contains(error) && kept.is_file());
    }

    #[test]
    fn names_are_plain() {
        for (text, name, alias) in [
            ("clicks", true, true),
            ("a.b-c_1", true, true),
            ("12", true, false),
            (".new", false, false),
            ("a/b", false, false),
            ("a@1", false, false),
            ("", false, false),
        ] {
            assert_eq!((is_name(text), is_alias(text)), (name, alias), "{text}");
        }
    }
}
