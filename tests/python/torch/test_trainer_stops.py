"""Signals to the ready trainer: it stops after a step, all after the same one, and goes on as if nothing was."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from trainers import Forks, Running, Trainers

import sanderling
from sanderling.torch import checkpoint, command

if TYPE_CHECKING:
    from conftest import OwnServer

INTERRUPTED = 130
ROWS = 1200
PASSES = 3
BATCH = 20
# Every row has a key of its own, whose count says how often it was learned from.
CONFIG = f"""
[data]
train = "train.csv"
[model]
type = "deepfm"
dim = 4
hidden = [8]
[optimizer]
type = "sgd"
lr = 0.05
[train]
batch_size = {BATCH}
passes = {PASSES}
shuffle_rows = 300
print_every_steps = 1
depth = 1
[[feature]]
name = "row"
[[feature]]
name = "a"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    a = rng.integers(0, 5, ROWS)
    lines = [f"{(row + i) % 2},{row},{i}\n" for row, i in enumerate(a)]
    (tmp_path / "train.csv").write_text("label,row,a\n" + "".join(lines))
    (tmp_path / "valid.csv").write_text("label,row,a\n" + "".join(lines[:200]))
    (tmp_path / "clicks.toml").write_text(CONFIG)
    return tmp_path


def state(directory: Path) -> tuple[dict[str, Any], torch.Tensor]:
    """Where a saved run is, and its dense parameters, one after the other."""
    manifest = checkpoint._read_manifest(directory)
    model = torch.load(directory / manifest["dense"]["file"], weights_only=True)["model"]
    progress = checkpoint.read_extra(directory)["progress"]
    return progress, torch.cat([tensor.reshape(-1) for tensor in model.values()])


def learned(
    connection: sanderling.Connection, name: str
) -> tuple[np.ndarray[Any, Any], dict[int, np.ndarray[Any, Any]]]:
    """How often each row of the input was learned from, and all rows of the tables."""
    tables = [connection.open(f"{name}/{table}") for table in ("row", "a")]
    rows = {int(key): row for table in tables for key, row in zip(table.keys(), table.rows(), strict=True)}
    return tables[0].frequency(), rows


def one(rank: int, number: signal.Signals) -> Callable[[Trainers], Callable[[Running], object]]:
    """A signal to one trainer."""
    return lambda trainers: lambda _: os.kill(trainers.pids()[rank], number)


def launcher(number: signal.Signals) -> Callable[[Trainers], Callable[[Running], object]]:
    """A signal to torchrun."""
    return lambda _: lambda process: process.send_signal(number)


def terminal(trainers: Trainers) -> Callable[[Running], object]:
    """Ctrl-C in a terminal: to all at once."""

    def tell(process: Running) -> None:
        for child in [*trainers.pids().values(), process.pid]:
            os.kill(child, signal.SIGINT)

    return tell


@pytest.mark.parametrize(
    ("mode", "tell", "torchrun"),
    [
        ("sync", one(1, signal.SIGINT), False),
        # What it does with a signal, the real one shows.
        ("sync", launcher(signal.SIGTERM), True),
        ("bounded:2", one(0, signal.SIGTERM), False),
        ("async", terminal, False),
    ],
)
def test_all_trainers_stop_after_one_step_and_go_on(
    folder: Path,
    forks: Forks,
    two_servers: str,
    mode: str,
    tell: Callable[[Trainers], Callable[[Running], object]],
    torchrun: bool,
) -> None:
    name = f"stopped-{mode.partition(':')[0]}-{torchrun}"
    connection = sanderling.connect(two_servers)
    arguments = ["--ps", two_servers, "--mode", mode]
    reached = 0
    # In the first pass, and once more in the second.
    for step, resume in ((5, []), (ROWS // BATCH // 2 + 6, ["--resume"])):
        trainers = Trainers(forks, folder, 2, *arguments, torchrun=torchrun and not resume)
        said, codes = trainers.stop(step, tell(trainers), "--name", name, *resume)
        assert codes == [INTERRUPTED] * 2, said
        progress, _ = state(folder / "runs" / name / "last")
        assert f"stopped after step {progress['step']}, which is saved" in said
        assert "interrupted; --resume goes on" in said
        assert progress["step"] >= max(step, reached)
        assert progress["examples"] == progress["step"] * 2 * BATCH
        assert progress["passes"] * ROWS + progress["used_rows"] == progress["examples"]
        reached = progress["step"]
        # The tables are those of that step: nobody made one more.
        assert int(learned(connection, name)[0].sum()) == progress["examples"]
    trainers.run("--name", name, "--resume")
    progress, dense = state(folder / "runs" / name / "last")
    assert (progress["step"], progress["examples"]) == (PASSES * ROWS // BATCH // 2, PASSES * ROWS)
    counts, rows = learned(connection, name)
    assert counts.tolist() == [PASSES] * ROWS, "each row once per pass"
    if mode == "sync" and not torchrun:
        # In step it is the model of a run that nobody stopped.
        trainers.run("--name", "whole")
        _, expected = state(folder / "runs/whole/last")
        torch.testing.assert_close(dense, expected, rtol=1e-4, atol=1e-6)
        for key, row in learned(connection, "whole")[1].items():
            np.testing.assert_allclose(rows[key], row, rtol=1e-4, atol=1e-6)


def test_trainers_of_whom_one_cannot_validate_keep_the_pass(folder: Path, forks: Forks, one_server: str) -> None:
    # Only the beginning of the first one is looked at before there is a pass to validate.
    second = folder / "second.csv"
    second.write_text("label,row,a\n1,1,1\nno label,1,1\n")
    trainers = Trainers(forks, folder, 2, "--ps", one_server, "--valid", "valid.csv", "second.csv", "--name", "judged")
    for arguments in ([], ["--resume"]):
        code, _, said = trainers.end(*arguments)
        assert code != 0
        assert "second.csv:3" in said, said
        progress, _ = state(folder / "runs/judged/last")
        assert (progress["unjudged"], progress["passes"], progress["examples"]) == (True, 1, ROWS)
    second.write_text("label,row,a\n1,1,1\n")
    trainers.run("--resume")
    progress, _ = state(folder / "runs/judged/last")
    assert (progress["unjudged"], progress["passes"], progress["examples"]) == (False, PASSES, PASSES * ROWS)


def test_trainers_of_a_hub_stop_after_one_step_and_go_on(folder: Path, forks: Forks, one_server: str) -> None:
    address = f"unix:{folder}/hub"
    options = ["--config", "clicks.toml", "--listen", address, "--assign", "strided:2", "--linger", "2s"]
    start = [sys.executable, "-m", "sanderling", "hub", *options]
    connection = sanderling.connect(one_server)
    with subprocess.Popen(start, cwd=folder, stdout=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stdout is not None
            assert hub.stdout.readline().startswith("listening at ")
            trainers = Trainers(forks, folder, 2, "--ps", one_server, "--train", f"hub://{address}", "--name", "of-hub")
            said, codes = trainers.stop(5, one(1, signal.SIGTERM)(trainers))
            assert codes == [INTERRUPTED] * 2, said
            progress, _ = state(folder / "runs/of-hub/last")
            counts = learned(connection, "of-hub")[0]
            assert int(counts.sum()) == progress["examples"] == progress["step"] * 2 * BATCH
            trainers.run("--resume")
        finally:
            hub.kill()
    assert learned(connection, "of-hub")[0].tolist() == [PASSES] * ROWS, "each row once per pass"


def test_one_trainer_over_files_stops_after_a_step_and_goes_on(folder: Path, forks: Forks, one_server: str) -> None:
    trainer = Trainers(forks, folder, 1, "--name", "alone", "--valid", "valid.csv", "--ps", one_server)
    connection = sanderling.connect(one_server)
    for number, step, resume in ((signal.SIGINT, 7, []), (signal.SIGTERM, ROWS // BATCH + 9, ["--resume"])):
        said, codes = trainer.stop(step, one(0, number)(trainer), *resume)
        assert codes == [INTERRUPTED], said
        progress, _ = state(folder / "runs/alone/last")
        assert progress["step"] >= step
        assert int(learned(connection, "alone")[0].sum()) == progress["examples"] == progress["step"] * BATCH
    trainer.run("--resume")
    assert learned(connection, "alone")[0].tolist() == [PASSES] * ROWS
    assert state(folder / "runs/alone/last")[0]["best_pass"] >= 1


def test_one_trainer_whose_server_does_not_answer_ends_in_the_step(
    folder: Path, forks: Forks, own_server: "OwnServer"
) -> None:
    address = own_server.address
    (folder / "clicks.toml").write_text(
        CONFIG.replace("print_every_steps = 1", "print_every_steps = 1\nsave_every_steps = 10")
    )
    trainer = Trainers(forks, folder, 1, "--name", "silent", "--ps", address)

    def pause_and_tell(process: Running) -> None:
        own_server.pause()
        process.send_signal(signal.SIGINT)

    try:
        said, codes = trainer.stop(25, pause_and_tell)
        assert codes == [INTERRUPTED], said
        for part in ("which is not saved", address, "stopped while this server did not answer"):
            assert part in said, said
    finally:
        own_server.go_on()
    assert state(folder / "runs/silent/last")[0]["step"] >= 20
    trainer.run("--resume")
    assert learned(sanderling.connect(address), "silent")[0].tolist() == [PASSES] * ROWS


def test_a_run_that_max_steps_or_a_kill_ended_goes_on_where_it_was_saved(
    folder: Path, forks: Forks, one_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    connection = sanderling.connect(one_server)
    steps = ROWS // BATCH
    # In the middle of a pass; at its last step, where nothing of it is left; in the next one.
    for max_steps, resume in ((steps - 1, []), (steps, ["--resume"]), (steps + 3, ["--resume"]), (0, ["--resume"])):
        arguments = ["clicks.toml", "--name", "most", "--ps", one_server, "--max-steps", str(max_steps), *resume]
        assert command.main(arguments) == 0
        expected = max_steps or PASSES * steps
        progress, _ = state(folder / "runs/most/last")
        assert (progress["step"], progress["examples"]) == (expected, expected * BATCH)
        assert int(learned(connection, "most")[0].sum()) == expected * BATCH
    assert learned(connection, "most")[0].tolist() == [PASSES] * ROWS

    text = (
        (folder / "clicks.toml")
        .read_text()
        .replace("print_every_steps = 1", "print_every_steps = 1\nsave_every_steps = 10")
    )
    (folder / "clicks.toml").write_text(text)
    killed = Trainers(forks, folder, 1, "--name", "killed", "--ps", one_server)
    assert killed.end(killed_at=25)[0] == -signal.SIGKILL
    killed.run("--resume")
    assert learned(connection, "killed")[0].tolist() == [PASSES] * ROWS


def test_a_queue_goes_on_after_rows_that_were_used(folder: Path) -> None:
    spec = {"feature": [{"name": "row"}], "label": {"column": "label"}}

    def keys(**options: Any) -> list[list[int]]:
        source = sanderling.FileSource(folder / "train.csv", spec, batch_size=64, shuffle_rows=300, seed=4, **options)
        return [batch.keys("row").tolist() for batch in sanderling.FeedQueue(source)]

    for passes in (1, 2):
        whole = keys(passes=passes)
        for used in (0, 1, 5, 17, -(-ROWS // 64)):
            assert keys(passes=passes, used_rows=min(64 * used, ROWS), threads=2) == whole[used:]
        for rank in range(2):
            assert keys(passes=passes, used_rows=64 * 6, rank=rank, ranks=2)[:3] == whole[6 + rank :: 2][:3]
    with pytest.raises(sanderling.ConfigError, match="ordered"):
        keys(used_rows=1, ordered=False)
