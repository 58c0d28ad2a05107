from pathlib import Path

import pytest

from tests.compare.pairs import train
from trackside.errors import ConfigError
from trackside.runs import open_run
from trackside.testing import assert_run_compiled_once


def test_a_run_that_compiled_once_passes(tmp_path: Path):
    """Batches of one size compile the step once."""
    assert_run_compiled_once(train(tmp_path / "run", num_steps=3))


def test_a_recompile_is_named_with_the_argument(measured_run: Path):
    """The function, how often, the argument and what to do."""
    with pytest.raises(
        AssertionError, match=r"train_step was compiled 2 times .*\n.*batch\.inputs: shape \(8, 4\) -> "
    ):
        assert_run_compiled_once(open_run(measured_run))


def test_recompiles_can_be_allowed(measured_run: Path):
    """A known one is fine."""
    assert_run_compiled_once(measured_run, allow=1)


def test_only_the_functions_that_are_named_count(measured_run: Path):
    """Others may compile; one that was never compiled is an error, since such a test holds nothing."""
    with pytest.raises(AssertionError, match="train_step"):
        assert_run_compiled_once(measured_run, "train_step")
    with pytest.raises(ConfigError, match=r"train_stepp not compiled .*train_step"):
        assert_run_compiled_once(measured_run, "train_stepp")


def test_a_negative_allowance_is_refused(measured_run: Path):
    """It is named."""
    with pytest.raises(ConfigError, match=r"allow.*-1"):
        assert_run_compiled_once(measured_run, allow=-1)
