"""The code of docs/python.md runs, top to bottom, and says what the page says."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)
    # The last ones need servers and a second process: tests of jobs over hosts run what they show.
    *blocks, job, step = blocks
    for block in (job, step):
        compile(block, "docs/python.md", "exec")
    assert len(blocks) == 5
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["result"].auc > 0.85
    assert (len(names["probabilities"]), names["probabilities"].dtype) == (16281, np.float32)
    assert names["rows"].shape == (4, 8)
    assert names["bags"].shape == (2, 8)
