//! Refusals as the client talks, and the token that a request brings.

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tonic::{Code, Status};

use crate::web_page::is_grpc;

/// A refusal as a gRPC status or as plain HTTP, as the client talks.
#[must_use]
pub fn refuse(headers: &HeaderMap, status: StatusCode, code: Code, reason: &str) -> Response {
    match is_grpc(headers) {
        true => Status::new(code, reason).into_http(),
        false => {
            (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{reason}\n")).into_response()
        }
    }
}

/// The token of the header `authorization: Bearer TOKEN`.
#[must_use]
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_what_follows_bearer() {
        for (value, expected) in [
            (Some("Bearer abc"), Some("abc")),
            (Some("bearer  a b "), Some("a b")),
            (Some("Basic abc"), None),
            (Some("abc"), None),
            (None, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, value.parse().expect("a header"));
            }
            assert_eq!(bearer_token(&headers), expected, "{value:?}");
        }
    }
}
