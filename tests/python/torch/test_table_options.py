"""Options of tables in the configuration of a deep model, and entries that the command line sets."""

from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.__main__ import _is_deep
from sanderling.torch import command

ROWS = 512
CONFIG = (
    'data = { train = "1.csv" }\nmodel = { type = "dnn", hidden = [8] }\n[[feature]]\nname = "user"\n'
    '[[feature]]\nname = "item"\nmin_count = 3\n[table.user]\nadmission = { after = 4 }\ndtype = "f16"\n'
)


def test_tables_have_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = [f"{label},{user},{item}" for label, user, item in rng.integers(0, (2, 20, 30), (ROWS, 3))]
    Path("1.csv").write_text("label,user,item\n" + "\n".join(rows) + "\n")
    Path("c.toml").write_text(CONFIG)
    options = ["c.toml", "--json", "--quiet", "--set", "train.batch_size=64"]
    assert command.main([*options, "--name", "one", "--set", "model.dim=4"]) == 0
    assert '"dim": 4' in Path("runs/one/config.json").read_text()
    saved = next(Path("runs/one/model").glob("rows-*"))
    user, item = (sanderling.Table.load(saved, name) for name in ("user", "item"))
    assert (user.config["dtype"], user.config["admission"]["sightings"]) == ("f16", 4)
    assert item.config["admission"]["sightings"] == 3
    capsys.readouterr()
    for entry, expected in [
        ("model.dmi=4", "model.dmi is unknown"),
        ("table.usr.dtype=f16", "table.usr: no feature has this table"),
        ("table.user.dtyp=f16", "table.user.dtyp is unknown"),
        ("table.user.memory={ kept = '/dev/shm/t' }", "table.user.memory: deep models are trained in private memory"),
        ("table.user.admission={ after = 3, size = 1 }", "table.user.admission: unknown size"),
        ("data.valid={ by = 'hash' }", 'by = "hash" needs a column'),
        ("table.user.admission={ after = 1 }", "table.user.admission.after = 1: must be a whole number from 2 to 255"),
    ]:
        assert command.main([*options, "--set", entry]) == 2
        assert expected in capsys.readouterr().err, entry


def test_a_deep_type_that_is_set_is_found() -> None:
    for arguments, expected in [
        (["c.toml", "--set", "model.type=deepfm"], True),
        (["c.toml", '--set=model.type="dcn"'], True),
        (["c.toml", "--set", "model.type=lr"], False),
        (["c.toml", "--set", "model.rank=3"], False),
    ]:
        assert _is_deep(arguments) == expected
