"""JAX's profiler, started and stopped. The only place that touches its private session.

`jax.profiler.start_trace` names directories by the second, writes and analyses nothing else, and cannot be started
again once a stop has failed. The session below it gives the trace as bytes, and leaves nothing behind when it fails.
Where a version of JAX has no such session, the public calls serve.
"""

import pathlib
import shutil
import tempfile
from typing import Any, Protocol

import jax

from trackside.errors import CaptureError

try:
    from jaxlib import _profiler  # type: ignore[attr-defined]
except ImportError:
    _profiler = None


class Session(Protocol):
    """A trace that is being taken."""

    def stop(self) -> bytes:
        """End it and give the trace as a serialized XSpace."""
        ...

    def export(self, trace: bytes, directory: pathlib.Path) -> None:
        """Write the trace below a directory: `*.xplane.pb` and `*.trace.json.gz`."""
        ...


def start_session(trace_python: bool = False) -> Session:
    """Start to trace.

    Args:
        trace_python: Whether to trace Python calls too, which slows Python code down about five times.
    """
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 2
    options.python_tracer_level = int(trace_python)
    if _profiler is not None and hasattr(_profiler, "ProfilerSession"):
        return _DirectSession(options)
    return _PublicSession(options)


class _DirectSession:
    def __init__(self, options: Any):
        assert _profiler is not None
        self._session = _profiler.ProfilerSession(options)

    def stop(self) -> bytes:
        try:
            return self._session.stop()
        except Exception as error:
            raise _explained(error) from error

    def export(self, trace: bytes, directory: pathlib.Path) -> None:
        self._session.export(trace, str(directory))


class _PublicSession:
    def __init__(self, options: Any):
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="trackside-trace-"))
        try:
            jax.profiler.start_trace(str(self._directory), profiler_options=options)
        except Exception as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise _explained(error) from error

    def stop(self) -> bytes:
        try:
            jax.profiler.stop_trace()
            return b"".join(path.read_bytes() for path in self._directory.rglob("*.xplane.pb"))
        except Exception as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise _explained(error) from error

    def export(self, trace: bytes, directory: pathlib.Path) -> None:
        shutil.copytree(self._directory, directory, dirs_exist_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)


def _explained(error: Exception) -> CaptureError:
    if "ALREADY_EXISTS" in str(error) or "already been started" in str(error):
        return CaptureError(
            "another profile was being taken in this process, so this one holds nothing: jax.profiler.start_trace or a "
            "profiler server is in use beside trackside; leave one of them out"
        )
    return CaptureError(f"JAX's profiler failed: {error}")
