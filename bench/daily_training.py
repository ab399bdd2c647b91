"""Daily training on labels that drift: a model continued every day, against a frozen one, a fresh one, and a window.

Usage: python bench/daily_training.py [SANDERLING] [ROWS_PER_DAY]

Makes eight days with `sanderling synth --drift`, trains on seven and scores the eighth. Writes a table in Markdown.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SANDERLING = sys.argv[1] if len(sys.argv) > 1 else "sanderling"
ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
DAYS = 7
MODELS = {
    "lr": '[optimizer]\ntype = "ftrl"\nalpha = 0.05\nl2 = 1.0\n',
    "fm": '[model]\ntype = "fm"\nrank = 8\n[optimizer]\ntype = "ftrl"\nalpha = 0.05\nl2 = 1.0\n'
    '[factor_optimizer]\ntype = "adagrad"\nlr = 0.01\nl2 = 1e-4\n',
}


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints last."""
    done = subprocess.run(
        [SANDERLING, *arguments, "--json", "--quiet"], cwd=folder, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def days_of(folder: Path, drift: float) -> float:
    """Write the days; returns the best AUC that any model can have on the last one."""
    best = 0.0
    for day in range(DAYS + 1):
        first = str(day * ROWS)
        made = run(
            folder,
            *("synth", f"{day + 1}.svm", "--rows", str(ROWS), "--first-row", first),
            *("--drift", str(drift), "--vocabulary", "100000"),
        )
        best = made["best_auc"]
    return best


def aucs(folder: Path, model: str) -> dict[str, float]:
    """Return the AUC of each way to train, on the day after the last one."""
    config = folder / f"{model}.toml"
    config.write_text(f'[data]\ntrain = "1.svm"\n[train]\nbatch_size = 16\n{MODELS[model]}')

    def train(name: str, *arguments: str) -> str:
        run(folder, "train", config.name, "--name", f"{model}-{name}", *arguments)
        return f"runs/{model}-{name}/model"

    def auc(path: str) -> float:
        found: float = run(folder, "eval", path, f"{DAYS + 1}.svm")["auc"]
        return found

    warm = frozen = train("1")
    for day in range(2, DAYS + 1):
        warm = train(str(day), "--train", f"{day}.svm", "--from", warm, "--predict-first")
    fresh = train("fresh", "--train", f"{DAYS}.svm")
    window = train("window", "--train", *(f"{day}.svm" for day in range(1, DAYS + 1)), "--set", "train.shuffle_rows=0")
    return {
        "frozen first day": auc(frozen),
        "fresh last day": auc(fresh),
        "seven days anew, in order": auc(window),
        "daily warm start": auc(warm),
    }


def main() -> None:
    """Write a row per drift and model."""
    rows: list[list[str]] = []
    names: list[str] = []
    for drift in (0.0, 0.05, 0.15, 0.3):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            best = days_of(folder, drift)
            for model in MODELS:
                found = aucs(folder, model)
                names = list(found)
                rows.append([str(drift), model, *(f"{auc:.4f}" for auc in found.values()), f"{best:.4f}"])
    lines = ["| " + " | ".join(["drift", "model", *names, "best possible"]) + " |", "|" + "---|" * (len(names) + 3)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
