"""How far a piece of work is, and how long the rest takes. Knows no model, no data and no terminal."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_MINUTE_S, _HOUR_S = 60, 3600


@dataclass
class Pace:
    """A piece of work over rows, such as a pass, from the moment when this is made."""

    name: str
    done: Callable[[], int]
    """Rows that are done, of all trainers together."""
    total: Callable[[], int | None]
    """Rows in all, as far as is known."""
    detail: Callable[[], str] = lambda: ""
    """Additional text, or an empty string."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Starts the clock; what an earlier session of the run has done is not of this pace."""
        self._began, self._done_before = self.clock(), self.done()

    def text(self) -> str:
        """For people: the share that is done, the speed and the time left."""
        done, total, elapsed = self.done(), self.total(), self.clock() - self._began
        per_s = (done - self._done_before) / elapsed if elapsed > 0.0 else 0.0
        # An estimate may be too low; what goes on is not over.
        share = None if not total else min(done / total, 0.99)
        parts = [
            None if share is None else f"{100 * share:.0f} %",
            self.detail() or None,
            f"{per_s:,.0f} examples/s",
            None if share is None or not total or per_s <= 0.0 else f"about {left(max(total - done, 0) / per_s)} left",
        ]
        return f"{self.name}: {', '.join(part for part in parts if part is not None)}"


def left(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
