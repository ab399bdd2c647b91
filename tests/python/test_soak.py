"""The checks of bench/soak.py find what they are for: rows, marks, versions and memory that are wrong."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
KEYS, DIM = 100, 3
# MiB by second.
SizeAt = Callable[[int], float]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    return runpy.run_path(str(BENCH / "soak_checks.py"))


@pytest.mark.parametrize(
    ("row", "known_since", "wrong", "is_old"),
    [
        ([2, 2, 2], 10.5, "", False),
        # A push that was begun may be there, whether it was acknowledged or not.
        ([3, 3, 3], 10.5, "", False),
        ([1, 1, 1], 10.5, "", False),
        ([1, 1, 1], 11.5, "", True),
        ([0, 0, 0], 9.5, "", False),
        ([4, 4, 4], 10.5, "3 pushes were begun", False),
        ([-1, -1, -1], 10.5, "3 pushes were begun", False),
        ([2, 2, 1], 10.5, "is torn", False),
        ([1.5, 1.5, 1.5], 10.5, "is torn", False),
    ],
)
def test_a_row_is_held_to_the_pushes(
    checks: dict[str, Any], row: list[float], known_since: float, wrong: str, is_old: bool
) -> None:
    ledger, places = checks["Ledger"](KEYS, DIM), np.array([0, 50])
    # Acknowledged at 10 and 11; the third one is under way.
    for moment in (10.0, 11.0):
        ledger.begin(places)
        ledger.acknowledge(moment)
    ledger.begin(places)
    found, old = ledger.judge(np.array([row], np.float32), places[:1], known_since)
    assert (wrong in found, bool(found) == bool(wrong), old) == (True, True, is_old), found
    # A key that is not in every push tells nothing of time.
    assert ledger.judge(np.array([[1, 1, 1]], np.float32), places[1:], 20.0) == ("", False)
    assert ledger.expected()[[0, 50, 51]].tolist() == [[3] * DIM, [3] * DIM, [0] * DIM]


@pytest.mark.parametrize(
    ("size_at", "seconds", "grows"),
    [
        (lambda _: 40.0, 600, False),
        (lambda at: 40.0 + at % 7, 600, False),
        # Memory of the start, which is not judged.
        (lambda at: min(40.0 + at, 80.0), 600, False),
        (lambda at: 40.0 + 0.05 * at, 600, True),
        # A short life tells nothing.
        (lambda at: 40.0 + 0.5 * at, 100, False),
    ],
)
def test_growing_memory_is_found(
    checks: dict[str, Any], size_at: Callable[[int], float], seconds: int, grows: bool
) -> None:
    monitored = type("Life", (), {"name": "server0", "samples": [(float(at), size_at(at)) for at in range(seconds)]})
    problems = checks["grown"]([monitored], 600)
    assert (len(problems) == 1 and "server0" in problems[0]) if grows else problems == []


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([0.3, 0.4], ""),
        ([0.3 + 1e-7, 0.4], ""),
        ([0.5, 0.6], "has the numbers of model 2"),
        ([0.3, 0.6], "is mixed"),
        ([0.3, 0.4 + 1e-4], "is mixed"),
    ],
)
def test_numbers_are_those_of_the_version(monkeypatch: pytest.MonkeyPatch, numbers: list[float], wrong: str) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    wrong_numbers = runpy.run_path(str(BENCH / "soak_versions.py"))["wrong_numbers"]
    planted = [(np.array(scores), np.array([])) for scores in ([0.1, 0.2], [0.3, 0.4], [0.5, 0.6])]
    found = wrong_numbers(np.array(numbers), "4", planted, 0)
    assert (wrong in found, bool(found)) == (True, bool(wrong)), found
