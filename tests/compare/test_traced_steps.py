import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.compare.pairs import NUM_STEPS
from trackside.compare.traced_steps import plain_name, read_traced_steps, traced_steps_from_report
from trackside.runs import open_run
from trackside.trace import TraceError, TraceReport, analyse_trace


def test_steps_add_up_to_the_tables(step_capture: Path) -> None:
    """The device time of scopes in single steps sums up to what the report says of the whole window."""
    traced, report = read_traced_steps(step_capture), analyse_trace(step_capture)
    for row in report.scopes:
        samples = traced.scopes[row.scope, row.phase].samples
        assert samples is not None
        assert len(samples) == NUM_STEPS
        np.testing.assert_allclose(samples.sum(), row.busy_s, rtol=1e-6)


def test_operations_add_up_to_scopes(step_capture: Path) -> None:
    """All operations take as long as all scopes: a kernel that computes for several is split among them."""
    traced = read_traced_steps(step_capture)
    per_scope = sum(per_step.mean_s for per_step in traced.scopes.values())
    assert sum(per_step.mean_s for per_step in traced.ops.values()) == pytest.approx(per_scope)


def test_a_window_has_times_between_steps(step_capture: Path) -> None:
    """Step times are from each start to the next."""
    traced = read_traced_steps(step_capture)
    assert len(traced.step_s) == NUM_STEPS - 1
    assert (traced.step_s > 0).all()


def test_the_tables_of_a_run_say_the_same_without_the_trace(measured_run: Path) -> None:
    """The tables that a run kept of a capture give the same means by scope, without single steps."""
    capture = open_run(measured_run).captures[-1]
    assert capture.report is not None
    kept = traced_steps_from_report(capture.report, capture.path)
    read = read_traced_steps(capture.path, program=capture.report.step_program, marked_only=True)
    assert kept is not None
    assert kept.scopes.keys() == read.scopes.keys()
    for key, per_step in kept.scopes.items():
        assert per_step.samples is None
        assert per_step.mean_s == pytest.approx(read.scopes[key].mean_s)
    np.testing.assert_allclose(kept.step_s, read.step_s)


def test_tables_without_steps_cannot_be_compared() -> None:
    """A window in which no execution was recognised has no time per step."""
    assert traced_steps_from_report(TraceReport(), "gone") is None


def test_a_torn_trace_is_an_error(step_capture: Path, tmp_path: Path) -> None:
    """A file that was cut off is named, whatever part of it is missing."""
    torn = tmp_path / "torn.xplane.pb"
    shutil.copy(next(step_capture.rglob("*.xplane.pb")), torn)
    content = torn.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    with pytest.raises(TraceError, match=r"torn\.xplane\.pb"):
        read_traced_steps(torn)


def test_numbers_of_operations_are_left_out() -> None:
    """The compiler numbers operations anew each time; the name stays."""
    assert plain_name("multiply_add_fusion.12") == "multiply_add_fusion"
    assert plain_name("dot.3.clone") == "dot"
    assert plain_name("tanh") == "tanh"
