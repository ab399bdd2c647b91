//! How deep a compiler of a script may have to go, seen from its text alone: brackets within brackets, and what hangs together
//! without a comma or a semicolon between (`!!!x`, `1 + 1 + 1`, `f()()()`). Knows no grammar.

/// Deepest that a script may be. The compiler calls itself so often; its thread has the stack for it.
pub(super) const DEPTH_MAX: usize = 1024;

/// Where a text goes deeper than [`DEPTH_MAX`]: its line, from 1.
pub(super) fn too_deep(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    // Per open bracket, pieces that hang together so far; and the sum of them all.
    let (mut chains, mut depth, mut line, mut at) = (vec![0_usize], 0_usize, 1_usize, 0_usize);
    let add = |chains: &mut Vec<usize>| {
        if let Some(chain) = chains.last_mut() {
            *chain += 1;
        }
    };
    while let Some(&byte) = bytes.get(at) {
        let next = bytes.get(at + 1).copied();
        let mut length = 1;
        match byte {
            b'/' if next == Some(b'/') => length = until(bytes, at, b"\n"),
            b'/' if next == Some(b'*') => length = until(bytes, at + 2, b"*/") + 4,
            b'"' | b'`' => {
                length = quoted(bytes, at, byte);
                add(&mut chains);
                depth += 1;
            }
            b'(' | b'[' | b'{' => {
                add(&mut chains);
                chains.push(0);
                depth += 1;
            }
            b')' | b']' | b'}' => {
                if chains.len() > 1 {
                    depth -= chains.pop().unwrap_or_default();
                }
                // Functions follow each other without anything between.
                if chains.len() == 1 && byte == b'}' {
                    depth -= std::mem::take(&mut chains[0]);
                }
            }
            b',' | b';' => {
                if let Some(chain) = chains.last_mut() {
                    depth -= std::mem::take(chain);
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            byte => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
                if is_word(&byte) {
                    length = bytes[at..].iter().take_while(|byte| is_word(byte)).count();
                }
                add(&mut chains);
                depth += 1;
            }
        }
        if depth > DEPTH_MAX {
            return Some(line);
        }
        let end = (at + length).min(bytes.len());
        line += bytes[at..end].iter().filter(|&&byte| byte == b'\n').count();
        at = end;
    }
    None
}

/// Bytes from a place up to a mark, or to the end.
fn until(bytes: &[u8], from: usize, mark: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.windows(mark.len()).position(|window| window == mark).unwrap_or(rest.len())
}

/// Bytes of a text with its quotes, or up to the end.
fn quoted(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1 - from,
            _ => at += 1,
        }
    }
    bytes.len() - from
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Program;

    #[test]
    fn what_hangs_together_counts_and_what_follows_does_not() {
        let many = 3 * DEPTH_MAX;
        for deep in ["(", "[", "{", "!", "1 + ", "a.b", "f()", "if x {} else ", "match x { a => ", "-\n"] {
            let body = |times| format!("fn f() {{ {}", deep.repeat(times));
            assert!(too_deep(&body(many)).is_some(), "{deep}");
            assert_eq!(too_deep(&body(10)), None, "{deep}");
        }
        for flat in
            ["f(a, b);", "[1, 2], ", "fn f() { g(1) }\n", "// ((((((\n", "/* {{{ */", "\"((\\\"((\", "]
        {
            assert_eq!(too_deep(&flat.repeat(many)), None, "{flat}");
        }
        assert_eq!(too_deep(&format!("a;\n\n{}", "(".repeat(many))), Some(3));
        for name in Program::builtins() {
            assert_eq!(too_deep(&Program::builtin(name).expect("it ships").source), None, "{name}");
        }
    }

    /// As deep as a script may be in each way: the compiler has the stack for it, whatever it makes of the text.
    #[test]
    fn scripts_that_go_as_deep_as_they_may_are_compiled_or_refused() {
        for (open, close, pieces) in [
            ("(", ")", 1),
            ("[", "]", 1),
            ("{ ", " }", 1),
            ("!", "", 1),
            ("1 + ", "", 2),
            ("f(", ")", 2),
            ("|x| ", "", 3),
            ("if x { ", " }", 3),
            ("match x { _ => ", " }", 6),
        ] {
            let times = (DEPTH_MAX - 20) / pieces;
            let source = format!("pub fn f(x) {{ {}1{} }}", open.repeat(times), close.repeat(times));
            assert_eq!(too_deep(&source), None, "{open}");
            let _ = Program::new("deep.rn", source).describe();
        }
    }

    /// A list of a quarter of a megabyte is no deeper than its values, and takes what compiling may take at most.
    #[test]
    fn a_long_script_takes_bounded_memory() {
        let source = format!("pub fn f() {{ [{}] }}", "1,".repeat(120_000));
        assert_eq!(too_deep(&source), None);
        let _ = Program::new("long.rn", source).describe();
        let source = " ".repeat(crate::script::SOURCE_BYTES_MAX + 1);
        let error = Program::new("long.rn", source).describe().expect_err("it is too long").to_string();
        assert!(error.contains("it is longer than 256 KiB"), "{error}");
    }
}
