"""The report as an object: figures, plain values, what is left out."""

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.trace.synthetic import fused_chain
from tests.trace.test_analyse import COSTS, NS, cpu_space, fused_space, gpu_space
from trackside.errors import TraceError
from trackside.trace import TraceReport, analyse_trace, step_markers
from trackside.trace.flop_table import FlopRow, FlopTable
from trackside.trace.flops import count_flops
from trackside.trace.peak_memory import LiveRow, PeakMemory


@pytest.fixture(scope="module")
def report() -> TraceReport:
    return analyse_trace(cpu_space())


@pytest.fixture(params=[cpu_space, gpu_space, lambda: fused_space(fused_chain(COSTS))], ids=["cpu", "gpu", "fused"])
def full_report(request) -> TraceReport:
    """A report with everything that may be added to one."""
    flops = FlopTable((FlopRow(("loss", "net"), "forward", 12, 3),), {"float32": 12}, {"fft": 2}, 1, 1)
    memory = PeakMemory(1, 2, 3, 4, 5, 6, "dot.1", ("loss",), "forward", (LiveRow(("loss",), "forward", 6, 1),), ("x",))
    return dataclasses.replace(analyse_trace(request.param()), flops=flops, peak_memory=memory)


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


def test_a_report_read_back_is_what_was_written(full_report):
    """Plain values, through JSON, give the same report again, with every table and figure."""
    plain = json.loads(json.dumps(full_report.to_dict()))
    again = TraceReport.from_dict(plain)
    assert again == full_report
    assert again.to_dict() == full_report.to_dict()
    assert again.modules == {}


def test_every_field_of_an_older_report_may_be_missing(full_report):
    """Whatever single field an earlier version did not write, the others are read, and it has its default."""
    plain = json.loads(json.dumps(full_report.to_dict()))
    for path in _paths(plain):
        shortened = copy.deepcopy(plain)
        _remove(shortened, path)
        if path[0] == "runs" and len(path) == 2 and path[1] != "coverage":
            continue  # columns of unequal length are damage, not an older format
        again = TraceReport.from_dict(shortened)
        assert again.to_dict().keys() == plain.keys(), path
    assert TraceReport.from_dict({}) == TraceReport()


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([1], "got list"),
        ({"format": "trackside.trace/2"}, "newer trackside"),
        ({"scopes": 3}, "scopes"),
        ({"scopes": {"rows": [{"busy_s": "long"}]}}, r"scopes\.rows\[0\]\.busy_s"),
        ({"runs": {"step": [1]}}, "step"),
        ({"runs": {"step": "all"}}, "runs"),
        ({"runs": {"program": ["p"], "device": ["d"], "run_id": [1], "step": [1e308]}}, "step"),
        ({"format": [[3]]}, "a list"),
        ({"runs": {"program": ["p"], "device": ["d"], "run_id": [1 << 80]}}, "report"),
    ],
)
def test_what_is_no_report_is_refused(plain, message):
    """Values of another kind, format or type are a documented error that names the field."""
    with pytest.raises(TraceError, match=message):
        TraceReport.from_dict(plain)


def _paths(plain: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where each key is; of a list, in its first entry."""
    if isinstance(plain, dict):
        for name, value in plain.items():
            yield (*path, name)
            yield from _paths(value, (*path, name))
    elif isinstance(plain, list) and plain:
        yield from _paths(plain[0], (*path, 0))


def _remove(plain: Any, path: tuple) -> None:
    for name in path[:-1]:
        plain = plain[name]
    del plain[path[-1]]


def test_step_markers(report):
    """The markers are at hand by a function, too."""
    assert [marker.step for marker in step_markers(report)] == [30, 31]
