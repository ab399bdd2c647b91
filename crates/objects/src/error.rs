//! Errors of requests to a store, with what the user can do about them. It knows the library's errors and sends no
//! request.

use std::io;

use object_store::Error;

use crate::place::Kind;

/// Most characters quoted from a server's answer.
const QUOTED_CHARS_MAX: usize = 400;

/// A file or a pattern could not be found or read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct ObjectError {
    /// The url as it was given.
    pub url: String,
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// The problem, and what to do.
    pub reason: String,
}

impl ObjectError {
    pub(crate) fn new(url: &str, kind: io::ErrorKind, reason: impl Into<String>) -> ObjectError {
        ObjectError { url: url.to_string(), kind, reason: reason.into() }
    }

    /// Converts an error of the library and adds what to do.
    pub(crate) fn of(url: &str, kind: Kind, error: &Error) -> ObjectError {
        let said = quoted(error);
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let (kind, advice) = if has(&[
            "169.254.169.254",
            "169.254.170.2",
            "metadata.google.internal",
            "computeMetadata",
            "latest/api/token",
        ]) {
            // Without credentials the library asks the machine's metadata service, which only exists in the cloud.
            (io::ErrorKind::PermissionDenied, format!("there are no credentials: {}", credentials(kind)))
        } else if kind == Kind::Azure && has(&["Account must be specified"]) {
            (io::ErrorKind::PermissionDenied, format!("no account is named: {}", credentials(kind)))
        } else if kind == Kind::S3
            && has(&[
                "Received redirect without LOCATION",
                "PermanentRedirect",
                "AuthorizationHeaderMalformed",
            ])
        {
            let advice = "it is in another region: set AWS_REGION to that of the bucket";
            (io::ErrorKind::InvalidInput, advice.to_string())
        } else if kind == Kind::S3 && has(&["400 Bad Request"]) {
            let advice =
                "is refused; often AWS_REGION is not that of the bucket, or the credentials have expired";
            (io::ErrorKind::InvalidInput, advice.to_string())
        } else if has(&["URL scheme is not allowed"]) {
            let advice = format!(
                "plain http is refused: set {}_ALLOW_HTTP=true if the endpoint is meant to be without TLS",
                variables(kind)
            );
            (io::ErrorKind::InvalidInput, advice)
        } else if has(&["Content-Length Header missing", "Content-Length header missing"]) {
            let advice = "the server does not say how long it is; fetch it into a file and name that one";
            (io::ErrorKind::Unsupported, advice.to_string())
        } else if has(&["error sending request"]) {
            (io::ErrorKind::NotConnected, "its server cannot be reached".to_string())
        } else {
            match error {
                Error::NotFound { .. } => (
                    io::ErrorKind::NotFound,
                    "is not there; look for a slip in its name, upper and lower case differ".to_string(),
                ),
                Error::PermissionDenied { .. } => {
                    let why = "may not be read, or is not there and may not be looked for";
                    (io::ErrorKind::PermissionDenied, format!("{why}: {}", credentials(kind)))
                }
                Error::Unauthenticated { .. } => {
                    let why = "the credentials are missing, wrong or have expired";
                    (io::ErrorKind::PermissionDenied, format!("{why}: {}", credentials(kind)))
                }
                Error::InvalidPath { .. } => {
                    (io::ErrorKind::InvalidInput, "has a name that cannot be asked for".to_string())
                }
                _ => (io::ErrorKind::Other, "cannot be read".to_string()),
            }
        };
        ObjectError::new(url, kind, format!("{advice} ({said})"))
    }

    /// The error of a file that changed while it was read.
    pub(crate) fn changed(url: &str) -> ObjectError {
        let reason = "has changed while it was read: start again";
        ObjectError::new(url, io::ErrorKind::InvalidData, reason)
    }
}

impl From<ObjectError> for io::Error {
    /// Drops the url: the error that wraps this one names the input.
    fn from(error: ObjectError) -> io::Error {
        io::Error::new(error.kind, error.reason)
    }
}

/// An error with its causes if they add information, on one line of bounded length.
fn quoted(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > QUOTED_CHARS_MAX {
        line.chars().take(QUOTED_CHARS_MAX).chain("...".chars()).collect()
    } else {
        line
    }
}

/// The prefix of the environment variables of a kind of store.
pub(crate) fn variables(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => "AWS",
        Kind::Gcs => "GOOGLE",
        Kind::Azure => "AZURE",
        Kind::Web => "HTTP",
    }
}

fn credentials(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => {
            "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (AWS_SESSION_TOKEN with temporary ones), or \
             AWS_SKIP_SIGNATURE=true for a public bucket; profiles of ~/.aws are not read"
        }
        Kind::Gcs => {
            "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to a file of credentials, or \
             GOOGLE_SKIP_SIGNATURE=true for a public bucket"
        }
        Kind::Azure => {
            "set AZURE_STORAGE_ACCOUNT_NAME and one of AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, \
             AZURE_CLIENT_ID with AZURE_CLIENT_SECRET and AZURE_TENANT_ID, or AZURE_SKIP_SIGNATURE=true for a public container"
        }
        Kind::Web => "a web server is asked without credentials; a signed url carries its own",
    }
}
