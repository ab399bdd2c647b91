//! Names by pattern. Knows nothing of what has a name.

/// Whether a name matches a pattern; `*` matches any characters.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("clicks/site", "clicks/site", true),
            ("clicks/site", "clicks/sites", false),
            ("clicks/*", "clicks/site", true),
            ("clicks/*", "clicks/", true),
            ("clicks/*", "clicks", false),
            ("clicks/*", "my-clicks/site", false),
            ("*", "", true),
            ("*/site", "a/b/site", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
