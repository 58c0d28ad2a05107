import numpy as np
import pytest

from tests.decoding.problem import JaxProblem
from trackside.decoding import mse_loss, train_decoding_jax
from trackside.errors import DataError


def train(**changes):
    train_decoding_jax(**{"loss_fn": mse_loss, "enable_profiling": True} | JaxProblem().arguments | changes)


def test_a_training_step_contains_the_call(fresh_profiler):
    """The host's time for a step is more than that of the call in it."""
    train()
    summary = fresh_profiler.get_summary()
    step, call = summary["training_step"], summary["make_step_total_dispatch"]
    assert step["count"] == call["count"] == 12
    assert step["total_time"] > step["exclusive_time"] >= 0


def test_an_error_leaves_no_step_open(fresh_profiler):
    """What is timed afterwards is not part of a step that never ended."""

    def broken():
        yield JaxProblem().arguments["train_loader"][0]
        yield np.zeros((4, 3)), np.zeros((5, 2))

    with pytest.raises(DataError):
        train(train_loader=broken())
    with fresh_profiler.time("afterwards"):
        pass
    assert fresh_profiler.get_summary()["training_step"]["count"] == 1
