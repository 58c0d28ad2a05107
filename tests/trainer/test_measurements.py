"""FLOPs utilisation: where a peak is known, all who read of a training find it; where none is, nobody does."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.report import render_summary, summarise_run, write_html_report
from trackside.runs import Run, open_run
from trackside.trainer import measurements

NUM_STEPS = 20


class KeptRows(LoggerTool):
    """Keeps the rows of each run that are logged under `time`."""

    threaded = False
    rows: ClassVar[dict[str, list[dict[str, float]]]] = {}

    def __init__(self, name: str):
        self._kept = self.rows.setdefault(name, [])

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        if mode == "time":
            self._kept.append(metrics)


class KeptRowsConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return KeptRows(logger.log_path.name)


def train(folder: Path, has_peak: bool, num_epochs: int = 2) -> Any:
    trainer = make_trainer(logger=LoggerConfig(log_path=folder, log_tools=[KeptRowsConfig()]))
    if has_peak:
        trainer.calibrate_peak()
    trainer.fit(make_loader(NUM_STEPS), num_epochs=num_epochs)
    return trainer


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training on a device whose peak was measurements."""
    folder = tmp_path_factory.mktemp("runs") / "known"
    train(folder, has_peak=True)
    return open_run(folder)


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training on a device of which no table has the peak, and nobody measured it."""
    folder = tmp_path_factory.mktemp("runs") / "unknown"
    train(folder, has_peak=False)
    return open_run(folder)


def test_event_file_has_it(known: Run) -> None:
    """The last totals of the ledger are told with the utilisation that they amount to."""
    row = rows_of(known.path, "ledger")[-1]
    in_use_s = sum(row["parts"][part] for part in ("host_to_device", "dispatch", "device_wait", "data_wait"))
    assert row["mfu"] == pytest.approx(row["at_peak_s"] / in_use_s)
    assert 0 < row["mfu_low"] <= row["mfu"] <= row["mfu_high"]
    assert row["mfu"] < 1


def test_logger_has_it_with_throughput_and_goodput(known: Run) -> None:
    """The row of each epoch's time has all three, as numbers."""
    rows = KeptRows.rows["known"]
    assert len(rows) >= 2
    for row in rows:
        assert row["steps_per_second"] > 0
        assert 0 < row["mfu_low"] <= row["mfu"] <= row["mfu_high"]
        assert 0 < row["goodput"] < 1


def test_report_shows_it(known: Run, tmp_path: Path) -> None:
    """Terminal, summary.json and page have the figure of the event file."""
    summary = summarise_run(known)
    assert summary.mfu == known.mfu == rows_of(known.path, "ledger")[-1]["mfu"]
    plain = json.loads(summary.write(tmp_path / "summary.json").read_text())
    assert (plain["mfu"], plain["mfu_range"]) == (summary.mfu, list(known.mfu_range or ()))
    assert re.search(r"\nmfu        .* % \(.* to .* %, measured peak\)", render_summary(summary).plain)
    page = write_html_report(known, tmp_path / "report.html").read_text()
    assert "FLOPs utilization" in page
    assert re.search(r" % to [0-9.]+ %, measured peak", page)


def test_without_a_peak_there_is_none(unknown: Run, tmp_path: Path) -> None:
    """Nothing is written that could be taken for a utilisation of zero, and nothing fails."""
    assert unknown.status == "success"
    assert all("mfu" not in row and row["at_peak_s"] is None for row in rows_of(unknown.path, "ledger"))
    assert all("mfu" not in row for row in KeptRows.rows["unknown"])
    summary = summarise_run(unknown)
    assert summary.mfu is unknown.mfu is None
    assert "mfu" not in render_summary(summary).plain
    assert "FLOPs utilization" not in write_html_report(unknown, tmp_path / "report.html").read_text()


def test_flops_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same for all steps: an epoch more does not count them again."""
    counted = []

    def count_flops(traced: Any) -> Any:
        counted.append(traced)
        return real_count_flops(traced)

    real_count_flops = measurements.count_flops
    monkeypatch.setattr(measurements, "count_flops", count_flops)
    train(tmp_path, has_peak=True, num_epochs=4)
    assert len(counted) == 1


def test_flops_that_cannot_be_counted_do_not_stop_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the utilisation is not known, and the log says why, once."""

    def count_flops(traced: Any) -> Any:
        raise NotImplementedError("a primitive of the future")

    monkeypatch.setattr(measurements, "count_flops", count_flops)
    trainer = train(tmp_path, has_peak=True)
    assert trainer.status == "success"
    assert trainer.ledger_totals.mfu is None
    assert len([record for record in caplog.records if "could not be counted" in record.message]) == 1
