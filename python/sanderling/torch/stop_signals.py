"""Orderly end of a deep run after SIGINT or SIGTERM: the current step is finished and saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sanderling._native import give_up_silent

if TYPE_CHECKING:
    from sanderling.torch.deep_run import DeepRun


@contextmanager
def orderly(run: "DeepRun") -> Iterator[None]:
    """Handle SIGINT and SIGTERM inside the `with` block: the run ends after the current step, which is saved.

    Several trainers end after the same step. A single trainer ends within the step if a server does not answer. Has no
    effect outside the main thread, which alone can set signal handlers.
    """
    if threading.current_thread() != threading.main_thread():
        yield
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hear(*_: object) -> None:
        run.told.set()
        if run.workers is None:
            # A second signal has its previous effect. Calls no longer wait for silent servers.
            restore()
            give_up_silent(True)
        else:
            # Keep the handlers: torchrun forwards a signal that the terminal has sent already.
            run.workers.stop()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if run.workers is not None and run.is_told():
            # When the first trainer exits, torchrun signals the others, which must still write their results.
            before = dict.fromkeys(before, signal.SIG_IGN)
        restore()
