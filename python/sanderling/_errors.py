"""Exceptions of the package, which the native module raises: one class per kind, all below `Error`.

A class is also the built-in exception that a Python program would expect in its place.
"""


class Error(Exception):
    """Base class of all errors of Sanderling."""

    __module__ = "sanderling"


class ConfigError(Error, ValueError):
    """A configuration contradicts itself or has an unknown or impossible entry."""

    __module__ = "sanderling"


class LengthError(Error, ValueError):
    """The lengths of the arrays of a request differ; nothing was read or applied."""

    __module__ = "sanderling"


class OffsetsError(Error, ValueError):
    """Offsets of a pooled pull do not ascend from 0 to the number of keys."""

    __module__ = "sanderling"


class GradientError(Error, ValueError):
    """A gradient or its scale is not finite or too large; nothing was applied."""

    __module__ = "sanderling"


class TableFullError(Error):
    """New keys exceed the memory limit of the table; the message has their number."""

    __module__ = "sanderling"


class FileError(Error, OSError):
    """A file could not be opened, read or written."""

    __module__ = "sanderling"


class DamagedError(Error):
    """A checkpoint file is truncated, corrupted, or of another format."""

    __module__ = "sanderling"


class VersionError(Error):
    """A file of a checkpoint was written by a newer version."""

    __module__ = "sanderling"


class DuplicateNameError(Error, ValueError):
    """Two tables of one checkpoint have the same name."""

    __module__ = "sanderling"


class NotFoundError(Error, KeyError):
    """A checkpoint or a model does not contain the requested item."""

    __module__ = "sanderling"

    # KeyError shows the repr of its argument.
    __str__ = Exception.__str__


class BadRowError(Error, ValueError):
    """A row violates the format or the spec; the message names file, line and column."""

    __module__ = "sanderling"


class TooManyBadRowsError(Error, ValueError):
    """More rows were bad than `on_bad_row` allows."""

    __module__ = "sanderling"


class BadFileError(Error, ValueError):
    """A data file is not of its format, or rows in memory lack a column."""

    __module__ = "sanderling"


class NoRowsError(Error, ValueError):
    """The input had no rows."""

    __module__ = "sanderling"


class ModelError(Error):
    """A saved model exists but cannot be used."""

    __module__ = "sanderling"


class DivergedError(Error):
    """Training diverged: a prediction or a weight is infinite or NaN."""

    __module__ = "sanderling"


class ServerError(Error, ConnectionError):
    """A parameter server refused a request, timed out, or was restarted; the message names the server."""

    __module__ = "sanderling"


class ServerTimeoutError(ServerError, TimeoutError):
    """A parameter server did not answer in time; the message names the server."""

    __module__ = "sanderling"


class GroupError(Error):
    """Workers in synchronous steps timed out or disagree; the message names missing workers."""

    __module__ = "sanderling"


class GroupTimeoutError(GroupError, TimeoutError):
    """Workers in synchronous steps did not come in time; the message names them."""

    __module__ = "sanderling"


class HubError(Error, ConnectionError):
    """A hub refused a request, timed out, or could not read its input; the message names the hub."""

    __module__ = "sanderling"


class HubTimeoutError(HubError, TimeoutError):
    """A hub was unreachable for too long; the message names it."""

    __module__ = "sanderling"


class StoppedError(Error):
    """Work was stopped before anything was saved."""

    __module__ = "sanderling"
