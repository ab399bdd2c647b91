//! The query of a URL: names and values, percent-decoded.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::error::ServeError;

/// The pairs of a query in their order; a pair without `=` has an empty value.
pub(crate) fn pairs(query: &str) -> Result<Vec<(String, String)>, ServeError> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(n, v)| Ok((text(n)?, text(v)?)))
        .collect()
}

/// Decodes one name or value.
fn text(part: &str) -> Result<String, ServeError> {
    let spaced = part.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| ServeError::invalid("the query is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded() {
        let check = |query: &str, expected: &[(&str, &str)]| {
            let found = pairs(query).expect(query);
            let found: Vec<(&str, &str)> = found.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(found, expected, "{query}");
        };
        check("", &[]);
        check("key=1&key=2&&x", &[("key", "1"), ("key", "2"), ("x", "")]);
        check("value=a%20b+c%26%3d=%C3%BC", &[("value", "a b c&==ü")]);
        check("a=%4&b=%zz%", &[("a", "%4"), ("b", "%zz%")]);
        assert!(pairs("a=%ff").is_err());
    }
}
