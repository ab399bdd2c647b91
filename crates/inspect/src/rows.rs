//! Delimited text without a configuration: guesses separator and header, and cuts lines into fields by the rules of
//! the CSV and TSV readers.

use std::borrow::Cow;

use sanderling_formats::Format;
use sanderling_formats::delimited::end_of_field;
use sanderling_formats::quotes::Quotes;
use sanderling_sample::parse_f64;

/// Lines that the guesses look at.
const GUESS_LINES: usize = 1000;

/// The rules by which lines are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut<'s> {
    pub(super) separator: &'s [u8],
    /// CSV: quotes enclose fields, and spaces around a field do not count.
    pub(super) quotes: bool,
}

/// The lines of a text, without their ends.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

fn trim(field: &[u8]) -> &[u8] {
    // A tab may be the separator.
    let start = field.iter().position(|&byte| byte != b' ').unwrap_or(field.len());
    let end = field.iter().rposition(|&byte| byte != b' ').map_or(start, |at| at + 1);
    &field[start..end]
}

/// The records of a text without their ends, each with the number of lines before it; the last may be torn. Quotes in comments are
/// characters.
pub(super) fn records<'t>(
    text: &'t [u8],
    cut: Cut<'_>,
    comment: Option<u8>,
) -> impl Iterator<Item = (u64, &'t [u8])> + use<'t> {
    let quotes = Quotes { separator: cut.separator.to_vec(), comment };
    let (mut rest, mut before, has_quotes) = (text, 0, cut.quotes);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line_feed = rest.iter().position(|&byte| byte == b'\n');
        let end = match line_feed {
            Some(at) if !has_quotes || !rest[..at].contains(&b'"') => at + 1,
            _ if has_quotes => quotes.first_end(rest).end,
            _ => 0,
        };
        let (record, behind) = rest.split_at(if end > 0 { end } else { rest.len() });
        let number = before;
        before += record.iter().filter(|&&byte| byte == b'\n').count() as u64;
        rest = behind;
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        Some((number, record.strip_suffix(b"\r").unwrap_or(record)))
    })
}

impl Cut<'_> {
    /// The fields of a line; an error is the position of a field whose quotes do not close.
    pub(super) fn split<'a>(&self, line: &'a [u8], fields: &mut Vec<Cow<'a, [u8]>>) -> Result<(), usize> {
        fields.clear();
        let mut rest = line;
        loop {
            let quoted = if self.quotes { trim(rest).strip_prefix(b"\"") } else { None };
            let end = match quoted {
                None => {
                    let end = end_of_field(rest, self.separator);
                    let field = if self.quotes { trim(&rest[..end]) } else { &rest[..end] };
                    fields.push(Cow::Borrowed(field));
                    end
                }
                Some(_) => {
                    let (field, end) = self.quoted(rest).ok_or(fields.len() + 1)?;
                    fields.push(Cow::Owned(field));
                    end
                }
            };
            if end == rest.len() {
                return Ok(());
            }
            rest = &rest[end + self.separator.len()..];
        }
    }

    /// A quoted field at the start of `rest`, and where the separator behind it stands.
    fn quoted(&self, rest: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut at = rest.iter().position(|&byte| byte == b'"')? + 1;
        let mut field = Vec::new();
        loop {
            match rest.get(at..)? {
                [b'"', b'"', ..] => {
                    field.push(b'"');
                    at += 2;
                }
                [b'"', ..] => break,
                [byte, ..] => {
                    field.push(*byte);
                    at += 1;
                }
                [] => return None,
            }
        }
        let behind = &rest[at + 1..];
        let end = end_of_field(behind, self.separator);
        trim(&behind[..end]).is_empty().then_some((field, at + 1 + end))
    }
}

/// The format of a text, from its first lines: libsvm by its `index:value` tokens, libffm by `field:index:value`, else TSV by tabs, else CSV.
pub(super) fn guess_format(text: &[u8]) -> Format {
    let is_number = |token: &[u8]| !token.is_empty() && token.iter().all(u8::is_ascii_digit);
    // Whether a line has tokens with `colons` colons, as `index:value` and `field:index:value` lines do.
    let looks_sparse = |line: &[u8], colons: usize| {
        let mut tokens = line.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).peekable();
        let label = tokens.peek().is_some_and(|token| parse_f64(token).is_some());
        let pair = |token: &[u8]| {
            let mut parts = token.rsplitn(2, |&byte| byte == b':').skip(1);
            let before = parts.next().unwrap_or_default();
            before.split(|&byte| byte == b':').all(is_number)
                && token.iter().filter(|&&byte| byte == b':').count() == colons
        };
        label && line.contains(&b':') && tokens.skip(1).all(pair)
    };
    let mut sample = lines(text).filter(|line| !line.is_empty()).take(GUESS_LINES).peekable();
    let Some(first) = sample.peek().copied() else { return Format::Csv };
    let first_has_tab = first.contains(&b'\t');
    let (mut pairs, mut triples, mut all) = (0, 0, 0);
    for line in sample {
        pairs += usize::from(looks_sparse(line, 1));
        triples += usize::from(looks_sparse(line, 2));
        all += 1;
    }
    match () {
        () if 2 * pairs > all => Format::Libsvm,
        () if 2 * triples > all => Format::Libffm,
        () if first_has_tab => Format::Tsv,
        () => Format::Csv,
    }
}

/// The separator that cuts the first line into as many fields as the following lines, and into the most; the format's
/// own first. (Decimal commas cut every line except the header.)
pub(super) fn guess_separator(text: &[u8], format: Format) -> &'static [u8] {
    let own: &[u8] = if format == Format::Csv { b"," } else { b"\t" };
    let score = |separator: &'static [u8]| {
        let cut = Cut { separator, quotes: format == Format::Csv };
        let (mut fields, mut widths) = (Vec::new(), Vec::new());
        for (_, line) in records(text, cut, None).take(GUESS_LINES) {
            if cut.split(line, &mut fields).is_ok() {
                widths.push(fields.len());
            }
        }
        let first = widths.first().copied();
        widths.sort_unstable();
        let width = widths.get(widths.len() / 2).copied().unwrap_or(1);
        (first == Some(width), separator == own, width, separator)
    };
    let cutting =
        [&b","[..], b"\t", b";", b"|", b"::"].map(score).into_iter().filter(|(_, _, width, _)| *width > 1);
    cutting.max().map_or(own, |(.., separator)| separator)
}

/// Whether the first row names the columns.
///
/// None of its fields is a number, and only the first may be empty (pandas writes its index so). Also, some column
/// holds numbers below it, or no name recurs in its column; if a name is repeated in the row, both must hold.
pub(super) fn guess_header(text: &[u8], cut: Cut<'_>) -> bool {
    let mut rows = records(text, cut, None).map(|(_, line)| line).take(GUESS_LINES);
    let (mut header, mut fields) = (Vec::new(), Vec::new());
    if rows.next().is_none_or(|line| cut.split(line, &mut header).is_err()) {
        return false;
    }
    let named = |name: &Cow<'_, [u8]>| !name.is_empty() && parse_f64(name).is_none();
    let mut sorted = header.clone();
    sorted.sort_unstable();
    let repeats = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    let named_columns =
        header.get(usize::from(header.len() > 1 && header[0].is_empty())..).unwrap_or_default();
    if !named_columns.iter().all(named) {
        return false;
    }
    let (mut again, mut comes_again, mut below, mut numbers) = (false, false, 0, vec![0; header.len()]);
    for line in rows {
        if cut.split(line, &mut fields).is_err() || fields.len() != header.len() {
            continue;
        }
        // As in concatenated files.
        if fields == header {
            comes_again = true;
            continue;
        }
        below += 1;
        for ((name, field), numbers) in header.iter().zip(&fields).zip(&mut numbers) {
            again |= name == field;
            *numbers += usize::from(parse_f64(field).is_some());
        }
    }
    let has_numbers = numbers.iter().any(|&numbers| 2 * numbers > below);
    if below == 0 && comes_again {
        return false;
    }
    if repeats { has_numbers && !again } else { below == 0 || has_numbers || !again }
}
