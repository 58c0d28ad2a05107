"""Achieved FLOP/s: the program's FLOPs over the time of their scope."""

import dataclasses

import pytest

from tests.trace.test_analyse import NS, cpu_space
from trackside.trace import analyse_trace
from trackside.trace.flops import FlopRow, FlopTable
from trackside.trace.rates import achieved_rates, rate_under, step_rate
from trackside.trace.trace_report import TraceReport

DENSE = ("loss", "Net", "Dense_0")
FLOPS = FlopTable(
    rows=(FlopRow(DENSE, "forward", 500, 0), FlopRow(DENSE, "backward", 1400, 0), FlopRow(("head",), "forward", 3, 0)),
    flops_by_dtype={"float32": 1903},
    uncounted={},
    num_while_loops=0,
    num_conditionals=0,
)


@pytest.fixture(scope="module")
def report() -> TraceReport:
    """Per step: 50 ns forward and 70 ns backward in the layer, 10 ns of an update."""
    return dataclasses.replace(analyse_trace(cpu_space()), flops=FLOPS)


def test_rates_by_scope_and_phase(report: TraceReport) -> None:
    """FLOPs of a step over the scope's time in a step; a scope that the trace does not know has no rate."""
    rates = {(row.scope, row.phase): row.flops_per_s for row in achieved_rates(report)}
    assert rates == {
        ("loss/Net/Dense_0", "forward"): pytest.approx(500 / (50 * NS)),
        ("loss/Net/Dense_0", "backward"): pytest.approx(1400 / (70 * NS)),
        ("head", "forward"): None,
    }


def test_rate_of_a_scope_with_all_under_it(report: TraceReport) -> None:
    """A row that stands for a scope and all under it has all their FLOPs; a scope without any has no rate."""
    share = 120 / 130
    assert rate_under(report, "loss", share) == pytest.approx(1900 / (120 * NS))
    assert rate_under(report, "loss/.", share) is None
    assert rate_under(report, "update", 10 / 130) is None


def test_scope_without_time_has_no_rate(report: TraceReport) -> None:
    """FLOPs that were fused into another scope do not show as an absurd rate."""
    assert rate_under(report, "head", 0.001) is None


def test_rate_of_the_step(report: TraceReport) -> None:
    """All FLOPs over the step time, which is among the scalars, too."""
    assert step_rate(report) == pytest.approx(1903 / (200 * NS))
    assert report.scalars()["gflops_per_second"] == pytest.approx(1.903 / (200 * NS) / 1e6)


def test_without_flops_there_are_no_rates() -> None:
    """A trace alone does not tell FLOPs: nothing is shown, rather than zero."""
    report = analyse_trace(cpu_space())
    assert (achieved_rates(report), step_rate(report)) == ([], None)
    assert "gflops_per_second" not in report.scalars()
