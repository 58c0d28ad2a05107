"""Where a finished capture is shown: the console, the event file and the logger's tools."""

import io
import logging
from typing import Any

from rich.console import Console

from trackside.callbacks.trainer_view import TrainerView
from trackside.profiling.capture import CaptureResult
from trackside.text import percent_of_peak
from trackside.trace import render_report

LOGGER = logging.getLogger(__name__)

WIDTH = 80


def log_capture(result: CaptureResult, trainer: TrainerView) -> None:
    """Show a finished capture.

    Args:
        result: The capture.
        trainer: The trainer, whose logger gets it.
    """
    if result.error:
        LOGGER.error("the profile of %s failed: %s", _steps(result), result.error)
    else:
        LOGGER.info("%s", render_capture(result))
    trainer.run_log.write("capture", **_row(result, trainer.global_step))
    if result.report is not None:
        scalars = result.report.scalars()
        if result.utilisation is not None:
            scalars["utilisation"] = result.utilisation
        if result.utilisation_range is not None:
            scalars["utilisation_low"], scalars["utilisation_high"] = result.utilisation_range
        # Under the current step, since some tools refuse earlier ones.
        trainer.logger.log_host_metrics(scalars, trainer.global_step, mode="profile")


def render_capture(result: CaptureResult) -> str:
    """What the console shows of a capture, within 80 columns."""
    cut = f", cut by {result.cut_by}" if result.cut_by else ""
    why = "" if result.reason == _steps(result) else f" ({result.reason})"
    lines = [f"profile of {_steps(result)}{cut}{why}"]
    if result.report is not None:
        with io.StringIO() as text:
            Console(file=text, width=WIDTH, no_color=True, highlight=False).print(render_report(result.report, WIDTH))
            lines.append(text.getvalue().rstrip())
    if result.utilisation is not None:
        lines.append(f"FLOPs utilization {percent_of_peak(result.utilisation, result.utilisation_range)}")
    lines += [f"Note: {warning}" for warning in result.warnings]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _steps(result: CaptureResult) -> str:
    if result.last_step < result.first_step:
        return f"no training step, after step {result.last_step}"
    return f"steps {result.first_step} to {result.last_step}"


def _row(result: CaptureResult, step: int) -> dict[str, Any]:
    return {
        "session": result.session,
        "path": str(result.directory.absolute()),
        "reason": result.reason,
        "first_step": result.first_step,
        "last_step": result.last_step,
        "disturbed_steps": [result.first_step, step],  # until it was written, the machine had more to do than train
        "wall_s": result.wall_s,
        "cut_by": result.cut_by,
        "size_bytes": result.size_bytes,
        "stop_s": result.stop_s,
        "finish_s": result.finish_s,
        "utilisation": result.utilisation,
        "utilisation_range": result.utilisation_range,
        "memory": result.memory,
        "warnings": result.warnings,
        "error": result.error,
        "report": None if result.report is None else result.report.to_dict(),
    }
