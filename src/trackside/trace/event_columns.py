"""Events as columns: the times of all, and of the stats, which are most of a file, those that the analysis asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackside.trace import wire

MISSING = np.iinfo(np.int64).min
"""In a column of a stat: the event does not have it."""

NUMBER_STATS = ("program_id", "run_id", "device_ordinal", "step_num", "num_steps", "_p", "_c")
TEXT_STATS = ("hlo_op", "hlo_module", "tf_op", "annotation")
_CHUNK_EVENTS = 1 << 14
_STRING, _REFERENCE = 5, 7
_MAX_PS = 1 << 61
_EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Events:
    """The events of a plane's lines, one entry per event in each column."""

    line: np.ndarray
    """Which line, as an index into the plane's lines."""
    metadata_id: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    sparse_stats: dict[str, tuple[np.ndarray, np.ndarray]]
    """By the stat's name: the events that have it, and its values there. A text is an id, for `Plane.text`."""

    def __len__(self) -> int:
        return len(self.line)

    def stat(self, name: str) -> np.ndarray:
        """A stat's values, `MISSING` where an event does not have it."""
        column = np.full(len(self), MISSING, np.int64)
        where, values = self.sparse_stats.get(name, (_EMPTY, _EMPTY))
        column[where] = values
        return column

    def with_stat(self, name: str) -> np.ndarray:
        """The events that have a stat, in order."""
        has_stat = np.zeros(len(self), bool)
        has_stat[self.sparse_stats.get(name, (_EMPTY, _EMPTY))[0]] = True
        return np.flatnonzero(has_stat)

    def metadata_ids(self, where: np.ndarray | None = None) -> list[int]:
        """The different ids of metadata among some events, or all."""
        # Sorting: numpy's own way by hashing takes ten times as long for these.
        ids = np.sort(self.metadata_id if where is None else self.metadata_id[where])
        is_first = np.ones(len(ids), bool)
        is_first[1:] = ids[1:] != ids[:-1]
        return ids[is_first].tolist()


class Texts:
    """The texts of a plane by id: its stats' names, which stats refer to, and those that events carry themselves."""

    def __init__(self, names: dict[int, str]):
        self.names = names
        self._ids: dict[bytes, int] = {}
        self._own: list[str] = []

    def __getitem__(self, text_id: int) -> str:
        if text_id >= 0:
            return self.names.get(text_id, "")
        return self._own[-1 - text_id] if -text_id <= len(self._own) else ""  # else a damaged reference

    def add(self, raw: bytes) -> int:
        """The id of a text that is not among the names."""
        if raw not in self._ids:
            self._own.append(raw.decode("utf-8", "replace"))
            self._ids[raw] = -len(self._own)
        return self._ids[raw]


def _check_times(start_ps: int, offset: np.ndarray, duration: np.ndarray) -> None:
    """Refuse times whose sums would not fit into 64 bits: such a trace would last for weeks."""
    is_short = abs(start_ps) < _MAX_PS and bool(((offset > -_MAX_PS) & (offset < _MAX_PS)).all())
    if not (is_short and bool(((duration >= 0) & (duration < _MAX_PS)).all())):
        raise wire.WireError("an event at a time that no trace reaches")


class EventReader:
    """Gathers a plane's events, line by line and in chunks, so that the working memory stays small.

    Args:
        data: The file's bytes.
        array: The same, as an array of uint8.
        num_events: How many events the lines hold.
        texts: The plane's texts.
        without_stats: The metadata ids of events whose stats are left out.
    """

    def __init__(self, data: bytes, array: np.ndarray, num_events: int, texts: Texts, without_stats: Sequence[int]):
        self._data, self._array, self._texts = data, array, texts
        self._wanted = {key: name for key, name in texts.names.items() if name in NUMBER_STATS + TEXT_STATS}
        self._without_stats = np.array(without_stats, np.int64)
        self._num_events = 0
        # Of their full size from the start: to join parts would need the memory twice.
        self._line = np.empty(num_events, np.int32)
        self._metadata_id, self._start_ps, self._end_ps = (np.empty(num_events, np.int64) for _ in range(3))
        self._stats: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._wanted.values()}

    def add_line(self, index: int, starts: np.ndarray, ends: np.ndarray, start_ps: int) -> None:
        """Decode the events of a line, given where they begin and end."""
        for first in range(0, len(starts), _CHUNK_EVENTS):
            chunk = slice(first, first + _CHUNK_EVENTS)
            self._add_chunk(index, starts[chunk], ends[chunk], start_ps)

    def _add_chunk(self, line: int, starts: np.ndarray, ends: np.ndarray, start_ps: int) -> None:
        metadata_id, offset, duration = (np.zeros(len(starts), np.int64) for _ in range(3))
        targets = {1: metadata_id, 2: offset, 3: duration}
        has_time = np.ones(len(starts), bool)
        stats: list[tuple[np.ndarray, ...]] = []
        for found in wire.scan(self._array, starts, ends):
            number = int(found.number[0])
            if number in targets and (found.number == number).all():
                targets[number][found.owner] = found.value.view(np.int64)
                continue
            for number in np.flatnonzero(np.bincount(np.minimum(found.number, 6))).tolist():
                chosen = found.number == number
                if number in targets:
                    targets[number][found.owner[chosen]] = found.value[chosen].view(np.int64)
                elif number == 4:
                    stats.append((found.owner[chosen], found.value[chosen].view(np.int64), found.end[chosen]))
                elif number == 5:
                    # A count in place of a time: the event stands for many and is nowhere.
                    has_time[found.owner[chosen]] = False
        kept = np.flatnonzero(has_time)
        _check_times(start_ps, offset[kept], duration[kept])
        position = np.cumsum(has_time) - 1 + self._num_events
        self._add_stats(metadata_id, has_time, position, stats)
        place = slice(self._num_events, self._num_events + len(kept))
        self._line[place] = line
        self._metadata_id[place] = metadata_id[kept]
        self._start_ps[place] = start_ps + offset[kept]
        self._end_ps[place] = self._start_ps[place] + duration[kept]
        self._num_events += len(kept)

    def _add_stats(self, metadata_id: np.ndarray, has_time: np.ndarray, position: np.ndarray, stats: list) -> None:
        if not stats or not self._wanted:
            return
        owner, starts, ends = (np.concatenate(column) for column in zip(*stats, strict=True))
        wanted = (has_time & ~np.isin(metadata_id, self._without_stats))[owner]
        owner, starts, ends = owner[wanted], starts[wanted], ends[wanted]
        name_id, kind, value, end = (np.zeros(len(owner), np.int64) for _ in range(4))
        for found in wire.scan(self._array, starts, ends):
            is_name = found.number == 1
            name_id[found.owner[is_name]] = found.value[is_name].view(np.int64)
            rest = found.owner[~is_name]
            kind[rest], value[rest] = found.number[~is_name], found.value[~is_name].view(np.int64)
            end[rest] = found.end[~is_name]
        for key, name in self._wanted.items():
            chosen = np.flatnonzero(name_id == key)
            if name in TEXT_STATS:
                values = self._text_ids(kind[chosen], value[chosen], end[chosen])
            else:
                chosen = chosen[(kind[chosen] != _STRING) & (kind[chosen] != _REFERENCE)]
                values = value[chosen]
            self._stats[name].append((position[owner[chosen]], values))

    def _text_ids(self, kind: np.ndarray, value: np.ndarray, end: np.ndarray) -> np.ndarray:
        values = value.copy()
        for index in np.flatnonzero(kind == _STRING).tolist():
            values[index] = self._texts.add(self._data[value[index] : end[index]])
        return values

    def events(self) -> Events:
        """All that was added."""
        stats = {}
        for name, parts in self._stats.items():
            if parts:
                where, values = zip(*parts, strict=True)
                stats[name] = (np.concatenate(where), np.concatenate(values))
        filled = slice(self._num_events)
        return Events(
            self._line[filled], self._metadata_id[filled], self._start_ps[filled], self._end_ps[filled], stats
        )
