//! Recognises files that are not text by their first bytes: another format, an unsupported compression, another
//! encoding. Reads none of them.

use std::path::Path;

use sanderling_sample::SampleError;

use crate::batch_file::is_batch_file;
use crate::input::STDIN;
use crate::records::is_tfrecord;

/// The most bytes that [`refuse`] looks at.
pub(crate) const START_BYTES_MAX: usize = TAR_AT + 5;

/// The offset of a tar archive's magic.
const TAR_AT: usize = 257;

/// The unsupported compressor of a file with this start.
fn packer(start: &[u8]) -> Option<&'static str> {
    match start {
        // Behind the compression level, the first block begins or an empty file ends.
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, ..] => Some("bzip2"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some("zip"),
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => Some("7z"),
        [0x1f, 0x9d, 0x80..=0x9f, ..] => Some("compress (.Z)"),
        [0x89, b'L', b'Z', b'O', 0, ..] => Some("lzop"),
        [0xff, 6, 0, 0, b's', b'N', b'a', b'P', b'p', b'Y', ..] => Some("snappy"),
        _ => None,
    }
}

/// The unsupported container format of a file with this start, and what to do with it.
fn container(start: &[u8]) -> Option<(&'static str, &'static str)> {
    if start.get(TAR_AT..).is_some_and(|rest| rest.starts_with(b"ustar")) {
        return Some(("a tar archive", "unpack it by tar -xf, and name the files in it"));
    }
    let convert = "convert it to Parquet";
    match start {
        [b'O', b'R', b'C', 0..=0x1f, ..] => Some(("ORC", convert)),
        [b'O', b'b', b'j', 1, ..] => Some(("Avro", convert)),
        [b'S', b'E', b'Q', 4..=6, ..] => Some(("a Hadoop sequence file", convert)),
        [0x89, b'H', b'D', b'F', b'\r', b'\n', ..] => Some(("HDF5", convert)),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(("a NumPy array", convert)),
        [b'S', b'Q', b'L', b'i', b't', b'e', b' ', b'f', b'o', b'r', b'm', b'a', b't', ..] => {
            Some(("an SQLite database", "export the table as CSV"))
        }
        [0x80, 2..=5, b'}' | b']' | 0x95 | b'c' | b'(', ..] => Some(("a Python pickle", convert)),
        _ => None,
    }
}

/// Refuses a file whose start is not text, and says what it is and what to do.
///
/// # Errors
/// `BadFile`.
pub(crate) fn refuse(start: &[u8], path: &Path) -> Result<(), SampleError> {
    match reason(start, path.as_os_str() == STDIN) {
        None => Ok(()),
        Some(reason) => Err(SampleError::BadFile { path: path.to_path_buf(), reason }),
    }
}

fn reason(start: &[u8], is_stdin: bool) -> Option<String> {
    let named = |what: &str, format: &str| {
        let how = if is_stdin { String::new() } else { format!("name it .{format}, or ") };
        Some(format!("is {what} by its content; {how}give the format, {format}"))
    };
    if is_batch_file(start) {
        return match is_stdin {
            true => Some(
                "is a batch file by its content, and batch files are mapped: name the file itself"
                    .to_string(),
            ),
            false => named("a batch file", "batch"),
        };
    }
    // The bytes behind the letters of each magic occur in no text.
    if start.starts_with(b"PAR1\x15") {
        return named("Parquet", "parquet");
    }
    if start.starts_with(b"ARROW1\0\0") {
        return named("Arrow", "arrow");
    }
    if is_tfrecord(start) {
        return named("TFRecord", "tfrecord");
    }
    if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = start {
        let how = "convert it, for example by iconv -f UTF-16 -t UTF-8";
        return Some(format!("is UTF-16 by its first bytes, and text is read as UTF-8; {how}"));
    }
    if let Some((what, how)) = container(start) {
        return Some(format!("is {what} by its content; {how}"));
    }
    let packer = packer(start)?;
    Some(format!("is packed by {packer}, which is not read; unpack it first, or pack it by gzip or zstd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_named_with_what_to_do() {
        let mut tar = vec![0; 512];
        tar[..8].copy_from_slice(b"rows.csv");
        tar[257..262].copy_from_slice(b"ustar");
        assert!(reason(&tar, false).is_some_and(|reason| reason.contains("tar -xf")));
        let check = |start: &[u8], part: &str| {
            assert!(reason(start, false).is_some_and(|reason| reason.contains(part)), "{part}");
        };
        check(b"ORC\x0a\x0b", "is ORC");
        check(b"Obj\x01\x04", "is Avro");
        check(b"SEQ\x06\x19org", "sequence file");
        check(b"\x89HDF\r\n\x1a\n", "HDF5");
        check(b"\x93NUMPY\x01\0", "NumPy");
        check(b"SQLite format 3\0", "SQLite");
        check(b"\x80\x04\x95\x10", "pickle");
        check(b"\x1f\x9d\x90abc", "compress");
        assert_eq!(reason(b"ORCHID,SEQ\n", false), None);
    }

    #[test]
    fn standard_input_is_not_to_be_named_otherwise() {
        let check = |start: &[u8], of_file: &str, of_stdin: &str| {
            assert_eq!(reason(start, false).as_deref(), Some(of_file));
            assert_eq!(reason(start, true).as_deref(), Some(of_stdin));
        };
        check(
            b"PAR1\x15\x04",
            "is Parquet by its content; name it .parquet, or give the format, parquet",
            "is Parquet by its content; give the format, parquet",
        );
        check(
            b"SNDLBTCH",
            "is a batch file by its content; name it .batch, or give the format, batch",
            "is a batch file by its content, and batch files are mapped: name the file itself",
        );
        assert_eq!(reason(b"PAR1,PK,7z\n", false), None);
    }
}
