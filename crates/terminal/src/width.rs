//! Lines that fit a terminal: long ones are broken between words, wide tables are folded. Where the output is no terminal, nothing
//! changes. Knows no text.

use std::borrow::Cow;
use std::io::{Stderr, Stdout};

use terminal_size::{Width, terminal_size_of};

/// No terminal is treated as narrower than this.
const WIDTH_MIN: usize = 40;
/// Continuation lines stand below the value of a `name  value` line whose value begins no further right than this.
const INDENT_MAX: usize = 24;
/// Indent of other continuation lines.
const INDENT: usize = 2;

/// The width of the terminal that standard error is; none if it is no terminal.
pub fn of_stderr() -> Option<usize> {
    of(terminal_size_of::<Stderr>(std::io::stderr()))
}

/// The width of the terminal that standard output is; none if it is no terminal.
pub fn of_stdout() -> Option<usize> {
    of(terminal_size_of::<Stdout>(std::io::stdout()))
}

fn of(size: Option<(Width, terminal_size::Height)>) -> Option<usize> {
    size.map(|(Width(width), _)| usize::from(width).max(WIDTH_MIN))
}

/// The text with lines of at most so many characters; words that are longer stay whole.
pub fn wrapped(text: &str, width: Option<usize>) -> Cow<'_, str> {
    match width {
        Some(width) if text.lines().any(|line| line.chars().count() > width) => {
            Cow::Owned(text.split('\n').map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n"))
        }
        _ => Cow::Borrowed(text),
    }
}

fn wrapped_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let indent = " ".repeat(indent_of(line));
    let (mut out, mut used) = (String::new(), 0);
    let mut is_start = true;
    for (at, word) in line.split(' ').enumerate() {
        let len = word.chars().count();
        if !is_start && !word.is_empty() && used + 1 + len > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&indent);
            used = indent.len();
        } else if at > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += len;
        is_start &= word.is_empty();
    }
    out
}

/// Where the lines after the first one begin.
fn indent_of(line: &str) -> usize {
    let name = line.trim_start();
    let begin = line.len() - name.len();
    let value = name.find("  ").map(|gap| begin + gap + name[gap..].len() - name[gap..].trim_start().len());
    value.filter(|&value| value <= INDENT_MAX).unwrap_or(begin + INDENT)
}

/// The columns of a table that stand together, given all widths and how many columns at the left every part repeats.
pub fn fold(widths: &[usize], repeated: usize, width: Option<usize>) -> Vec<Vec<usize>> {
    let all = || vec![(0..widths.len()).collect()];
    let Some(width) = width else { return all() };
    let cost = |columns: &[usize]| columns.iter().map(|&at| widths[at] + 2).sum::<usize>().saturating_sub(2);
    if cost(&(0..widths.len()).collect::<Vec<_>>()) <= width {
        return all();
    }
    let head: Vec<usize> = (0..repeated).collect();
    let mut parts = Vec::new();
    let mut part = head.clone();
    for at in repeated..widths.len() {
        part.push(at);
        if cost(&part) > width && part.len() > repeated + 1 {
            part.pop();
            parts.push(std::mem::replace(&mut part, head.clone()));
            part.push(at);
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal() {
        let line = "step 16000 over training (seen) data, auc 0.823456, logloss 0.412345, prob_mean 0.240000, \
                    real_mean 0.240000 (123.4 it/s; 256,000 examples/s)";
        assert_eq!(wrapped(line, None), line);
        for width in [40, 80, 120] {
            let text = wrapped(line, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(
                text.lines().skip(1).all(|line| line.starts_with("  ") && !line.starts_with("   ")),
                "{text}"
            );
            assert_eq!(
                text.split_whitespace().collect::<Vec<_>>(),
                line.split_whitespace().collect::<Vec<_>>()
            );
        }
        assert_eq!(wrapped("name    a bb\nx", Some(11)), "name    a\n        bb\nx");
        assert_eq!(wrapped("  averylongword", Some(5)), "  averylongword");
        assert_eq!(wrapped("", Some(5)), "");
    }

    #[test]
    fn wide_tables_are_folded() {
        let widths = [4, 10, 10, 10, 40];
        assert_eq!(fold(&widths, 1, None), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(fold(&widths, 1, Some(82)), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(fold(&widths, 1, Some(81)), [vec![0, 1, 2, 3], vec![0, 4]]);
        assert_eq!(fold(&widths, 1, Some(28)), [vec![0, 1, 2], vec![0, 3], vec![0, 4]]);
    }
}
