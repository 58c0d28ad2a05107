"""Captures: one owner of JAX's profiler in the process, and everything that happens to a trace after it was taken.

    <directory>/plugins/profile/<session>/      where TensorBoard's profile tab and xprof look
        <host>.xplane.pb                        the trace, complete
        <host>.trace.json.gz                    for Perfetto; JAX writes at most a million events
        <host>.memory.json                      what filled the memory when the capture ended, if it was asked for

A capture is started and ended by the main thread between two steps. Another thread stops the
tracer, writes and analyzes while training continues. A failure there ends that capture and no other.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from trackside import jax_internals
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import CaptureError
from trackside.files import write_atomically
from trackside.profiling.calibrate import model_flops_utilisation
from trackside.profiling.session import Session
from trackside.trace import TraceError, TraceReport
from trackside.trace.analyse import read_analysis
from trackside.trace.flops import count_flops
from trackside.trace.peak_memory import peak_memory
from trackside.trace.peaks import Peak
from trackside.trace.undisturbed_phases import UndisturbedPhases, undisturbed_phases

LOGGER = logging.getLogger(__name__)

MIN_FREE_BYTES = 64 << 20
"""No capture is started with less free space than this."""
MAX_GIVE_WAY_S = 10.0
"""How long another profile waits at most for a capture that gives way."""
_NO_PEAK = (
    "peak memory by scope: the program lacks the order of its allocations, as one from a compile cache does; "
    "with compile_cache=None of the TrainerConfig it is compiled"
)
MAX_JSON_EVENTS = 1_000_000
"""The most that JAX puts into a `trace.json.gz`; it silently drops the rest."""


@dataclass(frozen=True)
class CaptureContext:
    """What is known about the steps in addition to their trace."""

    program: str | None = None
    """The compiled program whose executions the tables are about; None for all."""
    traced_step: Any = None
    """The step as JAX has traced it, from which FLOPs are counted; None leaves them out."""
    peak: Peak | None = None
    """What one device can do; None leaves utilization out."""
    num_devices: int = 1
    memory: dict[str, Any] | None = None
    """A sample of the memory when the capture ended; None leaves memory out."""
    has_undisturbed_phases: bool = False
    """Whether to work out what the phases would take if nothing disturbed them."""


NO_CONTEXT = CaptureContext()


@dataclass
class CaptureResult:
    """What became of a capture."""

    session: str
    """The name under which TensorBoard and xprof show it."""
    directory: pathlib.Path
    """Where its files are."""
    first_step: int
    last_step: int
    """The first and the last step in it."""
    wall_s: float
    """How long they took."""
    reason: str = ""
    """What started it."""
    cut_by: str = ""
    """What ended it before its last planned step, if anything did."""
    size_bytes: int = 0
    """Size of the trace."""
    stop_s: float = 0.0
    """How long it took to stop the tracer, in the background."""
    finish_s: float = 0.0
    """How long it took to write and analyze the trace after that, in the background."""
    report: TraceReport | None = None
    """The tables; None if there was an error."""
    undisturbed_phases: UndisturbedPhases | None = None
    """What the phases would take if nothing disturbed them, if it was asked for."""
    utilisation: float | None = None
    """The share of the devices' peak that the model's own FLOPs make use of; None where either is not known."""
    utilisation_range: tuple[float, float] | None = None
    """The least and the most that this may be, where the peak was measured."""
    memory: dict[str, Any] | None = None
    """What filled the memory when it ended, if it was asked for."""
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    """Why the trace or the tables are missing."""

    @property
    def num_steps(self) -> int:
        """The number of steps in it."""
        return self.last_step - self.first_step + 1


class Capture:
    """A trace that is being taken, and then finished in the background. Made by `start_capture`."""

    def __init__(
        self,
        session: Session,
        result: CaptureResult,
        clock: Clock,
        for_perfetto: bool = True,
        on_wanted: Callable[[], None] | None = None,
    ):
        self.result = result
        self.on_wanted = on_wanted
        self._for_perfetto = for_perfetto
        self._session = session
        self._until_stopped = contextlib.ExitStack()
        if on_wanted is not None:
            self._until_stopped.enter_context(jax_internals.before_profile_starts(self.give_way))
        self._clock = clock
        self._started_s = clock.now()
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    @property
    def seconds(self) -> float:
        """How long it has been tracing."""
        return self._clock.now() - self._started_s

    @property
    def is_done(self) -> bool:
        """Whether it was ended and everything after that is over too."""
        return self._thread is not None and not self._thread.is_alive()

    def stop(self, last_step: int, context: CaptureContext = NO_CONTEXT, cut_by: str = "") -> None:
        """End it. Returns at once; the rest happens in the background. Ending it again does nothing.

        Args:
            last_step: The last step in it, which has completed.
            context: What is known of the steps.
            cut_by: What ended it early, if anything did.
        """
        if self._thread is not None:
            return
        self.result.last_step, self.result.cut_by, self.result.wall_s = last_step, cut_by, self.seconds
        self._thread = threading.Thread(target=self._finish, args=(context,), name=f"capture-{self.result.session}")
        self._thread.start()

    def cancel(self) -> None:
        """End it and keep nothing."""
        try:
            self._session.stop()
        except CaptureError as error:
            level = logging.WARNING if self.on_wanted is None else logging.DEBUG  # giving way is what it is for
            LOGGER.log(level, "capture %s: %s", self.result.session, error)
        finally:
            self._release()
            with contextlib.suppress(OSError):
                self.result.directory.rmdir()

    def give_way(self) -> None:
        """Ask whoever takes this capture to end it, and wait until another profile may start."""
        if self.on_wanted is not None:
            self.on_wanted()
            self._is_stopped.wait(MAX_GIVE_WAY_S)

    def wait_until_stopped(self) -> None:
        """Wait until another capture may start."""
        self._is_stopped.wait()

    def wait(self) -> CaptureResult:
        """Wait until everything is over."""
        if self._thread is None:
            raise CaptureError(f"capture {self.result.session}: it is still running; stop it before waiting for it")
        self._thread.join()
        return self.result

    def _release(self) -> None:
        self._until_stopped.close()
        _release(self)
        self._is_stopped.set()

    def _finish(self, context: CaptureContext) -> None:
        result, started_s = self.result, self._clock.now()
        try:
            try:
                trace = self._session.stop()
            finally:
                self._release()  # whatever happened: the next capture may start
                result.stop_s = self._clock.now() - started_s
            self._write(trace)
            self._analyse(trace, context)
            if self._for_perfetto:
                self._export(trace)
        except (CaptureError, OSError) as error:
            result.error = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
        except Exception as error:
            LOGGER.exception("capture %s could not be finished", result.session)
            result.error = f"{type(error).__name__}: {error}"
        result.finish_s = self._clock.now() - started_s - result.stop_s

    def _write(self, trace: bytes) -> None:
        if not trace:
            raise CaptureError("JAX's profiler gave an empty trace; one of more than 2 GB comes out like that")
        self.result.size_bytes = len(trace)
        write_atomically(self.result.directory / f"{host_name()}.xplane.pb", trace)

    def _analyse(self, trace: bytes, context: CaptureContext) -> None:
        result = self.result
        try:
            analysis = read_analysis(trace, program=context.program, marked_only=context.program is not None)
        except TraceError as error:
            result.error = str(error)
            return
        report = analysis.report
        if context.has_undisturbed_phases:
            result.undisturbed_phases = undisturbed_phases(analysis)
        module = report.modules.get(report.step_program or "")
        result.report = dataclasses.replace(
            report,
            files=(str(result.directory / f"{host_name()}.xplane.pb"),),
            flops=None if context.traced_step is None else count_flops(context.traced_step),
            peak_memory=None if module is None or context.memory is None else peak_memory(module.proto),
        )
        peak = result.report.peak_memory
        if module is not None and context.memory is not None and (peak is None or peak.missing):
            result.report.missing.append(_NO_PEAK)
        result.utilisation, result.utilisation_range = _utilisation(result.report, context)
        if context.memory is not None:
            self._write_memory(context.memory)
        if report.num_events > MAX_JSON_EVENTS:
            result.warnings.append(
                f"the trace.json.gz is cut at {MAX_JSON_EVENTS:,} of {report.num_events:,} events, as JAX does it; "
                "the xplane.pb and the tables are complete"
            )

    def _write_memory(self, sample: dict[str, Any]) -> None:
        """Write what filled the memory: the sample, and what the step needs in addition to what outlives it."""
        assert self.result.report is not None
        peak = self.result.report.peak_memory
        self.result.memory = {**sample, "program": None if peak is None else dataclasses.asdict(peak)}
        path = self.result.directory / f"{host_name()}.memory.json"
        path.write_text(json.dumps(self.result.memory, indent=1) + "\n", encoding="utf-8")

    def _export(self, trace: bytes) -> None:
        """Let JAX make the file for Perfetto. It names directories by the second, so into one of ours first."""
        directory = self.result.directory
        with tempfile.TemporaryDirectory(dir=directory, prefix=".export-") as temporary:
            self._session.export(trace, pathlib.Path(temporary))
            for path in pathlib.Path(temporary).rglob("*.trace.json.gz"):
                os.replace(path, directory / f"{host_name()}.trace.json.gz")


def _utilisation(
    report: TraceReport, context: CaptureContext
) -> tuple[float, tuple[float, float] | None] | tuple[None, None]:
    """The share of the peak, and its range if the peak has one; None where it is not known."""
    peak = context.peak
    if report.flops is None or report.step_time is None or peak is None or not report.flops.model_flops:
        return None, None
    share = model_flops_utilisation(report.flops.model_flops, report.step_time.mean_s, peak, context.num_devices)
    if peak.flops_per_s_range is None:
        return share, None
    low, high = peak.flops_per_s_range
    return share, (share * peak.flops_per_s / high, share * peak.flops_per_s / low)


_active: Capture | None = None
_lock = threading.Lock()


def start_capture(
    directory: str | os.PathLike[str],
    session: str,
    first_step: int,
    *,
    trace_python: bool = False,
    reason: str = "",
    min_free_bytes: int = MIN_FREE_BYTES,
    for_perfetto: bool = True,
    on_wanted: Callable[[], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Capture:
    """Start to trace. There is one capture at a time in a process.

    Args:
        directory: The log directory; made if it is not there.
        session: What to call the capture; a number follows where the name is taken.
        first_step: The first step that it will hold.
        trace_python: Whether to trace Python calls too, which slows Python code down about five times.
        reason: Why it is taken, for the result.
        min_free_bytes: How much space has to be free.
        for_perfetto: Whether to make the `trace.json.gz` too, which takes about as long as everything else.
        on_wanted: Makes this a capture that gives way: called, on any thread, when another profile is about to start,
            be it a capture or one by `jax.profiler`. It has to see to it that this one is ended, at once.
        clock: Where times come from.

    Raises:
        CaptureError: Another capture is under way, or the directory cannot be written to, or the disk is full.
    """
    global _active
    other = _active
    if other is not None and on_wanted is None:
        other.give_way()
    with _lock:
        if _active is not None:
            running = _active.result
            raise CaptureError(
                f"capture {session}: not started, because the capture {running.session} has been running since step "
                f"{running.first_step}; JAX takes one at a time"
            )
        folder = _make_session_directory(pathlib.Path(directory), session, min_free_bytes)
        result = CaptureResult(folder.name, folder, first_step, first_step - 1, 0.0, reason=reason)
        _active = Capture(Session(trace_python), result, clock, for_perfetto, on_wanted)
        return _active


def _release(capture: Capture) -> None:
    global _active
    with _lock:
        if _active is capture:
            _active = None


def host_name() -> str:
    """What the files of a process are called: the host's name, and the process index if there are several."""
    return socket.gethostname() + (f"_{jax.process_index()}" if jax.process_count() > 1 else "")


def _make_session_directory(directory: pathlib.Path, session: str, min_free_bytes: int) -> pathlib.Path:
    """Make the directory of a new session, and check before the trace that it can be written to."""
    parent = directory / "plugins" / "profile"
    try:
        folder = next(
            folder
            for folder in (parent / (session if number == 1 else f"{session}-{number}") for number in range(1, 10_000))
            if not (folder / f"{host_name()}.xplane.pb").exists()
        )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"trackside")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CaptureError(f"capture {session}: {directory} cannot be written to: {error}") from error
    if free < min_free_bytes:
        raise CaptureError(
            f"capture {session}: {directory} has {free >> 20} MB free, and {min_free_bytes >> 20} MB are asked for; "
            "free some space or choose another directory"
        )
    return folder
