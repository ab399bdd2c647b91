//! Auth tokens in files, which keeps them out of process lists, and checks of their permissions.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;

/// A server takes none that is shorter: it could be guessed.
const TOKEN_BYTES_MIN: usize = 4;
/// One that is shorter can be found by trying for long enough.
const TOKEN_BYTES_GOOD: usize = 16;
/// Bits of a mode: what the group and others may read or write, and where others may pass.
const READABLE_BY_OTHERS: u32 = 0o044;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const PASSABLE_BY_OTHERS: u32 = 0o011;

/// Reads a token file without surrounding blanks; an error names the file. An empty token is refused: it would let
/// in everyone. A file that other users can read is noted once, since this user may be unable to change that.
pub fn read_token(path: &Path) -> Result<String, String> {
    static SAID: Once = Once::new();
    if let Some(exposure) = exposure(path) {
        SAID.call_once(|| note_line!("{}", exposure.words(path)));
    }
    read(path)
}

/// Reads the token of a server, whose tables depend on it. A file that other users can write is refused, and a file that they can
/// read is refused unless `open` allows it.
pub fn read_server_token(path: &Path, open: bool) -> Result<String, String> {
    let token = read(path)?;
    match exposure(path) {
        Some(Exposure::Readable) if open => {}
        Some(exposure @ Exposure::Readable) => {
            return Err(format!("{}, or start with --open-token-file", exposure.words(path)));
        }
        Some(exposure) => return Err(exposure.words(path)),
        None => {}
    }
    match token.len() {
        0..TOKEN_BYTES_MIN => Err(format!(
            "{}: a token of {} bytes can be guessed; take {TOKEN_BYTES_GOOD} or more, such as from: openssl rand -hex 32",
            path.display(),
            token.len()
        )),
        TOKEN_BYTES_MIN..TOKEN_BYTES_GOOD => {
            note_line!(
                "{}: a token of {} bytes can be found by trying; take {TOKEN_BYTES_GOOD} or more",
                path.display(),
                token.len()
            );
            Ok(token)
        }
        _ => Ok(token),
    }
}

fn read(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty: it is to hold a token", path.display())),
        token => Ok(token.to_owned()),
    }
}

/// Access of other users to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exposure {
    Readable,
    Writable,
}

impl Exposure {
    fn words(self, path: &Path) -> String {
        let can = match self {
            Exposure::Readable => "read",
            Exposure::Writable => "change",
        };
        format!("{}: other users can {can} this token: chmod 600", path.display())
    }
}

/// Access of other users; `None` if a parent directory keeps them out. Reading reports files that cannot be examined.
fn exposure(path: &Path) -> Option<Exposure> {
    let path = std::fs::canonicalize(path).ok()?;
    let mode = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?.mode();
    let found = match mode {
        mode if mode & WRITABLE_BY_OTHERS != 0 => Exposure::Writable,
        mode if mode & READABLE_BY_OTHERS != 0 => Exposure::Readable,
        _ => return None,
    };
    let lets_pass = |folder: &Path| {
        std::fs::metadata(folder).map_or(true, |folder| folder.mode() & PASSABLE_BY_OTHERS != 0)
    };
    path.ancestors().skip(1).all(lets_pass).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn a_token_that_other_users_can_read_or_guess_is_refused_by_servers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let long = "0123456789abcdef";
        for (folder_mode, mode, token, open, expected) in [
            (0o755, 0o600, long, false, Ok(())),
            (
                0o755,
                0o644,
                long,
                false,
                Err("other users can read this token: chmod 600, or start with --open"),
            ),
            (0o755, 0o640, long, false, Err("other users can read")),
            (0o755, 0o644, long, true, Ok(())),
            (0o755, 0o666, long, true, Err("other users can change")),
            (0o755, 0o620, long, true, Err("other users can change")),
            // The folder keeps other users out.
            (0o700, 0o644, long, false, Ok(())),
            (0o755, 0o600, "x", false, Err("a token of 1 bytes can be guessed")),
            (0o755, 0o600, "short", false, Ok(())),
            (0o755, 0o600, " \n", false, Err("is empty")),
        ] {
            std::fs::write(&path, format!("{token}\n")).expect("written");
            set(&path, mode);
            set(folder.path(), folder_mode);
            let found = read_server_token(&path, open);
            match (&found, expected) {
                (Ok(found), Ok(())) => assert_eq!(found, token),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                _ => panic!("{folder_mode:o} {mode:o} {token:?} {open}: {found:?}"),
            }
            // A client says so, and goes on.
            assert_eq!(read_token(&path).is_ok(), !token.trim().is_empty());
        }
    }
}
