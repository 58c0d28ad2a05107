"""The icicle of scopes: parts sum to the whole, phases have their colours, small scopes are drawn as one."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from trackside.report.html.scope_tree import scope_chart
from trackside.trace import TraceReport
from trackside.trace.flop_table import FlopRow, FlopTable
from trackside.trace.tables import DeviceRow, ScopeRow, Table

ROWS = [
    ("loss/Net/Dense_0", "forward", 0.2),
    ("loss/Net/Dense_0", "backward", 0.4),
    ("loss/Net", "forward", 0.1),
    ("update", "optimizer", 0.2),
    ("(no scope)", "other", 0.1),
]


def report_of(rows: list[tuple[str, str, float]], flops: list[FlopRow] | None = None) -> TraceReport:
    """A report of ten steps on one device."""
    return TraceReport(
        num_steps=10,
        devices=(DeviceRow("cpu:0", window_s=2.0),),
        scopes=Table(tuple(ScopeRow(scope, phase, busy_s) for scope, phase, busy_s in rows)),
        flops=FlopTable(tuple(flops)) if flops else None,
    )


def drawn(report: TraceReport) -> dict[str, Any]:
    return scope_chart(report, "c").traces[0]


def colour_of(trace: dict[str, Any], name: str) -> str:
    return trace["marker"]["colors"][trace["labels"].index(name)]


def hover_of(trace: dict[str, Any], name: str) -> str:
    return trace["customdata"][trace["labels"].index(name)]


def test_what_lies_under_a_scope_sums_to_it() -> None:
    """Every scope that is opened is exactly filled, as plotly demands of totals."""
    trace = drawn(report_of(ROWS))
    filled: Counter[str] = Counter()
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        filled[parent] += value
    values = dict(zip(trace["ids"], trace["values"], strict=True))
    assert {parent: filled[parent] for parent in filled if parent} == pytest.approx(
        {parent: values[parent] for parent in filled if parent}
    )
    assert trace["parents"].count("") == 1


def test_phases_have_their_colours() -> None:
    """A scope of one phase has its colour; one of several is neutral, with its phases inside."""
    trace = drawn(report_of(ROWS))
    assert colour_of(trace, "update") == "--phase-optimizer"
    assert colour_of(trace, "Dense_0") == "--tree-scope"
    dense = trace["ids"][trace["labels"].index("Dense_0")]
    inside = [label for label, parent in zip(trace["labels"], trace["parents"], strict=True) if parent == dense]
    assert inside == ["forward", "backward"]


def test_own_time_of_a_scope_is_drawn_beside_what_lies_under_it() -> None:
    """Time in a scope itself is told as such."""
    trace = drawn(report_of(ROWS))
    own = [hover for hover in trace["customdata"] if "(itself)" in hover]
    assert [hover.split("<br>")[0] for hover in own] == ["loss/Net, forward (itself)"]
    assert own[0].endswith("10 ms per step")


def test_hover_tells_time_and_rate() -> None:
    """Where FLOPs are known, a scope tells what it achieved; without them it does not."""
    flops = [FlopRow(("loss", "Net", "Dense_0"), "backward", 4_000_000)]
    assert hover_of(drawn(report_of(ROWS, flops)), "backward").endswith("40 ms per step<br>100 MFLOP/s")
    assert hover_of(drawn(report_of(ROWS, flops)), "Dense_0").endswith("60 ms per step<br>66.7 MFLOP/s")
    assert "FLOP/s" not in hover_of(drawn(report_of(ROWS)), "backward")


def test_flops_of_a_scope_without_time_do_no_harm() -> None:
    """Work that was fused into another scope counts for those above it only."""
    flops = [FlopRow(("loss", "Net", "gone"), "forward", 7_000_000)]
    trace = drawn(report_of(ROWS, flops))
    assert "gone" not in trace["labels"]
    assert hover_of(trace, "Net").endswith("100 MFLOP/s")


def test_thousands_of_scopes_are_few_shapes() -> None:
    """The smallest scopes beside each other become one, and nothing is lost of the whole."""
    rows = [(f"loss/layer_{index}/sub_{part}", "forward", 1e-4) for index in range(1000) for part in range(5)]
    trace = drawn(report_of([*rows, ("loss/big", "backward", 0.5)]))
    assert len(trace["labels"]) < 20
    assert "(1000 more)" in trace["labels"]
    assert sum(value for value, parent in zip(trace["values"], trace["parents"], strict=True) if parent == "1") == (
        pytest.approx(1e6)
    )


def test_hover_tells_what_is_estimated() -> None:
    """A scope tells how much of its time is its part of kernels over several scopes; others do not mention it."""
    rows = (ScopeRow("net/a", "forward", 0.3, estimated_s=0.15), ScopeRow("net/b", "forward", 0.3))
    trace = drawn(replace(report_of(ROWS), scopes=Table(rows)))
    assert "50 % of it split by estimate" in hover_of(trace, "a")
    assert "25 % of it split by estimate" in hover_of(trace, "net")
    assert "estimate" not in hover_of(trace, "b")
