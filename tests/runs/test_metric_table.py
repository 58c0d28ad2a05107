"""Metrics as columns: one curve per mode, whatever was written."""

import math
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs.written import WrittenRun
from trackside.runs import event_file, metric_store, open_run


def test_columns_by_mode(tmp_path: Path) -> None:
    """Each mode is a table with steps, epochs, times and columns of float64."""
    WrittenRun(tmp_path).metrics(10, "train", 1, loss=1, lr=0.5).metrics(20, "train", 2, loss=3).metrics(
        20, "val", 2, a=7
    )
    metrics = open_run(tmp_path).metrics
    assert list(metrics) == ["train", "val"]
    train = metrics["train"]
    assert (train.step.tolist(), train.epoch.tolist(), train.t.tolist()) == ([10, 20], [1, 2], [1001.0, 1002.0])
    assert train.names == ["loss", "lr"]
    assert train["loss"].dtype == np.float64
    assert train["loss"].tolist() == [1.0, 3.0]
    assert len(train) == 2
    assert "lr" in train
    assert "a" not in train


def test_value_that_a_row_does_not_have(tmp_path: Path) -> None:
    """NaN stands where a row has no such value, before a metric first came and after."""
    WrittenRun(tmp_path).metrics(1, a=1.0).metrics(2, b=2.0).metrics(3, a=3.0, b=4.0)
    table = open_run(tmp_path).metrics["train"]
    np.testing.assert_equal(table["a"], [1.0, math.nan, 3.0])
    np.testing.assert_equal(table["b"], [math.nan, 2.0, 4.0])


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """NaN and the infinities come back, in the first rows and in those decoded in bulk."""
    written = WrittenRun(tmp_path)
    for step in range(1, 5):
        written.metrics(step, loss=(math.nan, math.inf, -math.inf, 0.0)[step % 4])
        written.write("checkpoint", step=step, path="x")  # ends a piece
    np.testing.assert_equal(open_run(tmp_path).metrics["train"]["loss"], [math.inf, -math.inf, 0.0, math.nan])


def test_no_such_metric(tmp_path: Path) -> None:
    """The error names what there is."""
    WrittenRun(tmp_path).metrics(1, loss=1.0)
    with pytest.raises(KeyError, match=r"no metric 'lost'; there are 'loss'\. Did you mean 'loss'\?"):
        open_run(tmp_path).metrics["train"]["lost"]


def test_no_such_mode(tmp_path: Path) -> None:
    """The error names those that there are, or the mode that has a metric of the name."""
    WrittenRun(tmp_path).metrics(1, loss=1.0)
    metrics = open_run(tmp_path).metrics
    with pytest.raises(KeyError, match=r"no mode 'tarin'; there are 'train'\. Did you mean 'train'\?"):
        metrics["tarin"]
    with pytest.raises(KeyError, match=r"no mode 'loss'; .*write metrics\['train'\]\['loss'\]"):
        metrics["loss"]
    assert metrics.get("val") is None


def test_rows_of_one_step_are_one(tmp_path: Path) -> None:
    """Of several values at a step the last counts, also if it is NaN; what a later row does not have stays."""
    written = WrittenRun(tmp_path).metrics(1, loss=1.0).metrics(2, loss=2.0, grad=5.0).metrics(2, lr=0.1)
    written.metrics(2, loss=math.nan).metrics(3, loss=3.0)
    table = open_run(tmp_path).metrics["train"]
    assert table.step.tolist() == [1, 2, 3]
    np.testing.assert_equal(table["loss"], [1.0, math.nan, 3.0])
    np.testing.assert_equal(table["grad"], [math.nan, 5.0, math.nan])
    np.testing.assert_equal(table["lr"], [math.nan, 0.1, math.nan])
    assert table.t.tolist() == [1001.0, 1004.0, 1005.0]


def test_steps_that_were_lost_are_left_out(tmp_path: Path) -> None:
    """Rows after the step from which the next leg went on are dropped, in every mode."""
    written = WrittenRun(tmp_path).leg(1)
    for step in (10, 20, 30, 40):
        written.metrics(step, loss=float(step)).metrics(step, "val", loss=float(step))
    written.leg(2, step=20).metrics(35, loss=-35.0)
    metrics = open_run(tmp_path).metrics
    assert metrics["train"].step.tolist() == [10, 20, 35]
    assert metrics["train"]["loss"].tolist() == [10.0, 20.0, -35.0]
    assert metrics["val"].step.tolist() == [10, 20]


def test_names_are_any_text(tmp_path: Path) -> None:
    """Names that are no identifiers, or those of the row's own fields, are names."""
    values = {
        "a/b c": 1.0,
        "step": 2.0,
        "mode": 3.0,
        "t": 4.0,
        '"': 5.0,
        "ü": 6.0,
        "": 7.0,
        "value_0": 8.0,
        "class": 9.0,
    }
    written = WrittenRun(tmp_path)
    for step in (1, 2, 3):
        written.events.write_metrics(values, step, 1, "train")
        written.write("checkpoint", step=step, path="x")  # ends a piece: the rows after it are decoded in bulk
    table = open_run(tmp_path).metrics["train"]
    assert {name: table[name].tolist() for name in table} == {name: 3 * [value] for name, value in values.items()}


def test_many_rows_and_late_names(tmp_path: Path) -> None:
    """Rows beyond one block, with a metric that comes late and rows of another mode between, are all there."""
    written = WrittenRun(tmp_path)
    for step in range(1, 40_001):
        late = {"late": 2.0 * step} if step > 30_000 else {}
        written.events.write_metrics({"loss": 1.0 * step, **late}, step, 1, "train")
        if step % 100 == 0:
            written.events.write_metrics({"data_wait_ms": 1.0}, step, 1, "time")
    metrics = open_run(tmp_path).metrics
    assert len(metrics["time"]) == 400
    train = metrics["train"]
    np.testing.assert_array_equal(train.step, np.arange(1, 40_001))
    np.testing.assert_array_equal(train["loss"], train.step)
    np.testing.assert_array_equal(train["late"], np.where(train.step > 30_000, 2.0 * train.step, np.nan))


@pytest.mark.parametrize("block_bytes", [1 << 9, 1 << 12, 1 << 20])
def test_packed_rows_in_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Blocks of packed rows alone, and those with a leg, another mode or damage among them, give the same columns."""
    monkeypatch.setattr(event_file, "BLOCK_BYTES", block_bytes)
    written = WrittenRun(tmp_path).with_config_file()
    for step in range(1, 2001):
        loss = math.nan if step == 1234 else 1.0 * step
        written.metrics(step, loss=loss, lr=0.5)
        if step == 1500:
            written.leg(2, step=1400)
        if step % 400 == 0:
            written.metrics(step, mode="val", loss=2.0 * step)
        if step == 1700:
            written.append(b'{"kind":"packed_metrics","t":1.0,"step":1,"epoch":1,"mode":"train","names":"x","da\n')
    run = open_run(tmp_path)
    kept = [*range(1, 1401), *range(1501, 2001)]
    train = run.metrics["train"]
    assert train.step.tolist() == kept
    np.testing.assert_equal(train["loss"], [math.nan if step == 1234 else step for step in kept])
    assert run.metrics["val"]["loss"].tolist() == [800.0, 1600.0, 2400.0, 3200.0, 4000.0]
    assert run.problems == ["events-00000.jsonl: 1 torn or damaged line was skipped"]
    assert (run.started_at, run.ended_at) == (1000.0, written.clock.timestamp())


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["train", "val", "leg"]),
        st.integers(0, 8),
        st.dictionaries(st.sampled_from("abc"), st.floats(width=64), max_size=3),
    ),
    max_size=30,
)


def _new_name_per_row(num: int) -> Iterator[dict[str, float]]:
    return ({f"m{index}": 1.0} for index in range(num))


def _many_names_of_which_each_row_has_one(num: int) -> Iterator[dict[str, float]]:
    yield {f"m{index}": 0.5 for index in range(num)}
    yield from _new_name_per_row(num)


@settings(max_examples=120, deadline=None)
@given(rows=ROWS, is_sparse=st.booleans())
def test_any_rows_give_the_curve_that_they_describe(
    tmp_path_factory: pytest.TempPathFactory, rows: list, is_sparse: bool
) -> None:
    """For any order of rows and legs, held as a matrix or not, the columns are what a plain dict would hold."""
    written = WrittenRun(tmp_path_factory.mktemp("any"))
    expected: dict[str, dict[int, dict[str, float]]] = {}
    for kind, step, values in rows:
        if kind == "leg":
            written.leg(step=step)
            expected = {mode: {at: row for at, row in curve.items() if at <= step} for mode, curve in expected.items()}
        else:
            written.metrics(step, kind, **values)
            expected.setdefault(kind, {}).setdefault(step, {}).update(values)
    with pytest.MonkeyPatch.context() as patch:
        if is_sparse:
            patch.setattr(metric_store, "_SMALL_CELLS", 0)
            patch.setattr(metric_store, "_MIN_DENSITY", 1e9)
        metrics = open_run(written.folder).metrics
    for mode, curve in expected.items():
        steps = sorted(curve)
        assert metrics[mode].step.tolist() == steps
        for name in metrics[mode].names:
            np.testing.assert_equal(metrics[mode][name], [curve[step].get(name, math.nan) for step in steps])


@pytest.mark.parametrize("rows", [_new_name_per_row, _many_names_of_which_each_row_has_one], ids=["new", "few of many"])
def test_memory_grows_with_the_file_and_not_with_its_square(tmp_path: Path, rows: Callable) -> None:
    """Four times as many metrics, in a file four times as long, take about four times the memory, and little of it."""
    peaks = []
    for num in (1000, 4000):
        written = WrittenRun(tmp_path / str(num))
        for step, values in enumerate(rows(num)):
            written.events.write_metrics(values, step, 1, "train")
        tracemalloc.start()
        table = open_run(written.folder).metrics["train"]
        column = table["m7"]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(table.names) == num
        assert np.flatnonzero(np.isfinite(column)).tolist()[-1] == len(table) - num + 7
    assert peaks[1] < 8 * peaks[0]
    assert peaks[1] < 40e6


def test_data_frame(tmp_path: Path) -> None:
    """Where pandas is installed, a table is a frame with the step as its index."""
    pytest.importorskip("pandas")
    WrittenRun(tmp_path).metrics(10, loss=1.0, epoch=1.0).metrics(20, loss=2.0, epoch=1.0)
    frame = open_run(tmp_path).metrics["train"].to_pandas()
    assert frame.index.name == "step"
    assert frame.index.tolist() == [10, 20]
    assert list(frame.columns) == ["epoch", "t", "loss"]
    assert frame["loss"].tolist() == [1.0, 2.0]


def test_data_frame_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not, the error names the package and how to install it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    WrittenRun(tmp_path).metrics(10, loss=1.0)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs the package 'pandas'.*pip install"):
        open_run(tmp_path).metrics["train"].to_pandas()


def test_logged_nan_is_told_from_a_missing_value(tmp_path: Path) -> None:
    """A column is NaN in both cases; `present` has the rows in which the metric was logged."""
    run = WrittenRun(tmp_path).metrics(1, loss=1.0).metrics(2, loss=math.nan, lr=0.1).metrics(3, lr=0.1)
    run.events.close()
    table = open_run(tmp_path).metrics["train"]
    assert np.isnan(table["loss"]).tolist() == [False, True, True]
    assert table.present("loss").tolist() == [0, 1]
    assert table.present("lr").tolist() == [1, 2]
