"""The scopes of a capture as a list."""

from tests.report.made_up import report_dict
from trackside.report.html.scope_list import scope_list
from trackside.trace.trace_report import TraceReport


def report_of(scopes: dict[str, float]) -> TraceReport:
    """A capture with these scopes, whose forward pass takes so long."""
    time = {"share": 0.0, "num_ops": 1}
    rows = [{"scope": scope, "phase": "forward", "busy_s": busy_s, **time} for scope, busy_s in scopes.items()]
    return TraceReport.from_dict({**report_dict("x"), "scopes": {"rows": rows}, "flops": None})


def test_scopes_are_indented_and_sorted() -> None:
    """The largest scope of each level comes first, what is in it is indented below it, with its share of all time."""
    text = str(scope_list(report_of({"net/b": 0.3, "net/a": 0.6, "update": 0.1})))
    names = [part.split("<")[0] for part in text.split('class="name">')[1:]]
    assert names == ["net", "a", "b", "update"]
    assert text.count('class="depth-1"') == 2
    assert "60 %" in text


def test_wrappers_share_a_line() -> None:
    """A scope with a single scope in it and no other time needs no line."""
    text = str(scope_list(report_of({"loss/model/conv": 0.9, "update": 0.1})))
    assert ">loss/model/conv<" in text


def test_tiny_scopes_are_left_out() -> None:
    """What takes less than half a percent has no line."""
    assert "tiny" not in str(scope_list(report_of({"net": 1.0, "tiny": 0.001})))
