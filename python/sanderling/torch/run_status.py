"""Record of a deep run while it goes on: `run.json` for `sanderling watch`, and the run's page at an address."""

import os
import threading
import time
from typing import Any

import sanderling
from sanderling._native import RunStatus
from sanderling.torch.deep_report import curves_of, facts_of
from sanderling.torch.deep_run import DeepRun
from sanderling.torch.run_log import RunLog

# Interval between two records, in seconds, as built-in runs have it.
_NOTE_EVERY_S = 2.0


class RunRecord:
    """Writer of the record of one run; a thread of its own writes until `finish`."""

    def __init__(self, run: DeepRun, log: RunLog, address: str | None) -> None:
        """Write the first record, and show the run at `address` (host:port of this machine; None: nowhere).

        Raises ConfigError for an address that is taken or that other machines reach.
        """
        self._run, self._log, self._status = run, log, RunStatus(address)
        self._path = run.run_dir / "run.json"
        self._ended = threading.Event()
        self._failure: str | None = None
        if self._status.url is not None:
            log.say(f"the run is shown at {self._status.url}")
        self._write(is_over=False)
        self._thread = threading.Thread(target=self._go_on, name="record", daemon=True)
        self._thread.start()

    def fail(self, reason: str) -> None:
        """Note why the run ends without a result."""
        self._failure = reason

    def finish(self) -> None:
        """Stop the thread, and write the last record."""
        self._ended.set()
        self._thread.join()
        self._write(is_over=self._failure is None)

    def _go_on(self) -> None:
        while not self._ended.wait(_NOTE_EVERY_S):
            self._write(is_over=False)

    def _write(self, *, is_over: bool) -> None:
        facts = facts_of(self._run, curves_of(self._run.run_dir))
        if not is_over:
            facts["under_way"] = self._under_way()
        tables = [table for table in self._run.model.emb.tables.values() if isinstance(table, sanderling.Table)]
        record = self._status.note(facts, tables)
        part = self._path.with_suffix(".json.part")
        try:
            part.write_text(record)
            part.replace(self._path)
        except OSError:
            # A disk that is full for a while ends no training.
            pass

    def _under_way(self) -> dict[str, Any]:
        run, task = self._run, self._log.task()
        name, share, left_s = task if task is not None else ("starting", None, None)
        return {
            "phase": "validating" if name == "validating" else "training" if task is not None else "between passes",
            "pass": run.progress.passes + (0 if run.progress.unjudged else 1),
            "passes": run.inputs.passes,
            "share": share,
            "elapsed_s": time.perf_counter() - run.began_s,
            "left_s": left_s,
            "process": os.getpid(),
            "noted_unix_s": int(time.time()),
            "failure": self._failure,
        }
