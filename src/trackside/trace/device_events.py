"""Which events of a trace are operations of a device, and which execution each belongs to.

The three layouts differ. On a CPU the operations lie on the host's own threads, and each names its program, its run and
its device. On a GPU they lie on the streams of a device's plane, on a TPU on its line `XLA Ops`; there, the line
`XLA Modules` tells the executions apart. What comes out has one form: `OpEvents`.

An operation of a CPU that is spread over a thread pool returns at once and ends elsewhere: its true end is the event
`end: <name>`, which carries the number that the operation gave out. Without it, most of the time of a matrix product
would be missing.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from trackside.trace.event_columns import MISSING
from trackside.trace.hlo import split_program_name
from trackside.trace.xspace import EventMetadata, Plane, XSpace

HOST_PLANE = "/host:CPU"
_DEVICE_PLANE = re.compile(r"/device:(GPU|TPU):(\d+)")
_COPY = re.compile(r"memcpy|memset", re.IGNORECASE)
_END_PREFIX = "end: "
_EMPTY = np.zeros(0, np.int64)


class Program(NamedTuple):
    """A compiled program, as the events name it."""

    host: int
    """Which file of the session it is from; program ids of two hosts have nothing to do with each other."""
    program_id: int | None
    name: str


class Device(NamedTuple):
    """A device, such as `GPU:0`; with several hosts, `host1/GPU:0`."""

    name: str
    host: int


class OpKey(NamedTuple):
    """What the events say about an operation, before its program is looked at."""

    program: int
    """Which program, as an index; -1 where the trace does not tell."""
    name: str
    framework_name: str
    """The op name that the event itself carries, where there is one."""
    metadata: EventMetadata
    host: int
    is_accelerator: bool = False
    """Whether a GPU or TPU executed it."""


@dataclass(frozen=True)
class OpEvents:
    """The operations that devices executed, one entry per event in each column."""

    devices: list[Device]
    programs: list[Program]
    keys: list[OpKey]
    device: np.ndarray
    line: np.ndarray
    """On one line, what is within another was called by it."""
    key: np.ndarray
    run: np.ndarray
    """The execution's number, which has a meaning only together with device and program; `MISSING` for none."""
    start_ps: np.ndarray
    end_ps: np.ndarray
    done_ps: np.ndarray
    """When it was complete: later than its end where it went on elsewhere."""

    def __len__(self) -> int:
        return len(self.key)

    def select(self, chosen: np.ndarray) -> "OpEvents":
        """Some of the events."""
        names = ("device", "line", "key", "run", "start_ps", "end_ps", "done_ps")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


@dataclass(frozen=True)
class DeviceEvents:
    """All that a session tells about its devices."""

    ops: OpEvents
    transfers: OpEvents
    """Copies that run beside the operations: to and from the host, between devices. They are not part of busy time."""
    missing: list[str]
    warnings: list[str]


def read_device_events(spaces: Sequence[XSpace]) -> DeviceEvents:
    """Collect the operations of all devices.

    Args:
        spaces: The files of one session, one per host.
    """
    builder = _Builder()
    for host, space in enumerate(spaces):
        prefix = f"host{host}/" if len(spaces) > 1 else ""
        has_devices = any(_DEVICE_PLANE.fullmatch(plane.name) and len(plane.events) for plane in space.planes)
        for plane in space.planes:
            match = _DEVICE_PLANE.fullmatch(plane.name)
            if match:
                if len(plane.events):
                    _add_device_plane(builder, host, f"{prefix}{match[1]}:{match[2]}", plane)
            elif plane.name == HOST_PLANE and not has_devices:
                _add_host_plane(builder, host, prefix, plane)
            elif plane.name.startswith("/device:") and len(plane.events):
                builder.warn(f"The plane {plane.name} is of a kind that is not read here.")
    return builder.build()


class _Builder:
    """Gathers the operations of all planes into one set of columns."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._programs: dict[Program, int] = {}
        self._keys: list[OpKey] = []
        self._ops: list[tuple[np.ndarray, ...]] = []
        self._transfers: list[tuple[np.ndarray, ...]] = []
        self._num_lines = 0
        self._missing: dict[str, None] = {}
        self._warnings: dict[str, None] = {}

    def lack(self, what: str) -> None:
        self._missing[what] = None

    def warn(self, what: str) -> None:
        self._warnings[what] = None

    def device(self, name: str, host: int) -> int:
        self._devices.append(Device(name, host))
        return len(self._devices) - 1

    def program(self, program: Program) -> int:
        return self._programs.setdefault(program, len(self._programs))

    def add_keys(self, plane: Plane, key_of: Callable[[int], OpKey], *columns: np.ndarray) -> np.ndarray:
        """One key per different combination of values in the columns; which key each event has."""
        codes = np.zeros(len(columns[0]), np.int64)
        first = np.arange(len(codes))
        for column in columns:
            values, inverse = np.unique(column, return_inverse=True)
            _, first, codes = np.unique(codes * len(values) + inverse, return_index=True, return_inverse=True)
        offset = len(self._keys)
        self._keys += [key_of(index) for index in first.tolist()]
        return codes + offset

    def add(self, device, line, key, run, start, end, done, *, is_transfer: bool = False) -> None:
        lines = line + self._num_lines
        (self._transfers if is_transfer else self._ops).append((device, lines, key, run, start, end, done))

    def close_plane(self, plane: Plane) -> None:
        self._num_lines += len(plane.line_names)

    def build(self) -> DeviceEvents:
        return DeviceEvents(
            self._collect(self._ops), self._collect(self._transfers), list(self._missing), list(self._warnings)
        )

    def _collect(self, parts: list[tuple[np.ndarray, ...]]) -> OpEvents:
        columns = zip(*parts, strict=True) if parts else ([_EMPTY],) * 7
        joined = [np.concatenate(column) for column in columns]
        return OpEvents(self._devices, list(self._programs), self._keys, *joined)


def _add_host_plane(builder: _Builder, host: int, prefix: str, plane: Plane) -> None:
    events = plane.events
    where = events.with_stat("hlo_op")
    if not where.size:
        return
    op, module, program_id, run, ordinal = (
        events.stat(name)[where] for name in ("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal")
    )
    if (run == MISSING).any():
        builder.lack("run ids on some operations: their executions cannot be told apart")
    ordinals, device = np.unique(np.where(ordinal == MISSING, 0, ordinal), return_inverse=True)
    numbers = np.array([builder.device(f"{prefix}CPU:{number}", host) for number in ordinals.tolist()], np.int64)

    def key_of(index: int) -> OpKey:
        program = builder.program(Program(host, _known(program_id[index]), plane.text(int(module[index]))))
        name = plane.text(int(op[index]))
        return OpKey(program, name, "", EventMetadata(name, "", {}), host)

    key = builder.add_keys(plane, key_of, program_id, module, op)
    start, end = events.start_ps[where], events.end_ps[where]
    done = _completion(plane, where, start, end)
    builder.add(numbers[device], events.line[where], key, run, start, end, done)
    builder.close_plane(plane)


def _completion(plane: Plane, where: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """When operations were complete, from the events that mark it."""
    events = plane.events
    consumers, consumed = events.sparse_stats.get("_c", (_EMPTY, _EMPTY))
    ids = events.metadata_ids(consumers)
    ends = [metadata_id for metadata_id in ids if plane.metadata(metadata_id).name.startswith(_END_PREFIX)]
    is_end = np.isin(events.metadata_id[consumers], np.array(ends, np.int64))
    consumers, consumed = consumers[is_end], consumed[is_end]
    if not consumers.size:
        return end
    order = np.argsort(consumed, kind="stable")
    consumers, consumed = consumers[order], consumed[order]
    produced = events.stat("_p")[where]
    found = np.minimum(np.searchsorted(consumed, produced), len(consumed) - 1)
    marked = events.start_ps[consumers[found]]
    return np.where((consumed[found] == produced) & (marked > end), marked, end)


def _add_device_plane(builder: _Builder, host: int, device_name: str, plane: Plane) -> None:
    device = builder.device(device_name, host)
    runs = _Windows.of(builder, host, plane)
    op_lines, async_lines = _op_lines(plane)
    has_ops = False
    for lines, is_async in ((op_lines, False), (async_lines, True)):
        where = np.flatnonzero(np.isin(plane.events.line, lines))
        is_transfer = np.full(len(where), is_async) | _are_copies(plane, where)
        has_ops |= not is_transfer.all()
        for transfers in (False, True):
            chosen = where[is_transfer == transfers]
            if chosen.size:
                _add_device_ops(builder, host, device, plane, chosen, runs, is_transfer=transfers)
    if has_ops:
        runs.say_what_lacks(builder)
    builder.close_plane(plane)


def _op_lines(plane: Plane) -> tuple[list[int], list[int]]:
    """The lines that hold a device's operations, and those of what runs beside them.

    Streams are what the device did; `XLA Ops` is derived from them on a GPU, and on a TPU it is all there is.
    """
    streams = [index for index, name in enumerate(plane.line_names) if name.startswith("Stream #")]
    ops = [index for index, name in enumerate(plane.line_names) if name == "XLA Ops"]
    asynchronous = [index for index, name in enumerate(plane.line_names) if name == "Async XLA Ops"]
    named = plane.events.line[plane.events.with_stat("hlo_op")]
    if ops and not np.isin(named, streams).any():
        return ops, asynchronous
    return streams or ops, asynchronous


def _are_copies(plane: Plane, where: np.ndarray) -> np.ndarray:
    """Which events are copies by the driver that no operation of a program asked for."""
    ids = plane.events.metadata_ids(where)
    copies = [metadata_id for metadata_id in ids if _COPY.match(plane.metadata(metadata_id).name)]
    has_op = plane.events.stat("hlo_op")[where] != MISSING
    return np.isin(plane.events.metadata_id[where], np.array(copies, np.int64)) & ~has_op


def _add_device_ops(builder, host: int, device: int, plane: Plane, where: np.ndarray, runs: "_Windows", *, is_transfer):
    events = plane.events
    op, module, program_id, framework, annotation, run_id = (
        events.stat(name)[where] for name in ("hlo_op", "hlo_module", "program_id", "tf_op", "annotation", "run_id")
    )
    metadata_id, start, end = events.metadata_id[where], events.start_ps[where], events.end_ps[where]
    window = runs.find(start)
    window_program = np.where(window >= 0, runs.program[window], -1) if len(runs.program) else window
    framework = np.where(framework == MISSING, annotation, framework)

    def key_of(index: int) -> OpKey:
        metadata = plane.metadata(int(metadata_id[index]))
        told = _known(program_id[index])
        if told is None and isinstance(metadata.stats.get("program_id"), int):
            told = int(metadata.stats["program_id"])
        program = int(window_program[index])
        if program < 0 and (told is not None or module[index] != MISSING):
            program = builder.program(Program(host, told, plane.text(int(module[index]))))
        name = plane.text(int(op[index])) or metadata.display_name or metadata.name.partition(" = ")[0].lstrip("%")
        framework_name = _framework_name(plane.text(int(framework[index])), metadata)
        return OpKey(program, name, framework_name, metadata, host, is_accelerator=True)

    key = builder.add_keys(plane, key_of, metadata_id, op, module, program_id, framework, window_program)
    run = np.where(window >= 0, window, MISSING) if len(runs.program) else run_id
    devices = np.full(len(where), device, np.int64)
    builder.add(devices, events.line[where], key, run, start, end, end, is_transfer=is_transfer)


def _framework_name(text: str, metadata: EventMetadata) -> str:
    """The op name that an event or its metadata carries. TensorFlow writes `scope/op:Type#details#`."""
    text = text or str(metadata.stats.get("tf_op", ""))
    name, _, kind = text.partition("#")[0].rpartition(":")
    return f"{name}/{kind}" if name and "/" not in kind and "(" not in kind else text.partition("#")[0]


def _known(value: int) -> int | None:
    return None if value == MISSING else int(value)


@dataclass(frozen=True)
class _Windows:
    """When a device executed which program."""

    line_name: str
    """The line that tells; empty if none does."""
    start_ps: np.ndarray
    end_ps: np.ndarray
    program: np.ndarray

    @classmethod
    def of(cls, builder: _Builder, host: int, plane: Plane) -> "_Windows":
        lines = {name: cls._line(plane, name) for name in ("XLA Modules", "Steps")}
        name, where = next(((name, where) for name, where in lines.items() if where.size), ("", _EMPTY))
        where = where[np.argsort(plane.events.start_ps[where], kind="stable")]
        is_module = name == "XLA Modules"
        program = [cls._program(builder, host, plane, index) if is_module else -1 for index in where.tolist()]
        return cls(name, plane.events.start_ps[where], plane.events.end_ps[where], np.array(program, np.int64))

    def say_what_lacks(self, builder: _Builder) -> None:
        """Report lines that should be there."""
        if self.line_name != "XLA Modules":
            builder.lack("the line `XLA Modules`: which program ran when is known from the operations only, if at all")
        if self.line_name == "Steps":
            builder.warn("Executions are told apart by the line `Steps`: one stands for all that a step executed.")

    @staticmethod
    def _line(plane: Plane, name: str) -> np.ndarray:
        lines = [index for index, line_name in enumerate(plane.line_names) if line_name == name]
        return np.flatnonzero(np.isin(plane.events.line, lines))

    @staticmethod
    def _program(builder: _Builder, host: int, plane: Plane, index: int) -> int:
        metadata = plane.metadata(int(plane.events.metadata_id[index]))
        name, program_id = split_program_name(metadata.name)
        return builder.program(Program(host, program_id, name))

    def find(self, start_ps: np.ndarray) -> np.ndarray:
        """In which window each time is; -1 for none."""
        if not len(self.start_ps):
            return np.full(len(start_ps), -1, np.int64)
        found = np.searchsorted(self.start_ps, start_ps, side="right") - 1
        return np.where((found >= 0) & (start_ps < self.end_ps[found]), found, -1)
