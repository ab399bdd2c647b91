"""The comparison of text learners runs; its numbers are for docs/results."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench/text_learners.py"


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    command = tmp_path / "sanderling"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sanderling "$@"\n')
    command.chmod(0o755)
    tiny = ["--sanderling", str(command), "--rows", "300", "--held-out", "100", "--rounds", "1"]
    main = runpy.run_path(str(BENCH))["main"]
    assert main([*tiny, "--no-peers", "--floor", str(tmp_path / "none"), "--json"]) == 0
    output = capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads(output.splitlines()[-1])}
    assert {"ftrl", "ftrl, two threads", "fm", "fm, two threads"} <= rows.keys()
    assert all(row["rate"] > 0 and 0.3 < row["logloss"] < 0.8 for row in rows.values())
    assert "fm: two threads are" in output
