"""Errors as the command line tells them: one line with advice, and an exit code as of the native command."""

import errno
import os

import sanderling

_FAILED = 1
# Exit codes (`sanderling --help`); `_FAILED` is for all other errors.
_EXIT_CODES: dict[int, tuple[type[sanderling.Error], ...]] = {
    2: (sanderling.ConfigError,),
    3: (sanderling.BadFileError, sanderling.BadRowError, sanderling.NoRowsError, sanderling.TooManyBadRowsError),
    4: (sanderling.DamagedError, sanderling.ModelError, sanderling.NotFoundError, sanderling.VersionError),
}

# Errors of the system, from Python and from Rust, and advice as the native command gives it.
_OF_SYSTEM = {
    errno.ENOENT: "no such file or folder; check the path, and the current folder",
    errno.EACCES: "permission denied; change its mode or owner, or run as another user",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOSPC: "the disk is full; free some space, or name another folder",
}


def told(error: BaseException) -> tuple[str, int]:
    """Return the line for an error, without `error: `, and the exit code."""
    code = next((code for code, classes in _EXIT_CODES.items() if isinstance(error, classes)), _FAILED)
    # The command opens tables itself, so the advice to open them again becomes one to restart.
    words = str(error).replace("; open the table again", "; start this command again, with --resume")
    if not isinstance(error, sanderling.Error):
        words = f"{type(error).__name__}: {words}"
    for number, advice in _OF_SYSTEM.items():
        said = os.strerror(number)
        words = words.replace(f"{said} (os error {number})", advice).replace(said, advice)
    return words, code
