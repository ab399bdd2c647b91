"""What the command of the deep trainer refuses: one line that says what is wrong, and the exit code of its kind."""

import shutil
from pathlib import Path

import pytest

import sanderling
from sanderling._native import set_entries
from sanderling.torch import command

CONFIG = """
name = "clicks"
[data]
train = "rows.csv"
[model]
type = "dnn"
dim = 2
hidden = [4]
[train]
batch_size = 8
passes = 1
max_steps = 2
[[feature]]
name = "a"
"""
GONE = "hub://unix:nobody"


def check(code: int, message: str, *arguments: str) -> tuple[int, str, tuple[str, ...]]:
    """An entry of the table: arguments, and the exit code and a part of the line that they get."""
    return code, message, arguments


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was told to stop, and with what is wrong with other runs."""
    folder = tmp_path_factory.mktemp("runs")
    rows = "".join(f"{row % 2},a{row % 3}\n" for row in range(40))
    for name, text in (
        ("rows.csv", "label,a\n" + rows),
        ("none.csv", "label,a\n"),
        ("bad.csv", "label,a\nyes,1,2\n"),
        ("narrow.csv", "label,b\n" + rows),
        ("clicks.toml", CONFIG),
        ("unknown.toml", CONFIG.replace("batch_size", "btch")),
        ("broken.toml", "name ="),
        ("din.toml", CONFIG.replace("dnn", "din")),
        ("ca.pem", "no certificate"),
    ):
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert command.main(["clicks.toml", "--quiet"]) == 0
    for name in ("damaged", "newer", "learner"):
        shutil.copytree(folder / "runs/clicks", folder / "runs" / name)
    manifest = folder / "runs/damaged/last/manifest.json"
    manifest.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "0'))
    manifest = folder / "runs/newer/last/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    (folder / "runs/learner/model/manifest.json").write_text('{"manifest_crc32c": "0", "manifest": {}}')
    return folder


@pytest.mark.parametrize(
    ("code", "message", "arguments"),
    [
        check(2, "nowhere.toml: no such file or folder; check the path", "nowhere.toml"),
        check(2, "broken.toml: ", "broken.toml"),
        check(2, "train.btch is unknown", "unknown.toml"),
        check(2, "model.history", "din.toml"),
        check(2, "train.batch_size = 0", "clicks.toml", "--batch-size", "0"),
        check(2, "train.passes = -1", "clicks.toml", "--passes", "-1"),
        check(2, "model.dmi is unknown", "clicks.toml", "--set", "model.dmi=3"),
        check(2, '--set "model" is not ENTRY=VALUE', "clicks.toml", "--set", "model"),
        check(2, "--set name.x=1: name is no table", "clicks.toml", "--set", "name.x=1"),
        check(2, 'no [[feature]] has the name "z"', "clicks.toml", "--set", "feature.z.table=a"),
        check(2, "device = 'tpu'", "clicks.toml", "--device", "tpu"),
        check(2, "data.valid: a hub", "clicks.toml", "--valid", GONE),
        check(2, "only input is read by url", "clicks.toml", "--runs-dir", "s3://runs"),
        check(2, "mode 'garbage' is none of", "clicks.toml", "--mode", "garbage"),
        check(2, "mode 'bounded:x' is none of", "clicks.toml", "--mode", "bounded:x"),
        check(2, "--hub-timeout = '1': ", "clicks.toml", "--hub-timeout", "1"),
        check(2, "--hub-timeout = 'nan': ", "clicks.toml", "--hub-timeout", "nan", "--train", GONE),
        check(2, "--hub-timeout = 'inf': ", "clicks.toml", "--hub-timeout", "inf", "--train", GONE),
        check(2, "--hub-token-file nowhere: ", "clicks.toml", "--hub-token-file", "nowhere"),
        check(2, "--hub-ca-file nowhere: ", "clicks.toml", "--hub-ca-file", "nowhere"),
        check(2, "--ps-token-file nowhere: ", "clicks.toml", "--ps", "unix:ps", "--ps-token-file", "nowhere"),
        check(2, "ca.pem: TLS", "clicks.toml", "--ps", "tcp://127.0.0.1:1", "--ps-ca-file", "ca.pem"),
        check(2, "no valid port", "clicks.toml", "--ps", "garbage"),
        check(3, "bad.csv:2", "clicks.toml", "--train", "bad.csv"),
        check(3, "none.csv: no rows", "clicks.toml", "--train", "none.csv"),
        check(3, 'no column "a"', "clicks.toml", "--valid", "narrow.csv"),
        check(4, "cannot resume: train.batch_size changed", "clicks.toml", "--resume", "--batch-size", "4"),
        check(4, "that run read files", "clicks.toml", "--resume", "--train", GONE, "--batch-size", "8"),
        check(4, "no checkpoint", "clicks.toml", "--resume", "--name", "never"),
        check(4, "missing or corrupted", "clicks.toml", "--resume", "--name", "damaged"),
        check(4, "this version reads 1", "clicks.toml", "--resume", "--name", "newer"),
        check(4, "manifest.json is the manifest of a built-in learner", "clicks.toml", "--name", "learner"),
        check(1, "nowhere.csv", "clicks.toml", "--train", "nowhere.csv"),
        check(1, "rows.csv/clicks: cannot be", "clicks.toml", "--runs-dir", "rows.csv"),
        check(1, "nobody has been unreachable", "clicks.toml", "--train", GONE, "--hub-timeout", "100ms"),
    ],
)
def test_what_is_wrong_has_its_exit_code(
    code: int,
    message: str,
    arguments: tuple[str, ...],
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    assert command.main([*arguments, "--quiet"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    # An earlier case may have left a run of the name, which is told even by a quiet run.
    lines = [line for line in said.err.splitlines() if "is kept: this one is" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]


def test_a_server_that_does_not_answer_is_a_failure(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise sanderling.ServerError("no answer")

    # As of a real one, but for the seconds that are waited for it.
    monkeypatch.setattr(sanderling, "connect", connect)
    assert command.main([str(trained / "clicks.toml"), "--ps", "unix:nobody", "--quiet"]) == 1
    assert capsys.readouterr().err == "error: no answer\n"


def test_entries_that_are_set() -> None:
    config = {"model": {"type": "dnn"}, "feature": [{"name": "a"}, {"name": "b"}]}
    entries = ["model.dim=16", "model.type = fm", 'data.train=["x", "y"]', "feature.b.table=a", "seed=7"]
    assert set_entries(config, entries) == {
        "model": {"type": "fm", "dim": 16},
        "feature": [{"name": "a"}, {"name": "b", "table": "a"}],
        "data": {"train": ["x", "y"]},
        "seed": 7,
    }
