"""When a device did nothing."""

import numpy as np
import pytest

from tests.trace.synthetic import PlaneWriter, cpu_op, space
from trackside.trace.gaps import BETWEEN, INSIDE, DeviceTime, HostActivity, find_gaps
from trackside.trace.overlap import Segments, share_wall
from trackside.trace.tables import Coverage
from trackside.trace.xspace import read_xspace

COVERAGE = Coverage(1.0, 1.0, 0.0, 1.0)


def host() -> PlaneWriter:
    plane = PlaneWriter("/host:CPU")
    plane.event("python", "train", 0, 1_000, step_num=1)
    plane.event("python", "loop", 0, 1_000)
    plane.event("python", "load_batch", 380, 250)
    cpu_op(plane, "python", "dot.1", 390, 240)
    plane.event("tf_XLAEigen/1", "ThunkExecutor::Execute", 390, 230)
    return plane


def device(*busy_ns: tuple[int, int], runs_ns: list[tuple[int, int]]) -> DeviceTime:
    start, end = 1_000 * np.array(busy_ns, np.int64).T
    timeline = share_wall(Segments(start, end, np.arange(len(start))))[1]
    run_start, run_end = 1_000 * np.array(runs_ns, np.int64).T
    return DeviceTime("CPU:0", 0, timeline, (int(run_start.min()), int(run_end.max())), run_start, run_end)


def test_gaps_between_and_inside_runs():
    """Idle time is told apart by whether an execution was going on, with number, total and largest."""
    one = device((0, 100), (150, 400), (600, 700), (720, 800), runs_ns=[(0, 400), (600, 800)])
    table = find_gaps([one], [read_xspace(space(host()))], COVERAGE)
    by_kind = {row.kind: (row.total_s, row.num_gaps, row.largest_s) for row in table.rows}
    assert by_kind[BETWEEN] == pytest.approx((200e-9, 1, 200e-9))
    assert by_kind[INSIDE] == pytest.approx((70e-9, 2, 50e-9))


def test_largest_gap_comes_first_with_what_the_host_did():
    """The innermost event of the host that fills a gap is named: no operation, no step marker, no runtime thread."""
    one = device((0, 100), (150, 400), (600, 700), runs_ns=[(0, 400), (600, 700)])
    first, second = find_gaps([one], [read_xspace(space(host()))], COVERAGE).largest
    assert (first.kind, first.duration_s, first.host_activity) == (BETWEEN, pytest.approx(200e-9), "load_batch")
    assert (second.kind, second.host_activity) == (INSIDE, "loop")


def test_nothing_outside_of_the_window():
    """Time before the first and after the last execution is no gap."""
    one = device((0, 100), (150, 400), (600, 700), runs_ns=[(150, 400)])
    assert sum(row.num_gaps for row in find_gaps([one], [read_xspace(space(host()))], COVERAGE).rows) == 0


def test_host_that_tells_nothing():
    """Where the trace has no event of the host, none is made up."""
    activity = HostActivity.of(read_xspace(space(PlaneWriter("/device:GPU:0"))))
    assert activity.during(0, 100) == ""
    assert HostActivity.of(read_xspace(space(host()))).during(5_000_000, 6_000_000) == ""
