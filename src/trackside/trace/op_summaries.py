"""Operations' times added up by what they have in common."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trackside.trace.device_events import OpEvents
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
        """How much of the busy time is accounted for."""
        return Coverage(
            float(self.busy_s.sum()),
            self._sum(lambda info: bool(info.op_name)),
            self._sum(lambda info: bool(info.op_name) and info.is_inferred),
            self._sum(lambda info: bool(info.scope)),
        )

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
        total = float(self.busy_s.sum())
        for key, indices in members.items():
            busy = float(self.busy_s[indices].sum())
            figures = {"busy_s": busy, "share": busy / total if total else 0.0}
            figures["num_ops"] = int(self.num_ops[indices].sum())
            yield key, self.infos[indices[0]], figures, float(self.span_s[indices].sum())


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
    by_scope = totals.group(lambda info: (_scope_text(info), info.phase))
    # A program that was compiled twice has different operations of one name; a kernel's name stands for itself.
    by_op = totals.group(lambda info: (info.program, info.name, info.opcode, info.op_name if info.opcode else ""))
    by_category = totals.group(lambda info: info.category)
    by_source = totals.group(lambda info: info.source)
    by_collective = totals.group(lambda info: (info.program, info.name) if info.collective else None)

    def table(rows: Iterable[Row]) -> Table[Row]:
        return Table(longest_first(rows), coverage)

    return OpTables(
        table(ScopeRow(scope, phase, **figures) for (scope, phase), _, figures, _ in by_scope),
        table(_op_row(info, figures) for _, info, figures, _ in by_op),
        table(CategoryRow(category, **figures) for category, _, figures, _ in by_category),
        table(SourceRow(frame.file, frame.line, frame.function, **figures) for frame, _, figures, _ in by_source),
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


def _scope_text(info: OpInfo) -> str:
    return "/".join(info.scope) or NO_SCOPE


def _op_row(info: OpInfo, figures: dict[str, Any]) -> OpRow:
    return OpRow(
        info.name,
        info.program,
        info.opcode,
        info.category,
        _scope_text(info),
        info.phase,
        source_text(info.source),
        **figures,
    )


def _collective_row(info: OpInfo, figures: dict[str, Any], span_s: float) -> CollectiveRow:
    scope = _scope_text(info)
    return CollectiveRow(info.name, info.collective, scope, span_s=span_s, num_bytes=info.num_bytes, **figures)
