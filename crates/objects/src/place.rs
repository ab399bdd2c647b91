//! A parsed url: the kind of store, the store, and a file or pattern in it. Sends nothing.

use std::io::ErrorKind;

use object_store::path::Path;
use reqwest::Url;

use crate::error::ObjectError;

/// The schemes that can be read, for messages.
const SCHEMES: &str = "s3://, gs://, az://, http:// and https://";

/// Kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Gcs,
    Azure,
    /// A web server.
    Web,
}

/// A parsed url.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// The url without its path, which identifies the store; with the query for a web server.
    pub(crate) base: String,
    /// The path without its leading slash; percent-decoded for web servers.
    pub(crate) key: String,
}

impl Place {
    pub(crate) fn parse(url: &str) -> Result<Place, ObjectError> {
        let wrong = |reason: String| ObjectError::new(url, ErrorKind::InvalidInput, reason);
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(wrong(format!("is no url; those begin with {SCHEMES}")));
        };
        let kind = match scheme {
            "s3" | "s3a" => Kind::S3,
            "gs" => Kind::Gcs,
            "az" | "azure" | "adl" | "abfs" | "abfss" => Kind::Azure,
            "http" | "https" => return Self::parse_web(url),
            other => {
                return Err(wrong(format!(
                    "nothing is known of {other}://; what can be read by url is {SCHEMES}"
                )));
            }
        };
        let (store, key) = rest.split_once('/').unwrap_or((rest, ""));
        if store.is_empty() {
            return Err(wrong(format!(
                "names no bucket; a whole name is like {scheme}://bucket/dir/part-*.gz"
            )));
        }
        Self { kind, base: format!("{scheme}://{store}"), key: key.to_string() }.checked(url)
    }

    fn parse_web(url: &str) -> Result<Place, ObjectError> {
        let wrong = |reason: String| ObjectError::new(url, ErrorKind::InvalidInput, reason);
        let mut parsed = Url::parse(url).map_err(|error| wrong(format!("is no url: {error}")))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("has a user in it, which is not passed on; leave it out".to_string()));
        }
        if parsed.path().to_ascii_lowercase().contains("%2f") {
            // In the decoded key it would be one more folder, and thus another file.
            return Err(wrong(
                "has %2F in its path, which cannot be asked for; fetch it into a file and name that one"
                    .to_string(),
            ));
        }
        let path = Path::from_url_path(parsed.path()).map_err(|error| wrong(error.to_string()))?;
        let slash = if parsed.path().ends_with('/') { "/" } else { "" };
        let key = format!("{path}{slash}");
        parsed.set_fragment(None);
        parsed.set_path("");
        Self { kind: Kind::Web, base: parsed.to_string(), key }.checked(url)
    }

    fn checked(self, url: &str) -> Result<Place, ObjectError> {
        if self.key.is_empty() || self.key.ends_with('/') {
            let (start, _) = url.split_once('?').filter(|_| self.kind == Kind::Web).unwrap_or((url, ""));
            let reason = format!("names no file; name some, such as {}/*", start.trim_end_matches('/'));
            return Err(ObjectError::new(url, ErrorKind::IsADirectory, reason));
        }
        Ok(self)
    }

    /// The start of the pattern in the key, if it has one.
    pub(crate) fn pattern_at(&self) -> Option<usize> {
        let signs: &[char] = if self.kind == Kind::Web { &['*', '['] } else { &['*', '?', '['] };
        self.key.find(signs)
    }

    pub(crate) fn path(&self, url: &str) -> Result<Path, ObjectError> {
        Path::parse(&self.key).map_err(|error| {
            ObjectError::new(url, ErrorKind::InvalidInput, format!("cannot be asked for: {error}"))
        })
    }

    /// The url of another file of the same store.
    pub(crate) fn url_of(&self, path: &Path) -> String {
        if self.kind == Kind::Web
            && let Ok(mut url) = Url::parse(&self.base)
        {
            if let Ok(mut parts) = url.path_segments_mut() {
                parts.clear().extend(path.parts().map(|part| part.as_ref().to_string()));
            }
            return url.to_string();
        }
        format!("{}/{path}", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let rows = [
            ("s3://b/dir/part-*.gz", Ok((Kind::S3, "s3://b", "dir/part-*.gz", Some(9)))),
            ("s3://b/a b#c?.csv", Ok((Kind::S3, "s3://b", "a b#c?.csv", Some(5)))),
            ("gs://b/x%20y", Ok((Kind::Gcs, "gs://b", "x%20y", None))),
            (
                "abfss://c@acc.dfs.core.windows.net/d/x.csv",
                Ok((Kind::Azure, "abfss://c@acc.dfs.core.windows.net", "d/x.csv", None)),
            ),
            ("http://h:81/d/x%20y.csv?a=1", Ok((Kind::Web, "http://h:81/?a=1", "d/x y.csv", None))),
            ("https://[::1]/d/*.csv", Ok((Kind::Web, "https://[::1]/", "d/*.csv", Some(2)))),
            ("s3://b", Err("names no file; name some, such as s3://b/*")),
            ("gs://b/d/", Err("names no file; name some, such as gs://b/d/*")),
            ("http://h/d/?x=1", Err("names no file; name some, such as http://h/d/*")),
            ("s3:///x", Err("names no bucket")),
            ("ftp://h/x", Err("nothing is known of ftp://")),
            ("https://me:secret@h/x", Err("has a user in it")),
            ("http://h/d/a%2Fb.csv", Err("has %2F in its path")),
            ("http://h/d%2f*.csv", Err("has %2F in its path")),
            ("http://", Err("is no url: ")),
        ];
        for (url, expected) in rows {
            match (Place::parse(url), expected) {
                (Ok(place), Ok((kind, base, key, at))) => {
                    assert_eq!((place.kind, &*place.base, &*place.key), (kind, base, key), "{url}");
                    assert_eq!(place.pattern_at(), at, "{url}");
                }
                (Err(error), Err(reason)) => assert!(error.reason.contains(reason), "{error}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
        let place = Place::parse("http://h/d/*.csv?a=1").unwrap();
        let path = Path::parse("d/x y%.csv").unwrap();
        assert_eq!(place.url_of(&path), "http://h/d/x%20y%25.csv?a=1");
    }
}
