"""Durations and sizes of configurations and options, such as "20s" and "4GiB", within bounds."""

import sanderling
from sanderling._native import parse_duration_s, parse_size_bytes


def seconds(name: str, text: object, least_s: float, most_s: float) -> float:
    """Parse a duration such as "20s" (us, ms, s, m, h) to seconds; ConfigError outside `least_s` to `most_s`.

    `name` is the configuration entry or option, for the error.
    """
    value = parse_duration_s(text) if isinstance(text, str) else None
    if value is None or not least_s <= value <= most_s:
        bounds = f"{least_s:g}s to {most_s:g}s"
        raise sanderling.ConfigError(f"{name} = {text!r}: must be a time with a unit, {bounds}, such as '20s' or '5m'")
    return value


def size_bytes(name: str, text: object) -> int:
    """Parse a size such as "4GiB" (B, KiB, MiB, GiB, TiB) to bytes; an integer is in bytes.

    `name` is the configuration entry or option, for the ConfigError.
    """
    words = str(text) if isinstance(text, int) and not isinstance(text, bool) else text
    size = parse_size_bytes(words) if isinstance(words, str) else None
    if size is None or size >= 1 << 63:
        raise sanderling.ConfigError(
            f"{name} = {text!r}: must be bytes with a unit (B, KiB, MiB, GiB, TiB), such as '4GiB'"
        )
    return size
