//! Names of files and urls, as a user gives them.

use std::path::Path;

/// Whether a name is a url: letters, then `://`.
#[must_use]
pub fn is_url(name: &Path) -> bool {
    let name = name.to_str().unwrap_or_default();
    name.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// The part of a name in which its extension is: that of a web server's file ends where the query begins.
#[must_use]
pub fn without_query(name: &Path) -> &Path {
    let is_web = |name: &&str| name.starts_with("http://") || name.starts_with("https://");
    match name.to_str().filter(is_web).and_then(|name| name.split_once(['?', '#'])) {
        Some((path, _)) => Path::new(path),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_files() {
        let rows = [
            ("s3://b/x", true),
            ("https://h/x?y=1", true),
            ("unheard+of://x", true),
            ("a/b://c", false),
            ("://x", false),
            ("C:/x", false),
            ("-", false),
        ];
        for (name, expected) in rows {
            assert_eq!(is_url(Path::new(name)), expected, "{name}");
        }
        assert_eq!(without_query(Path::new("https://h/x.csv.gz?a=b.c")), Path::new("https://h/x.csv.gz"));
        assert_eq!(without_query(Path::new("s3://b/x?.csv")), Path::new("s3://b/x?.csv"));
    }
}
