"""What a deep run says while it works, share and time left; its threads; what a deep model takes of other kinds."""

import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import sanderling
import sanderling.torch
from sanderling.torch import command, compute_threads
from sanderling.torch.pace import Pace, left
from sanderling.torch.run_log import LINE_EVERY_S, RunLog

CONFIG = """
name = "clicks"
[data]
train = "rows.csv"
[model]
type = "{model}"
hidden = [4]
[train]
batch_size = 16
passes = 2
[[feature]]
name = "a"
[[feature]]
name = "b"
"""


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (4_000, "pass 1/2: 25 %, step 9, 100 examples/s, about 30 s left"),
        (100_000, "pass 1/2: 1 %, step 9, 100 examples/s, about 16 min left"),
        (900, "pass 1/2: 99 %, step 9, 100 examples/s, about 0 s left"),
        (None, "pass 1/2: step 9, 100 examples/s"),
    ],
)
def test_a_pace_says_the_share_and_the_time_left(total: int | None, text: str) -> None:
    clock, rows = Clock(), [0]
    pace = Pace("pass 1/2", lambda: rows[0], lambda: total, lambda: "step 9", clock)
    clock.now, rows[0] = 10.0, 1_000
    assert pace.text() == text


def test_what_was_done_before_is_no_pace() -> None:
    clock, rows = Clock(), [500]
    pace = Pace("pass 2/2", lambda: rows[0], lambda: 1_000, clock=clock)
    assert pace.text() == "pass 2/2: 50 %, 0 examples/s"
    clock.now, rows[0] = 10.0, 600
    assert pace.text() == "pass 2/2: 60 %, 10 examples/s, about 40 s left"


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59, "59 s"), (600, "10 min"), (5_400, "1.5 h")])
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert left(seconds) == said


def test_a_log_hears_of_a_step_that_takes_long(tmp_path: Path) -> None:
    assert LINE_EVERY_S <= 10.0
    stream = io.StringIO()
    log = RunLog(tmp_path, stream=stream, line_every_s=0.05)
    try:
        log.begin(Pace("pass 1/1", lambda: 25, lambda: 100))
        # Nobody calls anything meanwhile.
        deadline = time.monotonic() + 20
        while stream.getvalue().count("pass 1/1: 25 %") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stream.getvalue().count("pass 1/1: 25 %") >= 3
        log.begin(None)
        said = stream.getvalue()
        time.sleep(0.2)
        assert stream.getvalue() == said
    finally:
        log.close()


def test_who_is_quiet_says_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = RunLog(tmp_path, stream=stream, quiet=True, line_every_s=0.01)
    log.begin(Pace("pass 1/1", lambda: 25, lambda: 100))
    time.sleep(0.1)
    log.close()
    assert stream.getvalue() == ""


def rows_of(folder: Path, count: int) -> None:
    lines = "".join(f"{row % 2},a{row % 3},b{row % 5}\n" for row in range(count))
    (folder / "rows.csv").write_text("label,a,b\n" + lines)


def test_a_run_knows_how_far_its_pass_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(tmp_path, 8_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sanderling.torch.trainer.RunLog", partial(RunLog, line_every_s=0.02))
    (tmp_path / "clicks.toml").write_text(CONFIG.format(model="dnn").replace("batch_size = 16", "batch_size = 8"))
    assert command.main(["clicks.toml", "--max-steps", "1600"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pass ") and " %, step " in line]
    shares: dict[str, list[int]] = {"1/2:": [], "2/2:": []}
    for line in said:
        shares[line.split()[1]].append(int(line.split()[2]))
    for of_pass in shares.values():
        assert len(of_pass) > 3, said
        assert all(0 <= share <= 99 for share in of_pass)
    assert shares["2/2:"] == sorted(shares["2/2:"])
    # In the second pass the number of rows is known.
    assert shares["2/2:"][-1] <= 65, said
    assert any("left" in line for line in said)


def test_the_rows_of_a_pass_are_estimated_while_it_is_read(tmp_path: Path) -> None:
    rows_of(tmp_path, 400_000)
    spec = {"feature": [{"name": "a"}, {"name": "b"}]}
    queue = sanderling.FeedQueue(
        sanderling.FileSource(tmp_path / "rows.csv", spec, batch_size=1000, threads=1), depth=1
    )
    assert next(queue) is not None
    estimates = [queue.pass_rows for _ in queue]
    assert estimates[-1] == 400_000
    assert all(estimate is not None and 100_000 < estimate <= 500_000 for estimate in estimates), estimates[:10]


@pytest.mark.parametrize(
    ("cores", "feed", "trainers", "threads"),
    [(16, 2, 1, 14), (4, 2, 1, 2), (2, 2, 1, 1), (1, 4, 1, 1), (16, 2, 4, 2), (16, 8, 4, 1)],
)
def test_torch_gets_the_cores_that_the_feed_leaves(
    cores: int, feed: int, trainers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(trainers))
    assert compute_threads.choose(None, feed, cores) == threads
    assert compute_threads.choose(5, feed, cores) == 5
    said = compute_threads.overcommitment(threads, feed, cores)
    assert (said is None) == ((threads + feed) * trainers <= cores)
    if said is not None:
        assert "more threads than cores" in said
        assert len(said) <= 200


def test_the_environment_says_it_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert compute_threads.choose(None, 1, 64) == torch.get_num_threads()
    assert compute_threads.choose(3, 1, 64) == 3


@pytest.mark.parametrize("threads", ["0", "-1", "5000"])
def test_threads_that_are_none_are_refused(
    threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(tmp_path, 40)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.toml").write_text(CONFIG.format(model="dnn"))
    assert command.main(["clicks.toml", "--torch-threads", threads]) == 2
    assert f"torch threads: {threads}: must be from 1 to 4096" in capsys.readouterr().err


def test_a_run_computes_with_its_threads_and_leaves_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(tmp_path, 200)
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    counts: list[int] = []
    config = {
        "data": {"train": "rows.csv"},
        "model": {"type": "dnn", "dim": 2, "hidden": [4]},
        "train": {"batch_size": 50, "print_every_steps": 1},
        "feature": [{"name": "a"}],
    }
    sanderling.torch.train(config, torch_threads=3, on_line=lambda _: counts.append(torch.get_num_threads()))
    assert set(counts) == {3}
    assert torch.get_num_threads() == before
    assert "more threads" not in capsys.readouterr().err, "quiet"
    monkeypatch.setattr(compute_threads, "cores_usable", lambda: 4)
    sanderling.torch.train(config, torch_threads=3, quiet=False)
    warning = "warning: more threads than cores: 3 of torch and 2 of the feed queue on 4 cores; lower --torch-threads"
    assert warning in capsys.readouterr().err
    sanderling.torch.train(config, torch_threads=2, quiet=False)
    assert "more threads" not in capsys.readouterr().err


def model_of(kind: str, *arguments: str) -> Callable[[Path], tuple[int, list[str]]]:
    def run(folder: Path) -> tuple[int, list[str]]:
        (folder / "clicks.toml").write_text(CONFIG.format(model=kind))
        return command.main(["clicks.toml", "--json", *arguments]), list(arguments)

    return run


def test_the_minibatch_of_a_built_in_learner_is_not_a_deep_model_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(tmp_path, 2048)
    monkeypatch.chdir(tmp_path)
    # Steps of two passes over 2048 rows: of 1024 rows, the default, of 16, as a deep configuration says, and of 512.
    for run, steps in (
        (model_of("fm", "--model", "dnn"), 4),
        (model_of("dnn"), 256),
        (model_of("fm", "--model", "dnn", "--batch-size", "512"), 8),
    ):
        code, arguments = run(tmp_path)
        out, err = capsys.readouterr()
        assert code == 0
        assert f'"steps": {steps},' in out, arguments
        assert ("train.batch_size of a built-in learner" in err) == ("--model" in arguments)


def test_the_directory_of_a_run_is_not_its_model(tmp_path: Path) -> None:
    rows_of(tmp_path, 200)
    config = {
        "data": {"train": str(tmp_path / "rows.csv")},
        "model": {"type": "dnn", "dim": 2, "hidden": [4]},
        "train": {"batch_size": 50},
        "feature": [{"name": "a"}],
    }
    result = sanderling.torch.train(config, runs_dir=tmp_path / "runs")
    with pytest.raises(sanderling.ModelError, match=r"holds no model itself; did you mean .*/rows/model\?"):
        sanderling.torch.predict(result.run_dir, tmp_path / "rows.csv")
    probabilities = sanderling.torch.predict(result.run_dir / "model", tmp_path / "rows.csv")
    assert sanderling.metrics(np.arange(200) % 2, probabilities)["examples"] == 200
