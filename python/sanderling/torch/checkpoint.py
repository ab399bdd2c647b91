"""Checkpoints of a whole training: dense part and rows in one directory, as of one moment.

Files of a checkpoint are written under new names and flushed; then the manifest, which names them, is replaced by one
rename. Whatever interrupts a save, the directory holds the checkpoint before it or the new one, never a mixture. Knows
nothing of models: what is saved is what `state_dict` gives.

    manifest.json     {"format": 1, "generation": 7, "dense": {...}, "rows": "rows-7"}
    dense-7.pt        torch.save of {"model", "optimizer", "extra"}
    rows-7/           the tables as `sanderling.save_tables` writes them; rows on servers are saved by the servers, and
                      the manifest says under which name, and what their tables were made from
"""

import copy
import hashlib
import json
import os
import pickle
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sanderling
from sanderling.torch.embedding import EmbeddingCollection

FORMAT = 1
MANIFEST = "manifest.json"
# The manifest is small; a longer file is not ours.
MANIFEST_BYTES_MAX = 16 << 20
# What begins the manifest of tables, which built-in learners save; see crates/store.
_OF_TABLES = "manifest_crc32c"


def save(
    directory: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    emb: EmbeddingCollection | Sequence[EmbeddingCollection] = (),
    *,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Saves module, optimizer and the rows of the collections; replaces the checkpoint of the directory.

    Waits for pushes that are under way. `extra` is for what else a run needs, numbers, texts and tensors in
    dictionaries and lists. Rows on parameter servers are saved by the servers themselves, as of their own moments, in
    turn under two names that are this directory's alone.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    collections = [emb] if isinstance(emb, EmbeddingCollection) else list(emb)
    local = _local_tables(collections)
    before = _read_manifest(directory) if (directory / MANIFEST).exists() else None
    generation = 1 + (0 if before is None else int(before["generation"]))
    manifest: dict[str, Any] = {"format": FORMAT, "generation": generation}
    for collection in collections:
        collection.finish()

    dense = directory / f"dense-{generation}.pt"
    state = {
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "extra": dict(extra or {}),
    }
    try:
        with dense.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        # Before anything of the checkpoint that is there is given up.
        torch.load(dense, map_location="meta", weights_only=True)
    except Exception as error:
        dense.unlink(missing_ok=True)
        # What pickle raises of what it cannot write, a function or a lock, is as various.
        if not isinstance(error, pickle.PickleError | AttributeError | TypeError):
            raise
        raise sanderling.ConfigError(
            f"{directory}: nothing was saved: in state and extra only numbers, texts and tensors, in dictionaries and"
            " lists, can be loaded again; make numpy's scalars float() or int()"
        ) from error
    manifest["dense"] = {"file": dense.name, "bytes": dense.stat().st_size, "sha256": _sha256(dense)}

    if local:
        manifest["rows"] = f"rows-{generation}"
        shutil.rmtree(directory / manifest["rows"], ignore_errors=True)
        sanderling.save_tables(directory / manifest["rows"], list(local.values()))
    remote = _connection(collections)
    if remote is not None:
        place = directory.resolve()
        manifest["directory"], manifest["servers_stem"] = str(place), _servers_stem(place, before)
        manifest["servers"] = f"{manifest['servers_stem']}-{generation % 2}"
        manifest["server_tables"] = {
            name: {"dim": table.dim, "config": table.config}
            for collection in collections
            for name, table in _tables(collection, sanderling.RemoteTable).items()
        }
        remote.save(manifest["servers"])

    part = directory / f"{MANIFEST}.part"
    with part.open("w") as text:
        json.dump(manifest, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    _sync(directory)
    part.replace(directory / MANIFEST)
    _sync(directory)
    _remove_others(directory, manifest)


def load(
    directory: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    emb: EmbeddingCollection | Sequence[EmbeddingCollection] = (),
    *,
    map_location: str | torch.device | None = None,
    restore_servers: bool = True,
) -> dict[str, Any]:
    """Restores what `save` wrote, and returns its `extra`.

    Files are verified before anything is changed, and so is what they hold: module and optimizer must be able to take
    it (else what torch raises), and where the collections' specs say something of a table, it must have been made with
    that (else a ConfigError); a budget stays what it was. After such an error all is as before.

    The collections get other tables, so that a `FeedQueue` over their rows must be made afterwards; those on servers
    are restored for everybody who uses these servers, so that of several trainers one does it, and the others, after
    it, only open them anew (`restore_servers=False`).
    """
    directory = Path(directory)
    collections = [emb] if isinstance(emb, EmbeddingCollection) else list(emb)
    manifest, state = _read_dense(directory, map_location)
    if optimizer is not None and state["optimizer"] is None:
        raise sanderling.NotFoundError(f"{directory}: saved without an optimizer")

    wanted = {name for collection in collections for name in _tables(collection, sanderling.Table)}
    if wanted and "rows" not in manifest:
        raise sanderling.NotFoundError(f"{directory}: saved without the rows of tables {', '.join(sorted(wanted))}")
    tables = {name: sanderling.Table.load(directory / manifest["rows"], name) for name in sorted(wanted)}
    remote = _connection(collections)
    if remote is not None and "servers" not in manifest:
        raise sanderling.NotFoundError(f"{directory}: saved without rows on servers")

    for collection in collections:
        _check_saved(directory, collection, tables, manifest)

    model_before = copy.deepcopy(model.state_dict())
    optimizer_before = None if optimizer is None else optimizer.state_dict()
    try:
        # Before the rows, which servers do not give back.
        model.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        for collection in collections:
            collection.discard()
            collection.finish()
        if remote is not None and restore_servers:
            remote.restore(manifest["servers"])
        for collection in collections:
            opened: Mapping[str, Any] = tables
            if collection.connection is not None:
                opened = {name: collection.connection.open(name) for name in collection.tables}
            # That they are as the spec says has been looked at, where it is known.
            collection.use_loaded({name: opened[name] for name in collection.tables})
    except BaseException:
        model.load_state_dict(model_before)
        if optimizer is not None and optimizer_before is not None:
            optimizer.load_state_dict(optimizer_before)
        raise
    extra: dict[str, Any] = state["extra"]
    return extra


def _check_saved(
    directory: Path,
    collection: EmbeddingCollection,
    tables: Mapping[str, sanderling.Table],
    manifest: Mapping[str, Any],
) -> None:
    """Refuses saved tables that are not as the collection's spec says."""
    for name in _tables(collection, sanderling.Table):
        collection.check_table(name, tables[name].dim, tables[name].config)
    # Earlier versions did not say what tables on servers were made with.
    if "server_tables" not in manifest:
        return
    on_servers: Mapping[str, Any] = manifest["server_tables"]
    for name in _tables(collection, sanderling.RemoteTable):
        if name not in on_servers:
            raise sanderling.NotFoundError(f"{directory}: saved without the rows of table {name} on servers")
        collection.check_table(name, on_servers[name]["dim"], on_servers[name]["config"])


def read_extra(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The `extra` of a checkpoint alone."""
    extra: dict[str, Any] = _read_dense(Path(directory), "cpu")[1]["extra"]
    return extra


def _read_dense(directory: Path, map_location: str | torch.device | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the dense part, verified."""
    manifest = _read_manifest(directory)
    described = manifest["dense"]
    dense = directory / described["file"]
    if not dense.is_file() or dense.stat().st_size != described["bytes"] or _sha256(dense) != described["sha256"]:
        raise sanderling.DamagedError(f"{dense}: missing or not as it was written; restore the checkpoint from a copy")
    state: dict[str, Any] = torch.load(dense, map_location=map_location, weights_only=True)
    return manifest, state


def _servers_stem(directory: Path, before: Mapping[str, Any] | None) -> str:
    """Prefix of the two checkpoint names on servers, which other runs share."""
    # A copy of the directory saves under names of its own.
    if before is not None and before.get("directory") == str(directory) and "servers_stem" in before:
        return str(before["servers_stem"])
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{directory.parent.name}-{directory.name}").strip(".-")
    return f"{name or 'checkpoint'}-{secrets.token_hex(4)}"


def _tables(collection: EmbeddingCollection, kind: type) -> dict[str, Any]:
    """The collection's tables of one kind, by name."""
    return {name: table for name, table in collection.tables.items() if isinstance(table, kind)}


def _local_tables(collections: Sequence[EmbeddingCollection]) -> dict[str, sanderling.Table]:
    """The tables in this process by name, by which a checkpoint tells them apart."""
    found: dict[str, sanderling.Table] = {}
    for collection in collections:
        for name, table in _tables(collection, sanderling.Table).items():
            if found.setdefault(name, table) is not table:
                raise sanderling.DuplicateNameError(
                    f"table {name!r}: two collections have a table of this name, each its own; name them differently,"
                    " or let both features be of one collection"
                )
    return found


def _connection(collections: Sequence[EmbeddingCollection]) -> sanderling.Connection | None:
    """The servers of the collections; all must use the same ones, since a checkpoint of theirs has one name."""
    connections = [collection.connection for collection in collections if collection.connection is not None]
    if any(other.servers != connections[0].servers for other in connections):
        raise sanderling.ConfigError("collections on different servers need checkpoints of their own")
    return connections[0] if connections else None


def check_replaceable(directory: Path) -> None:
    """Refuses to begin a run whose first save would fail: the directory holds something else than such a checkpoint.

    Raises ModelError.
    """
    if not (directory / MANIFEST).exists():
        return
    try:
        _read_manifest(directory)
    except sanderling.Error as error:
        raise sanderling.ModelError(
            f"{directory}: holds no deep model, but this run would save over it: give the run another name, or remove"
            f" that ({error})"
        ) from error


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.exists():
        raise sanderling.NotFoundError(f"{directory}: no checkpoint ({MANIFEST} is missing)")
    # A pipe would be waited for, and a device may have no end.
    if not path.is_file():
        raise sanderling.DamagedError(f"{path}: no regular file")
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise sanderling.DamagedError(f"{path}: too long to be a manifest")
    try:
        manifest = json.loads(path.read_text())
        if isinstance(manifest, dict) and _OF_TABLES in manifest:
            raise sanderling.ModelError(f"{path} is of a built-in learner, or of tables alone")
        fine = isinstance(manifest["generation"], int) and isinstance(manifest["dense"]["file"], str)
        version = int(manifest["format"])
    except KeyError as error:
        raise sanderling.DamagedError(f"{path}: not a manifest: it has no entry {error}") from error
    except (ValueError, TypeError) as error:
        raise sanderling.DamagedError(f"{path}: not a manifest: {error}") from error
    if version > FORMAT:
        raise sanderling.VersionError(f"{path}: format {version}, this version reads {FORMAT}")
    if not fine or "/" in manifest["dense"]["file"] or "/" in str(manifest.get("rows", "")):
        raise sanderling.DamagedError(f"{path}: not a manifest")
    return dict(manifest)


def _remove_others(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Removes what no manifest names any more."""
    for path in directory.iterdir():
        if re.fullmatch(r"dense-\d+\.pt", path.name) and path.name != manifest["dense"]["file"]:
            path.unlink()
        elif re.fullmatch(r"rows-\d+", path.name) and path.name != manifest.get("rows"):
            shutil.rmtree(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    """Flushes the names in a directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
