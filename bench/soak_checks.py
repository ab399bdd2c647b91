"""What the soak holds answers to: rows against pushes, marks of stale replicas, memory. Starts no process."""

import http.client
import json
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# Keys that are in every push, so that their rows tell how old an answer is.
CLOCK = 16
_FIRST_KEY = 1 << 40
# Growth of a process from which on memory counts as not flat: at least so many MiB, and so large a part.
_GROWTH_MIB, _GROWTH_PART = 8.0, 0.25
# A life is judged if it is so large a part of the soak and so long; its first part counts as its start.
_LIFE_PART, _LIFE_S, _START_PART = 0.3, 120.0, 0.25

Places = npt.NDArray[np.int64]


def keys_of(places: Places) -> npt.NDArray[np.uint64]:
    """Keys by their places."""
    return (places + _FIRST_KEY).astype(np.uint64)


class Ledger:
    """What one client has pushed, of which each push adds 1 to its keys."""

    def __init__(self, keys: int, dim: int) -> None:
        """Nothing is pushed."""
        self.begun, self._dim = 0, dim
        self._counts = np.zeros(keys, np.int64)
        self._moments: list[float] = []
        self._lock = threading.Lock()

    @property
    def acknowledged(self) -> int:
        """Pushes that were acknowledged."""
        return len(self._moments)

    def begin(self, places: Places) -> None:
        """A push to these keys begins."""
        with self._lock:
            self.begun += 1
            self._counts[places] += 1

    def acknowledge(self, at: float | None = None) -> None:
        """The push that has begun is acknowledged."""
        self._moments.append(time.monotonic() if at is None else at)

    def expected(self) -> npt.NDArray[np.float32]:
        """The weights of all keys, [keys, dim], when every push was acknowledged."""
        return np.repeat(self._counts[:, None], self._dim, axis=1).astype(np.float32)

    def judge(self, rows: npt.NDArray[np.float32], places: Places, known_since: float) -> tuple[str, bool]:
        """Return the fault of rows of an answer that has arrived, [n, dim], and whether one is older than a moment."""
        with self._lock:
            most = self._counts[places]
        for row, place, limit in zip(rows, places, most, strict=True):
            if (row != row[0]).any() or row[0] != int(row[0]):
                return f"the row of key {keys_of(place)} is torn: {row.tolist()}", False
            if not 0 <= row[0] <= limit:
                return f"the row of key {keys_of(place)} is {row[0]}, and {limit} pushes were begun", False
        least = bisect_right(self._moments, known_since)
        return "", bool((rows[places < CLOCK, 0] < least).any())


class Answers:
    """Requests over one connection, which is made again after a failure."""

    def __init__(self, server: str, timeout_s: float) -> None:
        """Connects with the first request."""
        self._connection = http.client.HTTPConnection(server, timeout=timeout_s)

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON. Raises OSError if there is no answer."""
        text = None if body is None else json.dumps(body)
        try:
            self._connection.request("GET" if body is None else "POST", path, text)
            with self._connection.getresponse() as answer:
                return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise ConnectionError(repr(error)) from error


def ask(server: str, path: str, body: object = None, timeout_s: float = 5) -> tuple[int, Any]:
    """Status and JSON of one request. Raises OSError if there is no answer."""
    return Answers(server, timeout_s).ask(path, body)


def is_stale(server: str) -> bool:
    """Whether a replica says so. Raises OSError if it does not answer, or is not ready."""
    status, health = ask(server, "/health")
    if status != 200:
        raise ConnectionError(status)
    return bool(health["replica"]["stale"])


class Life(Protocol):
    """Resident memory of a process."""

    name: str
    samples: list[tuple[float, float]]


def grown(lives: Sequence[Life], seconds: float) -> list[str]:
    """Processes whose memory grows while they live, by a line through the samples after their start."""
    problems = []
    for life in lives:
        if len(life.samples) < 3 or life.samples[-1][0] - life.samples[0][0] < max(_LIFE_PART * seconds, _LIFE_S):
            continue
        samples = np.array(life.samples[int(_START_PART * len(life.samples)) :])
        moments, sizes = samples[:, 0] - samples[0, 0], samples[:, 1]
        growth = float(np.polyfit(moments, sizes, 1)[0] * moments[-1])
        if growth > max(_GROWTH_MIB, _GROWTH_PART * float(np.median(sizes))):
            problems.append(f"{life.name}: {growth:.0f} MiB more after {moments[-1]:.0f} s, of {sizes[0]:.0f} MiB")
    return problems


def memory(lives: Sequence[Life]) -> dict[str, float]:
    """MiB of a process over all of its lives, and MiB per minute of the longest one."""
    sizes = [size for life in lives for _, size in life.samples] or [0.0]
    longest = max(lives, key=lambda life: len(life.samples)).samples
    longest = longest[int(_START_PART * len(longest)) :]
    per_minute = 0.0
    if len(longest) > 2:
        per_minute = 60 * float(
            np.polyfit([at - longest[0][0] for at, _ in longest], [size for _, size in longest], 1)[0]
        )
    return {
        "first": round(sizes[0], 1),
        "most": round(max(sizes), 1),
        "last": round(sizes[-1], 1),
        "per_minute": round(per_minute, 3),
    }
