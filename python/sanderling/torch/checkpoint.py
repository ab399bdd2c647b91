"""Checkpoints of a training run: dense parameters, optimizer state and embedding rows in one directory.

`save` writes new files, flushes them (fsync), and then replaces the manifest, which names them, with one rename. An
interrupted save leaves the previous checkpoint or the new one, never a mixture. Module and optimizer are saved as their
`state_dict`; the model class is not recorded.

    manifest.json     {"format": 1, "generation": 7, "dense": {...}, "rows": "rows-7"}
    dense-7.pt        torch.save of {"model", "optimizer", "extra"}
    rows-7/           tables in this process or downloaded from servers, as `sanderling.save_tables` writes them
    reading-7/        feature spec, and names of keys, for the commands that read keys

Servers save their own tables; the manifest has the name of that checkpoint and the configuration of the tables. With
`local_names`, the rows of tables on servers are downloaded, too: such a checkpoint is complete without the servers.
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
from sanderling._native import KeyNames, download_tables, save_reading, saved_names, upload_tables
from sanderling.torch.embedding import EmbeddingCollection

FORMAT = 1
MANIFEST = "manifest.json"
# Entries of a manifest that name directories.
_PARTS = ("rows", "reading")
# Size limit of a manifest; a longer file is none.
MANIFEST_BYTES_MAX = 16 << 20
# First entry of the manifest of a table checkpoint, which built-in learners save; see crates/store.
_OF_TABLES = "manifest_crc32c"


def save(
    directory: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    emb: EmbeddingCollection | Sequence[EmbeddingCollection] = (),
    *,
    extra: Mapping[str, Any] | None = None,
    description: str = "",
    local_names: Mapping[str, str] | None = None,
    on_servers: bool = True,
    spec: dict[str, Any] | None = None,
    key_names: KeyNames | None = None,
) -> None:
    """Save module, optimizer and the rows of the collections; replaces the checkpoint in the directory.

    Waits until outstanding pushes are applied. `extra` is further state of the run: numbers, texts and tensors in
    dictionaries and lists. Parameter servers save their rows themselves, each a state of its own moment, alternating
    between two checkpoint names that only this directory uses. `description` is shown by `sanderling inspect`.

    `local_names` has the name of each table on servers, and the name for its rows in this directory, to which they are
    then downloaded; do not push meanwhile. With `on_servers=False`, servers save nothing. `spec`, as `FeedQueue.spec`,
    is saved for `sanderling key`, `similar` and `export`, and with it the `key_names` that a run has collected.
    `sanderling serve` compares keys of requests with those that the first collection has seen.

    Raises ConfigError for other types in state or `extra`, and for collections on different servers;
    DuplicateNameError for different tables of one name; ModelError, DamagedError or VersionError if the directory has a
    manifest that cannot be read. The previous checkpoint then stays.
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
        # Verify that the file can be loaded, before the previous checkpoint is replaced.
        torch.load(dense, map_location="meta", weights_only=True)
    except Exception as error:
        dense.unlink(missing_ok=True)
        # pickle raises one of these for an object that it cannot write, such as a function or a lock.
        if not isinstance(error, pickle.PickleError | AttributeError | TypeError):
            raise
        raise sanderling.ConfigError(
            f"{directory}: nothing was saved: state and extra may hold only numbers, texts and tensors in dictionaries"
            " and lists; convert numpy's scalars with float() or int()"
        ) from error
    weights = sum(parameter.numel() for parameter in model.parameters())
    manifest["dense"] = {
        "file": dense.name,
        "bytes": dense.stat().st_size,
        "sha256": _sha256(dense),
        "weights": weights,
    }
    if description:
        manifest["description"] = description

    if local:
        manifest["rows"] = f"rows-{generation}"
        shutil.rmtree(directory / manifest["rows"], ignore_errors=True)
        sanderling.save_tables(directory / manifest["rows"], list(local.values()))
    remote = _connection(collections)
    if remote is not None and local_names is not None:
        if local:
            raise sanderling.ConfigError("local_names: some tables are in this process, whose rows are saved already")
        manifest["rows"] = f"rows-{generation}"
        shutil.rmtree(directory / manifest["rows"], ignore_errors=True)
        download_tables(directory / manifest["rows"], _by_local_name(collections, local_names))
    if remote is not None:
        manifest["server_tables"] = {
            name: {"dim": table.dim, "config": table.config}
            for collection in collections
            for name, table in _tables(collection, sanderling.RemoteTable).items()
        }
    if remote is not None and on_servers:
        place = directory.resolve()
        manifest["directory"], manifest["servers_stem"] = str(place), _servers_stem(place, before)
        manifest["servers"] = f"{manifest['servers_stem']}-{generation % 2}"
        remote.save(manifest["servers"])
    if spec is not None:
        manifest["reading"] = f"reading-{generation}"
        shutil.rmtree(directory / manifest["reading"], ignore_errors=True)
        save_reading(directory / manifest["reading"], spec, key_names, collections[0].native.feature_keys())
    _write_manifest(directory, manifest)
    _remove_others(directory, manifest)


def bring_home(directory: str | os.PathLike[str], tables: Mapping[str, sanderling.RemoteTable]) -> None:
    """Download the rows of tables on servers, as they are now, to the checkpoint that was saved with them.

    `tables` has them by their names in the checkpoint. Afterwards the checkpoint is complete without the servers.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    manifest["rows"] = f"rows-{manifest['generation']}"
    shutil.rmtree(directory / manifest["rows"], ignore_errors=True)
    download_tables(directory / manifest["rows"], tables)
    _write_manifest(directory, manifest)


def _by_local_name(
    collections: Sequence[EmbeddingCollection], local_names: Mapping[str, str]
) -> dict[str, sanderling.RemoteTable]:
    """Return the tables on servers by their names in a checkpoint."""
    remote = {name: table for emb in collections for name, table in _tables(emb, sanderling.RemoteTable).items()}
    return {local_names[name]: table for name, table in remote.items()}


def _write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest by one rename, after it is on disk."""
    part = directory / f"{MANIFEST}.part"
    with part.open("w") as text:
        json.dump(manifest, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    _sync(directory)
    part.replace(directory / MANIFEST)
    _sync(directory)


def load(
    directory: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    emb: EmbeddingCollection | Sequence[EmbeddingCollection] = (),
    *,
    map_location: str | torch.device | None = None,
    restore_servers: bool = True,
    local_names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Restore a checkpoint written by `save`; returns its `extra`.

    Files and their content are verified first. Raises NotFoundError for a missing part, DamagedError for a corrupted
    file, ConfigError for a saved table that differs from an entry that the spec of its collection sets, and the error
    of torch if module or optimizer cannot load their state. After these errors nothing has changed. The memory limit
    of a table is not compared: it stays as it was saved.

    The collections get new tables: create a `FeedQueue` over their rows afterwards. Tables on servers are restored for
    all clients of these servers. With several trainers, one of them restores; the others then call `load` with
    `restore_servers=False`, which only opens the tables again. Rows in the directory are preferred to a checkpoint of
    the servers if `local_names` is given (see `save`): they replace the rows of these tables and of no others.
    """
    directory = Path(directory)
    collections = [emb] if isinstance(emb, EmbeddingCollection) else list(emb)
    manifest, state = read_dense(directory, map_location)
    if optimizer is not None and state["optimizer"] is None:
        raise sanderling.NotFoundError(f"{directory}: saved without an optimizer")

    wanted = {name for collection in collections for name in _tables(collection, sanderling.Table)}
    if wanted and "rows" not in manifest:
        where = (
            "its rows are on parameter servers: name them (--ps), or copy the rows here (sanderling download"
            f" {directory} --ps ADDR)"
            if "server_tables" in manifest
            else f"saved without the rows of tables {', '.join(sorted(wanted))}"
        )
        raise sanderling.NotFoundError(f"{directory}: {where}")
    tables = {name: sanderling.Table.load(directory / manifest["rows"], name) for name in sorted(wanted)}
    remote = _connection(collections)
    uploads = local_names is not None and "rows" in manifest
    if remote is not None and "servers" not in manifest and not uploads:
        raise sanderling.NotFoundError(f"{directory}: saved without rows on servers")

    for collection in collections:
        _check_saved(directory, collection, tables, manifest)

    model_before = copy.deepcopy(model.state_dict())
    optimizer_before = None if optimizer is None else optimizer.state_dict()
    try:
        # Module and optimizer come first: a restore on servers cannot be undone.
        model.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        for collection in collections:
            collection.discard()
            collection.finish()
        if remote is not None and restore_servers and uploads:
            assert local_names is not None
            by_name = _by_local_name(collections, local_names)
            for table in by_name.values():
                table.clear()
            upload_tables(directory / manifest["rows"], by_name)
        elif remote is not None and restore_servers:
            remote.restore(manifest["servers"])
        for collection in collections:
            opened: Mapping[str, Any] = tables
            if collection.connection is not None:
                opened = {name: collection.connection.open(name) for name in collection.tables}
            # `_check_saved` has compared the tables with the spec, as far as the manifest describes them.
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
    """Raise ConfigError for a saved table that differs from the spec; NotFoundError for one missing on servers."""
    for name in _tables(collection, sanderling.Table):
        collection.check_table(name, tables[name].dim, tables[name].config)
    # Checkpoints of earlier versions lack the configuration of tables on servers.
    if "server_tables" not in manifest:
        return
    on_servers: Mapping[str, Any] = manifest["server_tables"]
    for name in _tables(collection, sanderling.RemoteTable):
        if name not in on_servers:
            raise sanderling.NotFoundError(f"{directory}: saved without the rows of table {name} on servers")
        collection.check_table(name, on_servers[name]["dim"], on_servers[name]["config"])


def read_extra(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `extra` of a checkpoint without loading its rows."""
    extra: dict[str, Any] = read_dense(Path(directory), "cpu")[1]["extra"]
    return extra


def read_names(directory: Path) -> bytes | None:
    """Return the names of keys that were saved with a checkpoint; None without names."""
    part = _read_manifest(directory).get("reading")
    return None if part is None else saved_names(directory / part)


def read_dense(directory: Path, map_location: str | torch.device | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the dense part, after verifying its size and SHA-256 (else DamagedError)."""
    manifest = _read_manifest(directory)
    described = manifest["dense"]
    dense = directory / described["file"]
    if not dense.is_file() or dense.stat().st_size != described["bytes"] or _sha256(dense) != described["sha256"]:
        raise sanderling.DamagedError(f"{dense}: missing or corrupted; restore the checkpoint from a copy")
    state: dict[str, Any] = torch.load(dense, map_location=map_location, weights_only=True)
    return manifest, state


def _servers_stem(directory: Path, before: Mapping[str, Any] | None) -> str:
    """Return the prefix of the two checkpoint names on the servers; it is unique, since other runs share them."""
    # A copied directory gets a new prefix, so that it does not overwrite the checkpoints of the original.
    if before is not None and before.get("directory") == str(directory) and "servers_stem" in before:
        return str(before["servers_stem"])
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{directory.parent.name}-{directory.name}").strip(".-")
    return f"{name or 'checkpoint'}-{secrets.token_hex(4)}"


def _tables(collection: EmbeddingCollection, kind: type) -> dict[str, Any]:
    """Return the tables of one class, by name."""
    return {name: table for name, table in collection.tables.items() if isinstance(table, kind)}


def _local_tables(collections: Sequence[EmbeddingCollection]) -> dict[str, sanderling.Table]:
    """Return the tables in this process by name; DuplicateNameError for different tables of one name."""
    found: dict[str, sanderling.Table] = {}
    for collection in collections:
        for name, table in _tables(collection, sanderling.Table).items():
            if found.setdefault(name, table) is not table:
                raise sanderling.DuplicateNameError(
                    f"table {name!r}: two collections have different tables of this name; rename one, or put both"
                    " features into one collection"
                )
    return found


def _connection(collections: Sequence[EmbeddingCollection]) -> sanderling.Connection | None:
    """Return the connection of the collections, None without servers; ConfigError for different servers."""
    connections = [collection.connection for collection in collections if collection.connection is not None]
    if any(other.servers != connections[0].servers for other in connections):
        raise sanderling.ConfigError(
            "collections on different servers cannot share a checkpoint; save each to its own directory"
        )
    return connections[0] if connections else None


def check_replaceable(directory: Path) -> None:
    """Raise ModelError if the directory has a manifest that is not a deep model's.

    Checked before a run begins, because its first save would fail.
    """
    if not (directory / MANIFEST).exists():
        return
    try:
        _read_manifest(directory)
    except sanderling.Error as error:
        raise sanderling.ModelError(
            f"{directory}: holds no deep model, but this run would overwrite it: choose another run name, or remove"
            f" the directory ({error})"
        ) from error


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.exists():
        raise sanderling.NotFoundError(f"{directory}: no checkpoint ({MANIFEST} is missing)")
    # Reading a pipe would block, and a device may have no end.
    if not path.is_file():
        raise sanderling.DamagedError(f"{path}: not a regular file")
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise sanderling.DamagedError(f"{path}: too long to be a manifest")
    try:
        manifest = json.loads(path.read_text())
        if isinstance(manifest, dict) and _OF_TABLES in manifest:
            raise sanderling.ModelError(f"{path} is the manifest of a built-in learner, or of tables alone")
        fine = isinstance(manifest["generation"], int) and isinstance(manifest["dense"]["file"], str)
        version = int(manifest["format"])
    except KeyError as error:
        raise sanderling.DamagedError(f"{path}: not a manifest: entry {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise sanderling.DamagedError(f"{path}: not a manifest: {error}") from error
    if version > FORMAT:
        raise sanderling.VersionError(f"{path}: format {version}, but this version reads {FORMAT}; update sanderling")
    if not fine or any("/" in str(part) for part in (manifest["dense"]["file"], *map(manifest.get, _PARTS))):
        raise sanderling.DamagedError(f"{path}: not a manifest")
    return dict(manifest)


def _remove_others(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Remove the files of earlier checkpoints, which the manifest no longer names."""
    for path in directory.iterdir():
        if re.fullmatch(r"dense-\d+\.pt", path.name) and path.name != manifest["dense"]["file"]:
            path.unlink()
        elif (part := re.fullmatch(r"(rows|reading)-\d+", path.name)) and path.name != manifest.get(part[1]):
            shutil.rmtree(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    """Flush the entries of a directory (fsync)."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
