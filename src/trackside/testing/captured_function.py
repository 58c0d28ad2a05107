"""A function captured by JAX's profiler, for tests: called a few times, analyzed at once."""

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.profiler import StepTraceAnnotation

from trackside.errors import CaptureError, ConfigError
from trackside.profiling.capture import CaptureContext, start_capture
from trackside.trace import TraceReport

_SESSIONS = itertools.count(1)


def capture_function(
    function: Callable[..., Any],
    *args: Any,
    num_steps: int = 10,
    num_warm_up: int = 2,
    directory: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> TraceReport:
    """Call a function a few times under JAX's profiler, and analyze what the device did.

    Each call counts as a step and is waited for. The calls before them compile and warm up.

    ```python
    def test_the_update_is_cheap(step, state, batch):
        report = capture_function(step, state, batch)
        assert_scope_share(report, "update", max_share=0.1)
    ```

    Args:
        function: The function; one that donates its arguments cannot be called again with them, so wrap it.
        *args: What to call it with.
        num_steps: How many calls to capture.
        num_warm_up: How many calls to make before, which are not captured.
        directory: Where to leave the trace, for TensorBoard or `trackside compare`; nothing is kept if left out.
        **kwargs: What else to call it with.

    Raises:
        ConfigError: `num_steps` is not positive, or `num_warm_up` is negative.
        CaptureError: The capture failed, as when another one is under way.
    """
    if num_steps < 1 or num_warm_up < 0:
        raise ConfigError(f"num_steps, num_warm_up: expected at least 1 and 0; got {num_steps} and {num_warm_up}")
    for _ in range(num_warm_up):
        jax.block_until_ready(function(*args, **kwargs))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary if directory is None else directory)
        capture = start_capture(folder, f"function_{next(_SESSIONS)}", 1, reason="capture_function", for_perfetto=False)
        try:
            for step in range(1, num_steps + 1):
                with StepTraceAnnotation("train", step_num=step):
                    outputs = function(*args, **kwargs)
                jax.block_until_ready(outputs)
        except BaseException:
            capture.cancel()
            raise
        # A sample of the memory is what makes the capture look at the memory of the program.
        capture.stop(num_steps, CaptureContext(memory={}))
        result = capture.wait()
    if result.report is None:
        raise CaptureError(f"capture_function: {result.error or 'the capture has no tables'}")
    return result.report
