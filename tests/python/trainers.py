"""The ready trainer as processes of its own, forked from one that has imported torch, which takes longer than training.

That one does nothing else: it opens no connection, makes no tensor and starts no thread, none of which outlives a fork.
Several trainers have torchrun's own agent, forked like one trainer, which then forks them where torchrun would start
an interpreter for each. The real torchrun is there, too, for who asks for it.

Run as a program this file is a trainer, or with the number of a socket alone the process that is forked. It knows no
test.
"""

import importlib
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

# How long a trainer that is to be slow waits after a step.
_SLOW_S = 0.05
# What says how to start a trainer.
_START_BYTES_MAX = 1 << 16


class Forked:
    """A forked process: of `subprocess.Popen` what tests use."""

    def __init__(self, pid: int, supervisor: socket.socket, stdout: TextIO, stderr: TextIO) -> None:
        """The supervisor says its exit code."""
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._supervisor = supervisor

    def wait(self) -> int:
        """Its exit code, or as a negative number the signal that ended it."""
        if self.returncode is None:
            said = self._supervisor.recv(16)
            assert said, "its parent is gone"
            self.returncode = int(said)
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


# Of trainers: one process, or torchrun.
Running = Forked | subprocess.Popen[str]


class Forks:
    """Starts trainers by forking a process of its own."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # One thread for torch: several wait for each other actively.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=dict(os.environ, OMP_NUM_THREADS="1"),
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """Ends that process."""
        self._ours.close()
        self._process.kill()
        self._process.wait()

    @contextmanager
    def start(
        self, folder: Path, ranks: int, arguments: Sequence[str], environment: Mapping[str, str], program: str = ""
    ) -> Iterator[Forked]:
        """So many trainers in a folder, or processes of another program; killed if they outlive the block."""
        (out, out_there), (err, err_there) = os.pipe(), os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, os.fdopen(out) as stdout, os.fdopen(err) as stderr:
            start = {"folder": str(folder), "ranks": ranks, "environment": {**environment}}
            start |= {"program": program, "arguments": arguments}
            sent = [theirs.detach(), out_there, err_there]
            socket.send_fds(self._ours, [json.dumps(start).encode()], sent)
            for descriptor in sent:
                os.close(descriptor)
            said = ours.recv(16)
            assert said, "it was not started"
            process = Forked(int(said), ours, stdout, stderr)
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()


class Trainers:
    """One trainer, or several under torchrun: `sanderling train clicks.toml` with these arguments in a folder."""

    def __init__(self, forks: Forks, folder: Path, ranks: int, *arguments: str, torchrun: bool = False) -> None:
        """`torchrun`: the real one starts them."""
        self.forks, self.folder, self.ranks, self.torchrun = forks, folder, ranks, torchrun
        self.arguments = ["clicks.toml", *arguments]

    @contextmanager
    def start(self, *arguments: str, slow_from: int = 0, killed_at: int = 0) -> Iterator[Running]:
        """Runs them; killed if the test does not wait for their end.

        From the step `slow_from` on they are so slow that who tells them something then is not too late. When the line
        of step `killed_at` is printed, the trainer kills itself.
        """
        for rank in range(self.ranks):
            for name in ("code", "pid"):
                (self.folder / f"{name}-{rank}").unlink(missing_ok=True)
        all_arguments = [*self.arguments, *arguments]
        environment = {"SLOW_FROM": str(slow_from), "KILLED_AT": str(killed_at)}
        start = _torchrun if self.torchrun else self.forks.start
        with start(self.folder, self.ranks, all_arguments, environment) as process:
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                    for trainer in self.pids().values():
                        with suppress(ProcessLookupError):
                            os.kill(trainer, signal.SIGKILL)

    def pids(self) -> dict[int, int]:
        """The trainers' processes that have begun, by rank."""
        files = {rank: self.folder / f"pid-{rank}" for rank in range(self.ranks)}
        return {rank: int(file.read_text()) for rank, file in files.items() if file.exists()}

    def codes(self) -> list[int]:
        """Their exit codes."""
        return [int((self.folder / f"code-{rank}").read_text()) for rank in range(self.ranks)]

    def end(self, *arguments: str, killed_at: int = 0) -> tuple[int, str, str]:
        """Runs them to their end: the exit code, and what they said on standard output and on standard error."""
        with self.start(*arguments, killed_at=killed_at) as process:
            return rest(process)

    def run(self, *arguments: str) -> str:
        """Runs them to the end that they should have; standard output."""
        code, out, err = self.end(*arguments)
        assert code == 0, err
        return out

    def stop(self, step: int, tell: Callable[[Running], object], *arguments: str) -> tuple[str, list[int]]:
        """Tells them to stop when they have made so many steps; what they said then, and their exit codes."""
        with self.start(*arguments, slow_from=step) as process:
            assert process.stderr is not None
            # Of a later pass the line says so behind the number.
            while not re.search(rf"\bstep {step}\b.*, auc", line := process.stderr.readline()):
                assert line, "it ended before"
            tell(process)
            code, _, said = rest(process)
            assert code != 0
        return said, self.codes()


def rest(process: Running) -> tuple[int, str, str]:
    """Waits for the end of a process that says little on standard output."""
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stderr.read()
    return process.wait(), process.stdout.read(), said


@contextmanager
def _torchrun(folder: Path, ranks: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[Running]:
    """Trainers that the real torchrun has started."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with subprocess.Popen(
        [*launcher, __file__, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# From here on: what the processes do.


def _train(arguments: Sequence[str]) -> int:
    """What a trainer does: what the command does, its process and its exit code in files."""
    from sanderling.torch import command
    from sanderling.torch.run_log import RunLog

    rank = os.environ.get("RANK", "0")
    # A shell that starts the tests in the background lets them ignore the one; torchrun's agent has its own handlers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    began = Path(f"began-{rank}")
    began.write_text(str(os.getpid()))
    began.rename(f"pid-{rank}")
    slow_from, killed_at = int(os.environ["SLOW_FROM"]), int(os.environ["KILLED_AT"])
    line = RunLog.line

    def watched(log: RunLog, kind: str, values: dict[str, Any]) -> None:
        line(log, kind, values)
        if values["step"] == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if 0 < slow_from <= values["step"]:
            time.sleep(_SLOW_S)

    RunLog.line = watched  # type: ignore[assignment, method-assign]
    code = command.main(arguments)
    Path(f"code-{rank}").write_text(str(code))
    return code


def _run(program: str, arguments: Sequence[str]) -> None:
    """One process, one of several or alone; without a program a trainer."""
    if program:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
    elif code := _train(arguments):
        sys.exit(code)


def _agent(ranks: int, program: str, arguments: Sequence[str]) -> None:
    """What torchrun --standalone does, but for interpreters."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, _run)(program, arguments)


def _supervise(start: dict[str, Any], supervisor: int, stdout: int, stderr: int) -> None:
    """Forks a process that is one trainer, or the agent of several; here waits for its end."""
    with socket.socket(fileno=supervisor) as to_test:
        child = os.fork()
        if child > 0:
            os.close(stdout)
            os.close(stderr)
            to_test.send(str(child).encode())
            to_test.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
            os._exit(0)
    for pipe, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(pipe, standard)
        os.close(pipe)
    os.chdir(start["folder"])
    os.environ.update(start["environment"])
    program, arguments = start["program"], start["arguments"]
    _agent(start["ranks"], program, arguments) if start["ranks"] > 1 else _run(program, arguments)


def _serve(tests: socket.socket) -> None:
    """Forks a supervisor for each start, until the tests are over. Returns as well in what that has forked."""
    # Optimizers import the first when they are made.
    for module in ("torch._dynamo", "torch.distributed.launcher.api", "sanderling.torch.command"):
        importlib.import_module(module)

    while True:
        start, descriptors, _, _ = socket.recv_fds(tests, _START_BYTES_MAX, 3)
        if not start:
            return
        if os.fork() == 0:
            tests.close()
            _supervise(json.loads(start), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    _run("", sys.argv[1:]) if len(sys.argv) > 2 else _serve(socket.socket(fileno=int(sys.argv[1])))
