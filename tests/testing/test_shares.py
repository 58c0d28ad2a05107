from pathlib import Path

import pytest

from tests.compare.pairs import train
from tests.compare.written_runs import STEP_S, write_run
from trackside.errors import ConfigError
from trackside.runs import open_run
from trackside.testing import assert_idle_share, assert_scope_share
from trackside.trace import TraceReport


def test_idle_share_of_a_captured_function(captured: TraceReport):
    """Any device idles at most all of the time; none at all is never reached, and the message has the numbers."""
    assert_idle_share(captured, 1.0)
    with pytest.raises(AssertionError, match=r"the device was idle .* %.*, at most 0\.0 % expected: the largest gap"):
        assert_idle_share(captured, 0.0)


def test_idle_share_of_a_run(tmp_path: Path):
    """The ledger of a run tells it, by path or opened; the message has the share, the limit and what it waited for."""
    run = write_run(tmp_path / "run", STEP_S, num_steps=20)
    assert_idle_share(run, 0.3)
    with pytest.raises(AssertionError, match=r"was idle 25 % .*at most 20 % expected: .*waiting for data 25 %"):
        assert_idle_share(open_run(run), 0.2)


def test_scope_share_of_a_captured_function(captured: TraceReport):
    """The scope with the work in it is beyond a small limit; the message has the share, the limit and the scope."""
    assert_scope_share(captured, "heavy", 1.0)
    with pytest.raises(AssertionError, match=r"heavy took .* %.*, at most 1\.0 % expected: heavy \(other\)"):
        assert_scope_share(captured, "heavy", 0.01)


def test_scope_share_of_a_run(measured_run: Path):
    """A scope of the trainer may be named by its end, and in one phase."""
    assert_scope_share(measured_run, "Dense_0", 1.0)
    with pytest.raises(AssertionError, match=r"loss took .* of the device's busy time"):
        assert_scope_share(measured_run, "loss", 0.001, phase="backward")


def test_an_unknown_scope_is_an_error(captured: TraceReport):
    """A scope that is not there passes no test; those that there are, are listed."""
    with pytest.raises(ConfigError, match=r"there is no 'hevy'; scopes are .*heavy"):
        assert_scope_share(captured, "hevy", 0.5)
    with pytest.raises(ConfigError, match="in the phase 'backward'"):
        assert_scope_share(captured, "heavy", 0.5, phase="backward")


def test_part_of_a_name_is_no_scope(captured: TraceReport):
    """`heav` is not `heavy`."""
    with pytest.raises(ConfigError, match="there is no 'heav'"):
        assert_scope_share(captured, "heav", 0.5)


def test_a_run_without_a_capture_is_an_error(tmp_path: Path):
    """It says what to train with."""
    with pytest.raises(ConfigError, match="JaxProfilerConfig"):
        assert_scope_share(train(tmp_path / "run", num_steps=3), "loss", 0.5)


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_limits_are_shares(captured: TraceReport, limit: float):
    """A limit below 0 or above 1 is refused."""
    with pytest.raises(ConfigError, match="max_share: expected a number from 0 to 1"):
        assert_idle_share(captured, limit)
    with pytest.raises(ConfigError, match="max_share: expected a number from 0 to 1"):
        assert_scope_share(captured, "heavy", limit)
