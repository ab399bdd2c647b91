//! Detection of requests that a web page may have sent through a browser, whatever page it is.

use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode, Uri};

/// The header in which a browser names the origin of a request (Fetch Metadata).
const FETCH_SITE: &str = "sec-fetch-site";
/// Its values for an address that a person typed, and for the site itself.
const NO_OTHER_SITE: [&str; 2] = ["none", "same-origin"];
/// The content type of gRPC. A page cannot send it to another site without a preflight request.
const GRPC: &str = "application/grpc";

/// Whether the request is gRPC. gRPC-Web is for pages and does not count.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()?.strip_prefix(GRPC));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';', ' ']))
}

/// The reason to refuse a request that a page may have sent.
#[must_use]
pub fn refusal(method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    if is_from_page(headers) {
        let reason = "this is not for web pages: a request with Origin, or from another site, is refused";
        return Some((StatusCode::FORBIDDEN, reason));
    }
    let is_plain_look = method == Method::GET || method == Method::HEAD;
    (!is_plain_look && !is_grpc(headers)).then_some((
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "calls are gRPC: the content type must be application/grpc",
    ))
}

/// Whether a browser says that a page sent the request.
#[must_use]
pub fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE).map(|site| site.to_str().unwrap_or_default());
    headers.contains_key(ORIGIN) || site.is_some_and(|site| !NO_OTHER_SITE.contains(&site))
}

/// Whether a browser says that a page of another site sent the request. A page of this server may send any request.
#[must_use]
pub fn is_from_other_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text(FETCH_SITE) {
        return !NO_OTHER_SITE.contains(&site);
    }
    // Browsers without Fetch Metadata.
    let Some(origin) = text(ORIGIN.as_str()) else { return false };
    let host = text(HOST.as_str()).unwrap_or_default();
    host.is_empty() || origin.split_once("://").is_none_or(|(_, origin)| origin != host)
}

/// The host that the client asked for, without the port: from the request line or the header.
#[must_use]
pub fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    if let Some(host) = uri.host() {
        return Some(host);
    }
    let host = headers.get(HOST)?.to_str().ok()?;
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(name),
        _ => Some(host),
    }
}

/// Whether a host is a numeric address. Only names can point to foreign addresses (DNS rebinding).
#[must_use]
pub fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_a_page_can_send_unasked_is_refused() {
        let grpc = ("content-type", "application/grpc");
        for (method, sent, expected) in [
            (Method::POST, &[grpc][..], None),
            (Method::POST, &[("content-type", "application/grpc+proto")], None),
            (Method::GET, &[], None),
            (Method::GET, &[("sec-fetch-site", "none")], None),
            (Method::GET, &[("sec-fetch-site", "cross-site")], Some(403)),
            (Method::GET, &[("origin", "null")], Some(403)),
            (Method::POST, &[grpc, ("origin", "http://127.0.0.1:7100")], Some(403)),
            (Method::POST, &[("content-type", "text/plain")], Some(415)),
            (Method::POST, &[("content-type", "application/grpc-web")], Some(415)),
            (Method::POST, &[("content-type", "application/x-www-form-urlencoded")], Some(415)),
            (Method::POST, &[], Some(415)),
            (Method::PUT, &[], Some(415)),
        ] {
            let found = refusal(&method, &headers(sent)).map(|(code, _)| code.as_u16());
            assert_eq!(found, expected, "{method} {sent:?}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_told_from_those_of_this_one() {
        let host = ("host", "127.0.0.1:8500");
        for (sent, expected) in [
            (&[host][..], false),
            (&[host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8500")], false),
            (&[host, ("sec-fetch-site", "none")], false),
            (&[host, ("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")], true),
            (&[host, ("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:9")], true),
            (&[host, ("origin", "http://127.0.0.1:8500")], false),
            (&[host, ("origin", "http://127.0.0.1:9")], true),
            (&[host, ("origin", "null")], true),
            (&[("origin", "null")], true),
        ] {
            assert_eq!(is_from_other_site(&headers(sent)), expected, "{sent:?}");
        }
    }

    #[test]
    fn the_host_is_what_the_client_asked_for() {
        for (uri, sent, expected, is_number) in [
            ("/Drop", "127.0.0.1:7100", Some("127.0.0.1"), true),
            ("/Drop", "[::1]:7100", Some("[::1]"), true),
            ("/Drop", "[::1]", Some("[::1]"), true),
            ("/Drop", "evil.example", Some("evil.example"), false),
            ("/Drop", "127.0.0.1.evil.example:7100", Some("127.0.0.1.evil.example"), false),
            ("http://db1:7100/Drop", "127.0.0.1", Some("db1"), false),
        ] {
            let (uri, headers) = (uri.parse::<Uri>().unwrap(), headers(&[("host", sent)]));
            let found = host(&uri, &headers);
            assert_eq!((found, found.is_some_and(is_address)), (expected, is_number), "{uri} {sent}");
        }
        assert_eq!(host(&"/".parse().unwrap(), &HeaderMap::new()), None);
    }
}
