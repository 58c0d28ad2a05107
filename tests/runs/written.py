"""Runs written by hand, row by row, at times that the test chooses."""

from pathlib import Path
from typing import Any

from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.run_layout import event_file_name


class WrittenRun:
    """The event file of one process; each row comes a second after the one before."""

    def __init__(self, folder: Path, process_index: int = 0, start: float = 1000.0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / event_file_name(process_index)
        self.clock = ManualClock(start)
        self.events = EventWriter(self.path, self.clock)

    def write(self, kind: str, **fields: Any) -> "WrittenRun":
        self.clock.advance(1.0)
        self.events.write(kind, **fields)
        return self

    def metrics(self, step: int, mode: str = "train", epoch: int = 1, **values: float) -> "WrittenRun":
        self.clock.advance(1.0)
        self.events.write_metrics(values, step, epoch, mode)
        return self

    def leg(self, number: int = 1, step: int = 0, **fields: Any) -> "WrittenRun":
        return self.write("leg", leg=number, step=step, epoch=0, train_time_s=0.0, **fields)

    def ledger(self, step: int, num_steps: int, **parts: float) -> "WrittenRun":
        """Totals of a leg: the parts in seconds."""
        totals = LedgerTotals(sum(parts.values()), dict(parts), num_steps, num_samples=8 * num_steps)
        return self.write("ledger", step=step, **totals.to_dict())

    def end(self, status: str = "success", step: int = 100, number: int = 1) -> "WrittenRun":
        self.write("leg_end", leg=number, step=step, epoch=1, train_time_s=12.0, goodput=0.5)
        return self.write("status", status=status, step=step, epoch=1)

    def append(self, text: bytes) -> None:
        """Bytes as they are: a torn line, another program's."""
        with self.path.open("ab") as file:
            file.write(text)

    def with_config_file(self) -> "WrittenRun":
        (self.folder / "config.json").write_text('{"trainer": {"seed": 7}}')
        return self


def finished_run(folder: Path, num_rows: int = 10) -> WrittenRun:
    """A run of one leg that ended well, with a row of training every ten steps."""
    run = WrittenRun(folder).with_config_file()
    run.write("environment", hostname="node-0", process_index=0).write("environment", devices=["cpu:0"], backend="cpu")
    run.write("config", config={"trainer": {"seed": 7}}).write("config", config={"model": {"width": 3}})
    run.leg()
    for step in range(10, 10 * num_rows + 1, 10):
        run.metrics(step, loss_mean=1.0 / step, step_time=0.01)
    run.ledger(10 * num_rows, 10 * num_rows, data_wait=1.0, device_wait=3.0)
    return run.end(step=10 * num_rows)
