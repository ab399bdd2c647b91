//! Refusals as the client talks, and the token that a request brings.

use std::borrow::Cow;

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// The token of a request: that of the header `authorization: Bearer TOKEN`, or the password of `Basic` for a page that
/// a browser asks for.
///
/// A browser sends a password again unasked, even for other sites, so it counts for `GET` and `HEAD` only.
#[must_use]
pub fn sent_token<'a>(method: &Method, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    let (scheme, sent) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Cow::Borrowed(sent.trim()));
    }
    if !scheme.eq_ignore_ascii_case("basic") || method != Method::GET && method != Method::HEAD {
        return None;
    }
    let login = String::from_utf8(STANDARD.decode(sent.trim()).ok()?).ok()?;
    login.split_once(':').map(|(_, password)| Cow::Owned(password.to_owned()))
}

/// Tells in a refusal for want of a token how to send it. Of a person at a browser, the browser then asks for it.
pub fn ask_for_token(sent: &HeaderMap, refusal: &mut Response) {
    let headers = refusal.headers_mut();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    let accept = sent.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/html")) {
        let basic = "Basic realm=\"the token as password, any user name\", charset=\"UTF-8\"";
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(basic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_what_follows_bearer_or_the_password() {
        for (method, value, expected) in [
            (Method::GET, Some("Bearer abc"), Some("abc")),
            (Method::POST, Some("bearer  a b "), Some("a b")),
            (Method::GET, Some("Basic dTphOmI="), Some("a:b")), // u:a:b
            (Method::HEAD, Some("basic  OmE= "), Some("a")),    // :a
            (Method::POST, Some("Basic OmE="), None),
            (Method::GET, Some("Basic YQ=="), None), // a
            (Method::GET, Some("Basic abc"), None),
            (Method::GET, Some("abc"), None),
            (Method::GET, None, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, value.parse().expect("a header"));
            }
            assert_eq!(sent_token(&method, &headers).as_deref(), expected, "{method} {value:?}");
        }
    }

    #[test]
    fn a_browser_asks_for_the_password() {
        for (accept, expected) in [("text/html,*/*;q=0.8", 2), ("*/*", 1)] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().expect("a header"))]);
            let mut response = StatusCode::UNAUTHORIZED.into_response();
            ask_for_token(&headers, &mut response);
            assert_eq!(response.headers().get_all(WWW_AUTHENTICATE).iter().count(), expected, "{accept}");
        }
    }
}
