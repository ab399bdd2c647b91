"""Several trainers of one model: when each one's gradients of rows are applied, and how they start and end together.

Knows no model. Dense parameters are torch's: DistributedDataParallel, or `Workers.average_gradients` where
torch.distributed does not run. Trainers are called workers where they are numbered, from 0.
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
# A step that is further than any.
_NEVER = 2**63


def bound_of(mode: str) -> int | None:
    """How many steps ahead of the slowest a trainer may be, if `mode` bounds that; raises ConfigError for no mode."""
    parsed = _MODE.fullmatch(mode)
    if parsed is None:
        raise sanderling.ConfigError(f"mode {mode!r} is none of 'async', 'sync' and 'bounded:STEPS'")
    return None if parsed[1] is None else int(parsed[1])


class Workers:
    """One of the trainers of a job, for `EmbeddingCollection(..., workers=...)`; `join` makes it under torchrun.

    `mode` says when gradients are applied. All trainers must give the same.

    - "async": each trainer pushes on its own, without waiting.
    - "bounded:4": as they come, and who is more than 4 steps ahead of the slowest waits.
    - "sync": those of all trainers in one update per step. Losses are means over each trainer's batch, and the update
      is that of the mean over trainers, as in DistributedDataParallel: n trainers are one with n times the batch.

    In "sync", and with DistributedDataParallel in any mode, all must take the same number of steps: see `batches`. A
    collection's push is a step. A wait of more than `step_timeout_s` raises a GroupError that names
    who did not come. In "sync" that ends it: what was handed in stays at the servers. Begin with another group from
    the last checkpoint, or go on after `step` with new Workers over a SyncGroup with a higher `attempt`.
    """

    def __init__(self, group: sanderling.SyncGroup, mode: str = "sync") -> None:
        """Takes a group over the same connection, or a meeting of the same tables, as the collection."""
        self.group, self.mode = group, mode
        self.rank, self.size = group.worker, group.workers
        self.in_step = mode == "sync"
        self.bound = bound_of(mode)
        # The last step that is finished here.
        self.step = group.applied
        self._failed = False
        # Of the last batches of `batches`: the pass, over trainers the latest; samples, those of all and the fewest.
        self.pass_number, self.samples, self.samples_min = 0, 0, 0
        self.share = 1.0
        """Loss factor of the last batch of `batches`: 1 unless trainers have different numbers of samples."""
        self.stopping = False
        """Whether any trainer has called `stop`. It becomes true for all at the same batch of `batches`."""
        self._stops = False

    def push(
        self,
        tables: Mapping[str, sanderling.Table | sanderling.RemoteTable],
        embedding: sanderling.Embedding,
        lookup: sanderling.Lookup | None,
        scales: Sequence[float],
    ) -> None:
        """Takes a step with the gradients of a lookup, or with nothing; called by the collection.

        `scales` are factors on the tables' learning rates, in their order.
        """
        if not self.in_step:
            if lookup is not None:
                lookup.push(lr_scale=scales)
            if self.bound is not None:
                # What is not applied is not finished.
                embedding.finish()
                self.step += 1
                self.group.progress(self.step, self.bound)
            return
        if self._failed:
            # A second part of the same step would be added to the first.
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
        """Batches as long as every trainer has one: all end after the same number.

        What others have beyond that is dropped, at most one batch each if a `FeedQueue` shares them out with `rank` and
        `ranks`. A short last batch is weighed by `share`. When `stopping` is true, the batch is the one to end with.
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
        """Has all trainers stop together, soon: see `stopping`. May be called by a signal's handler."""
        self._stops = True

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Makes the gradients of dense parameters their means over trainers, where DistributedDataParallel does not."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        mine = np.concatenate([np.zeros(0), *(grad.double().cpu().numpy().ravel() for grad in grads)])
        means = torch.from_numpy(self.group.all_reduce("dense gradients", mine, "mean"))
        for grad, part in zip(grads, means.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def leave(self) -> None:
        """Makes no further steps; with "bounded:STEPS" the others no longer wait for this trainer."""
        if self.bound is not None:
            self.group.progress(_NEVER, _NEVER)


def join(ps: sanderling.Connection | str, mode: str = "sync", *, step_timeout_s: float = 60.0) -> Workers:
    """Joins the other processes that torchrun started, which meet at parameter servers.

    Starts torch.distributed with gloo if the environment says RANK and WORLD_SIZE and it does not run yet. Without
    either this is the only trainer, so that a script runs by itself too.
    """
    connection = sanderling.connect(ps) if isinstance(ps, str) else ps
    if not torch.distributed.is_initialized() and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=max(step_timeout_s, 60.0)))
    group = [secrets.randbits(64)]
    rank, size = 0, 1
    if torch.distributed.is_initialized():
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        # A job of its own: what one before it left at the servers is not taken for its.
        torch.distributed.broadcast_object_list(group, src=0)
    return Workers(sanderling.SyncGroup(connection, group[0], rank, size, step_timeout_s=step_timeout_s), mode)
