"""Dashboards and alerts against real scrapes: of this test itself, and by Prometheus where it is installed."""

import json
import re
import runpy
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import PATIENCE_S, cluster_and_run, eventually, free_port, page, predict, ps_hub_and_serve

import sanderling

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
GENERATOR: dict[str, Any] = runpy.run_path(str(MONITORING / "generate.py"))
LIST: dict[str, Any] = GENERATOR["read"]()
TOKEN = "a token for tests"


def promtool(*arguments: str, folder: Path = MONITORING) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("skipped: promtool is not installed (Debian: apt-get install prometheus)")
    checked = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    said = checked.stdout + checked.stderr
    assert checked.returncode == 0, said
    return said


def in_query(expression: str) -> str:
    """An expression of a dashboard as Grafana asks it: all instances, and a range that the test waits for."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "30s")


EXPRESSIONS: dict[str, tuple[str, str]] = {
    f"{panel['role']}: {panel['title']}: {legend}": (panel["role"], in_query(query))
    for panel in LIST["panel"]
    for query, legend in panel["queries"]
} | {alert["name"]: (alert["role"], re.sub(r"\[\d+[mh]\]", "[30s]", alert["value"])) for alert in LIST["alert"]}

# Processes whose metrics need the token.
WITH_TOKEN = {"ps", "cluster", "keeper"}

# Without these events the answer is empty, and the servers of the test have none of them.
EMPTY = {
    "SanderlingServeFails",  # no request failed
}


class Load:
    """A trainer on a hub's minibatches and a server's tables, predictions beside it, until the end."""

    def __init__(self, at: dict[str, str], token_file: Path) -> None:
        self.at = at
        token = token_file.read_text()
        self.connection = sanderling.connect(at["ps"], token=token)
        table = self.connection.table("user", 4, optimizer={"type": "adagrad", "lr": 0.1})
        self.rows = sanderling.Embedding([table], [("user", 0, "sum")])
        self.queue = sanderling.FeedQueue(sanderling.HubSource(f"hub://{at['hub']}", token=token), self.rows, depth=2)
        self.metrics = self.queue.serve_metrics("127.0.0.1:0")
        self.ended = threading.Event()
        self.steps = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for batch in self.queue:
            assert batch.lookup is not None
            batch.lookup.add_grads(batch.lookup.pooled * 0.01)
            batch.lookup.push()
            predict(self.at["serve"])
            self.steps += 1
            if self.ended.is_set():
                break


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of the metrics of each role, while they work."""
    folder = tmp_path_factory.mktemp("monitored")
    with ExitStack() as stack:
        at = stack.enter_context(ps_hub_and_serve(folder, TOKEN))
        load = Load(at, folder / "token")
        load.thread.start()
        try:
            eventually(lambda: load.steps > 5)
            load.connection.save("once")
            trainer = urllib.parse.urlsplit(load.metrics).netloc
            others = stack.enter_context(cluster_and_run(folder, TOKEN))
            yield {"ps": at["control"], "hub": at["metrics"], "serve": at["serve"], "trainer": trainer} | others
        finally:
            load.ended.set()
            load.thread.join(PATIENCE_S)


def test_the_files_are_those_of_the_generator() -> None:
    for name, text in GENERATOR["files"]().items():
        assert (MONITORING / name).read_text() == text, f"{name} is not current: run deploy/monitoring/generate.py"


def test_names_are_unique_and_alerts_say_what_to_do() -> None:
    names = [alert["name"] for alert in LIST["alert"]] + [(panel["role"], panel["title"]) for panel in LIST["panel"]]
    assert len(names) == len(set(names))
    for alert in LIST["alert"]:
        assert alert["summary"].endswith("."), alert["name"]
        assert len(alert["runbook"]) > 60, alert["name"]


def test_every_metric_and_label_is_in_a_scrape_of_its_role(targets: dict[str, str]) -> None:
    scraped = {
        role: page(f"http://{address}/metrics", TOKEN if role in WITH_TOKEN else None)
        for role, address in targets.items()
    }
    unknown = []
    for name, (role, expression) in EXPRESSIONS.items():
        if role == "all":
            continue
        samples = re.findall(r"^([a-z0-9_]+)(?:\{(.*)\})? ", scraped[role], re.MULTILINE)
        known = {metric for metric, _ in samples}
        used = set(re.findall(r"\b(?:sanderling|process)_[a-z0-9_]+", expression))
        assert used, name
        labels = {label for metric, of in samples if metric in used for label in re.findall(r'(\w+)="', of)}
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        matched = re.findall(r'[{,] ?(\w+)(?:=~|!=|=)"', expression)
        for label in {*matched, *re.split(r",\s*", ", ".join(grouped))} - {"", "instance"}:
            unknown += [] if label in labels else [f"{name}: label {label}"]
        unknown += [f"{name}: {metric}" for metric in used - known]
    assert unknown == []


def test_rules_and_scrape_configuration_are_valid(tmp_path: Path) -> None:
    assert f"{len(LIST['alert'])} rules found" in promtool("check", "rules", "alerts.yml")
    # The example's token need not be on this machine.
    for name in ("prometheus.yml", "alerts.yml"):
        text = (MONITORING / name).read_text()
        (tmp_path / name).write_text(text.replace("/etc/sanderling/token", str(tmp_path / "alerts.yml")))
    promtool("check", "config", "prometheus.yml", folder=tmp_path)


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    tests = []
    for alert in LIST["alert"]:
        for kind, firing in (("fires", 1), ("quiet", 0)):
            series = [{"series": name, "values": values} for name, values in alert[kind].items()]
            minutes = max(_count(values) for values in alert[kind].values()) - 1
            asked = {
                "expr": f'count(ALERTS{{alertname="{alert["name"]}", alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": firing}],
            }
            tests.append({"interval": "1m", "input_series": series, "promql_expr_test": [asked]})
    rules = str(MONITORING / "alerts.yml")
    # JSON is YAML, too.
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", "tests.yml", folder=tmp_path)


def _count(values: str) -> int:
    """How many values a series of promtool has: `1x3` are four."""
    return sum(1 + int(part.partition("x")[2] or 0) for part in values.split())


def test_every_expression_answers_in_prometheus(targets: dict[str, str], tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("skipped: prometheus is not installed (Debian: apt-get install prometheus)")
    (tmp_path / "token").write_text(TOKEN)
    jobs: list[dict[str, Any]] = [
        {"job_name": f"sanderling-{role}", "static_configs": [{"targets": [at]}]} for role, at in targets.items()
    ]
    for job in jobs:
        if job["job_name"].removeprefix("sanderling-") in WITH_TOKEN:
            job["authorization"] = {"credentials_file": str(tmp_path / "token")}
    settings = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": jobs}
    (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
    at = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen([prometheus, *options, f"--web.listen-address={at}"], stderr=log)
    try:
        silent: dict[str, str] = {}

        def ask(expression: str) -> list[Any]:
            query = urllib.parse.urlencode({"query": expression})
            answer = json.loads(page(f"http://{at}/api/v1/query?{query}"))
            found: list[Any] = answer["data"]["result"]
            return found

        def all_answer() -> bool:
            silent.clear()
            try:
                silent.update({name: query for name, (_, query) in EXPRESSIONS.items() if not ask(query)})
            except OSError:  # it has not come up yet
                return False
            return silent.keys() <= EMPTY

        try:
            eventually(all_answer)
        except AssertionError:
            pytest.fail(f"no sample for {silent}; {(tmp_path / 'log').read_text()[-2000:]}")
    finally:
        running.kill()
        running.wait()
