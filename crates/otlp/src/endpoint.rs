//! The address of a collector, and the headers of requests to it. Opens nothing.

use std::str::FromStr;

use reqwest::Url;

/// The path of traces, below an address without a path.
const PATH: &str = "/v1/traces";
/// Headers of each request, by the environment variable that other exporters read: `name=value,...`.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Where traces are posted to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) url: Url,
}

impl FromStr for Endpoint {
    type Err = String;

    /// Parses the address of a collector: `host:port`, which is asked over HTTP, or a URL. `/v1/traces` is added; a path of
    /// its own stays as it is.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let mut url: Url = whole
            .parse()
            .map_err(|error| format!("{text:?}: {error}; give HOST:PORT, such as 127.0.0.1:4318"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{text:?}: must be HOST:PORT, or begin with http:// or https://"));
        }
        if url.path() == "/" {
            url.set_path(PATH);
        }
        Ok(Endpoint { url })
    }
}

/// The headers that the environment names. Parts without `=` are left out.
pub(crate) fn headers() -> Vec<(String, String)> {
    parse_headers(&std::env::var(HEADERS_VARIABLE).unwrap_or_default())
}

fn parse_headers(text: &str) -> Vec<(String, String)> {
    let header = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_path_of_traces() {
        for (text, expected) in [
            ("http://127.0.0.1:4318", Some("http://127.0.0.1:4318/v1/traces")),
            ("http://collector:4318/", Some("http://collector:4318/v1/traces")),
            ("https://otlp.example/some/path", Some("https://otlp.example/some/path")),
            ("127.0.0.1:4318", Some("http://127.0.0.1:4318/v1/traces")),
            ("ftp://host", None),
            ("", None),
        ] {
            let found = text.parse::<Endpoint>().ok().map(|endpoint| endpoint.url.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn headers_are_names_and_values() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(parse_headers("a=1, b = x=y,,c"), [pair("a", "1"), pair("b", "x=y")]);
    }
}
