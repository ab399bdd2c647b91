"""Two hubs read at the same time for one trainer, each over a link of its own; bench/two_hubs.py says what it gains."""

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench/two_hubs.py"
# Slow enough that links, and not this machine, say how long it takes.
FILE_BYTES = 256 << 10
BYTES_PER_S = 256 << 10


def test_two_hubs_drain_their_links_at_the_same_time(tmp_path: Path) -> None:
    feed = runpy.run_path(str(BENCH))["feed"]
    fed: Any = feed(FILE_BYTES, BYTES_PER_S, 2, tmp_path)
    assert fed.rows == 2 * FILE_BYTES // 1024
    one, two = fed.links
    totals = [sum(count for _, count in link.given) for link in fed.links]
    assert min(totals) >= FILE_BYTES, "each hub has read the file of its share"
    # Most of what went over a link went while the other was in use, by the moments of the bytes, however long it took.
    for link, other, total in ((one, two, totals[0]), (two, one, totals[1])):
        assert link.bytes_between(other.given[0][0], other.given[-1][0]) > total / 2
    alone: Any = feed(FILE_BYTES, BYTES_PER_S, 1, tmp_path)
    assert alone.rows == fed.rows
    assert sum(count for _, count in alone.links[0].given) >= 2 * FILE_BYTES, "one link carries both files"


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    result = runpy.run_path(str(BENCH))["main"](["--mib", "0.25", "--rate-mib", "0.5", "--rounds", "1"])
    assert result["ratio"] > 0
    assert "two hubs feed" in capsys.readouterr().out
