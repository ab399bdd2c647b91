//! Recognises text that is not columns by its first lines: JSON, pairs of libsvm or libffm, lists of ids. Reads no
//! file.

use std::path::Path;

use sanderling_sample::{SampleError, parse_f64, parse_u64};

/// Lines that are looked at.
const LINES: usize = 50;

/// A kind of text that is not columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// An object per line, or an array of them.
    Json,
    /// `label index:value ...`
    Libsvm,
    /// `label field:index:value ...`
    Libffm,
    /// Numbers between blanks, commas or tabs, with a varying count per line.
    IdLists,
}

impl TextKind {
    /// The kind of most of the first lines; `None`: columns, as far as can be told.
    pub fn of(text: &[u8]) -> Option<TextKind> {
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).take(LINES).collect();
        let first = *lines.first()?;
        if is_json(first) {
            return Some(TextKind::Json);
        }
        let most =
            |is: &dyn Fn(&[u8]) -> bool| 2 * lines.iter().filter(|line| is(line)).count() > lines.len();
        let kinds = [(1, TextKind::Libsvm), (2, TextKind::Libffm)];
        if let Some((_, kind)) = kinds.into_iter().find(|&(colons, _)| most(&|line| is_pairs(line, colons))) {
            return Some(kind);
        }
        let ids = |line: &&[u8]| ids_in(line);
        let counts: Option<Vec<usize>> = lines.iter().map(ids).collect();
        let is_ragged = |counts: Vec<usize>| counts.iter().any(|count| *count != counts[0]);
        counts.is_some_and(is_ragged).then_some(TextKind::IdLists)
    }

    /// The kind, and what to do.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            TextKind::Json => {
                "is JSON, which is not read; convert it to Parquet or CSV, for example by \
                 pandas.read_json(path, lines=True).to_parquet(...)"
            }
            TextKind::Libsvm => "its lines are index:value pairs: set format = \"libsvm\"",
            TextKind::Libffm => "its lines are field:index:value triples: set format = \"libffm\"",
            TextKind::IdLists => {
                "its lines are lists of ids, each of another length: write libsvm lines (label index:1 index:1 ...), or CSV with a \
                 column per list (label,ids and rows such as 1,5|7|9)"
            }
        }
    }

    /// # Errors
    /// `BadFile` for JSON: no line of it is a row of columns.
    pub fn refuse_json(text: &[u8], path: &Path) -> Result<(), SampleError> {
        let line = text.trim_ascii_start();
        if is_json(line) {
            return Err(TextKind::Json.error(path));
        }
        Ok(())
    }

    /// The error that names the kind and what to do.
    pub fn error(self, path: &Path) -> SampleError {
        SampleError::BadFile { path: path.to_path_buf(), reason: self.hint().to_string() }
    }
}

/// Whether a text begins as a JSON object with a name in it, or as an array of such.
fn is_json(text: &[u8]) -> bool {
    let object = match text {
        [b'[', rest @ ..] => rest.trim_ascii_start(),
        text => text,
    };
    matches!(object, [b'{', rest @ ..] if rest.trim_ascii_start().starts_with(b"\"") && rest.contains(&b':'))
}

/// Whether a line is a number, then tokens with this many colons between whole numbers and a last part.
fn is_pairs(line: &[u8], colons: usize) -> bool {
    let mut tokens = line.split(|&byte| byte == b' ' || byte == b'\t').filter(|token| !token.is_empty());
    let is_label = tokens.next().is_some_and(|token| parse_f64(token).is_some());
    let mut count = 0;
    let is_pair = |token: &[u8]| {
        count += 1;
        let mut parts: Vec<&[u8]> = token.split(|&byte| byte == b':').collect();
        let last = parts.pop();
        parts.len() == colons
            && last.is_some_and(|last| parse_f64(last).is_some())
            && parts.iter().all(|part| parse_u64(part).is_some())
    };
    is_label && tokens.all(is_pair) && count > 0
}

/// The number of ids of a line that contains only ids.
fn ids_in(line: &[u8]) -> Option<usize> {
    let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
    let mut ids = line.split(is_between).filter(|id| !id.is_empty());
    ids.try_fold(0, |count, id| parse_u64(id).map(|_| count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_columns_is_called_what_it_is() {
        let check = |text: &str, expected: Option<TextKind>| {
            assert_eq!(TextKind::of(text.as_bytes()), expected, "{text}");
        };
        check("{\"label\": 1, \"user\": \"a\"}\n{\"label\": 0}\n", Some(TextKind::Json));
        check("\n[\n  {\"label\": 1}\n", None);
        check("[{\"label\": 1}]\n", Some(TextKind::Json));
        check("{\"a\"}", None);
        check("1 5:1 7:0.5\n0 3:1\n", Some(TextKind::Libsvm));
        check("1 0:5:1 1:7:0.5\n0 0:3:1\n", Some(TextKind::Libffm));
        check("1 5 9 12\n0 7\n3 4 5\n", Some(TextKind::IdLists));
        check("1,5,9\n0,7\n", Some(TextKind::IdLists));
        check("1,5,9\n0,7,8\n", None);
        check("label,user\n1,5\n0,7,8\n", None);
        check("10:20,3\n11:20,4\n", None);
        check("", None);
    }
}
