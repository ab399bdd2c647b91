"""Type stubs of the native module, which crates/python builds; `stubtest` compares the two.

The module has one namespace. The stubs of this folder divide it for readers; only type checkers can import them.
"""

from sanderling._native.errors import (
    BadFileError,
    BadRowError,
    ConfigError,
    DamagedError,
    DivergedError,
    DuplicateNameError,
    Error,
    FileError,
    GradientError,
    GroupError,
    GroupTimeoutError,
    HubError,
    HubTimeoutError,
    LengthError,
    ModelError,
    NoRowsError,
    NotFoundError,
    OffsetsError,
    ServerError,
    ServerTimeoutError,
    StoppedError,
    TableFullError,
    TooManyBadRowsError,
    VersionError,
)
from sanderling._native.feed import (
    Batch,
    Embedding,
    FeedQueue,
    Hubs,
    KeyNames,
    Lookup,
    save_reading,
    saved_names,
)
from sanderling._native.models import (
    Model,
    RunStatus,
    TrainResult,
    cli_main,
    cores_usable,
    give_up_silent,
    key,
    load,
    metrics,
    parse_duration_s,
    parse_size_bytes,
    read_once,
    remarks_of,
    render_report,
    set_entries,
    train,
    value_key,
)
from sanderling._native.serving import RowsClient
from sanderling._native.tables import (
    Connection,
    RemoteTable,
    Table,
    checkpoint_tables,
    connect,
    download_tables,
    export_traces,
    save_tables,
    upload_tables,
)
from sanderling._native.workers import (
    Batches,
    Job,
    Meeting,
    SyncGroup,
    Worker,
)

__all__ = [
    "DEEP_MODELS",
    "RENAMED_ENTRIES",
    "RENAMED_OPTIONS",
    "RETRIEVAL_MODELS",
    "BadFileError",
    "BadRowError",
    "Batch",
    "Batches",
    "ConfigError",
    "Connection",
    "DamagedError",
    "DivergedError",
    "DuplicateNameError",
    "Embedding",
    "Error",
    "FeedQueue",
    "FileError",
    "GradientError",
    "GroupError",
    "GroupTimeoutError",
    "HubError",
    "HubTimeoutError",
    "Hubs",
    "Job",
    "KeyNames",
    "LengthError",
    "Lookup",
    "Meeting",
    "Model",
    "ModelError",
    "NoRowsError",
    "NotFoundError",
    "OffsetsError",
    "RemoteTable",
    "RowsClient",
    "RunStatus",
    "ServerError",
    "ServerTimeoutError",
    "StoppedError",
    "SyncGroup",
    "Table",
    "TableFullError",
    "TooManyBadRowsError",
    "TrainResult",
    "VersionError",
    "Worker",
    "__version__",
    "checkpoint_tables",
    "cli_main",
    "connect",
    "cores_usable",
    "download_tables",
    "export_traces",
    "give_up_silent",
    "key",
    "load",
    "metrics",
    "parse_duration_s",
    "parse_size_bytes",
    "read_once",
    "remarks_of",
    "render_report",
    "save_reading",
    "save_tables",
    "saved_names",
    "set_entries",
    "train",
    "upload_tables",
    "value_key",
]

RENAMED_OPTIONS: list[tuple[str, str]]
"""Old and new names of renamed options of the command line."""

RENAMED_ENTRIES: list[tuple[str, str, str]]
"""Sections, old and new names of renamed entries of configurations."""

DEEP_MODELS: tuple[str, ...]
"""Values of `model.type` for deep models, which are trained in PyTorch."""

RETRIEVAL_MODELS: tuple[str, ...]
"""The deep models with vectors of users and items."""

__version__: str
