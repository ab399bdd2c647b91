//! The query of a URL: names and values, percent-decoded.

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
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        bytes.push(match (first, more) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                rest = after;
                let digit = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
                digit(*high) << 4 | digit(*low)
            }
            (other, _) => *other,
        });
    }
    String::from_utf8(bytes).map_err(|_| ServeError::invalid("the query is not UTF-8"))
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
