"""The comparison with plain PyTorch runs, and both sides learn the same; its numbers are for docs/results."""

import runpy
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench/deep_vs_torch.py"
TINY = [
    "--keys",
    "300",
    "--fields",
    "3",
    "--dim",
    "4",
    "--batch-size",
    "32",
    "--hidden",
    "8",
    "--steps",
    "3",
    "--rounds",
    "2",
]


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_it_runs(optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = runpy.run_path(str(BENCH))["main"]([*TINY, "--optimizer", optimizer, "--skew", "1"])
    assert set(result) == {"sanderling", "sanderling, no queue", "torch", "dense alone"}
    assert all(0 < steps["min_ms"] <= steps["median_ms"] <= steps["max_ms"] for steps in result.values())
    assert "torch / sanderling:" in capsys.readouterr().out


def test_passes_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{row % 3 == 0:d},{row % 7},{7 + row % 5}\n" for row in range(100))
    (tmp_path / "rows.csv").write_text("label,a,b\n" + rows)
    csv = ["--csv", str(tmp_path / "rows.csv"), "--batch-size", "16", "--hidden", "8", "--dim", "4", "--rounds", "2"]
    result = runpy.run_path(str(BENCH))["main"](csv)
    assert [len(result[name]) for name in ("sanderling", "torch")] == [2, 2]
    assert "100 rows, 12 keys" in capsys.readouterr().out
