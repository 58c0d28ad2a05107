"""From the files of a session to its report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trackside.errors import TraceError
from trackside.trace.device_events import OpEvents, read_device_events
from trackside.trace.executions import assign_steps, choose_step_program, find_markers, find_runs, measure_step_time
from trackside.trace.gaps import DeviceTime, find_gaps
from trackside.trace.hlo import HloModule, read_modules
from trackside.trace.op_summaries import OpTotals, summarise_ops, summarise_transfers
from trackside.trace.ops import describe_ops, find_module
from trackside.trace.overlap import Timeline, segments_to_completion, share_wall
from trackside.trace.tables import DeviceRow, ProgramRow, RunTable, longest_first
from trackside.trace.trace_files import find_trace_files, read_trace_file
from trackside.trace.trace_report import TraceReport
from trackside.trace.wire import WireError
from trackside.trace.xspace import PS_PER_S, XSpace, read_xspace

_ADVICE = (
    "Give a *.xplane.pb file as jax.profiler writes it; if it is one, it was cut off or damaged, as by a full disk or "
    "a killed process: take the trace again."
)


def analyse_trace(
    source: str | Path | bytes,
    *,
    program: str | None = None,
    step_name: str = "train",
    marked_only: bool = False,
) -> TraceReport:
    """Analyse a captured window: device time by scope, phase, operation, kind and source line.

    Args:
        source: A `*.xplane.pb` file, its bytes, or a directory: a log directory that TensorBoard reads, a session's
            directory, or any that holds such files. Of several sessions the newest is read, with all its hosts.
        program: The name of a program, such as `jit_train_call`: the tables then hold its executions only, and of other
            programs the busy time is listed. All programs if left out.
        step_name: The name of the step markers, as given to `jax.profiler.StepTraceAnnotation`.
        marked_only: Whether each marker is one execution of the step program, and the tables hold nothing else. A
            tracer takes a moment to stop, so that a trace may hold the beginning of what came after the window.

    Raises:
        TraceError: If there is no such file or program, or the file is empty, truncated, damaged or of another kind.
    """
    return read_analysis(source, program=program, step_name=step_name, marked_only=marked_only).report


def read_analysis(
    source: str | Path | bytes,
    *,
    program: str | None = None,
    step_name: str = "train",
    marked_only: bool = False,
) -> "Analysis":
    """Read a captured window as `analyse_trace` does, and keep what its tables were added up from.

    Args:
        source: See `analyse_trace`.
        program: See `analyse_trace`.
        step_name: See `analyse_trace`.
        marked_only: See `analyse_trace`.

    Raises:
        TraceError: See `analyse_trace`.
    """
    files = [] if isinstance(source, bytes) else find_trace_files(Path(source))
    names = [str(file) for file in files] or ["the given bytes"]
    contents = [source] if isinstance(source, bytes) else (read_trace_file(file) for file in files)
    spaces = [_read_space(data, name) for data, name in zip(contents, names, strict=True)]
    try:
        analysis = Analysis(spaces, tuple(map(str, files)), program, step_name, marked_only)
        _ = analysis.report  # metadata and programs are decoded only where they are needed: now
    except WireError as error:
        raise TraceError(f"{', '.join(names)}: is damaged ({error}). {_ADVICE}") from error
    return analysis


def _read_space(data: bytes, name: str) -> XSpace:
    """Read one file of a trace.

    Args:
        data: Its contents.
        name: What errors call it.

    Raises:
        TraceError: The file is empty, truncated, damaged or of another kind.
    """
    if not data:
        raise TraceError(f"{name}: is empty. The trace was not written, as by a full disk: take it again.")
    try:
        space = read_xspace(data)
    except WireError as error:
        raise TraceError(f"{name}: cannot be read as a trace, {len(data)} bytes ({error}). {_ADVICE}") from error
    if not any(plane.name for plane in space.planes):
        raise TraceError(f"{name}: holds no plane with a name, so it is no trace. {_ADVICE}")
    return space


@dataclass
class Analysis:
    """The steps from events to tables. Each is computed once, from those above it."""

    spaces: Sequence[XSpace]
    files: tuple[str, ...]
    program: str | None
    step_name: str
    marked_only: bool

    def __post_init__(self) -> None:
        self.events = read_device_events(self.spaces)
        self.modules = [read_modules(space) for space in self.spaces]
        self.infos = describe_ops(self.events.ops.keys, self.events.ops.programs, self.modules)
        self.ops = self._without_control_flow(self.events.ops)
        self.share_ps, self.timelines = _share(self.ops)
        self.runs = find_runs(self.ops)
        self.markers = find_markers(self.spaces, self.step_name)
        self.program_names = np.array([program.name for program in self.ops.programs] + [""], object)
        """By program index; the last is for -1, where the trace does not tell."""
        self.step_program = self._choose_step_program()
        self.is_step_run = self._runs_of(self.step_program)
        self.selected = np.ones(len(self.runs), bool) if self.program is None else self.is_step_run
        self.steps = assign_steps(self.runs, self.is_step_run, self.ops.devices, self.markers, self.marked_only)
        if self.marked_only:
            self.is_step_run = self.selected = self.steps.step >= 0
        self.totals = self._sum_ops()
        self.coverage = self.totals.coverage()

    @cached_property
    def report(self) -> TraceReport:
        """All its tables."""
        tables = summarise_ops(self.totals)
        devices = self._device_times()
        notes = [note for space in self.spaces for note in space.errors + space.warnings]
        return TraceReport(
            files=self.files,
            size_bytes=sum(space.num_bytes for space in self.spaces),
            num_events=sum(space.num_events for space in self.spaces),
            devices=tuple(_device_row(device) for device in devices),
            programs=self._program_rows(),
            step_program=(self.step_program or None) if len(self.runs) else None,
            num_steps=self._count_steps(),
            step_time=measure_step_time(self.runs, self.is_step_run, self.steps),
            markers=tuple(self.markers),
            runs=self._run_table(),
            scopes=tables.scopes,
            ops=tables.ops,
            categories=tables.categories,
            sources=tables.sources,
            collectives=tables.collectives,
            transfers=summarise_transfers(self.events.transfers, self.infos),
            gaps=find_gaps(devices, self.spaces, self.coverage),
            coverage=self.coverage,
            missing=self._missing(),
            warnings=[*self.events.warnings, *self.steps.warnings, *notes],
            modules=self._executed_modules(),
        )

    def _without_control_flow(self, ops: OpEvents) -> OpEvents:
        is_control_flow = np.array([info.is_control_flow for info in self.infos], bool)
        return ops.select(np.flatnonzero(~is_control_flow[ops.key])) if is_control_flow.any() else ops

    @cached_property
    def _busy_by_program(self) -> dict[str, float]:
        busy: dict[str, float] = {}
        by_key = np.bincount(self.ops.key, weights=self.share_ps, minlength=len(self.infos)) / PS_PER_S
        for index in np.flatnonzero(np.bincount(self.ops.key)).tolist():
            name = self.infos[index].program
            busy[name] = busy.get(name, 0.0) + float(by_key[index])
        return busy

    def _choose_step_program(self) -> str | None:
        busy = self._busy_by_program
        if self.program is None:
            markers_per_host = Counter(marker.host for marker in self.markers)
            num_markers = max(markers_per_host.values(), default=0)
            return choose_step_program(self.program_names[self.runs.program], self.runs.device, busy, num_markers)
        if self.program not in busy:
            known = ", ".join(sorted(name for name in busy if name)) or "none"
            raise TraceError(f"program={self.program!r}: not executed in this trace. Programs that were: {known}.")
        return self.program

    def _runs_of(self, program: str | None) -> np.ndarray:
        return np.array(self.program_names[self.runs.program] == program, bool).reshape(len(self.runs))

    def _sum_ops(self) -> OpTotals:
        ops, share_ps, num_keys = self.ops, self.share_ps, len(self.infos)
        if self.marked_only:
            inside = np.flatnonzero(np.append(self.selected, False)[self.runs.of_event])
            ops, share_ps = ops.select(inside), share_ps[inside]
        busy = np.bincount(ops.key, weights=share_ps, minlength=num_keys) / PS_PER_S
        span = np.bincount(ops.key, weights=(ops.done_ps - ops.start_ps).astype(float), minlength=num_keys) / PS_PER_S
        num_ops = np.bincount(ops.key, minlength=num_keys)
        executed = np.flatnonzero(num_ops).tolist()
        kept = [index for index in executed if self.program in (None, self.infos[index].program)]
        return OpTotals([self.infos[index] for index in kept], busy[kept], span[kept], num_ops[kept])

    def _device_times(self) -> list[DeviceTime]:
        found = []
        for index, device in enumerate(self.ops.devices):
            timeline, of_device = self.timelines[index], self.runs.device == index
            start, end = self.runs.start_ps[of_device], self.runs.end_ps[of_device]
            chosen = self.selected[of_device]
            if chosen.any():
                window = int(start[chosen].min()), int(end[chosen].max())
            elif len(timeline.time_ps) and not len(self.runs):
                window = int(timeline.time_ps[0]), int(timeline.time_ps[-1])
            else:
                continue
            found.append(DeviceTime(device.name, device.host, timeline, window, start, end))
        return found

    def _program_rows(self) -> tuple[ProgramRow, ...]:
        num_runs = Counter(self.program_names[self.runs.program].tolist())
        return longest_first(
            ProgramRow(name, busy_s, num_runs.get(name), self.program in (None, name))
            for name, busy_s in self._busy_by_program.items()
        )

    def _count_steps(self) -> int | None:
        """The steps of the window, on the device that saw most of them."""
        counts = []
        for device in np.unique(self.runs.device[self.is_step_run]).tolist():
            own = self.is_step_run & (self.runs.device == device)
            numbered = own & (self.steps.step >= 0)
            # The executions of one step count once.
            _, first = np.unique(self.steps.step[numbered], return_index=True)
            counts.append(int(self.steps.num_steps[numbered][first].sum() + (own & (self.steps.step < 0)).sum()))
        return max(counts, default=None)

    def _run_table(self) -> RunTable:
        runs, where = self.runs, np.flatnonzero(self.selected)
        known = runs.of_event >= 0
        busy = np.bincount(runs.of_event[known], weights=self.share_ps[known], minlength=len(runs))
        idle = np.zeros(len(runs))
        for device, timeline in self.timelines.items():
            own = runs.device == device
            start, end = runs.start_ps[own], runs.end_ps[own]
            idle[own] = (end - start) - (timeline.busy_until(end) - timeline.busy_until(start))
        return RunTable(
            program=tuple(self.program_names[runs.program[where]].tolist()),
            device=tuple(self.ops.devices[index].name for index in runs.device[where].tolist()),
            run_id=runs.run_id[where],
            step=self.steps.step[where],
            num_steps=self.steps.num_steps[where],
            start_s=runs.start_ps[where] / PS_PER_S,
            end_s=runs.end_ps[where] / PS_PER_S,
            busy_s=busy[where] / PS_PER_S,
            idle_s=idle[where] / PS_PER_S,
            coverage=self.coverage,
        )

    def _executed_modules(self) -> dict[str, HloModule]:
        found = {program.name: find_module(program, self.modules[program.host]) for program in self.ops.programs}
        return {name: module for name, module in found.items() if module is not None}

    def _missing(self) -> list[str]:
        """What the trace lacks, and what cannot be told without it."""
        missing = list(self.events.missing)
        if not len(self.events.ops):
            return [*missing, "operations of a device: nothing ran in the window, or host_tracer_level was 0"]
        if not any(self.modules):
            missing.append(
                "HLO programs: opcodes, phases, collectives' bytes, most source lines and what is inside of fused "
                "kernels are not known"
            )
        elif not all(info.opcode for info in self.totals.infos):
            missing.append("the HLO of some operations: these are known by name only")
        if not self.markers:
            missing.append("step markers (jax.profiler.StepTraceAnnotation): steps are not numbered")
        if not len(self.runs):
            missing.append("executions: they cannot be told apart, so runs and step time are not known")
        return missing


def _share(ops: OpEvents) -> tuple[np.ndarray, dict[int, Timeline]]:
    """Each operation's share of the wall time of its device, and when each device was busy."""
    share = np.zeros(len(ops))
    timelines = {}
    for device in range(len(ops.devices)):
        where = np.flatnonzero(ops.device == device)
        columns = (ops.line, ops.start_ps, ops.end_ps, ops.done_ps)
        segments = segments_to_completion(*(column[where] for column in columns))
        shares, timelines[device] = share_wall(segments)
        share[where] = np.bincount(segments.event, weights=shares, minlength=len(where))
    return share, timelines


def _device_row(device: DeviceTime) -> DeviceRow:
    first, last = device.window_ps
    busy = np.diff(device.timeline.busy_until(np.array([first, last])))[0]
    return DeviceRow(device.name, (last - first) / PS_PER_S, float(busy) / PS_PER_S)
