"""Operations' times added up by what they have in common."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from trackside.trace.device_events import OpEvents
from trackside.trace.hlo import Frame
from trackside.trace.op_parts import OpPart
from trackside.trace.ops import OpInfo
from trackside.trace.tables import (
    NO_SCOPE,
    CategoryRow,
    CollectiveRow,
    Coverage,
    OpRow,
    Row,
    ScopeRow,
    SourceRow,
    Table,
    TransferRow,
    longest_first,
    source_text,
)
from trackside.trace.xspace import PS_PER_S


@dataclass(frozen=True)
class OpTotals:
    """The operations of the chosen programs, with their time over the whole window."""

    infos: Sequence[OpInfo]
    busy_s: np.ndarray
    span_s: np.ndarray
    num_ops: np.ndarray

    def coverage(self) -> Coverage:
        """How much of the busy time is accounted for; what is estimated is so by scope and phase."""
        return Coverage(
            float(self.busy_s.sum()),
            self._sum(_is_resolved),
            self._sum(lambda info: _is_resolved(info) and info.is_inferred),
            float(sum(busy * _scoped_share(info) for info, busy in zip(self.infos, self.busy_s, strict=True))),
            self._sum(lambda info: len(info.places) > 1),
            self._sum(lambda info: info.is_unsplit),
        )

    def line_coverage(self) -> Coverage:
        """The same for the table by source line: what is estimated is so by line."""
        return replace(self.coverage(), estimated_s=self._sum(lambda info: len(_lines(info)) > 1))

    def _sum(self, condition: Callable[[OpInfo], bool]) -> float:
        chosen = np.array([condition(info) for info in self.infos], bool)
        return float(self.busy_s[chosen].sum()) if len(chosen) else 0.0

    def group(self, key_of: Callable[[OpInfo], Hashable | None]) -> Iterator[tuple[Any, OpInfo, dict[str, Any], float]]:
        """By key: one of its operations, its time, share and number, and its span. Those without a key are left out."""
        members: dict[Hashable, list[int]] = {}
        for index, info in enumerate(self.infos):
            key = key_of(info)
            if key is not None:
                members.setdefault(key, []).append(index)
        for key, indices in members.items():
            figures = self._figures(float(self.busy_s[indices].sum()), indices)
            yield key, self.infos[indices[0]], figures, float(self.span_s[indices].sum())

    def split(self, key_of: Callable[[OpPart], Hashable | None]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """By key of a part: time, share, number of operations and how much of the time is estimated."""
        members: dict[Hashable, list[int]] = {}
        busy_s: dict[Hashable, float] = {}
        estimated_s: dict[Hashable, float] = {}
        for index, info in enumerate(self.infos):
            shares: dict[Hashable, float] = {}
            for part in info.parts:
                key = key_of(part)
                shares[key] = shares.get(key, 0.0) + part.share
            for key, share in shares.items():
                part_s = share * float(self.busy_s[index])
                members.setdefault(key, []).append(index)
                busy_s[key] = busy_s.get(key, 0.0) + part_s
                estimated_s[key] = estimated_s.get(key, 0.0) + (part_s if len(shares) > 1 else 0.0)
        for key, indices in members.items():
            if key is not None:
                yield key, {**self._figures(busy_s[key], indices), "estimated_s": estimated_s[key]}

    def _figures(self, busy_s: float, indices: list[int]) -> dict[str, Any]:
        total = float(self.busy_s.sum())
        share = busy_s / total if total else 0.0
        return {"busy_s": busy_s, "share": share, "num_ops": int(self.num_ops[indices].sum())}


class OpTables(NamedTuple):
    """The tables that operations add up to."""

    scopes: Table[ScopeRow]
    ops: Table[OpRow]
    categories: Table[CategoryRow]
    sources: Table[SourceRow]
    collectives: Table[CollectiveRow]


def summarise_ops(totals: OpTotals) -> OpTables:
    """The tables by scope, operation, category, source line and collective."""
    coverage = totals.coverage()
    by_scope = totals.split(lambda part: (_scope_text(part.scope), part.phase))
    # A program that was compiled twice has different operations of one name; a kernel's name stands for itself.
    by_op = totals.group(lambda info: (info.program, info.name, info.opcode, info.op_name if info.opcode else ""))
    by_category = totals.group(lambda info: info.category)
    by_source = totals.split(lambda part: part.source)
    by_collective = totals.group(lambda info: (info.program, info.name) if info.collective else None)

    def table(rows: Iterable[Row]) -> Table[Row]:
        return Table(longest_first(rows), coverage)

    return OpTables(
        table(ScopeRow(scope, phase, **figures) for (scope, phase), figures in by_scope),
        table(_op_row(info, figures) for _, info, figures, _ in by_op),
        table(CategoryRow(category, **figures) for category, _, figures, _ in by_category),
        Table(longest_first(_source_row(frame, figures) for frame, figures in by_source), totals.line_coverage()),
        table(_collective_row(info, figures, span_s) for _, info, figures, span_s in by_collective),
    )


def summarise_transfers(transfers: OpEvents, infos: Sequence[OpInfo]) -> tuple[TransferRow, ...]:
    """Copies by name."""
    span = np.bincount(
        transfers.key, weights=(transfers.end_ps - transfers.start_ps).astype(float), minlength=len(infos)
    )
    num_ops = np.bincount(transfers.key, minlength=len(infos))
    found: dict[str, tuple[float, int]] = {}
    for index in np.flatnonzero(num_ops).tolist():
        seconds, number = found.get(infos[index].name, (0.0, 0))
        found[infos[index].name] = (seconds + float(span[index]) / PS_PER_S, number + int(num_ops[index]))
    rows = (TransferRow(name, seconds, number) for name, (seconds, number) in found.items())
    return tuple(sorted(rows, key=lambda row: row.span_s, reverse=True))


def _is_resolved(info: OpInfo) -> bool:
    return bool(info.op_name) and not info.is_unsplit


def _scoped_share(info: OpInfo) -> float:
    return sum(part.share for part in info.parts if part.scope)


def _lines(info: OpInfo) -> set[Frame | None]:
    return {part.source for part in info.parts}


def _scope_text(scope: tuple[str, ...]) -> str:
    return "/".join(scope) or NO_SCOPE


def _source_row(frame: Frame, figures: dict[str, Any]) -> SourceRow:
    return SourceRow(frame.file, frame.line, frame.function, **figures)


def _op_row(info: OpInfo, figures: dict[str, Any]) -> OpRow:
    return OpRow(
        info.name,
        info.program,
        info.opcode,
        info.category,
        _scope_text(info.scope),
        info.phase,
        source_text(info.source),
        **figures,
        num_scopes=len({part.scope for part in info.parts}),
    )


def _collective_row(info: OpInfo, figures: dict[str, Any], span_s: float) -> CollectiveRow:
    scope = _scope_text(info.scope)
    return CollectiveRow(info.name, info.collective, scope, span_s=span_s, num_bytes=info.num_bytes, **figures)
