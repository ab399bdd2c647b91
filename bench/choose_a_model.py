"""Quality and speed of all models on the public data sets, the table of docs/choosing-a-model.md.

    python bench/choose_a_model.py ../shared/data                    all models on Adult, Criteo, Frappe and MovieLens
    python bench/choose_a_model.py ../shared/data --only adult --models 'lr;fm;deepfm'

Each data set has one reading and one validation file; each model has one configuration for all data sets, which is
stated below. `suggested` is the unchanged output of `sanderling inspect --suggest` for the file.
`suggested, passes` adds the validation file and the passes that its comments propose. Runs end by early stopping. The
AUC is of the best pass on the validation rows. Examples/s are of training without validation: with one training thread
for lr, fm, ffm and the suggested ones, with one queue and one torch thread for deep models.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import sanderling
import sanderling.torch

BUILT_IN = ("lr", "fm", "ffm")
SUGGESTED = ("suggested", "suggested, passes")
DEEP = ("dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm")


def settings(model: str, numbers: bool) -> dict[str, Any]:
    """Return the configuration of a model, without the data."""
    if model == "lr":
        return {
            "model": {"type": "lr"},
            "optimizer": {"type": "ftrl", "alpha": 0.1, "l1": 0.0, "l2": 1.0},
            "train": {"batch_size": 16, "passes": 20, "early_stop": 2},
        }
    if model == "fm":
        return {
            "model": {"type": "fm", "rank": 8},
            "optimizer": {"type": "adagrad", "lr": 0.05},
            "train": {"batch_size": 256, "passes": 20, "early_stop": 2},
        }
    if model == "ffm":
        return {
            "model": {"type": "ffm", "rank": 4},
            "optimizer": {"type": "adagrad", "lr": 0.05},
            "train": {"batch_size": 16, "passes": 20, "early_stop": 2},
        }
    sizes: dict[str, Any] = {"dropout": 0.2, "hidden": [128, 64]}
    if model == "dlrm" and numbers:
        sizes["bottom"] = [32]
    return {
        "model": {"type": model, "dim": 10, **sizes},
        "optimizer": {"type": "adam", "lr": 1e-3},
        "dense_optimizer": {"lr": 1e-3},
        "train": {"batch_size": 1024, "passes": 15, "early_stop": 2, "threads": 1},
    }


def adult(data: Path, folder: Path) -> dict[str, Any]:
    """Census rows; the published division."""
    del folder
    columns = [
        "age",
        "workclass",
        "fnlwgt",
        "education",
        "education_num",
        "marital_status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "capital_gain",
        "capital_loss",
        "hours_per_week",
        "native_country",
        "income",
    ]
    texts = [columns[place] for place in (1, 3, 5, 6, 7, 8, 9, 13)]
    numbers = [columns[place] for place in (0, 4, 10, 11, 12)]
    return {
        "data": {
            "train": str(data / "adult/adult.data"),
            "valid": str(data / "adult/adult.test"),
            "format": "csv",
            "header": False,
            "columns": columns,
            "comment": "|",
            "missing": ["?"],
        },
        "label": {"column": "income", "positive": [">50K", ">50K."]},
        "feature": [{"each": texts}, {"each": numbers, "type": "quantile", "buckets": 20}],
    }


def criteo(data: Path, folder: Path) -> dict[str, Any]:
    """The first 80 % of the rows for training, in time order."""
    lines = (data / "criteo_80k/criteo_80k.tsv").read_text().splitlines(keepends=True)
    cut = len(lines) * 4 // 5
    (folder / "train.tsv").write_text("".join(lines[:cut]))
    (folder / "valid.tsv").write_text("".join(lines[cut:]))
    numbers, texts = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
    return {
        "data": {
            "train": str(folder / "train.tsv"),
            "valid": str(folder / "valid.tsv"),
            "header": False,
            "columns": ["label", *numbers, *texts],
        },
        "feature": [{"each": texts}, {"each": numbers, "type": "quantile", "buckets": 20}],
    }


def frappe(data: Path, folder: Path) -> dict[str, Any]:
    """The published division, with `valid.csv` for validation."""
    del folder
    names = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
    return {
        "data": {"train": str(data / "frappe_x1/train.csv"), "valid": str(data / "frappe_x1/valid.csv")},
        "feature": [{"each": names}],
    }


def movielens(data: Path, folder: Path) -> dict[str, Any]:
    """Ratings above 3 are positive; the last fifth of the ratings in time for validation."""
    rows = np.loadtxt(data / "ml-100k/u.data", np.int64)
    rows = rows[np.argsort(rows[:, 3], kind="stable")]
    users = dict(line.split("|", 1) for line in (data / "ml-100k/u.user").read_text().splitlines())
    for name, part in (("train", rows[: len(rows) * 4 // 5]), ("valid", rows[len(rows) * 4 // 5 :])):
        lines = []
        for user, item, rating, _ in part.tolist():
            age, gender, occupation, _ = users[str(user)].split("|")
            lines.append(f"{int(rating > 3)},{user},{item},{int(age) // 10},{gender},{occupation}\n")
        (folder / f"{name}.csv").write_text("label,user,item,age,gender,occupation\n" + "".join(lines))
    names = ["user", "item", "age", "gender", "occupation"]
    return {
        "data": {"train": str(folder / "train.csv"), "valid": str(folder / "valid.csv")},
        "feature": [{"each": names}],
    }


def suggested(data_set: dict[str, Any], passes: int) -> dict[str, Any]:
    """Return the configuration that `inspect --suggest` writes for the training file."""
    data = data_set["data"]
    options = [f"--columns={','.join(data['columns'])}"] if "columns" in data else []
    options += [f"--comment={data['comment']}"] if "comment" in data else []
    options += [f"--format={data['format']}"] if "format" in data else []
    command = [sys.executable, "-m", "sanderling", "inspect", data["train"], "--suggest", *options]
    config = tomllib.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    config["data"] = data
    if "label" in data_set:
        config["label"] = data_set["label"]
    if passes > 1:
        config["train"] |= {"passes": passes, "early_stop": 1}
    return config


SETS = {"adult": adult, "criteo": criteo, "frappe": frappe, "movielens": movielens}


def main() -> None:
    """Print a table per data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--only", choices=SETS, help="one data set")
    parser.add_argument("--models", default=";".join((*BUILT_IN, *SUGGESTED, *DEEP)), help="separated by semicolons")
    options = parser.parse_args()
    for name, prepare in SETS.items():
        if options.only not in (None, name):
            continue
        print(f"\n| {name} | AUC | logloss | best pass | examples/s | seconds in all |\n|---|---|---|---|---|---|")
        for model in options.models.split(";"):
            with tempfile.TemporaryDirectory() as place:
                config = prepare(options.data, Path(place))
                if model in SUGGESTED:
                    config = suggested(config, 1 if model == "suggested" else 8)
                else:
                    config |= {"name": model, **settings(model, numbers=False)}
                began = time.perf_counter()
                with contextlib.redirect_stderr(io.StringIO()):
                    if model not in DEEP:
                        summary = sanderling.train(config, runs_dir=place).summary
                    else:
                        summary = sanderling.torch.train(config, runs_dir=place, torch_threads=1).summary
                seconds = time.perf_counter() - began
            print(
                f"| {model} | {summary['auc']:.4f} | {summary['logloss']:.4f} | {summary['best_pass']} |"
                f" {summary['examples_per_s']:,.0f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
