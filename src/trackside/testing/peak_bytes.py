"""An assertion on how much memory is needed."""

from collections.abc import Mapping
from typing import Any

from trackside.errors import ConfigError
from trackside.runs import Run
from trackside.testing.assertion_inputs import RunOrReport, check_limit, open_measured
from trackside.text import num_bytes
from trackside.trace import TraceReport
from trackside.trace.peak_memory import peak_memory

_NUM_LISTED = 5


def assert_peak_bytes(measured: RunOrReport, max_bytes: float) -> None:
    """Fail where the memory of a device is filled beyond a limit.

    Args:
        measured: What `capture_function` gave, or a trace's path: what one call of the program needs on one device, its
            arguments included. Or a run with a `MemoryProfiler`, by its path or opened: the peak of the fullest device;
            on a CPU, which does not report it, the most that live arrays held between two steps.
        max_bytes: The most bytes that are fine.

    Raises:
        AssertionError: It needs more. The message says what holds the bytes.
        ConfigError: The limit is negative, or nothing shows the memory.
    """
    check_limit("max_bytes", max_bytes)
    source = open_measured(measured)
    peak, holders = _peak_of_run(source) if isinstance(source, Run) else _peak_of_report(source)
    if peak > max_bytes:
        raise AssertionError(
            f"{num_bytes(peak)} of memory at the peak, at most {num_bytes(max_bytes)} expected: {holders}"
        )


def _peak_of_run(run: Run) -> tuple[float, str]:
    if not any(row["memory"] or row["live"] for row in run.memory):
        raise ConfigError(f"{run.path}: the run has no rows of memory; train with a MemoryProfiler")
    by_device: dict[str, int] = {}
    for row in run.memory:
        for device, figures in row["memory"].items():  # each process counts its own peak: a later leg's may be lower
            by_device[device] = max(by_device.get(device, 0), figures.get("peak_bytes_in_use", 0))
    fullest = max(run.memory, key=_live_bytes)
    owners = {owner: size for owner, size in fullest["live"].items() if owner != "num_arrays" and size}
    listed = f"live arrays at step {fullest.get('step')}: {_listed(owners)}"
    if by_device:
        device = max(by_device, key=lambda name: by_device[name])
        return by_device[device], f"{device}; {listed}"
    return _live_bytes(fullest), listed


def _live_bytes(row: Mapping[str, Any]) -> int:
    return sum(size for owner, size in row["live"].items() if owner != "num_arrays")


def _peak_of_report(report: TraceReport) -> tuple[float, str]:
    module = report.modules.get(report.step_program or "")
    memory = report.peak_memory or (None if module is None else peak_memory(module.proto))
    if memory is None:
        raise ConfigError("measured: the trace does not hold the program, so nothing shows its memory")
    held = {"arguments": memory.parameter_bytes, "outputs": memory.output_bytes, "constants": memory.constant_bytes}
    held["temporaries"] = memory.temporary_bytes
    scopes = {f"{'/'.join(row.scope) or '(no scope)'} ({row.phase})": row.num_bytes for row in memory.rows}
    at_peak = f"; temporaries at the peak: {_listed(scopes)}" if scopes else ""
    return memory.total_bytes, _listed(held) + at_peak


def _listed(sizes: Mapping[str, float]) -> str:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_NUM_LISTED]
    return ", ".join(f"{name} {num_bytes(size)}" for name, size in largest)
