from pathlib import Path

import pytest

from tests.compare.pairs import train
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
