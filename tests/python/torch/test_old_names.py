"""Deep runs that an earlier version saved, and old names of entries, options and arguments."""

import shutil
from pathlib import Path

import pytest

import sanderling
from sanderling.torch import command
from sanderling.torch.deep_config import DeepConfig

GOLDEN = Path(__file__).parent / "golden"
CONFIG = """name = "olddeep"
data = { train = "deep.csv" }
model = { type = "dnn", dim = 2, hidden = [2], table_budget = "1MiB" }
train = { batch_size = 16, shuffle_rows = 50, passes = 3, threads = 1 }
[[feature]]
each = ["a", "b"]
"""


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(GOLDEN / "deep.csv", tmp_path)
    shutil.copytree(GOLDEN / "olddeep", tmp_path / "runs" / "olddeep")
    (tmp_path / "olddeep.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert len(sanderling.torch.predict("runs/olddeep/model", "deep.csv")) == 200
    assert command.main(["olddeep.toml", "--resume", "-q"]) == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"train": {"batch": 16}}, "`batch` is now `batch_size`"),
        ({"train": {"save_every": 16}}, "`save_every` is now `save_every_steps`"),
        ({"train": {"ps_timeout_s": 2.5}}, "`ps_timeout_s` is now `ps_timeout`"),
        ({"model": {"table_budget_bytes": 4}}, "`table_budget_bytes` is now `table_budget`"),
    ],
)
def test_an_old_entry_says_the_new_one(entry: dict[str, object], expected: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=expected):
        DeepConfig.of({"data": {"train": "a.csv"}, "feature": [{"name": "a"}], **entry})


def test_an_old_option_says_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["c.toml", "--batch", "16"])
    assert "`--batch` is now `--batch-size`" in capsys.readouterr().err


def test_an_old_argument_says_the_new_one() -> None:
    with pytest.raises(TypeError, match=r"`shuffle_rows` is now `FileSource\(inputs, spec, shuffle_rows=\)`"):
        sanderling.FeedQueue("a.csv", shuffle_rows=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"`hub_ca_file` is now `HubSource\(address, tls=Tls\(ca\)\)`"):
        sanderling.FeedQueue("hub://a:1", hub_ca_file="a.pem")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"`ca_file` is now `tls=Tls\(ca\)`"):
        sanderling.connect("unix:x", ca_file="a.pem")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="`timeout` is now `timeout_s`"):
        sanderling.connect("unix:x", timeout=3.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'tiemout'"):
        sanderling.connect("unix:x", tiemout=3.0)  # type: ignore[call-arg]
