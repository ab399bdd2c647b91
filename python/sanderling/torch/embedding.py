"""Embedding collections: modules whose rows live in Sanderling's tables, here or on parameter servers.

The forward pass looks rows up, the backward pass collects their gradients and hands them to the tables, whose own
optimizers apply them. What the rest of the model is, and how its parameters are updated, they do not know.

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

# As torch.nn.utils.clip_grad_norm_ has it, so that both clip alike.
_NORM_EPS = 1e-6


class EmbeddingCollection(nn.Module):
    """Rows per feature, pooled or per key; a module without parameters.

    `ps` says where the tables are: None for this process, a `sanderling.Connection` or an address for parameter
    servers, where a table is made under its name unless it is there.

    With `push="backward"` gradients go to the tables at the end of every backward pass: the simplest loop. With
    `push="step"` they are kept until `step()`, or the `step()` of the optimizer that `optimizer()` gives: for gradient
    accumulation, clipping and mixed precision.

    `lr` is the learning rate of all tables, in place of the one that each was made with; `lr_scale` is a factor on it.

    Pushes are applied in the background, at most `pushes` of them at a time; a further push waits. A forward pass
    waits for none, so it may miss the last `pushes` updates, and runs are not equal bit by bit. With `pushes=0` every
    push returns when it has been applied, and every forward pass sees it. A forward pass without gradients (under
    `torch.no_grad()`) waits for all pushes.

    A forward pass whose backward pass never runs changes nothing. `absent` says what a key without a row yields: its
    initial embedding ("init"), or zeros ("zero"), and then its gradient makes no row. `workers` says how several
    trainers' gradients come together.
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
        """Makes or opens the tables."""
        super().__init__()
        if push not in ("backward", "step"):
            raise sanderling.ConfigError(f"push {push!r} is neither 'backward' nor 'step'")
        self.spec = Spec.of(spec)
        self.connection = sanderling.connect(ps) if isinstance(ps, str) else ps
        self.push, self.lr, self.lr_scale, self.workers = push, lr, lr_scale, workers
        self._in_step = workers is not None and workers.in_step
        # Pushes so far, so that rows from before one are known.
        self.pushed = 0
        self._absent, self._pushes = absent, pushes
        make = sanderling.Table if self.connection is None else self.connection.table
        self.tables: dict[str, AnyTable] = {}
        # Weights per row of each feature, of the pooled ones alone, and the places of the others.
        self.dims: dict[str, int] = {}
        self._pooled_dims: dict[str, int] = {}
        self._sequences: dict[int, str] = {}
        self._read({name: make(name, table.dim, **table.options()) for name, table in self.spec.tables.items()})
        self._kept: list[_Reading] = []
        self._merged: sanderling.Lookup | None = None
        # Tells the module's device, which `Module.to` changes.
        self.register_buffer("_place", torch.zeros(0), persistent=False)
        # Its gradient is the factor of the kept gradients: 1, or what unscaling and clipping made of it. In a list, so
        # that it is no parameter of the module.
        self._factor = [nn.Parameter(torch.ones(()))]

    def use_tables(self, tables: Mapping[str, AnyTable]) -> None:
        """Reads from these tables instead, named as in the spec; a `FeedQueue` over the old ones must be made anew.

        They must be as the spec says, where it says something; their budgets may be others.
        """
        for name in self.spec.tables:
            if name not in tables:
                raise sanderling.ConfigError(f"table {name!r} of the spec is missing")
            self.check_table(name, tables[name].dim, tables[name].config)
        self._read(tables)

    def use_loaded(self, tables: Mapping[str, AnyTable]) -> None:
        """Read from tables loaded from a checkpoint; checks only their widths."""
        for name, table in self.spec.tables.items():
            self._check_width(name, tables[name].dim, table.dim)
        self._read(tables)

    def check_table(self, name: str, dim: int, config: Mapping[str, Any]) -> None:
        """Refuses a table of this width and `Table.config` in place of the spec's of this name.

        What the spec leaves out may be anything, and so may the budget.
        """
        table = self.spec.tables[name]
        self._check_width(name, dim, table.dim)
        # A budget is of all servers together, and would take as much of this process's address space.
        options = {entry: value for entry, value in table.options().items() if entry != "budget_bytes"}
        wanted = _entries(sanderling.Table(name, dim, **options).config)
        for entry, found in _entries(config).items():
            is_said = getattr(table, entry) != getattr(TableSpec, entry)
            if is_said and found != wanted[entry]:
                raise sanderling.ConfigError(
                    f"table {name!r} was made with {entry} = {found}, and the spec says {wanted[entry]}: write into the"
                    " spec what it was made with, or leave it out"
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
        # Refused here rather than at the first push.
        self._scales(self.lr, self.lr_scale)

    @property
    def width(self) -> int:
        """Columns of all pooled features together."""
        return self.native.width

    def forward(self, batch: sanderling.Batch | KeyedJaggedLike) -> Embedded:
        """The rows of a batch.

        A batch that a `FeedQueue` with this collection made brings its rows, for one forward pass; for any other,
        ragged tensors included, they are looked up now: see `pushes`.
        """
        batch = batch if isinstance(batch, sanderling.Batch) else to_batch(batch)
        brought = batch.lookup
        if brought is not None and not brought.is_of(self.native):
            raise sanderling.ConfigError(
                "the batch brings rows of another collection; give its queue this one's `native`"
            )
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
        """Where outputs are; `to(device)` changes it, rows stay where they are."""
        place = self._place
        assert isinstance(place, Tensor)
        return place.device

    def receive(self, reading: "_Reading", grads: tuple[Tensor | None, ...]) -> None:
        """Takes the gradients of one backward pass; called by autograd."""
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
        # As GradScaler looks at gradients; a sum is finite only if all of them are.
        if not all(bool(grad.sum().isfinite()) for grad in grads if grad is not None):
            factor.grad.fill_(torch.inf)
        reading.add(grads)

    def step(self, *, lr: Lr = None, lr_scale: float | None = None) -> None:
        """Pushes the gradients kept since the last step, a key's gradients from all backward passes summed.

        `lr` is the learning rate of this step, of all tables or by table; `lr_scale` is a factor on it. What is left
        out is the collection's. Gradients that are not finite are a `GradientError`, and dropped; under a GradScaler,
        which never comes here with them, use `optimizer()`. Among trainers that go in step, who has kept nothing takes
        part with nothing.
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
        """Pushes zeros as the gradients of all rows that the batch does not read; `lr` and `lr_scale` as in `step`.

        So momentum and `l2` of the tables' optimizers act on every row at every step, as those of torch do with dense
        gradients. It passes over whole tables, which must be in this process: for small ones.
        """
        scales = self._scales(lr, lr_scale)
        for scale, (name, table) in zip(scales, self.tables.items(), strict=True):
            if not isinstance(table, sanderling.Table):
                raise sanderling.ConfigError(
                    f"table {name!r} is on servers; idle rows are reached in this process only"
                )
            read = np.concatenate([batch.keys(f.name) for f in self.spec.features if f.table == name])
            keys = table.keys()
            idle = keys[~np.isin(keys, read)]
            if len(idle):
                table.push(idle, np.zeros((len(idle), table.dim), np.float32), lr_scale=scale)

    def discard(self) -> None:
        """Forgets gradients that were not pushed."""
        self._kept, self._merged = [], None
        self._factor[0].grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients that were not pushed."""
        super().zero_grad(set_to_none)
        self.discard()

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] | Tensor = ()) -> Tensor:
        """Scales the kept gradients and those of `parameters` so that their norm together is at most `max_norm`.

        The norm is over rows, a key that occurs several times counting once with its sum, as torch has it for a
        sparse gradient that is coalesced. Returns the norm before, a scalar. Call it after the last backward pass of
        a step, and with a GradScaler after `unscale_` of both optimizers. Not for trainers that go in step.
        """
        if self._in_step:
            raise sanderling.ConfigError("clip_grad_norm_: a trainer that goes in step knows its own gradients only")
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
        """A torch optimizer whose step pushes what was kept: for GradScaler and learning-rate schedulers.

        `lr` is the learning rate that it starts with, of all tables; `lr_scale` is a factor on it. What is left out
        is the collection's.
        """
        return RowOptimizer(self, lr=lr, lr_scale=lr_scale)

    def finish(self) -> None:
        """Waits until all pushes have been applied; raises what went wrong with one."""
        self.native.finish()

    def extra_repr(self) -> str:
        """Features and tables for `print(model)`."""
        place = "here" if self.connection is None else ", ".join(self.connection.servers)
        return f"{len(self.spec.features)} features from {len(self.spec.tables)} tables, {place}; push={self.push!r}"

    def rates(self, lr: Lr = None, lr_scale: float | None = None) -> dict[str, float]:
        """The learning rate of each table with these, where left out with the collection's own.

        Of FTRL it is `alpha`, which neither `lr_scale` nor a scheduler changes.
        """
        return self._rates.of(self.lr if lr is None else lr, self.lr_scale if lr_scale is None else lr_scale)

    def _scales(self, lr: Lr, lr_scale: float | None) -> list[float]:
        """Factors on the tables' own learning rates, in the order of the tables."""
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
        """The kept gradients in one lookup."""
        if self._merged is None:
            if len(self._kept) == 1:
                whole = self._kept[0]
            else:
                # Tables know one step per push: several batches become one, so that each row sees one update.
                batch = one_batch([reading.batch for reading in self._kept], self.spec.names)
                whole = _Reading(self, batch, self.native.lookup(batch))
                whole.grads = _joined(self._kept)
            whole.give()
            self._merged = whole.lookup
        return self._merged


class SequenceCollection(EmbeddingCollection):
    """A collection of sequences alone: every feature is read with pooling "none".

    Its forward pass gives, by feature, rows and mask as `JaggedRows.padded` has them: float32 [B, L, D] and bool [B,
    L], of `length` steps at most (all, if None) of which the `keep` ones stay; `layout="jagged"` gives `JaggedRows`.
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
        """Takes the options of `EmbeddingCollection` as well."""
        whole = Spec.of(spec)
        if pooled := [feature.name for feature in whole.features if feature.pooling != "none"]:
            raise sanderling.ConfigError(f"features {', '.join(pooled)} of a sequence collection need pooling 'none'")
        super().__init__(whole, ps, **options)
        self.length, self.keep, self.layout = length, keep, layout

    def forward(self, batch: sanderling.Batch | KeyedJaggedLike) -> Any:  # noqa: ANN401, by layout
        """By feature: (rows, mask), or `JaggedRows` with `layout="jagged"`."""
        sequences = super().forward(batch).sequences
        if self.layout == "jagged":
            return sequences
        return {name: rows.padded(self.length, keep=self.keep) for name, rows in sequences.items()}


class RowOptimizer(torch.optim.Optimizer):
    """Makes a collection with `push="step"` look like any other set of parameters.

    Each table is a group of parameters, `group["table"]`, whose `lr` is its learning rate, so that torch's schedulers
    work. `step()` pushes; `zero_grad()` forgets what was kept. GradScaler unscales the rows' gradients, and skips their
    step if one is not finite. A table with FTRL learns at its `alpha` whatever its group says.
    """

    def __init__(
        self, collection: EmbeddingCollection, *, lr: float | None = None, lr_scale: float | None = None
    ) -> None:
        """Stands for one collection; rates as of `EmbeddingCollection.optimizer`."""
        if collection.push != "step":
            raise sanderling.ConfigError("optimizer() needs a collection with push='step'")
        collection._factor = [nn.Parameter(torch.ones((), device=collection.device))]
        self.collection = collection
        collection._scales(lr, lr_scale)
        rates = collection.rates(lr, lr_scale)
        # The factor is one for all tables.
        params = [collection._factor, *([] for _ in range(len(rates) - 1))]
        groups = [
            {"params": of_group, "lr": rate, "table": name}
            for of_group, (name, rate) in zip(params, rates.items(), strict=True)
        ]
        super().__init__(groups, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401, as torch has it
        """Pushes what was kept."""
        if closure is not None:
            raise ValueError("closures are for optimizers that evaluate a model several times; this one cannot")
        # FTRL has no rate to set.
        own = self.collection._rates.own
        groups = [group for group in self.param_groups if own[group["table"]] is not None]
        self.collection.step(lr={group["table"]: float(group["lr"]) for group in groups}, lr_scale=1.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what was kept."""
        super().zero_grad(set_to_none)
        self.collection.discard()


class _Reading:
    """One forward pass: the rows of a batch, and the gradients that came back."""

    def __init__(self, collection: EmbeddingCollection, batch: sanderling.Batch, lookup: sanderling.Lookup) -> None:
        self.collection, self.batch, self.lookup = collection, batch, lookup
        self.pushes_before = collection.pushed
        self.pushed = False
        self.sequences = collection._sequences
        self.grads: list[Tensor | None] = [None] * (1 + len(self.sequences))

    def arrays(self) -> list[npt.NDArray[np.float32]]:
        """Pooled rows [B, width], then rows [n, D] of each sequence."""
        return [self.lookup.pooled, *(self.lookup.rows(i) for i in self.sequences)]

    def add(self, grads: tuple[Tensor | None, ...]) -> None:
        """Adds gradients to those that are kept here."""
        for place, grad in enumerate(grads):
            if grad is not None:
                before, grad = self.grads[place], grad.detach()
                self.grads[place] = grad if before is None else before + grad

    def give(self) -> None:
        """Hands the gradients to the lookup."""
        pooled, *rows = [None if grad is None else _array(grad) for grad in self.grads]
        by_feature = {i: grad for i, grad in zip(self.sequences, rows, strict=True) if grad is not None}
        self.lookup.add_grads(pooled, by_feature)
        self.grads = [None] * len(self.grads)


class _Read(torch.autograd.Function):
    """Rows out, gradients back. One node for all outputs of a batch, so that they come back together."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, reading: _Reading) -> tuple[Tensor, ...]:  # noqa: ANN401, torch's context
        """Rows as tensors; `anchor` is there so that autograd records the call."""
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
        """Gradients to the collection; None where an output was not used."""
        ctx.reading.collection.receive(ctx.reading, grads)
        return None, None


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `TableSpec` that decide what rows are and become, from a `Table.config`."""
    # A table of one block, as all that a spec makes, has one optimizer; one of several has as many.
    one_or_all = {key: [block[key] for block in config["blocks"]] for key in ("optimizer", "init")}
    blocks = {key: found[0] if len(found) == 1 else found for key, found in one_or_all.items()}
    return {**blocks, **{key: config[key] for key in ("seed", "dtype", "admission", "eviction")}}


def _array(grad: Tensor) -> npt.NDArray[np.float32]:
    """A gradient as the native module takes it, float32 and contiguous."""
    array: npt.NDArray[np.float32] = grad.to("cpu", torch.float32).contiguous().numpy()
    return array


def _joined(readings: list[_Reading]) -> list[Tensor | None]:
    """Gradients of several batches, one after the other; zeros for those that got none, None if none did."""
    joined: list[Tensor | None] = []
    for place in range(len(readings[0].grads)):
        parts = [reading.grads[place] for reading in readings]
        filled = [
            torch.zeros(reading.arrays()[place].shape) if part is None else part.cpu()
            for reading, part in zip(readings, parts, strict=True)
        ]
        joined.append(torch.cat(filled) if any(part is not None for part in parts) else None)
    return joined
