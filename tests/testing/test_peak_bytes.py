from pathlib import Path

import pytest

from tests.compare.pairs import train
from tests.runs.written import WrittenRun
from trackside.errors import ConfigError
from trackside.runs import open_run
from trackside.testing import assert_peak_bytes
from trackside.trace import TraceReport

ARGUMENT_BYTES = 128 * 128 * 4


def test_peak_of_a_captured_function(captured: TraceReport):
    """Its arguments alone are beyond a small limit; the message says what holds the bytes."""
    assert_peak_bytes(captured, 100 * ARGUMENT_BYTES)
    with pytest.raises(AssertionError, match=r"at most 1 kB expected: .*arguments 65\.5 kB"):
        assert_peak_bytes(captured, 1000)


def test_peak_of_a_run(measured_run: Path):
    """The timeline of a run tells it; the message names the owners and the step."""
    live = max(
        sum(size for name, size in row["live"].items() if name != "num_arrays") for row in open_run(measured_run).memory
    )
    assert_peak_bytes(measured_run, live)
    with pytest.raises(AssertionError, match=r"at most 0 B expected: .*live arrays at step \d+: "):
        assert_peak_bytes(measured_run, 0)


def test_a_run_without_a_timeline_is_an_error(tmp_path: Path):
    """It says what to train with."""
    with pytest.raises(ConfigError, match="MemoryProfiler"):
        assert_peak_bytes(train(tmp_path / "run", num_steps=3), 1e9)


def test_a_negative_limit_is_refused(captured: TraceReport):
    """Bytes below zero are refused."""
    with pytest.raises(ConfigError, match="max_bytes"):
        assert_peak_bytes(captured, -1)


def test_peak_is_that_of_all_legs(tmp_path: Path):
    """A leg that ends below the peak of one before does not hide it."""
    written = WrittenRun(tmp_path)
    for step, peak in ((1, 5000), (2, 9000), (3, 2000)):
        written.write("memory", step=step, live={"params": 9}, memory={"gpu:0": {"peak_bytes_in_use": peak}})
    assert_peak_bytes(tmp_path, 9000)
    with pytest.raises(AssertionError, match=r"9 kB of memory at the peak, at most 8 kB expected: gpu:0"):
        assert_peak_bytes(tmp_path, 8000)


def test_rows_that_tell_nothing_are_an_error(tmp_path: Path):
    """Rows of memory without a figure do not pass for a run that needs none."""
    WrittenRun(tmp_path).write("memory", step=1)
    with pytest.raises(ConfigError, match="no rows of memory"):
        assert_peak_bytes(tmp_path, 1e9)
