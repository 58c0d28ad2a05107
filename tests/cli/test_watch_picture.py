"""What `trackside watch` shows of a run at one moment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trackside.cli.run_glance import glance_at
from trackside.cli.watch_picture import find_series, recent_ledger, render_line, render_picture, speed_of
from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.measured_run.run_lock import RunLock
from trackside.report import summarise_run
from trackside.run_layout import event_file_name
from trackside.runs import open_run


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[Path]:
    """A run that has made 200 of 1,000 steps, ten a second, of which it lately waits for data half of the time."""
    clock = ManualClock(1000.0)
    with RunLock(tmp_path):
        events = EventWriter(tmp_path / event_file_name(0), clock)
        events.write("leg", leg=1, step=0, epoch=0, goal=1000)
        for step in range(10, 201, 10):
            clock.advance(10)
            waits = 50.0 if step > 100 else 0.0
            events.write_metrics({"loss_mean": 1 / step, "step_time": 0.1}, step, 1, "train")
            row = {"data_wait_ms": waits, "device_wait_ms": 100.0 - waits, "steps_per_second": 10.0}
            events.write_metrics(row, step, 1, "time")
        events.write_metrics({"accuracy": 0.5}, 200, 1, "val")
        events.close()
        yield tmp_path


def test_progress_and_time_left(going_on: Path) -> None:
    """With a goal, the picture shows how far the run is and when it will be done at its speed."""
    picture = render_picture(open_run(going_on), now=1203.0, width=80).plain
    assert "step 200 of 1,000, epoch 1  20 %" in picture
    assert "10 steps per second over the last minute, compiling aside; 3 min 23 s since it" in picture
    assert "about 1 min 20 s left" in picture
    assert "last row 3.0 s ago" in picture
    assert "(highest 0.5)" in picture


def test_time_left_does_not_count_the_compile(tmp_path: Path) -> None:
    """Right after a long compile, the speed is that of the steps, which will not compile again."""
    clock = ManualClock(1000.0)
    with RunLock(tmp_path):
        events = EventWriter(tmp_path / event_file_name(0), clock)
        events.write("leg", leg=1, step=0, epoch=0, goal=410)
        clock.advance(69)
        row = {"compile_ms": 6850.0, "device_wait_ms": 50.0, "steps_per_second": 1 / 6.9}
        events.write_metrics(row, 10, 1, "time")
        events.close()
        run = open_run(tmp_path)
        speed = speed_of(run)
        assert speed is not None
        assert speed.steps_per_second == pytest.approx(20)
        assert "about 20 s left" in render_picture(run, 1069.0, 80).plain


def test_time_left_counts_what_comes_between_steps(tmp_path: Path) -> None:
    """Validation every other row will go on, so the speed that the time left is computed from contains it."""
    clock = ManualClock(1000.0)
    with RunLock(tmp_path):
        events = EventWriter(tmp_path / event_file_name(0), clock)
        events.write("leg", leg=1, step=0, epoch=0, goal=400)
        for step, validation_ms in ((10, 0.0), (20, 300.0), (30, 0.0), (40, 300.0)):
            clock.advance(1)
            row = {"device_wait_ms": 50.0, "validation_ms": validation_ms, "steps_per_second": 20.0}
            events.write_metrics(row, step, 1, "time")
        events.close()
        speed = speed_of(open_run(tmp_path))
    assert speed is not None
    assert speed.steps_per_second == pytest.approx(1 / 0.2)


def test_speed_of_a_finished_run_is_its_step_time(tmp_path: Path) -> None:
    """Afterwards, the picture has the step time that list and report have too, and says so."""
    events = EventWriter(tmp_path / event_file_name(0))
    events.write("leg", leg=1, step=0, epoch=0)
    for step, step_s in ((10, 9.0), (20, 0.1), (21, 0.5), (22, 0.5)):
        events.write_metrics({"loss": 1.0, "step_time": step_s}, step, 1, "train")
    events.write("status", status="success", step=22, epoch=1)
    events.close()
    run = open_run(tmp_path)
    summary = summarise_run(run).step_time
    assert summary is not None
    assert glance_at(tmp_path).steps_per_second == pytest.approx(1 / summary.p50_s) == pytest.approx(10)
    assert "10 steps per second at the median step time of 100 ms" in render_picture(run, 1000.0, 80).plain


def test_curve_skips_rows_without_the_metric(tmp_path: Path) -> None:
    """A row of another callback among those of training has no loss: that is not a loss that is not finite."""
    with RunLock(tmp_path):
        events = EventWriter(tmp_path / event_file_name(0), ManualClock(1000.0))
        for step in range(1, 9):
            events.write_metrics({"learning_rate": 0.1} if step % 2 else {"loss_mean": 1 / step}, step, 1, "train")
        events.close()
        (series,) = find_series(open_run(tmp_path))
    assert series.values.tolist() == [1 / 2, 1 / 4, 1 / 6, 1 / 8]


def test_early_stop_is_shown_with_its_reason(tmp_path: Path) -> None:
    """A run that a callback ended before its goal is not shown as one that reached it."""
    events = EventWriter(tmp_path / event_file_name(0), ManualClock(1000.0))
    events.write("leg", leg=1, step=0, epoch=0, goal=100)
    events.write("stop", reason="early stopping: val_loss did not improve on 0.5 in 3 checks", step=28)
    events.write("status", status="success", step=28, epoch=2)
    events.close()
    run = open_run(tmp_path)
    assert render_line(run).startswith("stopped early  step 28 of 100")
    picture = render_picture(run, 1001.0, 80).plain
    assert "stopped early" in picture.splitlines()[0]
    assert "val_loss did not improve on 0.5 in 3 checks" in picture


def test_bar_is_of_the_last_minute(going_on: Path) -> None:
    """What the run did before the last minute does not count: it waits for data half of the time now."""
    ledger = recent_ledger(open_run(going_on))
    assert ledger is not None
    assert ledger.share("data_wait") == pytest.approx(0.5)
    assert ledger.num_steps == 70


def test_losses_and_the_judged_metric_are_shown(going_on: Path) -> None:
    """Training and validation losses, and the metric by which the run is judged if it is not one of them."""
    assert [series.label for series in find_series(open_run(going_on))] == ["train_loss", "val_accuracy"]


def test_line_says_the_same(going_on: Path) -> None:
    """In one line: status, step, speed and the last values."""
    line = render_line(open_run(going_on))
    assert line == "running  step 200 of 1,000, epoch 1  10 steps/s  train_loss 0.005  val_accuracy 0.5"


@pytest.mark.parametrize("width", [50, 80])
def test_picture_fits_its_width(going_on: Path, width: int) -> None:
    """No line is wider than asked for."""
    picture = render_picture(open_run(going_on), now=1203.0, width=width)
    assert max(map(len, picture.plain.splitlines())) <= width


def test_run_without_rows_has_a_picture(tmp_path: Path) -> None:
    """A run that has just begun shows what there is, and when there will be more."""
    with RunLock(tmp_path):
        EventWriter(tmp_path / event_file_name(0), ManualClock(1000.0)).close()
        run = open_run(tmp_path)
        assert speed_of(run) is None
        picture = render_picture(run, now=1001.0, width=80).plain
    assert "running" in picture
    assert "step 0" in picture
    assert "shown after about a second of steps" in picture


def test_run_that_starts_over_has_a_picture(tmp_path: Path) -> None:
    """A leg from step 0 drops all metrics; until there are new ones, none is shown."""
    with RunLock(tmp_path):
        events = EventWriter(tmp_path / event_file_name(0), ManualClock(1000.0))
        for mode in ("train", "val", "time"):
            events.write_metrics({"loss": 1.0, "accuracy": 0.5, "steps_per_second": 10.0}, 10, 1, mode)
        events.write("leg", leg=2, step=0, epoch=0)
        events.close()
        run = open_run(tmp_path)
        assert list(find_series(run)) == []
        assert render_line(run) == "running  step 0"
        assert "step 0" in render_picture(run, now=1001.0, width=80).plain


def test_callbacks_count_once(tmp_path: Path) -> None:
    """Rows have the time of all callbacks and that of each; together they are one part here."""
    events = EventWriter(tmp_path / event_file_name(0))
    for step in (1, 2):
        values = {"device_wait_ms": 5.0, "callbacks_ms": 5.0, "callback/A_ms": 2.0, "callback/B_ms": 3.0}
        events.write_metrics(values, step, 1, "time")
    events.close()
    ledger = recent_ledger(open_run(tmp_path))
    assert ledger is not None
    assert ledger.share("callback/callbacks") == pytest.approx(0.5)
