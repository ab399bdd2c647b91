"""Test sets of a deep run: the saved model scored on each of them, once, at the end."""

from typing import TYPE_CHECKING

from sanderling.torch.file_scores import FileScores
from sanderling.torch.retrieval_run import without_scores
from sanderling.torch.run_log import Line, RunLog, Scores, metrics_of

if TYPE_CHECKING:
    from sanderling.torch.deep_run import DeepRun


def score_tests(run: "DeepRun", log: RunLog) -> None:
    """Score the saved model on the test sets of the configuration; rank 0 scores, the other trainers wait.

    A run that was stopped has none, as with built-in learners.
    """
    tests, progress = run.config.tests, run.progress
    if not tests or run.stopped() or progress.passes == 0:
        return
    if run.workers is None or run.workers.rank == 0:
        scores = _saved(run, log)
        for name, files in tests.items():
            metrics = _metrics(scores, files, run.config.train.threads)
            place = {"step": progress.step, "pass": progress.best_pass, "name": name}
            log.line("test", {**place, "measured_on": "test", **metrics})
            run.tests.append({"name": name, "data": ", ".join(files), **metrics})
    run.meet()


def _saved(run: "DeepRun", log: RunLog) -> FileScores:
    """Return the best model, which is that of the run itself after its last pass."""
    if run.progress.best_pass == run.progress.passes:
        return FileScores.of(run.model.eval(), run.spec)
    if run.config.train.download or run.model.local_names is None:
        return FileScores(run.run_dir / "model", device=run.device)
    log.warn("test sets are scored with the rows that the servers have now: those after the last pass")
    return FileScores(run.run_dir / "model", run.model.emb.connection, device=run.device)


def _metrics(scores: FileScores, files: list[str], threads: int) -> Line:
    """Return the metrics of a set; of a model without labels, or of numbers, the other metrics are undefined."""
    scores.begin(files, scores.reading, threads, is_labelled=True)
    rows = Scores()
    while (found := scores.take()) is not None:
        rows.add(found["labels"], found["scores"], found["weights"])
    further = dict(scores.end()["metrics"])
    if rows.rows:
        return {**metrics_of(rows.take()), **further}
    examples = int(further.pop("users", further.get("examples", 0)))
    return {**without_scores(examples), **further, "examples": examples}
