"""Inputs of a run: minibatches of each pass, from files or from hubs, and checks of the input before training."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import sanderling
from sanderling import _native
from sanderling._native import KeyNames
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.labels import without_labels
from sanderling.torch.workers import Workers

MODELS_OF_FIELDS = ("deepfm", "dcn", "dcnv2", "dlrm", "din")
"""Models of interactions between fields, which need at least two fields."""
_FIELDS_MIN = 2


def check_files(config: DeepConfig) -> None:
    """Raise ConfigError for files that can be read only once, such as pipes.

    Training files are also read before the first pass, to fit the features; validation files after each pass.
    """
    read = [("data.valid", name) for name in config.valid_inputs]
    if not config.from_hubs:
        read += [("data.train", name) for name in config.train_inputs]
    for what, name in read:
        if _native.read_once(name):
            hub = "; or let `sanderling hub` read it, and train on hub://ADDRESS" if what == "data.train" else ""
            raise sanderling.ConfigError(f"{what}: {name} can be read only once; write its rows to a file{hub}")


def check_valid(config: DeepConfig, spec: dict[str, Any], holdout: sanderling.Holdout | None) -> None:
    """Raise the error of unreadable or empty validation files, before the first pass is trained."""
    if not config.validates:
        return
    try:
        _first_rows(valid_source(config, spec, holdout))
    except sanderling.NoRowsError as error:
        if holdout is None:
            raise
        raise sanderling.ConfigError(
            f"data.valid: no row of {config.validation_rows} is held out; raise fraction"
        ) from error


def valid_source(config: DeepConfig, spec: dict[str, Any], holdout: sanderling.Holdout | None) -> sanderling.FileSource:
    """Return the validation rows as a source: files, or rows that are held out of the training files."""
    return sanderling.FileSource(
        config.validation_files,
        for_scoring(spec),
        train=config.reads_classes,
        holdout=holdout,
        held_out=holdout is not None,
    )


def check_fields(config: DeepConfig, spec: dict[str, Any]) -> None:
    """Raise ConfigError for a model of field interactions over a single field, as with libsvm files."""
    features = without_labels(spec)["feature"]
    if config.model.type not in MODELS_OF_FIELDS or len(features) >= _FIELDS_MIN:
        return
    only = features[0]
    if only.get("type") == "sparse" and not (only.get("column") or only.get("columns")):
        other = "CSV, Parquet, or libffm with each = ['field_0', ...] in [[feature]]"
        advice = f"libsvm has none: take {other}; or dnn, wide_deep"
    else:
        advice = f"these rows have one, {only['name']!r}: name more features, or take dnn or wide_deep"
    raise sanderling.ConfigError(f"model.type = {config.model.type!r} learns how fields interact, and {advice}")


def for_scoring(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec for scoring: without `negatives`, so that all rows are kept."""
    return {key: value for key, value in spec.items() if key != "negatives"}


def _first_rows(source: sanderling.FileSource) -> tuple[dict[str, Any], sanderling.Holdout | None]:
    """Return the spec and the holdout in use for files, both fitted; NoRowsError if they have no row."""
    with sanderling.FeedQueue(dataclasses.replace(source, batch_size=2, threads=1), depth=1) as queue:
        if next(queue, None) is None:
            raise no_rows(cast("list[str]", source.inputs), queue)
        assert queue.spec is not None
        return queue.spec, queue.holdout


def no_rows(names: list[str], queue: sanderling.FeedQueue | None) -> sanderling.NoRowsError:
    """Return the error for an input without usable rows."""
    stats: dict[str, Any] = {"bad_rows": 0} if queue is None else queue.stats()
    bad = f": all {stats['bad_rows']} were bad, the first: {stats['bad_row_messages'][0]}" if stats["bad_rows"] else ""
    return sanderling.NoRowsError(f"{', '.join(names)}: no rows to work on{bad}")


def _check_widths(config: DeepConfig, features: list[dict[str, Any]]) -> None:
    """Raise ConfigError for a feature with a `dim` other than the model's."""
    for feature in features:
        if feature.get("dim") not in (None, config.model.dim):
            name = feature.get("name") or feature.get("each")
            raise sanderling.ConfigError(
                f"feature {name!r}: dim = {feature['dim']}, but all rows of a deep model are of model.dim ="
                f" {config.model.dim}; leave dim out"
            )


class FileInputs:
    """Training files; every pass has its own queue and its own shuffle seed."""

    def __init__(self, config: DeepConfig, workers: Workers | None, saved: Mapping[str, Any] | None = None) -> None:
        """Fit features and holdout to the files; a resumed run passes those that it has `saved`."""
        self.config, self.workers = config, workers
        self.passes = config.train.passes
        self.hubs: list[dict[str, Any]] = []
        self.queue: sanderling.FeedQueue | None = None
        if saved is None:
            # Fitted once; all queues then use equal boundaries.
            source = sanderling.FileSource(
                config.train_inputs, config.feed_spec, train=config.reads_classes, holdout=config.holdout
            )
            self.spec, self.holdout = _first_rows(source)
            _check_widths(config, self.spec["feature"])
        else:
            self.spec = saved["spec"]
            self.holdout = sanderling.Holdout(**saved["holdout"]) if saved.get("holdout") else None
        self.key_names: KeyNames | None = None
        if config.names:
            self.key_names = KeyNames(config.names, without_labels(self.spec))

    def one_pass(
        self, number: int, embedding: sanderling.Embedding | None, used_rows: int = 0
    ) -> Iterator[sanderling.Batch]:
        """Return the minibatches of pass `number`, from 0, with rows of `embedding` if it is given.

        Skips the first `used_rows` rows of the pass, counted over all trainers.
        """
        train, workers = self.config.train, self.workers
        source = sanderling.FileSource(
            self.config.train_inputs,
            self.spec,
            batch_size=train.batch_size,
            threads=train.threads,
            shuffle_rows=train.shuffle_rows,
            seed=(self.config.seed + number) % (1 << 64),
            rank=0 if workers is None else workers.rank,
            ranks=1 if workers is None else workers.size,
            used_rows=used_rows,
            train=self.config.reads_classes,
            holdout=self.holdout,
            key_names=self.key_names,
        )
        self.queue = sanderling.FeedQueue(source, embedding, depth=train.depth)
        return iter(self.queue) if workers is None else workers.batches(self.queue)

    def close(self, *, used: bool) -> None:
        """Stop reading; `used` has no effect for files."""
        del used
        if self.queue is not None:
            self.queue.close()


class HubInputs:
    """Hubs, which decide on minibatches, passes and order; one queue serves the whole run.

    A pass ends when the first minibatch of a later pass arrives. Minibatches of the earlier pass that arrive after it,
    from another hub or because another trainer ended, count with the later pass.
    """

    spec: dict[str, Any]
    hubs: list[dict[str, Any]]
    """Properties of each hub, as in `sanderling.Hubs.served`."""
    holdout: sanderling.Holdout | None = None
    """None: hubs serve whole files."""
    key_names: KeyNames | None = None
    """None: hubs serve keys without texts."""

    def __init__(
        self,
        config: DeepConfig,
        workers: Workers | None,
        source: sanderling.HubSource,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe to the hubs; a resumed run passes its `saved` spec and hubs, and subscribes in its first pass."""
        self.config, self.workers, self.source, self.saved = config, workers, source, saved
        self.queue: sanderling.FeedQueue | None = None
        self._batches: Iterator[sanderling.Batch] = iter(())
        # First minibatch of a later pass, kept for that pass.
        self._early: sanderling.Batch | None = None
        self._ended = False
        self._subscribed: sanderling.Hubs | None = None
        if saved is None:
            self._subscribed = self._subscribe()
        else:
            self.spec, self.hubs = saved["spec"], saved["hubs"]
        self.passes = int(self.hubs[0]["passes"])

    def one_pass(
        self, number: int, embedding: sanderling.Embedding | None, used_rows: int = 0
    ) -> Iterator[sanderling.Batch]:
        """Yield the minibatches up to the first one of a pass after `number`; hubs know the used rows themselves."""
        del used_rows
        if self.queue is None:
            train = self.config.train
            hubs, self._subscribed = self._subscribed or self._subscribe(), None
            self.queue = sanderling.FeedQueue(hubs, embedding, depth=train.depth)
            self._batches = iter(self.queue) if self.workers is None else self.workers.batches(self.queue)
        while True:
            batch = next(self._batches, None) if self._early is None else self._early
            self._early = None
            if batch is None:
                self._ended = True
                return
            place = batch.pass_number if self.workers is None else self.workers.pass_number
            if place > number:
                self._early = batch
                return
            yield batch

    def close(self, *, used: bool) -> None:
        """Unsubscribe. `used`: the last minibatch counts as used, unless it is of a pass that has not begun."""
        self._subscribed = None
        if self.queue is None:
            return
        if self.workers is not None and self._ended:
            # Drain minibatches without a counterpart at other trainers: the hub waits for their acknowledgement.
            for _ in self.queue:
                pass
        self.queue.close(used=used and self._early is None)
        # Dropping the queue waits until the hubs have received this.
        self.queue, self._early, self._batches = None, None, iter(())

    def _subscribe(self) -> sanderling.Hubs:
        """Subscribe to the hubs, and compare them with the configuration and with the saved run.

        Raises HubError for an unreachable hub or one that has lost its position, and ConfigError for differences.
        """
        config, workers = self.config, self.workers
        rank, size = (0, 1) if workers is None else (workers.rank, workers.size)
        source = dataclasses.replace(
            self.source,
            address=config.train_inputs[0],
            spec=self._expected(),
            threads=config.train.threads,
            rank=rank,
            ranks=size,
            name=f"{config.name} {rank}",
        )
        hubs = sanderling.Hubs(source, depth=config.train.depth)
        self._check(hubs.served)
        if self.saved is not None:
            before = {hub["stream"] for hub in self.saved["hubs"]}
            for hub in hubs.served:
                if hub["stream"] not in before:
                    raise sanderling.HubError(
                        f"hub {hub['address']} was started anew without its position (--position) and would repeat rows"
                        " that this run has used: start the run anew, too, without --resume"
                    )
            return hubs
        spec = hubs.spec
        _check_widths(config, config.spec.get("feature", []))
        if spec is None:
            if not config.spec.get("feature"):
                raise sanderling.ConfigError(
                    "feature: the hub is of an earlier version and does not send its features; name them here"
                )
            spec = config.spec
        # `data` of the configuration, if present, applies to the validation files.
        self.spec = {**spec, "data": config.spec["data"] or spec["data"]}
        self.hubs = hubs.served
        return hubs

    def _expected(self) -> dict[str, Any]:
        """Return the spec of the configuration without `data`, to be compared with the spec of the hubs."""
        return {name: section for name, section in self.config.spec.items() if name != "data"}

    def _check(self, hubs: list[dict[str, Any]]) -> None:
        """Raise ConfigError for hubs that differ from the configuration or from each other."""
        train, workers = self.config.train, self.workers
        ranks = 0 if workers is None else workers.size
        for hub in hubs:
            at = f"hub {hub['address']}"
            if train.batch_size and train.batch_size != hub["batch_size"]:
                raise sanderling.ConfigError(
                    f"train.batch_size = {train.batch_size}, but {at} makes minibatches of {hub['batch_size']} rows:"
                    f" start it with --batch-size {train.batch_size}, or leave train.batch_size out"
                )
            passes = train.passes or hubs[0]["passes"]
            if passes != hub["passes"]:
                what = f"train.passes = {passes}" if train.passes else f"hub {hubs[0]['address']} makes {passes} passes"
                raise sanderling.ConfigError(
                    f"{what}, but {at} makes {hub['passes']}: start it with --passes {passes}, or leave train.passes"
                    " out"
                )
            if ranks and ranks != hub["ranks"]:
                raise sanderling.ConfigError(
                    f"{at} must hand minibatches to {ranks} trainers in turn: start it with --assign strided:{ranks}"
                )
