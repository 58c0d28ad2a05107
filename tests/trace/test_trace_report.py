"""The report as an object: figures, plain values, what is left out."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from tests.trace.test_analyse import NS, cpu_space, gpu_space
from trackside.trace import TraceReport, analyse_trace, step_markers
from trackside.trace.flops import count_flops


@pytest.fixture(scope="module")
def report() -> TraceReport:
    return analyse_trace(cpu_space())


def test_scalars_are_per_step(report):
    """A logger gets milliseconds per step and device, and shares."""
    assert report.scalars() == pytest.approx(
        {
            "device_busy_share": 260 / 340,
            "coverage": 1.0,
            "scope_coverage": 1.0,
            "step_time_ms": 200 * NS * 1e3,
            "step_time_median_ms": 200 * NS * 1e3,
            "step_time_p95_ms": 200 * NS * 1e3,
            "forward_ms": 50 * NS * 1e3,
            "backward_ms": 70 * NS * 1e3,
            "optimizer_ms": 10 * NS * 1e3,
        }
    )


def test_collectives_are_a_scalar_where_there_are_any():
    """Time in collectives is logged only if there is some."""
    assert analyse_trace(gpu_space()).scalars()["collective_ms"] == pytest.approx(150 * NS * 1e3)


def test_phases_are_those_that_there_are(report):
    """A phase without operations is absent."""
    assert set(report.phases) == {"forward", "backward", "optimizer"}


def test_plain_values_hold_all_tables(report):
    """JSON has the version, every table with its coverage, and what is missing."""
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["format"] == "trackside.trace/1"
    for table in ("runs", "scopes", "ops", "categories", "sources", "collectives", "gaps"):
        assert plain[table]["coverage"]["busy_s"] == pytest.approx(260 * NS)
    assert plain["scopes"]["rows"][0]["scope"] == "loss/Net/Dense_0"
    assert plain["missing"] == []


def test_figures_can_be_added(report):
    """What other analyses find is added to a copy, and is part of its plain values."""
    with jax.numpy_dtype_promotion("standard"):
        flops = count_flops(lambda x: x @ x, jnp.ones((4, 4)))
    added = dataclasses.replace(report, flops=flops)
    assert json.loads(json.dumps(added.to_dict()))["flops"] is not None
    assert report.to_dict()["flops"] is None


def test_step_markers(report):
    """The markers are at hand by a function, too."""
    assert [marker.step for marker in step_markers(report)] == [30, 31]
