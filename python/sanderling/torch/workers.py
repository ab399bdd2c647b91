"""Several trainers of one model: start, synchronization of row gradients, and a common end.

Dense parameters are synchronized separately: by DistributedDataParallel, or by `Workers.average_gradients` without
torch.distributed. A worker is a trainer with a rank, from 0.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed
from torch import Tensor

import sanderling

_MODE = re.compile(r"async|sync|bounded:(\d{1,9})")
# A step number above all others.
_NEVER = 2**63


def bound_of(mode: str) -> int | None:
    """Return STEPS of the mode "bounded:STEPS", None for other modes; ConfigError for an unknown mode."""
    parsed = _MODE.fullmatch(mode)
    if parsed is None:
        raise sanderling.ConfigError(f"mode {mode!r} is none of 'async', 'sync' and 'bounded:STEPS'")
    return None if parsed[1] is None else int(parsed[1])


class Workers:
    """A trainer among several, for `EmbeddingCollection(..., workers=...)`; `join` makes one under torchrun.

    `mode` selects when gradients are applied; it must be equal for all trainers.

    - "async": each trainer pushes without waiting for others.
    - "bounded:4": like "async", but a trainer more than 4 steps ahead of the slowest one waits.
    - "sync": one update per step, with the gradients of all trainers. The loss is the mean over the batch of a trainer,
      and gradients are averaged over trainers, as in DistributedDataParallel: n trainers equal one trainer with n times
      the batch.

    A push of a collection is a step. In "sync", and with DistributedDataParallel in any mode, all trainers must take an
    equal number of steps: see `batches`. A wait of more than `step_timeout_s` seconds (see `SyncGroup`) raises a
    GroupError that names the missing workers. In "sync", these Workers cannot continue after it, and gradients pushed
    for the step stay at the servers. Restart from the last checkpoint with another group, or continue after `step` with
    new Workers over a SyncGroup with a higher `attempt`.
    """

    def __init__(self, group: sanderling.SyncGroup, mode: str = "sync") -> None:
        """Take a group over the connection of the collection, or over a `Meeting` of its tables."""
        self.group, self.mode = group, mode
        self.rank, self.size = group.worker, group.workers
        self.in_step = mode == "sync"
        self.bound = bound_of(mode)
        # The last step that this trainer has finished.
        self.step = group.applied
        self._failed = False
        # Of the last batches from `batches`: latest pass, total samples and fewest samples over all trainers.
        self.pass_number, self.samples, self.samples_min = 0, 0, 0
        self.share = 1.0
        """Loss factor of the last batch of `batches`; 1 unless trainers have different numbers of samples."""
        self.stopping = False
        """Whether any trainer has called `stop`; becomes true for all trainers at one batch of `batches`."""
        self._stops = False

    def push(
        self,
        tables: Mapping[str, sanderling.Table | sanderling.RemoteTable],
        embedding: sanderling.Embedding,
        lookup: sanderling.Lookup | None,
        scales: Sequence[float],
    ) -> None:
        """Take a step with the gradients of a lookup, or with none; called by the collection.

        `scales` are factors on the tables' learning rates, in the order of the tables. Raises GroupError if a trainer
        is missing for too long, or after a failed synchronous step.
        """
        if not self.in_step:
            if lookup is not None:
                lookup.push(lr_scale=scales)
            if self.bound is not None:
                # A step is finished once its push is applied.
                embedding.finish()
                self.step += 1
                self.group.progress(self.step, self.bound)
            return
        if self._failed:
            # Gradients pushed again for this step would be added to the first ones.
            raise sanderling.GroupError(f"step {self.step + 1} failed before: take part with a higher attempt")
        self._failed = True
        if lookup is not None:
            lookup.scale_grads(1.0 / self.size)
            taken = lookup.take_gradients()
            for table, scale, (keys, counts, grads) in zip(tables.values(), scales, taken, strict=True):
                self.group.push_step(table, self.step + 1, keys, grads, lr_scale=scale, counts=counts)
        self.group.wait(self.step + 1)
        if lookup is not None:
            lookup.note_applied()
        self.step += 1
        self._failed = False

    def batches(self, batches: Iterable[sanderling.Batch]) -> Iterator[sanderling.Batch]:
        """Yield batches as long as every trainer has one, so that all trainers take an equal number of steps.

        Further batches of other trainers are dropped: at most one per trainer if a `FeedQueue` distributes them with
        `rank` and `ranks`. Multiply the loss by `share`, for batches of different sizes. End after the batch at which
        `stopping` is true.
        """
        remaining = iter(batches)
        while True:
            batch = next(remaining, None)
            size, number = (0, 0) if batch is None else (len(batch), batch.pass_number)
            part = size.to_bytes(8) + number.to_bytes(8) + self._stops.to_bytes(1)
            parts = self.group.all_gather("batch", part)
            self.stopping = self.stopping or any(part[16] for part in parts)
            sizes = [int.from_bytes(part[:8]) for part in parts]
            if batch is None or min(sizes) == 0:
                return
            self.pass_number = max(int.from_bytes(part[8:16]) for part in parts)
            self.samples, self.samples_min = sum(sizes), min(sizes)
            self.share = size * self.size / sum(sizes)
            yield batch

    def stop(self) -> None:
        """Stop all trainers at a common batch: see `stopping`. A signal handler may call it."""
        self._stops = True

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of dense parameters over trainers, in place; without DistributedDataParallel only."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        mine = np.concatenate([np.zeros(0), *(grad.double().cpu().numpy().ravel() for grad in grads)])
        means = torch.from_numpy(self.group.all_reduce("dense gradients", mine, "mean"))
        for grad, part in zip(grads, means.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def leave(self) -> None:
        """Take no further steps: with "bounded:STEPS", the other trainers no longer wait for this one."""
        if self.bound is not None:
            self.group.progress(_NEVER, _NEVER)


def join(ps: sanderling.Connection | str, mode: str = "sync", *, step_timeout_s: float = 60.0) -> Workers:
    """Join the other trainers that torchrun started; they synchronize at the parameter servers `ps`.

    Initializes torch.distributed with gloo unless it is initialized, if the environment has RANK, WORLD_SIZE and
    MASTER_ADDR. Without torch.distributed this is the only trainer, so a script also runs without torchrun.
    `step_timeout_s` is the limit of every wait for other trainers, in seconds; for torch.distributed at least 60.
    """
    connection = sanderling.connect(ps) if isinstance(ps, str) else ps
    if not torch.distributed.is_initialized() and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=max(step_timeout_s, 60.0)))
    group = [secrets.randbits(64)]
    rank, size = 0, 1
    if torch.distributed.is_initialized():
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        # A random number per job, so that the state of an earlier job at the servers is not used.
        torch.distributed.broadcast_object_list(group, src=0)
    return Workers(sanderling.SyncGroup(connection, group[0], rank, size, step_timeout_s=step_timeout_s), mode)
