"""Parsers of durations and sizes with a unit, such as "20s" and "4GiB"."""

import re

import sanderling

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def seconds(name: str, text: object, least_s: float, most_s: float) -> float:
    """Parse a duration such as "20s" (us, ms, s, m, h) to seconds; ConfigError outside `least_s` to `most_s`.

    `name` is the configuration entry or option, for the error.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(us|ms|s|m|h)", text.strip()) if isinstance(text, str) else None
    value = float(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not least_s <= value <= most_s:
        bounds = f"{least_s:g}s to {most_s:g}s"
        raise sanderling.ConfigError(f"{name} = {text!r}: must be a time with a unit, {bounds}, such as '20s' or '5m'")
    return value


def size_bytes(name: str, text: object) -> int:
    """Parse a size such as "4GiB" (B, KiB, MiB, GiB, TiB) to bytes; an integer is in bytes.

    `name` is the configuration entry or option, for the ConfigError.
    """
    words = str(text) if isinstance(text, int) and not isinstance(text, bool) else text
    found = re.fullmatch(r"(\d+) *(|B|KiB|MiB|GiB|TiB)", words.strip()) if isinstance(words, str) else None
    size = int(found[1]) * _BYTES[found[2]] if found else -1
    if not 0 <= size < 1 << 63:
        raise sanderling.ConfigError(
            f"{name} = {text!r}: must be bytes with a unit (B, KiB, MiB, GiB, TiB), such as '4GiB'"
        )
    return size
