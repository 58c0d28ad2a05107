import logging
import threading

import numpy as np
import pytest

from trackside.logger import FileLogger
from trackside.logger.worker import ThreadedToolRunner, ToolRunner, build_runner
from trackside.metric_columns import MetricColumns


@pytest.fixture
def blocking_tool(recording_tool):
    """A tool that waits in its first row until the test lets it go."""

    class Blocking(recording_tool):
        threaded = True

        def __init__(self):
            super().__init__()
            self.has_started = threading.Event()
            self.may_go_on = threading.Event()

        def log_metrics(self, metrics, step, epoch, mode):
            self.has_started.set()
            self.may_go_on.wait(300)
            super().log_metrics(metrics, step, epoch, mode)

    tool = Blocking()
    yield tool
    tool.may_go_on.set()


def log(runner, step):
    runner.call("log_metrics", {"loss": 1.0}, step, 1, "train")


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_tools_have_a_thread_unless_they_are_fast(recording_tool):
    """A tool is threaded unless it says otherwise; the other runs where it is called."""
    assert type(build_runner(recording_tool())) is ToolRunner

    class Slow(recording_tool):
        threaded = True

        def log_metrics(self, metrics, step, epoch, mode):
            self.thread = threading.current_thread()

    tool = Slow()
    runner = build_runner(tool)
    log(runner, 1)
    runner.finalize("success")
    assert tool.thread is not threading.current_thread()
    assert tool.thread.daemon
    assert not tool.thread.is_alive()


def test_calls_keep_their_order(blocking_tool):
    """Set-up comes first, then every call in turn, and finalize after all of them."""
    runner = ThreadedToolRunner(blocking_tool)
    for step in range(100):
        log(runner, step)
    blocking_tool.may_go_on.set()
    runner.finalize("success")
    methods = [method for method, _ in blocking_tool.calls]
    assert methods == ["setup", *["log_metrics"] * 100, "finalize"]
    assert [row[1] for row in blocking_tool.rows()] == list(range(100))


def test_the_caller_does_not_wait(blocking_tool):
    """A tool that is busy holds nobody up while there is room in its queue."""
    runner = ThreadedToolRunner(blocking_tool)
    for step in range(50):
        log(runner, step)
    assert blocking_tool.has_started.wait(300)
    assert blocking_tool.rows() == []
    blocking_tool.may_go_on.set()
    runner.finalize("success")
    assert len(blocking_tool.rows()) == 50


def test_rows_without_room_are_dropped_and_counted(blocking_tool, caplog):
    """A full queue is reported once, with the tool's name, and again in total at the end."""
    runner = ThreadedToolRunner(blocking_tool, max_queued=3, max_wait_s=0.0)
    log(runner, 0)
    assert blocking_tool.has_started.wait(300)
    for step in range(1, 11):
        log(runner, step)
    assert runner.num_dropped == 7
    blocking_tool.may_go_on.set()
    runner.finalize("success")
    assert [row[1] for row in blocking_tool.rows()] == [0, 1, 2, 3]
    too_slow, total = errors(caplog)
    assert "Blocking is too slow" in too_slow
    assert "7 rows" in total


def test_a_full_queue_is_waited_for_within_limits(blocking_tool, clock):
    """There is patience for a while; once it is used up, there is none."""
    runner = ThreadedToolRunner(blocking_tool, max_queued=1, max_wait_s=0.01, clock=clock)
    log(runner, 0)
    assert blocking_tool.has_started.wait(300)
    log(runner, 1)
    log(runner, 2)
    assert runner.num_dropped == 1
    blocking_tool.may_go_on.set()
    runner.finalize("success")


def test_room_that_comes_in_time_saves_the_row(blocking_tool):
    """Whoever waits for room gets it."""
    runner = ThreadedToolRunner(blocking_tool, max_queued=1, max_wait_s=300.0)
    log(runner, 0)
    assert blocking_tool.has_started.wait(300)
    log(runner, 1)
    waiting = threading.Thread(target=log, args=(runner, 2))
    waiting.start()
    blocking_tool.may_go_on.set()
    waiting.join(300)
    runner.finalize("success")
    assert [row[1] for row in blocking_tool.rows()] == [0, 1, 2]
    assert runner.num_dropped == 0


def test_flush_waits_for_what_was_logged(recording_tool):
    """After flush, the tool has had every row and was told to flush."""

    class Slow(recording_tool):
        threaded = True

    tool = Slow()
    runner = build_runner(tool)
    for step in range(20):
        log(runner, step)
    runner.flush()
    assert len(tool.rows()) == 20
    assert tool.calls[-1] == ("flush", ())
    runner.finalize("success")


def test_flush_and_finalize_give_up_on_a_tool_that_hangs(blocking_tool, caplog):
    """Both say so, by the tool's name, and return."""
    blocking_tool.finalize_timeout_s = 0.01
    runner = ThreadedToolRunner(blocking_tool, flush_timeout_s=0.01)
    log(runner, 0)
    assert blocking_tool.has_started.wait(300)
    runner.flush()
    runner.finalize("success")
    flushing, finishing = errors(caplog)
    assert "Blocking had not flushed" in flushing
    assert "Blocking did not finish" in finishing


@pytest.mark.parametrize("threaded", [False, True])
def test_a_failing_tool_is_reported_once_and_tried_again(recording_tool, caplog, threaded):
    """The report names tool, call and cause; what works later is logged."""

    class Flaky(recording_tool):
        def log_metrics(self, metrics, step, epoch, mode):
            if step < 3:
                raise ConnectionError("server is down")
            super().log_metrics(metrics, step, epoch, mode)

    Flaky.threaded = threaded
    tool = Flaky()
    runner = build_runner(tool)
    for step in range(5):
        log(runner, step)
    runner.finalize("success")
    assert [row[1] for row in tool.rows()] == [3, 4]
    (report,) = errors(caplog)
    assert "Flaky failed in log_metrics: ConnectionError: server is down" in report
    assert runner.num_failed == 3


@pytest.mark.parametrize("threaded", [False, True])
def test_a_tool_that_cannot_be_set_up_gets_no_calls(recording_tool, caplog, threaded):
    """It is reported once, and then left alone, to the end."""

    class Unreachable(recording_tool):
        def setup(self):
            raise TimeoutError("no network")

    Unreachable.threaded = threaded
    tool = Unreachable()
    runner = build_runner(tool)
    log(runner, 1)
    log(runner, 2)
    runner.finalize("success")
    assert tool.calls == []
    (report,) = errors(caplog)
    assert "Unreachable failed in setup: TimeoutError: no network" in report


def test_a_tool_that_fails_at_the_end_is_reported(recording_tool, caplog):
    """Finalize is guarded as well."""

    class Sticky(recording_tool):
        def finalize(self, status):
            raise OSError("disk full")

    build_runner(Sticky()).finalize("success")
    (report,) = errors(caplog)
    assert "Sticky failed in finalize: OSError: disk full" in report


def test_what_is_queued_does_not_change(make_logger, blocking_tool):
    """Metrics and arrays changed after the call reach the tool as they were."""
    logger = make_logger(tools=[lambda: blocking_tool])
    logger.log_host_metrics({"loss": 0.0}, step=0)
    assert blocking_tool.has_started.wait(300)
    metrics, values = {"loss": 1.0}, np.array([1.0, 2.0])
    logger.log_row(metrics, step=1)
    logger.log_histogram("weights", values, step=1)
    metrics["loss"], values[:] = 9.0, 9.0
    blocking_tool.may_go_on.set()
    logger.flush()
    assert blocking_tool.rows()[1][0]["loss"] == 1.0
    assert blocking_tool.shown("log_histogram")[0][1].tolist() == [1.0, 2.0]


def test_one_failing_tool_does_not_take_rows_from_another(make_logger, recording_tool):
    """Each tool stands alone."""

    class Broken(recording_tool):
        def log_metrics(self, metrics, step, epoch, mode):
            raise RuntimeError("broken")

    logger = make_logger(tools=[Broken, recording_tool])
    for step in range(3):
        logger.log_row({"loss": 1.0}, step=step)
    assert len(logger.tools[1].rows()) == 3


def test_a_tool_that_is_behind_says_so_when_it_is_closed(blocking_tool):
    """How many calls it still had to do, how many it never got, and how long closing took."""
    reports = []
    runner = ThreadedToolRunner(blocking_tool, max_queued=3, max_wait_s=0.0)
    runner.on_closed = reports.append
    log(runner, 1)
    assert blocking_tool.has_started.wait(300)
    for step in range(2, 7):
        log(runner, step)
    threading.Timer(0.05, blocking_tool.may_go_on.set).start()
    runner.finalize("success")
    assert [(one["num_waiting"], one["num_dropped"]) for one in reports] == [(3, 2)]
    assert reports[0]["tool"] == "Blocking"
    assert reports[0]["closing_s"] > 0


def test_a_tool_that_keeps_up_says_nothing(recording_tool):
    """There is nothing to say about it."""
    reports = []
    runner = ThreadedToolRunner(recording_tool())
    runner.on_closed = reports.append
    log(runner, 1)
    runner.flush()
    runner.finalize("success")
    assert reports == []


ROWS = [({"loss": float(step)}, step, 1) for step in range(4)]
COLUMNS = MetricColumns(("loss",), [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], [1] * 4)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_row_that_fails_costs_none_of_those_logged_with_it(recording_tool, threaded):
    """Several rows at once reach a tool that takes one at a time one by one: it loses those that it cannot take."""

    class Picky(recording_tool):
        def log_metrics(self, metrics, step, epoch, mode):
            if step == 1:
                raise RuntimeError("not this one")
            super().log_metrics(metrics, step, epoch, mode)

    Picky.threaded = threaded
    runner = build_runner(Picky())
    runner.call_with_rows(ROWS, "train")
    runner.finalize("success")
    assert [row[1] for row in runner.tool.rows()] == [0, 2, 3]
    assert runner.num_failed == 1


@pytest.mark.parametrize("threaded", [False, True])
def test_a_tool_may_take_several_rows_at_once(recording_tool, threaded):
    """A tool that says how it logs several rows gets them in one call."""
    taken = []

    class Fast(recording_tool):
        def log_metrics_rows(self, rows, mode):
            taken.append((rows, mode))

    Fast.threaded = threaded
    runner = build_runner(Fast())
    runner.call_with_rows(ROWS, "train")
    runner.finalize("success")
    assert taken == [(ROWS, "train")]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("takes", ["rows", "columns"])
def test_rows_by_column_reach_every_tool(recording_tool, threaded, takes):
    """A tool that knows how to log columns gets them; another gets rows, at once or one by one."""
    taken = []

    class Fast(recording_tool):
        def log_metrics_rows(self, rows, mode):
            taken.append((rows, mode))

    class Faster(Fast):
        def log_metrics_columns(self, columns, mode):
            taken.append((columns, mode))

    tools = [recording_tool(), (Fast if takes == "rows" else Faster)()]
    for tool in tools:
        type(tool).threaded = threaded
        runner = build_runner(tool)
        runner.call_with_columns(COLUMNS, "train")
        runner.finalize("success")
    assert tools[0].rows() == [(*row, "train") for row in ROWS]
    assert taken == [(ROWS if takes == "rows" else COLUMNS, "train")]


@pytest.mark.parametrize("method", ["log_metrics", "log_metrics_rows"])
def test_a_tool_that_changes_another_is_heard(tmp_path, method):
    """Who inherits from a tool and says how it logs fewer rows at once means all of them."""
    heard = []

    class Own(FileLogger):
        pass

    setattr(Own, method, lambda self, *args: heard.append(args))
    runner = build_runner(Own(tmp_path))
    runner.call_with_columns(COLUMNS, "train")
    runner.finalize("success")
    assert heard == ([(*row, "train") for row in ROWS] if method == "log_metrics" else [(ROWS, "train")])


def test_several_rows_need_room_for_several(blocking_tool, caplog):
    """Rows that are logged together count one by one: in the queue's limit, and among those that were dropped."""
    runner = ThreadedToolRunner(blocking_tool, max_queued=6, max_wait_s=0.0)
    log(runner, 0)
    assert blocking_tool.has_started.wait(300)
    for _ in range(2):  # there is room for more after the first four, and not after eight
        runner.call_with_rows(ROWS, "train")
        runner.call_with_columns(COLUMNS, "train")
    assert runner.num_dropped == 8
    blocking_tool.may_go_on.set()
    runner.finalize("success")
    assert [row[1] for row in blocking_tool.rows()] == [0, *range(4), *range(4)]
    assert "8 rows" in errors(caplog)[-1]
