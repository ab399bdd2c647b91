//! Errors of requests: a kind, which decides the HTTP status and the gRPC code, and one line of text.

use axum::http::StatusCode;
use sanderling_sample::FieldError;
use tonic::Code;

use crate::limit::{ERROR_CHARS_MAX, QUOTED_CHARS_MAX};

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is malformed, or a column, shape, datatype or value is wrong.
    Invalid,
    /// A model, version or table that is not served.
    NotFound,
    /// A change that needs a token at this server, which has none.
    Forbidden,
    /// More rows or bytes than a request may have.
    TooLarge,
    /// An encoding of the body that the server does not know.
    Unsupported,
    /// More requests than the server can answer in time.
    Overloaded,
    /// The time limit has passed.
    DeadlineExceeded,
    /// No model is loaded yet, or the server drains.
    NotReady,
    /// A bug.
    Internal,
}

impl Kind {
    /// HTTP status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Unsupported => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::Overloaded | Kind::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            Kind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Code of the gRPC status.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Kind::Invalid | Kind::TooLarge => Code::InvalidArgument,
            Kind::Forbidden => Code::PermissionDenied,
            Kind::NotFound => Code::NotFound,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Overloaded | Kind::NotReady => Code::Unavailable,
            Kind::DeadlineExceeded => Code::DeadlineExceeded,
            Kind::Internal => Code::Internal,
        }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ServeError {
    /// The kind.
    pub kind: Kind,
    text: String,
}

impl ServeError {
    /// An error with a text of bounded length on one line.
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> ServeError {
        let text: String = text.into();
        let is_fine = text.chars().count() <= ERROR_CHARS_MAX && !text.contains(char::is_control);
        let text = if is_fine { text } else { cut(&text, ERROR_CHARS_MAX) };
        ServeError { kind, text }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> ServeError {
        ServeError::new(Kind::Invalid, text)
    }

    /// A row with a field that does not encode.
    pub(crate) fn of_field(row: usize, columns: &[String], error: &FieldError) -> ServeError {
        let column = columns.get(error.column).map_or("", String::as_str);
        let (expected, found) = (&error.expected, &error.found);
        let column = quoted(column);
        ServeError::invalid(format!("row {row}: column {column}: expected {expected}, found {found}"))
    }

    /// A table that does not answer, which is a bug: requests are checked before.
    pub(crate) fn of_table(error: &sanderling_store::StoreError) -> ServeError {
        ServeError::new(Kind::Internal, error.to_string())
    }

    /// More rows than a request may have.
    pub(crate) fn too_many(found: usize, what: &str, max: usize) -> ServeError {
        let text = format!("{found} {what} in one request, at most {max}: send several requests");
        ServeError::new(Kind::TooLarge, text)
    }
}

/// A text without control characters, at most so long.
fn cut(text: &str, chars_max: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    match text.chars().count() > chars_max {
        false => text.chars().map(plain).collect(),
        true => text.chars().map(plain).take(chars_max - 3).chain("...".chars()).collect(),
    }
}

/// A name of a request as an error shows it: quoted and short.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", cut(name, QUOTED_CHARS_MAX))
}

/// Names in a list as an error shows them.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_one_line_of_bounded_length() {
        let error = ServeError::invalid(format!("a\nb{}", "ü".repeat(1000)));
        assert_eq!(error.to_string().chars().count(), ERROR_CHARS_MAX);
        assert!(error.to_string().starts_with("a bü") && error.to_string().ends_with("ü..."));
        assert_eq!(quoted("a\tb"), "\"a b\"");
        assert_eq!(quoted(&"x".repeat(100)).len(), QUOTED_CHARS_MAX + 2);
    }
}
