"""A step of a deep model: rows in Sanderling's table beside `torch.nn.EmbeddingBag` with sparse gradients.

    python bench/deep_vs_torch.py                                    6 thousand keys
    python bench/deep_vs_torch.py --keys 10000000                    10 million, where plain PyTorch still fits
    python bench/deep_vs_torch.py --keys 200000000 --dtype bf16 --optimizer row_adagrad --without-torch
                                                                     as many as plain PyTorch has no memory for
    python bench/deep_vs_torch.py --csv ../shared/data/frappe_x1/train.csv --dim 10
                                                                     whole passes over a file instead of single steps

All have the same perceptron, the same first rows, and the same minibatches, in one process, in interleaved rounds;
their losses must agree. A step is forward, backward and the update of rows and dense part; a round is timed whole, with
all updates applied. PyTorch indexes a matrix by row number, and has its minibatches in memory; Sanderling finds 64-bit
keys in a hash table, so that the keys need not be numbered. It runs twice: as one would train, with a `FeedQueue` that
is opened within the round, reads the minibatches from a batch file and looks them up ahead; and with the lookup in the
step, beside up to 8 pushes that are under way. The last row is the dense part alone, over rows that are already there.
Where that part is small, torch had better leave the queue a processor: --threads-with-queue.

With --csv (a header, then a label and numbers of keys that are distinct over all columns) Sanderling reads, shuffles
and looks up from the file in every pass, in the queue's threads beside torch's; PyTorch has the rows in memory before
the time is taken.

With --device cuda the dense part is on a GPU, and so is all of EmbeddingBag, its keys already there; Sanderling's rows
stay in the machine's memory, and go to the GPU and their gradients back in every step.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import sanderling
from sanderling.torch import EmbeddingCollection, FeatureSpec, Spec, TableSpec
from sanderling.torch.models import DNN

# Rows that are made or read at once before the measurement.
_CHUNK = 1 << 18
# Losses of the first step may differ by this share: sums are taken in another order. Later ones may differ more, since
# SparseAdam counts steps for the whole matrix and not per row.
_LOSS_TOLERANCE = 1e-4
_OURS = ("sanderling", "sanderling, no queue")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--keys", type=int, default=6000, help="keys of all fields together (6000)")
    add("--fields", type=int, default=10, help="keys per sample (10)")
    add("--dim", type=int, default=16, help="weights per row (16)")
    add("--batch-size", type=int, default=4096, help="samples per step (4096)")
    add("--hidden", type=int, nargs="*", default=[400, 400, 400], help="layers of the perceptron (400 400 400)")
    optimizers = ["adam", "adagrad", "row_adagrad"]
    add("--optimizer", choices=optimizers, default="adam", help="of the rows; torch's adam is SparseAdam (adam)")
    add("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of Sanderling's rows (f32)")
    add("--without-torch", action="store_true", help="no EmbeddingBag: for tables that it has no memory for")
    add("--skew", type=float, default=0.0, help="0: keys are uniform; 1: log-uniform, as clicks are (0)")
    add("--steps", type=int, default=40, help="steps per round (40)")
    add("--rounds", type=int, default=5, help="interleaved rounds (5)")
    add("--threads", type=int, default=torch.get_num_threads(), help="of torch (as torch has it)")
    add("--threads-with-queue", type=int, help="of torch while the queue has some as well (as --threads)")
    add("--queue-threads", type=int, default=1, help="of the queue (1)")
    add("--device", default="cpu", help="where the dense part and EmbeddingBag are: cpu, cuda (cpu)")
    add("--csv", help="measure passes over this file")
    add("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args(arguments)
    if (options.dtype != "f32" or options.optimizer == "row_adagrad") and not options.without_torch:
        parser.error("torch has neither narrow rows with wide sums nor row_adagrad: say --without-torch")
    if options.csv and options.device != "cpu":
        parser.error("--csv measures on the processor: leave --device out")
    return options


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measures and prints."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    # Off unless somebody says so, and Adagrad warns if nobody has said anything.
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(1)
    if options.csv:
        return passes(options)
    dense = DNN(options.fields, options.dim, hidden=options.hidden).to(options.device)
    batches = [draw(options, number) for number in range(options.steps)]
    table = filled_table(options, wide)
    if options.without_torch:
        of_bag = options.keys * options.dim * 4 * (3 if options.optimizer == "adam" else 2)
        used = table.stats()["index_bytes"] + table.stats()["slab_bytes"]
        print(f"a table of {used / 2**30:.1f} GiB; as float32 torch would need {of_bag / 2**30:.1f} GiB")
    with tempfile.TemporaryDirectory() as folder:
        file = batch_file(options, batches, Path(folder))
        engines: dict[str, Round] = {"sanderling": queue_round(options, copy.deepcopy(dense), file, table)}
        if not options.without_torch:
            # A table for each that trains one, as all begin alike.
            step = sanderling_steps(options, copy.deepcopy(dense), batches, filled_table(options, wide))
            engines["sanderling, no queue"] = round_of(step, batches)
            step = torch_steps(options, copy.deepcopy(dense), batches, table, wide)
            engines["torch"] = round_of(step, batches)
        engines["dense alone"] = round_of(dense_steps(options, copy.deepcopy(dense), batches), batches)
        times: dict[str, list[float]] = {name: [] for name in engines}
        first: dict[str, float] = {}
        for round_number in range(-1, options.rounds):
            for name in list(engines) if round_number % 2 == 0 else list(reversed(engines)):
                with_queue = name == "sanderling" and options.threads_with_queue
                torch.set_num_threads(with_queue or options.threads)
                began = time.perf_counter()
                loss = engines[name]()
                first.setdefault(name, loss)
                if round_number >= 0:  # the first round warms up
                    times[name].append((time.perf_counter() - began) * 1e3 / options.steps)
    theirs = first.get("torch")
    if theirs is not None and any(abs(first[name] - theirs) > _LOSS_TOLERANCE * theirs for name in _OURS):
        raise SystemExit(f"the losses differ: {first}")
    result = {
        name: {"median_ms": statistics.median(rounds), "min_ms": min(rounds), "max_ms": max(rounds)}
        for name, rounds in times.items()
    }
    show(options, result)
    if options.json:
        print(json.dumps(result))
    return result


def show(options: argparse.Namespace, result: dict[str, dict[str, float]]) -> None:
    """The result as a table."""
    print(
        f"{options.keys:,} keys, {options.fields} fields, dim {options.dim}, batch {options.batch_size}; "
        f"{options.optimizer}, {options.dtype}"
    )
    print(
        f"skew {options.skew:g}, hidden {options.hidden} on {options.device}, {options.threads} threads of torch "
        f"{torch.__version__}, with the queue {options.threads_with_queue or options.threads} "
        f"and {options.queue_threads} of its own\n"
    )
    print("| a step, ms | median of rounds | min | max | median without the dense part |")
    print("|---|---|---|---|---|")
    alone = result["dense alone"]["median_ms"]
    for name, steps in result.items():
        rest = steps["median_ms"] - alone
        numbers = " | ".join(f"{steps[key]:.2f}" for key in ("median_ms", "min_ms", "max_ms"))
        print(f"| {name} | {numbers} | {rest:.2f} |")
    if "torch" not in result:
        return
    theirs = result["torch"]["median_ms"]
    print()
    for name in _OURS:
        ours = result[name]["median_ms"]
        print(f"torch / {name}: {theirs / ours:.2f}; without the dense part {(theirs - alone) / (ours - alone):.2f}")


Keys = np.ndarray[Any, np.dtype[np.uint64]]
# The keys of these row numbers.
Naming = Callable[[Any], Keys]
Drawn = tuple[np.ndarray[Any, np.dtype[np.int64]], torch.Tensor]
# Goes through all minibatches once and returns the loss of the first.
Round = Callable[[], float]


def draw(options: argparse.Namespace, number: int) -> Drawn:
    """Keys [B, F], each field with a range of its own, and labels [B]."""
    rng = np.random.default_rng(number)
    each = options.keys // options.fields
    uniform = rng.random((options.batch_size, options.fields))
    place = uniform if options.skew == 0.0 else (each**uniform - 1) / (each - 1)
    keys = np.minimum((place * each).astype(np.int64), each - 1) + np.arange(options.fields) * each
    labels = (rng.random(options.batch_size) < 0.3).astype(np.float32)
    return keys, torch.from_numpy(labels)


def wide(numbers: Any) -> Keys:  # noqa: ANN401, arrays of integers
    """Row numbers as keys that fill 64 bits."""
    keys: Keys = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys


def plain(numbers: Any) -> Keys:  # noqa: ANN401, arrays of integers
    """Row numbers as keys, as they are."""
    keys: Keys = numbers.astype(np.uint64)
    return keys


def filled_table(options: argparse.Namespace, names: Naming) -> sanderling.Table:
    """A table that has all keys, as after long training."""
    table = sanderling.Table(
        "rows",
        options.dim,
        optimizer={"type": options.optimizer, "lr": 1e-3},
        init={"type": "normal", "std": 0.01},
        dtype=options.dtype,
    )
    table.reserve(options.keys)
    for begin in range(0, options.keys, _CHUNK):
        keys = names(np.arange(begin, min(begin + _CHUNK, options.keys)))
        # Adagrad and Adam keep a row as it is if its gradients have all been zero.
        table.push(keys, np.zeros((len(keys), options.dim), np.float32), lr_scale=1e-9)
    return table


def round_of(step: Callable[[int], float], batches: list[Drawn]) -> Round:
    """All steps, one after the other."""

    def whole_round() -> float:
        losses = [step(number) for number in range(len(batches))]
        return losses[0]

    return whole_round


def field_names(options: argparse.Namespace) -> list[str]:
    """Of the features."""
    return [f"f{field}" for field in range(options.fields)]


def collection(options: argparse.Namespace, names: list[str], table: sanderling.Table) -> EmbeddingCollection:
    """All features in one table."""
    spec = Spec({"rows": TableSpec(options.dim)}, [FeatureSpec(name, "rows") for name in names])
    emb = EmbeddingCollection(spec).to(options.device)
    emb.use_tables({"rows": table})
    return emb


def batch_file(options: argparse.Namespace, batches: list[Drawn], folder: Path) -> tuple[str, dict[str, Any]]:
    """The minibatches as `sanderling convert` writes them, and the spec that reads them."""
    names, text, config = field_names(options), folder / "rows.csv", folder / "rows.toml"
    with text.open("w") as file:
        for keys, labels in batches:
            rows = np.concatenate([labels.numpy().astype(np.uint64)[:, None], wide(keys)], axis=1)
            np.savetxt(file, rows, fmt="%d", delimiter=",")
    features = "".join(f'[[feature]]\nname = "{name}"\nkey = "raw"\n' for name in names)
    columns = json.dumps(["label", *names])
    config.write_text(
        f'[data]\ntrain = "{text}"\nformat = "csv"\ncolumns = {columns}\n[label]\ncolumn = "label"\n{features}'
    )
    out = folder / "rows.batch"
    block = ["--block-rows", str(options.batch_size)]
    subprocess.run([sys.executable, "-m", "sanderling", "convert", str(config), str(out), "-q", *block], check=True)
    text.unlink()
    return str(out), {"label": {"column": "label"}, "feature": [{"name": name, "key": "raw"} for name in names]}


def queue_round(
    options: argparse.Namespace, model: nn.Module, file: tuple[str, dict[str, Any]], table: sanderling.Table
) -> Round:
    """Steps as one trains: the queue's threads read and look up ahead, pushes are applied in the background."""
    emb = collection(options, field_names(options), table)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source, spec = file

    def whole_round() -> float:
        first = None
        rows = sanderling.FileSource(source, spec, batch_size=options.batch_size, threads=options.queue_threads)
        for batch in sanderling.FeedQueue(rows, emb.native):
            optimizer.zero_grad()
            loss = loss_of(model(emb(batch).stacked()), torch.from_numpy(batch.labels).to(options.device))
            loss.backward()
            optimizer.step()
            first = float(loss.detach()) if first is None else first
        emb.finish()
        assert first is not None
        return first

    return whole_round


def sanderling_steps(
    options: argparse.Namespace, model: nn.Module, batches: list[Drawn], table: sanderling.Table
) -> Callable[[int], float]:
    """Steps over the table; the lookup is within the step, as nobody looks ahead."""
    names = field_names(options)
    emb = collection(options, names, table)
    offsets = np.arange(options.batch_size + 1, dtype=np.uint32)
    made = [
        sanderling.Batch([(name, wide(keys[:, field].copy()), offsets, None) for field, name in enumerate(names)])
        for keys, _ in batches
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(number: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(model(emb(made[number]).stacked()), batches[number][1].to(options.device))
        loss.backward()
        optimizer.step()
        # The push of the last step of a round would otherwise run into the time of the next engine.
        if number + 1 == len(made):
            emb.finish()
        return float(loss.detach())

    return step


def torch_steps(
    options: argparse.Namespace, model: nn.Module, batches: list[Drawn], table: sanderling.Table, names: Naming
) -> Callable[[Any], float]:
    """Steps over one EmbeddingBag for all fields, a bag per field and sample; of a batch by number, or as tensors."""
    bag = nn.EmbeddingBag(options.keys, options.dim, mode="sum", sparse=True).to(options.device)
    with torch.no_grad():
        for begin in range(0, options.keys, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, options.keys))
            bag.weight[begin : begin + _CHUNK] = torch.from_numpy(table.pull(names(numbers)))
    rows: torch.optim.Optimizer = (
        torch.optim.SparseAdam(bag.parameters(), lr=1e-3)
        if options.optimizer == "adam"
        else torch.optim.Adagrad(bag.parameters(), lr=1e-3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    offsets = torch.arange(options.batch_size * options.fields, device=options.device)
    place = options.device
    made = [(torch.from_numpy(keys.reshape(-1)).to(place), labels.to(place)) for keys, labels in batches]

    def step(given: Any) -> float:  # noqa: ANN401, a number or tensors
        keys, labels = made[given] if isinstance(given, int) else given
        optimizer.zero_grad()
        rows.zero_grad()
        stacked = bag(keys, offsets[: len(keys)]).view(len(labels), options.fields, options.dim)
        loss = loss_of(model(stacked), labels)
        loss.backward()
        optimizer.step()
        rows.step()
        return float(loss.detach())

    return step


def dense_steps(options: argparse.Namespace, model: nn.Module, batches: list[Drawn]) -> Callable[[int], float]:
    """Steps over rows that do not change."""
    rows = torch.randn(options.batch_size, options.fields, options.dim, device=options.device).requires_grad_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(number: int) -> float:
        optimizer.zero_grad()
        rows.grad = None
        loss = loss_of(model(rows), batches[number][1].to(options.device))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def passes(options: argparse.Namespace) -> dict[str, Any]:
    """Wall time of whole passes over a file, in interleaved rounds."""
    rows = np.loadtxt(options.csv, delimiter=",", skiprows=1, dtype=np.int64)
    with open(options.csv) as file:  # noqa: PTH123, one line
        names = file.readline().strip().split(",")
    label, names = names[0], names[1:]
    options.fields, options.keys = len(names), int(rows[:, 1:].max()) + 1
    dense = DNN(options.fields, options.dim, hidden=options.hidden, batch_norm=True)
    table = filled_table(options, plain)
    emb = collection(options, names, table)
    ours, theirs = copy.deepcopy(dense), copy.deepcopy(dense)
    our_optimizer = torch.optim.Adam(ours.parameters(), lr=1e-3)
    torch_step = torch_steps(options, theirs, [], table, plain)
    keys, labels = torch.from_numpy(rows[:, 1:].copy()), torch.from_numpy(rows[:, 0].astype(np.float32))
    spec = {"label": {"column": label}, "feature": [{"name": name, "key": "raw"} for name in names]}

    def sanderling_pass(number: int) -> None:
        source = sanderling.FileSource(
            options.csv,
            spec,
            batch_size=options.batch_size,
            threads=options.queue_threads,
            shuffle_rows=len(rows),
            seed=number,
        )
        for batch in sanderling.FeedQueue(source, emb.native):
            our_optimizer.zero_grad()
            loss_of(ours(emb(batch).stacked()), torch.from_numpy(batch.labels)).backward()
            our_optimizer.step()
        emb.finish()

    def torch_pass(number: int) -> None:
        order = torch.from_numpy(np.random.default_rng(number).permutation(len(rows)))
        for part in order.split(options.batch_size):
            torch_step((keys[part].reshape(-1), labels[part]))

    seconds: dict[str, list[float]] = {"sanderling": [], "torch": []}
    for number in range(options.rounds):
        for name, whole in (("sanderling", sanderling_pass), ("torch", torch_pass)):
            began = time.perf_counter()
            whole(number)
            seconds[name].append(time.perf_counter() - began)
    print(
        f"{len(rows):,} rows, {options.keys:,} keys, dim {options.dim}, "
        f"batch {options.batch_size}; {options.optimizer};"
    )
    print(f"hidden {options.hidden}, {options.threads} threads of torch {torch.__version__}\n")
    print("| a pass, s | median | min | max |\n|---|---|---|---|")
    for name, times in seconds.items():
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} | {max(times):.2f} |")
    print(f"\ntorch / sanderling: {statistics.median(seconds['torch']) / statistics.median(seconds['sanderling']):.2f}")
    return seconds


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean logistic loss."""
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


if __name__ == "__main__":
    main()
