"""Errors of the native module: one class per kind, all below `Error`."""

class Error(Exception):
    """Base class of all errors of Sanderling."""

class ConfigError(Error):
    """A configuration contradicts itself or has an unknown or impossible entry."""

class LengthError(Error):
    """The lengths of the arrays of a request differ; nothing was read or applied."""

class OffsetsError(Error):
    """Offsets of a pooled pull do not ascend from 0 to the number of keys."""

class GradientError(Error):
    """A gradient or its scale is not finite or too large; nothing was applied."""

class TableFullError(Error):
    """New keys exceed the memory limit of the table; the message has their number."""

class FileError(Error):
    """A file could not be opened, read or written."""

class DamagedError(Error):
    """A checkpoint file is truncated, corrupted, or of another format."""

class VersionError(Error):
    """A file of a checkpoint was written by a newer version."""

class DuplicateNameError(Error):
    """Two tables of one checkpoint have the same name."""

class NotFoundError(Error):
    """A checkpoint or a model does not contain the requested item."""

class BadRowError(Error):
    """A row violates the format or the spec; the message names file, line and column."""

class TooManyBadRowsError(Error):
    """More rows were bad than `on_bad_row` allows."""

class BadFileError(Error):
    """A data file is not of its format."""

class NoRowsError(Error):
    """The input had no rows."""

class ModelError(Error):
    """A saved model exists but cannot be used."""

class DivergedError(Error):
    """Training diverged: a prediction or a weight is infinite or NaN."""

class ServerError(Error):
    """A parameter server refused a request, timed out, or was restarted; the message names the server."""

class GroupError(Error):
    """Workers in synchronous steps timed out or disagree; the message names missing workers."""

class HubError(Error):
    """A hub refused a request, timed out, or could not read its input; the message names the hub."""

class StoppedError(Error):
    """Work was stopped before anything was saved."""
