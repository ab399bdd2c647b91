"""Commands of the native module, run in this process by tests."""

import json
from typing import Any

import pytest

from sanderling._native import cli_main


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of a command."""
    capfd.readouterr()
    code = cli_main(["sanderling", *arguments])
    said = capfd.readouterr()
    return code, said.out, said.err


def last_json(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The last line of a command's JSON; the command must succeed."""
    code, out, err = run(capfd, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
