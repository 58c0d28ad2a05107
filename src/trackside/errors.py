"""The errors that trackside raises. Every message names the argument, its value and what to do.

    TracksideError
    ├── ConfigError        a config or argument that cannot work          (ValueError)
    ├── DataError          a loader or batch that cannot be trained on    (ValueError)
    ├── MetricError        a loss or metric in the wrong form             (ValueError)
    ├── CheckpointError    a checkpoint that cannot be found or restored
    ├── EventFileError     a run whose event file cannot be read
    ├── RunError           a run that cannot be found or read
    ├── TraceError         a trace that cannot be found or read
    ├── CaptureError       a profile that could not be taken or written
    ├── RecompileError     a function that compiles too often
    ├── NonFiniteError     a training that met a NaN or an infinity
    └── MissingExtraError  an optional package that is not installed      (ImportError)

What an error also is in Python's own terms stands in parentheses.
"""

__all__ = [
    "CaptureError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EventFileError",
    "MetricError",
    "MissingExtraError",
    "NonFiniteError",
    "RecompileError",
    "RunError",
    "TraceError",
    "TracksideError",
]


class TracksideError(Exception):
    """The base of every error that trackside raises on purpose."""


class ConfigError(TracksideError, ValueError):
    """A config or argument that cannot work."""


class DataError(TracksideError, ValueError):
    """A loader or batch that cannot be trained on."""


class MetricError(TracksideError, ValueError):
    """A loss or metric in the wrong form."""


class CheckpointError(TracksideError):
    """A checkpoint that cannot be found or restored."""


class EventFileError(TracksideError):
    """A run whose event file cannot be read."""


class RunError(TracksideError):
    """A run that cannot be found or read."""


class TraceError(TracksideError):
    """A trace, or what was written down about one, that cannot be found or read."""


class CaptureError(TracksideError):
    """A profile that could not be taken or written."""


class RecompileError(TracksideError):
    """A function that has compiled more often than `max_recompiles` allows."""


class NonFiniteError(TracksideError):
    """A training that stopped at a loss or gradient norm that is not finite, with `TrainerConfig.raise_on_nan`."""


class MissingExtraError(TracksideError, ImportError):
    """An optional package that is not installed."""
