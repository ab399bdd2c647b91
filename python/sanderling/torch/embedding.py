"""Embedding collections: torch modules over Sanderling tables in this process or on parameter servers.

The forward pass looks up embedding rows. The backward pass collects their gradients and pushes them to the tables,
which apply them with their own optimizers. Collections are independent of the dense model and its optimizer.

Shapes: `B` samples of a batch, `n` keys of a feature, `D` weights of a row, `width` columns of all pooled features.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import sanderling
from sanderling.torch.jagged import Embedded, JaggedRows, KeyedJaggedLike, one_batch, to_batch
from sanderling.torch.rates import Lr, Rates
from sanderling.torch.spec import Spec, TableSpec
from sanderling.torch.workers import Workers

AnyTable = sanderling.Table | sanderling.RemoteTable

# Equal to the constant in torch.nn.utils.clip_grad_norm_, so that both clip equally.
_NORM_EPS = 1e-6


class EmbeddingCollection(nn.Module):
    """Embeddings of several features, pooled per sample or one row per key; a module without parameters.

    `ps` is the place of the tables: None for this process, or a `sanderling.Connection` or an address for parameter
    servers. A table that the servers lack is created under its name; an existing one is opened.

    With `push="backward"`, the end of every backward pass pushes the gradients: the simplest loop. With `push="step"`,
    gradients are accumulated until `step()`, or the `step()` of `optimizer()`: for gradient accumulation, clipping and
    mixed precision.

    `lr` is the learning rate of all tables, by default each table's own; `lr_scale` is a factor on it.

    Pushes are applied in the background. At most `pushes` are outstanding; a further push blocks. A forward pass does
    not wait for them: it may miss the last `pushes` updates, so runs are not bit-identical. With `pushes=0`, a push
    returns after it has been applied. A forward pass without gradients (under `torch.no_grad()`) waits for all pushes.

    A forward pass without a backward pass changes nothing. `absent` selects the embedding of a key without a row: its
    initial embedding ("init"), or zeros ("zero"); with "zero", its gradient creates no row. `workers` combines the
    gradients of several trainers.
    """

    def __init__(
        self,
        spec: Spec | Mapping[str, Any],
        ps: sanderling.Connection | str | None = None,
        *,
        push: Literal["backward", "step"] = "backward",
        lr: float | None = None,
        lr_scale: float = 1.0,
        absent: Literal["init", "zero"] = "init",
        pushes: int = 8,
        workers: Workers | None = None,
    ) -> None:
        """Create or open the tables; ConfigError for a wrong `spec`, `push` or `lr`."""
        super().__init__()
        if push not in ("backward", "step"):
            raise sanderling.ConfigError(f"push {push!r} is neither 'backward' nor 'step'")
        self.spec = Spec.of(spec)
        self.connection = sanderling.connect(ps) if isinstance(ps, str) else ps
        self.push, self.lr, self.lr_scale, self.workers = push, lr, lr_scale, workers
        self._in_step = workers is not None and workers.in_step
        # Number of pushes so far, to recognize rows looked up before the last one.
        self.pushed = 0
        self._absent, self._pushes = absent, pushes
        make = sanderling.Table if self.connection is None else self.connection.table
        self.tables: dict[str, AnyTable] = {}
        # Row widths of all features and of the pooled ones, and the indices of the sequences.
        self.dims: dict[str, int] = {}
        self._pooled_dims: dict[str, int] = {}
        self._sequences: dict[int, str] = {}
        self._read({name: make(name, table.dim, **table.options()) for name, table in self.spec.tables.items()})
        self._kept: list[_Reading] = []
        self._merged: sanderling.Lookup | None = None
        # Has the module's device, which `Module.to` changes.
        self.register_buffer("_place", torch.zeros(0), persistent=False)
        # Its gradient is a factor on the accumulated gradients: 1, changed by unscaling and clipping. It is in a list,
        # so it is not a parameter of the module.
        self._factor = [nn.Parameter(torch.ones(()))]

    def use_tables(self, tables: Mapping[str, AnyTable]) -> None:
        """Replace the tables by `tables`, named as in the spec; create a `FeedQueue` over them again.

        Raises ConfigError for a missing table, and for one that differs from an entry that the spec sets. Memory limits
        may differ.
        """
        for name in self.spec.tables:
            if name not in tables:
                raise sanderling.ConfigError(f"table {name!r} of the spec is missing")
            self.check_table(name, tables[name].dim, tables[name].config)
        self._read(tables)

    def use_loaded(self, tables: Mapping[str, AnyTable]) -> None:
        """Replace the tables by tables loaded from a checkpoint; checks only their widths."""
        for name, table in self.spec.tables.items():
            self._check_width(name, tables[name].dim, table.dim)
        self._read(tables)

    def check_table(self, name: str, dim: int, config: Mapping[str, Any]) -> None:
        """Raise ConfigError if width or `Table.config` of a table differ from the spec of the table `name`.

        Entries that the spec leaves at their defaults are not compared, nor is the memory limit.
        """
        table = self.spec.tables[name]
        self._check_width(name, dim, table.dim)
        # The budget is that of all servers together; this process would reserve as much address space.
        options = {entry: value for entry, value in table.options().items() if entry != "budget_bytes"}
        wanted = _entries(sanderling.Table(name, dim, **options).config)
        for entry, found in _entries(config).items():
            is_said = getattr(table, entry) != getattr(TableSpec, entry)
            if is_said and found != wanted[entry]:
                raise sanderling.ConfigError(
                    f"table {name!r} was made with {entry} = {found}, and the spec says {wanted[entry]}: set the"
                    " table's value in the spec, or leave the entry out"
                )

    @staticmethod
    def _check_width(name: str, dim: int, wanted: int) -> None:
        if dim != wanted:
            raise sanderling.ConfigError(f"table {name!r} has {dim} weights per row, not {wanted}")

    def _read(self, tables: Mapping[str, AnyTable]) -> None:
        self.tables = {name: tables[name] for name in self.spec.tables}
        names = list(self.tables)
        features = [(feature.name, names.index(feature.table), feature.pooling) for feature in self.spec.features]
        self.dims = {feature.name: self.spec.tables[feature.table].dim for feature in self.spec.features}
        self._pooled_dims = {f.name: self.dims[f.name] for f in self.spec.features if f.pooling != "none"}
        self._sequences = {i: f.name for i, f in enumerate(self.spec.features) if f.pooling == "none"}
        all_tables: list[Any] = list(self.tables.values())
        self.native = sanderling.Embedding(all_tables, features, absent=self._absent, pushes=self._pushes)
        self._rates = Rates(self.tables)
        # Raises for a wrong `lr` now rather than at the first push.
        self._scales(self.lr, self.lr_scale)

    @property
    def width(self) -> int:
        """Return the number of columns of all pooled features together."""
        return self.native.width

    def forward(self, batch: sanderling.Batch | KeyedJaggedLike) -> Embedded:
        """Return the embeddings of a batch.

        A batch from a `FeedQueue` with this collection has its rows already, for one forward pass. For other batches,
        ragged tensors included, this looks them up, and may miss outstanding pushes. Raises ConfigError for a batch
        with rows of another collection, and for prefetched rows in sync mode, which would be stale.
        """
        batch = batch if isinstance(batch, sanderling.Batch) else to_batch(batch)
        brought = batch.lookup
        if brought is not None and not brought.is_of(self.native):
            raise sanderling.ConfigError("the batch has rows of another collection; make its queue with this one")
        if brought is not None and self._in_step and torch.is_grad_enabled():
            raise sanderling.ConfigError("rows that a queue looked up ahead miss steps: make it without the collection")
        if brought is None and not torch.is_grad_enabled():
            self.finish()
        reading = _Reading(self, batch, self.native.lookup(batch) if brought is None else brought)
        anchor = torch.zeros(0, requires_grad=True)
        outputs: tuple[Tensor, ...] = _Read.apply(anchor, reading)
        sequences = {}
        for name, values in zip(reading.sequences.values(), outputs[1:], strict=True):
            offsets = torch.from_numpy(batch.offsets(name).astype(np.int64)).to(self.device)
            sequences[name] = JaggedRows(values, offsets)
        return Embedded(outputs[0], self._pooled_dims, sequences)

    @property
    def device(self) -> torch.device:
        """Return the device of the outputs. `to(device)` changes it; the tables do not move."""
        place = self._place
        assert isinstance(place, Tensor)
        return place.device

    def receive(self, reading: "_Reading", grads: tuple[Tensor | None, ...]) -> None:
        """Accumulate or push the gradients of one backward pass; called by autograd."""
        if self._in_step and reading.pushes_before != self.pushed:
            raise RuntimeError("a backward pass over rows from before the last step: look them up again")
        if self.push == "backward":
            if reading.pushed:
                raise RuntimeError("a second backward pass over a batch that was pushed: use push='step'")
            reading.pushed = True
            reading.add(grads)
            reading.give()
            self._hand_over(reading.lookup, self._scales(None, None))
            return
        if self._merged is not None:
            raise RuntimeError("a backward pass after clip_grad_norm_ and before step(): clip after the last one")
        if reading not in self._kept:
            self._kept.append(reading)
        factor = self._factor[0]
        if factor.grad is None:
            factor.grad = torch.ones_like(factor)
        # For GradScaler, which checks for infinities. A sum is finite only if all gradients are.
        if not all(bool(grad.sum().isfinite()) for grad in grads if grad is not None):
            factor.grad.fill_(torch.inf)
        reading.add(grads)

    def step(self, *, lr: Lr = None, lr_scale: float | None = None) -> None:
        """Push the gradients accumulated since the last step; gradients of a key are summed over all backward passes.

        `lr` is the learning rate of this step, for all tables or by table; `lr_scale` is a factor on it. Both default
        to those of the collection. Gradients that are not finite raise GradientError and are discarded. With a
        GradScaler, which skips such steps, use `optimizer()`. In sync mode, a trainer without gradients takes part in
        the step, too.
        """
        if self.push != "step" and self.workers is None:
            raise sanderling.ConfigError("step() needs push='step'; with push='backward' gradients are pushed already")
        scales = self._scales(lr, lr_scale)
        if not self._kept:
            if self.workers is not None:
                self._hand_over(None, scales)
            return
        factor = self._kept_factor()
        try:
            if not np.isfinite(factor):
                raise sanderling.GradientError("a gradient of this step is not finite; nothing was pushed")
            lookup = self._kept_lookup()
            if factor != 1.0:
                lookup.scale_grads(factor)
            self._hand_over(lookup, scales)
        finally:
            self.discard()

    def push_idle(
        self,
        batch: sanderling.Batch,
        *,
        lr: Lr = None,
        lr_scale: float | None = None,
    ) -> None:
        """Push zero gradients for all rows that the batch does not read; `lr` and `lr_scale` as in `step`.

        Momentum and `l2` then act on every row in every step, as in torch with dense gradients. This passes over whole
        tables, so it is for small ones. Raises ConfigError for tables on servers.
        """
        scales = self._scales(lr, lr_scale)
        for scale, (name, table) in zip(scales, self.tables.items(), strict=True):
            if not isinstance(table, sanderling.Table):
                raise sanderling.ConfigError(
                    f"table {name!r} is on servers; idle rows can be pushed only for tables in this process"
                )
            read = np.concatenate([batch.keys(f.name) for f in self.spec.features if f.table == name])
            keys = table.keys()
            idle = keys[~np.isin(keys, read)]
            if len(idle):
                table.push(idle, np.zeros((len(idle), table.dim), np.float32), lr_scale=scale)

    def discard(self) -> None:
        """Discard the accumulated gradients."""
        self._kept, self._merged = [], None
        self._factor[0].grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the accumulated gradients, as an optimizer does."""
        super().zero_grad(set_to_none)
        self.discard()

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] | Tensor = ()) -> Tensor:
        """Clip the norm of the accumulated gradients and the gradients of `parameters` together to `max_norm`.

        Gradients of a repeated key are summed first, as in a coalesced sparse gradient of torch. Returns the norm
        before clipping, a float32 scalar. Call it after the last backward pass of a step, and with a GradScaler after
        `unscale_` of both optimizers. Raises ConfigError in sync mode.
        """
        if self._in_step:
            raise sanderling.ConfigError(
                "clip_grad_norm_: not in sync mode, where a trainer has its own gradients only"
            )
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        dense = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squared = 0.0
        if self._kept:
            squared = self._kept_lookup().grad_norm_squared() * self._kept_factor() ** 2
        total = torch.tensor(squared, dtype=torch.float64)
        for grad in dense:
            total += grad.detach().double().pow(2).sum().cpu()
        norm = total.sqrt()
        clip = float((max_norm / (norm + _NORM_EPS)).clamp(max=1.0))
        if clip < 1.0:
            for grad in dense:
                grad.mul_(clip)
            if (factor := self._factor[0].grad) is not None:
                factor.mul_(clip)
        return norm.float()

    def optimizer(self, *, lr: float | None = None, lr_scale: float | None = None) -> "RowOptimizer":
        """Return a torch optimizer that pushes the accumulated gradients: for GradScaler and schedulers.

        `lr` is the initial learning rate of all tables; `lr_scale` is a factor on it. Both default to those of the
        collection.
        """
        return RowOptimizer(self, lr=lr, lr_scale=lr_scale)

    def finish(self) -> None:
        """Wait until all pushes are applied; raises the error of a failed push."""
        self.native.finish()

    def extra_repr(self) -> str:
        """Return a description for `print(model)`."""
        place = "here" if self.connection is None else ", ".join(self.connection.servers)
        return f"{len(self.spec.features)} features from {len(self.spec.tables)} tables, {place}; push={self.push!r}"

    def rates(self, lr: Lr = None, lr_scale: float | None = None) -> dict[str, float]:
        """Return the learning rate of each table for `lr` and `lr_scale`, by default those of the collection.

        For FTRL it is `alpha`, which neither `lr` nor `lr_scale` changes.
        """
        return self._rates.of(self.lr if lr is None else lr, self.lr_scale if lr_scale is None else lr_scale)

    def _scales(self, lr: Lr, lr_scale: float | None) -> list[float]:
        """Return the factors on the tables' own learning rates, in the order of the tables."""
        return self._rates.scales(self.lr if lr is None else lr, self.lr_scale if lr_scale is None else lr_scale)

    def _hand_over(self, lookup: sanderling.Lookup | None, scales: list[float]) -> None:
        if self.workers is not None:
            self.workers.push(self.tables, self.native, lookup, scales)
        elif lookup is not None:
            lookup.push(lr_scale=scales)
        self.pushed += 1

    def _kept_factor(self) -> float:
        grad = self._factor[0].grad
        return 1.0 if grad is None else float(grad)

    def _kept_lookup(self) -> sanderling.Lookup:
        """Return a lookup with all accumulated gradients."""
        if self._merged is None:
            if len(self._kept) == 1:
                whole = self._kept[0]
            else:
                # A push is one update per row, so several batches are joined to one.
                batch = one_batch([reading.batch for reading in self._kept], self.spec.names)
                whole = _Reading(self, batch, self.native.lookup(batch))
                whole.grads = _joined(self._kept)
            whole.give()
            self._merged = whole.lookup
        return self._merged


class SequenceCollection(EmbeddingCollection):
    """A collection of sequences: every feature has pooling "none".

    The forward pass returns by feature the rows, float32 [B, L, D], and their mask, bool [B, L], as
    `JaggedRows.padded(length, keep=keep)`; with `layout="jagged"`, it returns `JaggedRows`.
    """

    def __init__(
        self,
        spec: Spec | Mapping[str, Any],
        ps: sanderling.Connection | str | None = None,
        *,
        length: int | None = None,
        keep: Literal["first", "last"] = "first",
        layout: Literal["padded", "jagged"] = "padded",
        **options: Any,  # noqa: ANN401, those of EmbeddingCollection
    ) -> None:
        """Take the options of `EmbeddingCollection`, too; ConfigError for a pooled feature."""
        whole = Spec.of(spec)
        if pooled := [feature.name for feature in whole.features if feature.pooling != "none"]:
            raise sanderling.ConfigError(f"features {', '.join(pooled)} of a sequence collection need pooling 'none'")
        super().__init__(whole, ps, **options)
        self.length, self.keep, self.layout = length, keep, layout

    def forward(self, batch: sanderling.Batch | KeyedJaggedLike) -> Any:  # noqa: ANN401, by layout
        """Return by feature (rows, mask), or `JaggedRows` with `layout="jagged"`."""
        sequences = super().forward(batch).sequences
        if self.layout == "jagged":
            return sequences
        return {name: rows.padded(self.length, keep=self.keep) for name, rows in sequences.items()}


class RowOptimizer(torch.optim.Optimizer):
    """A torch optimizer for the tables of a collection with `push="step"`.

    Each table is a parameter group with the entries `table` (its name) and `lr`, so torch's schedulers work. `step()`
    pushes the accumulated gradients, `zero_grad()` discards them. GradScaler unscales them, and skips the step if one
    is not finite. A table with FTRL uses its `alpha` and ignores the `lr` of its group.
    """

    def __init__(
        self, collection: EmbeddingCollection, *, lr: float | None = None, lr_scale: float | None = None
    ) -> None:
        """Make the optimizer of a collection; `lr` and `lr_scale` as in `EmbeddingCollection.optimizer`."""
        if collection.push != "step":
            raise sanderling.ConfigError("optimizer() needs a collection with push='step'")
        collection._factor = [nn.Parameter(torch.ones((), device=collection.device))]
        self.collection = collection
        collection._scales(lr, lr_scale)
        rates = collection.rates(lr, lr_scale)
        # All tables share the factor, so it is a parameter of the first group only.
        params = [collection._factor, *([] for _ in range(len(rates) - 1))]
        groups = [
            {"params": of_group, "lr": rate, "table": name}
            for of_group, (name, rate) in zip(params, rates.items(), strict=True)
        ]
        super().__init__(groups, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401, as torch has it
        """Push the accumulated gradients at the learning rates of the groups; ValueError for a closure."""
        if closure is not None:
            raise ValueError("closures are not supported: this optimizer does not evaluate the model")
        # FTRL has no `lr`.
        own = self.collection._rates.own
        groups = [group for group in self.param_groups if own[group["table"]] is not None]
        self.collection.step(lr={group["table"]: float(group["lr"]) for group in groups}, lr_scale=1.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the accumulated gradients."""
        super().zero_grad(set_to_none)
        self.collection.discard()


class _Reading:
    """One forward pass: the rows of a batch, and their gradients."""

    def __init__(self, collection: EmbeddingCollection, batch: sanderling.Batch, lookup: sanderling.Lookup) -> None:
        self.collection, self.batch, self.lookup = collection, batch, lookup
        self.pushes_before = collection.pushed
        self.pushed = False
        self.sequences = collection._sequences
        self.grads: list[Tensor | None] = [None] * (1 + len(self.sequences))

    def arrays(self) -> list[npt.NDArray[np.float32]]:
        """Return the pooled rows, float32 [B, width], then the rows of each sequence, float32 [n, D]."""
        return [self.lookup.pooled, *(self.lookup.rows(i) for i in self.sequences)]

    def add(self, grads: tuple[Tensor | None, ...]) -> None:
        """Accumulate gradients, shaped like `arrays`; None for an unused output."""
        for place, grad in enumerate(grads):
            if grad is not None:
                before, grad = self.grads[place], grad.detach()
                self.grads[place] = grad if before is None else before + grad

    def give(self) -> None:
        """Move the accumulated gradients to the lookup."""
        pooled, *rows = [None if grad is None else _array(grad) for grad in self.grads]
        by_feature = {i: grad for i, grad in zip(self.sequences, rows, strict=True) if grad is not None}
        self.lookup.add_grads(pooled, by_feature)
        self.grads = [None] * len(self.grads)


class _Read(torch.autograd.Function):
    """Autograd function of a lookup: one node for all outputs of a batch, so their gradients arrive together."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, reading: _Reading) -> tuple[Tensor, ...]:  # noqa: ANN401, torch's context
        """Return the rows as tensors on the device; `anchor` requires a gradient, so autograd records the call."""
        del anchor
        ctx.set_materialize_grads(False)
        ctx.reading = reading
        device = reading.collection.device
        tensors = [torch.from_numpy(array) for array in reading.arrays()]
        if device.type == "cuda":
            return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
        return tuple(tensor.to(device) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None]:  # noqa: ANN401, torch's context
        """Pass the gradients to the collection; None for an unused output."""
        ctx.reading.collection.receive(ctx.reading, grads)
        return None, None


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a `Table.config` that a `TableSpec` sets, except for the memory limit."""
    # A table made from a spec has one block; a table of several blocks has as many optimizers.
    one_or_all = {key: [block[key] for block in config["blocks"]] for key in ("optimizer", "init")}
    blocks = {key: found[0] if len(found) == 1 else found for key, found in one_or_all.items()}
    return {**blocks, **{key: config[key] for key in ("seed", "dtype", "admission", "eviction")}}


def _array(grad: Tensor) -> npt.NDArray[np.float32]:
    """Return a gradient as a contiguous float32 array, as the native module takes it."""
    array: npt.NDArray[np.float32] = grad.to("cpu", torch.float32).contiguous().numpy()
    return array


def _joined(readings: list[_Reading]) -> list[Tensor | None]:
    """Concatenate the gradients of several batches; zeros for a batch without gradients, None if all lack them."""
    joined: list[Tensor | None] = []
    for place in range(len(readings[0].grads)):
        parts = [reading.grads[place] for reading in readings]
        filled = [
            torch.zeros(reading.arrays()[place].shape) if part is None else part.cpu()
            for reading, part in zip(readings, parts, strict=True)
        ]
        joined.append(torch.cat(filled) if any(part is not None for part in parts) else None)
    return joined
