"""Rows for the active W&B run, added without taking a step away from the user's own rows.

W&B numbers the rows of a run and drops a row whose number is not above the last. A row of ours would use up a number,
and the user's next one, logged with `step=epoch`, would be lost. So ours waits to become part of the user's next row.
Where the user logs nothing in the meantime, it is kept until the run is finished, and then gets its own. Every row
carries the step that it is about, which the charts use in place of W&B's number.
"""

import sys
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

MAX_KEPT = 10_000
"""How many rows are kept for the end of the run; older ones are dropped."""


class WandBRows:
    """Logs metrics to whichever W&B run is active.

    Args:
        prefix: What the names of the metrics begin with.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._rows: _RunRows | None = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row; does nothing when no run is active.

        Args:
            metrics: Numbers by name.
            step: The step that they are about.
        """
        wandb = sys.modules.get("wandb")  # a process that has not imported it has no active run
        run = getattr(wandb, "run", None)
        if run is None:
            return
        if self._rows is None or self._rows.run is not run:
            self._rows = _RunRows(run, self._prefix)
        self._rows.add({f"{self._prefix}/{name}": value for name, value in {**metrics, "step": step}.items()})


class _RunRows:
    """The rows of one run."""

    def __init__(self, run: Any, prefix: str):
        self._run = weakref.ref(run)
        self._kept: deque[dict[str, float]] = deque(maxlen=MAX_KEPT)
        self._waiting: dict[str, float] | None = None
        """The row that becomes part of the user's next one."""
        self._waiting_at: int | None = None
        """The number that W&B had for the next row when it was added."""
        run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
        _call_before_finish(run, self._write_kept)

    @property
    def run(self) -> Any:
        """The run; None when it is no more."""
        return self._run()

    def add(self, row: dict[str, float]) -> None:
        """Add a row to the user's next one. The row that was added before is kept if it is still waiting."""
        if self._waiting is not None and self._waiting_at == self.run.step:
            self._kept.append(self._waiting)
        self._waiting, self._waiting_at = row, self.run.step
        self.run.log(row, commit=False)

    def _write_kept(self) -> None:
        """Give the rows that were kept a row each. The user's last one is over, so that it takes no number from it."""
        run, last = self.run, self._waiting
        if run is None or last is None or not self._kept:
            return
        if self._waiting_at == run.step:
            run.log(last)
        while self._kept:
            run.log(self._kept.popleft())
        run.summary.update(last)


def _call_before_finish(run: Any, function: Any) -> None:
    """Have a function called when a run is being finished.

    W&B has no public way. Without its private one, rows of a program that logs nothing else become a single row.
    """
    try:
        from wandb.sdk.wandb_run import TeardownHook, TeardownStage

        run._teardown_hooks.append(TeardownHook(function, TeardownStage.EARLY))
    except (ImportError, AttributeError):
        return
