"""One trace by JAX's profiler, from its start to its bytes."""

import pathlib

import jax

from trackside import jax_internals
from trackside.errors import CaptureError


class Session:
    """A trace that is being taken. Making it starts the trace.

    Args:
        trace_python: Whether to trace Python calls too, which slows Python code down about five times.

    Raises:
        CaptureError: This version of JAX has no profiler sessions.
    """

    def __init__(self, trace_python: bool = False):
        session_type = jax_internals.profiler_session_type()
        if session_type is None:
            raise CaptureError(f"JAX {jax.__version__} has no profiler session that trackside knows; use jax 0.10")
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = 2
        options.python_tracer_level = int(trace_python)
        self._session = session_type(options)

    def stop(self) -> bytes:
        """End the trace and return it as a serialized XSpace.

        Raises:
            CaptureError: JAX's profiler failed, or was busy with another trace.
        """
        try:
            return self._session.stop()
        except Exception as error:
            raise _explained(error) from error

    def export(self, trace: bytes, directory: pathlib.Path) -> None:
        """Write the trace below a directory, as `*.xplane.pb` and `*.trace.json.gz`."""
        self._session.export(trace, str(directory))


def _explained(error: Exception) -> CaptureError:
    if "ALREADY_EXISTS" in str(error):
        return CaptureError(
            "another profile was being taken in this process, so this one is empty: jax.profiler.start_trace or a "
            "profiler server is in use next to trackside; use only one of them at a time"
        )
    return CaptureError(f"JAX's profiler failed: {error}")
