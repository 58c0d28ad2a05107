"""What is kept of a process that is one of many: how far it is, and where its time went.

Its metrics are those of the first process, which describe the run; they are skipped without being decoded.
"""

from collections import deque
from typing import Any

import numpy as np

from trackside.findings import facts_from_events
from trackside.findings.fact_collector import is_of_another_leg
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.runs.event_file import OTHER, split_lines
from trackside.runs.row_collector import RowCollector
from trackside.runs.row_reader import RowReader

NUM_RECENT = 31
"""How many rows `ledger` are kept: one is written every ten seconds, so that they span five minutes."""

_LEDGER_FIELDS = frozenset({"wall_s", "parts", "num_steps"})


class HostCollector(RowReader):
    """Keeps what is needed to compare a process with the others, in memory that does not grow with the run.

    Attributes:
        hostname: The machine that it runs on; empty where that is not known.
        status: How it said that it ended; empty while it has not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hostname = ""
        self.status = ""
        self._earlier_legs: list[dict[str, Any]] = []
        self._leg: int | None = None
        self._ledgers: deque[dict[str, Any]] = deque(maxlen=NUM_RECENT)

    @classmethod
    def of(cls, rows: RowCollector) -> "HostCollector":
        """The same of a process of which everything was kept."""
        host = cls()
        for row in rows.events("environment", "ledger", "leg", "status"):
            host.take_row(row)
        host.started_at, host.ended_at, host.step = rows.started_at, rows.ended_at, rows.step
        return host

    @property
    def totals(self) -> LedgerTotals | None:
        """Where the time went, over all legs; None where that was not written."""
        return facts_from_events([*self._earlier_legs, *list(self._ledgers)[-1:]]).ledger

    @property
    def recent(self) -> tuple[int, LedgerTotals] | None:
        """From which step on, and where the time went in the last minutes of the last leg; None where it is all."""
        if len(self._ledgers) < NUM_RECENT:
            return None
        earlier, now = (facts_from_events([row]).ledger for row in (self._ledgers[0], self._ledgers[-1]))
        if earlier is None or now is None:
            return None
        return int(self._ledgers[0].get("step") or 0), now.since(earlier)

    def add_block(self, block: bytes | memoryview, num_bytes_ahead: int = 0) -> None:
        """Take whole lines. Those of metrics are skipped, except that torn ones are counted and the last is read."""
        lines = split_lines(block)
        self.num_damaged += lines.num_torn_metrics(block)
        last = np.flatnonzero(lines.forms != OTHER)[-1:]
        for index in sorted([*np.flatnonzero(lines.forms == OTHER).tolist(), *last.tolist()]):
            if self.is_newer:
                return
            line = bytes(block[lines.starts[index] : lines.ends[index]])
            if lines.forms[index] != OTHER:
                self.note_metrics(line)
            else:
                self.add_line(line)

    def take_row(self, row: dict[str, Any]) -> None:
        """Take a row that is none of metrics."""
        kind = row["kind"]
        if kind == "environment":
            self.hostname = str(row.get("hostname", self.hostname))
        elif kind == "status":
            self.status = str(row.get("status") or "")
        elif kind == "leg":
            self.status, self._leg = "", row.get("leg")
            self._earlier_legs += [*list(self._ledgers)[-1:], row]
            self._ledgers.clear()
        elif kind != "ledger" or is_of_another_leg(row, self._leg):
            return
        elif row.keys() >= _LEDGER_FIELDS:  # one of an older format may lack them
            self._ledgers.append(row)
