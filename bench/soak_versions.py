"""The soak's server of versions: new versions are made live without a pause, and each answer is held to its version."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soak_checks as checks

import sanderling

SERVER = "127.0.0.1:8500"
NAME = "flipped"
# Version N is model N modulo this number; each has another learning rate, so other scores and rows.
MODELS = 3
# Directories that stay: the live version, the one before, and that to come.
KEPT = 3
ROLLBACK_EVERY = 5
USERS = ["u1", "u2", "u3", "u4"]
TOLERANCE = 1e-6

Numbers = npt.NDArray[Any]
Answer = dict[str, Any]
# A path, what is asked, and the version and the numbers of an answer.
Form = tuple[str, Answer, Callable[[Answer], tuple[str, Any]]]


class Versions:
    """Models, their folder, and requests to their server."""

    def __init__(self, folder: Path, count: Callable[[str], None], problem: Callable[[str], None]) -> None:
        """Trains the models and makes the first version live."""
        self._folder, self._count, self._problem = folder / "models" / NAME, count, problem
        self._folder.mkdir(parents=True)
        self.stops = threading.Event()
        self.command = ["serve", "--models", "models", "--listen", SERVER, "--threads", "1", "--timeout", "10s"]
        (folder / "planted.csv").write_text(
            "label,user\n" + "".join(f"{at % 3 % 2},{USERS[at % 4]}\n" for at in range(400))
        )
        self._models, self._planted = [], []
        for number in range(MODELS):
            config = {
                "name": f"planted{number}",
                "data": {"train": str(folder / "planted.csv")},
                "model": {"type": "fm"},
                "optimizer": {"type": "sgd", "lr": 0.01 * 2**number},
                "feature": [{"name": "user"}],
            }
            model = sanderling.train(config, runs_dir=folder / "runs").load()
            self._models.append(folder / f"runs/planted{number}/model")
            keys = np.array([sanderling.key("user", user) for user in USERS], np.uint64)
            scores = [model.predict({"user": user}) for user in USERS]
            self._planted.append((np.array(scores, np.float64).ravel(), model.table("user").pull(keys)))
        self._newest = 0
        self._add()
        (self._folder / "live").symlink_to("1")

    def _add(self) -> int:
        self._newest += 1
        hidden = self._folder / f".{self._newest}"
        shutil.copytree(self._models[self._newest % MODELS], hidden)
        hidden.rename(self._folder / str(self._newest))
        return self._newest

    def _live(self, client: checks.Answers, version: int) -> None:
        path = f"/v2/repository/models/{NAME}/load"
        try:
            status, answer = client.ask(path, {"parameters": {"version": version}})
        except OSError as error:
            return self._problem(f"version {version} does not become live: {error}")
        if status != 200 or answer["aliases"].get("live") != str(version):
            return self._problem(f"version {version} does not become live: {status} {answer}")
        return self._count("flips")

    def flip(self) -> None:
        """Makes new versions live, goes back at times, and deletes old ones."""
        client = checks.Answers(SERVER, 30)
        while not self.stops.is_set():
            version = self._add()
            self._live(client, version)
            if version % ROLLBACK_EVERY == 0:
                self._live(client, version - 1)
                self._live(client, version)
            shutil.rmtree(self._folder / str(version - KEPT), ignore_errors=True)
            time.sleep(0.05)

    def predict(self) -> None:
        """Asks for scores, as plain JSON and by the Open Inference Protocol in turns."""
        plain = {"model": NAME, "rows": [{"user": user} for user in USERS]}
        tensors = {"inputs": [{"name": "user", "datatype": "BYTES", "shape": [len(USERS)], "data": USERS}]}

        def scores(answer: Answer) -> tuple[str, Any]:
            return answer["version"], answer["scores"]

        def score_tensor(answer: Answer) -> tuple[str, Any]:
            return answer["model_version"], next(it["data"] for it in answer["outputs"] if it["name"] == "score")

        forms: list[Form] = [("/predict", plain, scores), (f"/v2/models/{NAME}/infer", tensors, score_tensor)]
        self._hold("predictions", forms, 0)

    def read(self) -> None:
        """Asks for rows."""

        def rows(answer: Answer) -> tuple[str, Any]:
            return answer["version"], [row["weights"] for row in answer["rows"]]

        self._hold("lookups", [("/tables/user/rows", {"model": NAME, "values": USERS}, rows)], 1)

    def _hold(self, what: str, forms: list[Form], which: int) -> None:
        """Asks in turns, and holds each answer to the numbers of the version that it names."""
        client, asked = checks.Answers(SERVER, 30), 0
        while not self.stops.is_set():
            path, body, read = forms[asked % len(forms)]
            asked += 1
            try:
                status, answer = client.ask(path, body)
            except OSError as error:
                return self._problem(f"{path} failed: {error}")
            if status != 200:
                return self._problem(f"{path} failed: {status} {answer}")
            version, numbers = read(answer)
            wrong = wrong_numbers(np.array(numbers), version, self._planted, which)
            if wrong:
                return self._problem(f"{path}: {wrong}")
            self._count(what)
            time.sleep(0.005)
        return None


def wrong_numbers(numbers: Numbers, version: str, planted: list[tuple[Numbers, Numbers]], which: int) -> str:
    """Return the fault of the numbers of an answer; empty if they are those of its version."""
    if np.allclose(numbers, planted[int(version) % MODELS][which], rtol=0, atol=TOLERANCE):
        return ""
    fit = [at for at, known in enumerate(planted) if np.allclose(numbers, known[which], rtol=0, atol=TOLERANCE)]
    return f"version {version} has the numbers of model {fit[0]}" if fit else f"version {version} is mixed: {numbers}"
