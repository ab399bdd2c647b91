"""The code of docs/python.md runs, top to bottom, and the commands of all pages have the options that they show."""

import re
import subprocess
import sys
from functools import cache
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
    assert len(blocks) == 7
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["result"].auc > 0.85
    assert (len(names["probabilities"]), names["probabilities"].dtype) == (16281, np.float32)
    assert names["rows"].shape == (4, 8)
    assert names["bags"].shape == (2, 8)


# Without load and bench: they are programs of their own, which the Python package does not bring.
COMMANDS = "train|eval|predict|inspect|compare|download|convert|hub|ps|ctl|synth"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@cache
def options(*command: str) -> frozenset[str]:
    """The options that `--help` of a command lists; empty if there is no such command."""
    listed = subprocess.run(
        [sys.executable, "-m", "sanderling", *command, "--help"], capture_output=True, text=True, check=False
    )
    return frozenset(OPTION.findall(listed.stdout)) if listed.returncode == 0 else frozenset()


def test_commands_of_the_pages_have_their_options() -> None:
    trainer = (ROOT / "python/sanderling/torch/command.py").read_text()
    deep = {f"--{name}" for name in re.findall(r'"--([a-z0-9-]+)"', trainer)}
    unknown = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        for command, rest in re.findall(rf"sanderling ({COMMANDS})\b([^`\n]*)", text):
            arguments = re.split(r" +#| & |&&|;|\| ", rest)[0]
            subcommand = re.match(r" +([a-z]+)", arguments)
            for option in OPTION.findall(arguments):
                known = options(command) | (options(command, subcommand[1]) if subcommand else set())
                if option not in known and not (command == "train" and option in deep):
                    unknown.append(f"{page.name}: sanderling {command} {option}")
    assert unknown == []
