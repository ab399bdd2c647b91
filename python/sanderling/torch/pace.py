"""Progress text of a task over rows: share done, speed and time left."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_MINUTE_S, _HOUR_S = 60, 3600


@dataclass
class Pace:
    """Progress of a task over rows, such as a pass; the clock starts with the object."""

    name: str
    done: Callable[[], int]
    """Returns the rows done, of all trainers together."""
    total: Callable[[], int | None]
    """Returns the total or estimated number of rows; None if unknown."""
    detail: Callable[[], str] = lambda: ""
    """Returns additional text, or an empty string."""
    clock: Callable[[], float] = time.monotonic
    """Returns the time in seconds."""

    def __post_init__(self) -> None:
        """Start the clock; rows done before, in an earlier session of the run, do not count for the speed."""
        self._began, self._done_before = self.clock(), self.done()

    def share_and_left(self) -> tuple[float | None, float | None]:
        """Return the share done, and the seconds that the rest takes at the speed so far; None: unknown."""
        done, total, elapsed = self.done(), self.total(), self.clock() - self._began
        if not total:
            return None, None
        per_s = (done - self._done_before) / elapsed if elapsed > 0.0 else 0.0
        left_s = max(total - done, 0) / per_s if per_s > 0.0 else None
        return min(done / total, 0.99), left_s

    def text(self) -> str:
        """Return name, share done, detail, speed in examples/s, and time left; parts that are unknown are left out."""
        done, total, elapsed = self.done(), self.total(), self.clock() - self._began
        per_s = (done - self._done_before) / elapsed if elapsed > 0.0 else 0.0
        # The total may be estimated too low; a running task shows at most 99 %.
        share = None if not total else min(done / total, 0.99)
        parts = [
            None if share is None else f"{100 * share:.0f} %",
            self.detail() or None,
            f"{per_s:,.0f} examples/s",
            None if share is None or not total or per_s <= 0.0 else f"about {left(max(total - done, 0) / per_s)} left",
        ]
        return f"{self.name}: {', '.join(part for part in parts if part is not None)}"


def left(seconds: float) -> str:
    """Format a duration in seconds, such as "40 s", "3 min" or "1.5 h"."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
