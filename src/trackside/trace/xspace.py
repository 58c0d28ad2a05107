"""The events of an xplane file as numpy columns.

A file is one `XSpace`: planes (a host, a device, the metadata), each with lines (threads, streams) of events. An event
names its metadata, says when it began and how long it took, and carries stats. `read_xspace` decodes all times, and of
the stats only those that the analysis asks for: they are most of the bytes.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trackside.trace import wire
from trackside.trace.event_columns import MISSING, EventReader, Events, Texts
from trackside.trace.wire import Span

PS_PER_NS = 1_000
PS_PER_S = 1e12

_DOUBLE, _BYTES, _REFERENCE = 2, 6, 7
_NO_STATS_WANTED = ("$", "ThreadpoolListener::")
"""What Python's tracer and the thread pools write: many events whose stats tell nothing here."""


@dataclass(frozen=True)
class EventMetadata:
    """What all events of one name have in common."""

    name: str
    display_name: str
    stats: dict[str, int | float | str | bytes]


@dataclass
class Plane:
    """A host or a device."""

    name: str
    stats: dict[str, int | float | str | bytes]
    line_names: list[str]
    events: Events
    _data: bytes
    _metadata_spans: dict[int, Span]
    _texts: Texts
    _metadata: dict[int, EventMetadata] = field(default_factory=dict)

    def text(self, text_id: int) -> str:
        """A text of the stats; empty for `MISSING`."""
        return "" if text_id == MISSING else self._texts[text_id]

    def metadata(self, metadata_id: int) -> EventMetadata:
        """What the events with this id have in common, decoded when first asked for."""
        if metadata_id not in self._metadata:
            self._metadata[metadata_id] = self._read_metadata(self._metadata_spans.get(metadata_id))
        return self._metadata[metadata_id]

    @cached_property
    def metadata_ids(self) -> list[int]:
        """The ids of all metadata, also of those without events."""
        return list(self._metadata_spans)

    def _read_metadata(self, span: Span | None) -> EventMetadata:
        name = display_name = ""
        stats: dict[str, int | float | str | bytes] = {}
        for number, value in wire.fields(self._data, span) if span else ():
            if number == 2:
                name = wire.text(self._data, value)
            elif number == 4:
                display_name = wire.text(self._data, value)
            elif number == 5 and isinstance(value, tuple):
                stats.update(_read_stat(self._data, value, self._texts))
        return EventMetadata(name, display_name, stats)


@dataclass(frozen=True)
class XSpace:
    """A file: its planes, and what the profiler itself had to say."""

    planes: list[Plane]
    errors: list[str]
    warnings: list[str]
    num_bytes: int

    @property
    def num_events(self) -> int:
        """The number of events in all planes."""
        return sum(len(plane.events) for plane in self.planes)


def read_xspace(data: bytes) -> XSpace:
    """Decode a file's bytes.

    Raises:
        wire.WireError: If they are not an xplane file, or not all of one.
    """
    planes: list[Span] = []
    notes: dict[int, list[str]] = {2: [], 3: [], 4: []}
    for number, value in wire.spans(data):
        if number == 1:
            planes.append(value)
        elif number in notes:
            notes[number].append(wire.text(data, value))
        else:
            raise wire.WireError(f"field {number}, which an xplane file does not have")
    array = np.frombuffer(data, np.uint8)
    forms = [_PlaneForm.of(data, span) for span in planes]
    # Timestamps may be nanoseconds since 1970, which in picoseconds would not fit into 64 bits.
    epoch_ns = min((timestamp for form in forms for timestamp in form.timestamps_ns), default=0)
    return XSpace([form.read(data, array, epoch_ns) for form in forms], notes[2], notes[3], len(data))


@dataclass
class _PlaneForm:
    """Where the parts of a plane lie."""

    name: str
    lines: list[tuple[np.ndarray, np.ndarray]]
    """Where the events of each line begin and end."""
    line_names: list[str]
    timestamps_ns: list[int]
    metadata: dict[int, Span]
    stat_names: dict[int, str]
    stats: list[Span]

    @classmethod
    def of(cls, data: bytes, span: Span) -> "_PlaneForm":
        form = cls("", [], [], [], {}, {}, [])
        for number, value in wire.spans(data, span):
            if number == 2:
                form.name = wire.text(data, value)
            elif number == 3:
                form._add_line(data, value)
            elif number == 4:
                key, entry = _map_entry(data, value)
                form.metadata[key] = entry
            elif number == 5:
                key, entry = _map_entry(data, value)
                form.stat_names[key] = next((wire.text(data, v) for n, v in wire.spans(data, entry) if n == 2), "")
            elif number == 6:
                form.stats.append(value)
        return form

    def _add_line(self, data: bytes, span: Span) -> None:
        name, timestamp = "", 0
        starts, ends, rest = wire.split_repeated(data, span, 4)
        for other in rest:
            for number, value in wire.fields(data, other):
                if number == 2 or (number == 11 and not name):
                    name = wire.text(data, value)
                elif number == 3 and isinstance(value, int):
                    timestamp = wire.signed(value)
        self.lines.append((starts, ends))
        self.line_names.append(name)
        self.timestamps_ns.append(timestamp)

    def _tell_nothing(self, data: bytes) -> list[int]:
        """The metadata of the many events whose stats are not worth decoding."""
        return [key for key, span in self.metadata.items() if _metadata_name(data, span).startswith(_NO_STATS_WANTED)]

    def read(self, data: bytes, array: np.ndarray, epoch_ns: int) -> Plane:
        texts = Texts(self.stat_names)
        num_events = sum(len(starts) for starts, _ in self.lines)
        reader = EventReader(data, array, num_events, texts, self._tell_nothing(data))
        for index, ((starts, ends), timestamp) in enumerate(zip(self.lines, self.timestamps_ns, strict=True)):
            reader.add_line(index, starts, ends, (timestamp - epoch_ns) * PS_PER_NS)
        self.lines.clear()
        stats: dict[str, int | float | str | bytes] = {}
        for span in self.stats:
            stats.update(_read_stat(data, span, texts))
        return Plane(self.name, stats, self.line_names, reader.events(), data, self.metadata, texts)


def _metadata_name(data: bytes, span: Span) -> str:
    return next((wire.text(data, value) for number, value in wire.spans(data, span) if number == 2), "")


def _map_entry(data: bytes, span: Span) -> tuple[int, Span]:
    key, entry = 0, (span[1], span[1])
    for number, value in wire.fields(data, span):
        if number == 1 and isinstance(value, int):
            key = wire.signed(value)
        elif number == 2 and isinstance(value, tuple):
            entry = value
    return key, entry


def _read_stat(data: bytes, span: Span, texts: Texts) -> dict[str, int | float | str | bytes]:
    """A single stat, by its name."""
    name, found = "", None
    for number, value in wire.fields(data, span):
        if number == 1 and isinstance(value, int):
            name = texts.names.get(value, "")
        elif isinstance(value, tuple):
            found = data[value[0] : value[1]] if number == _BYTES else wire.text(data, value)
        elif number == _REFERENCE:
            found = texts[value]
        else:
            found = wire.as_double(value) if number == _DOUBLE else wire.signed(value)
    return {} if found is None else {name: found}
