import logging
import threading

import pytest

from trackside import profiling
from trackside.clock import ManualClock
from trackside.errors import ConfigError
from trackside.events import EventWriter, read_events
from trackside.logger import Logger, LoggerConfig
from trackside.profiling import (
    TrainingProfiler,
    get_profiler,
    log_profiling_metrics,
    profile_data_loader,
    profile_make_step,
)
from trackside.profiling.timers.call_durations import Call
from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.sampled_shares import MIN_SAMPLES, ShareSample

pytestmark = pytest.mark.usefixtures("no_compile_cache")


@pytest.fixture
def clock():
    return ManualClock(50.0)


@pytest.fixture
def profiler(clock):
    return TrainingProfiler(log_to_wandb=False, clock=clock)


@pytest.fixture
def own_profiler(monkeypatch):
    """A process-wide profiler that is not shared with other tests."""
    monkeypatch.setattr("trackside.profiling.timers.training_profiler._global", None)
    return get_profiler()


def spend(profiler, name, seconds):
    with profiler.time(name):
        profiler.clock.advance(seconds)


def test_the_defaults_are_those_of_the_guide():
    """It logs to W&B, every hundred steps, and is on."""
    profiler = TrainingProfiler()
    assert (profiler.log_to_wandb, profiler.log_every, profiler.enabled, profiler.sync) == (True, 100, True, False)


@pytest.mark.parametrize("log_every", [0, -2, 1.5, True, "often"])
def test_a_cadence_that_makes_no_sense_is_refused(log_every):
    """The error names the argument."""
    with pytest.raises(ConfigError, match="log_every"):
        TrainingProfiler(log_every=log_every)


def test_the_summary_has_what_is_documented(profiler):
    """Average, total and count, and the distribution."""
    for seconds in (1.0, 2.0, 6.0):
        spend(profiler, "load", seconds)
    profiler.clock.advance(9.0)
    summary = profiler.get_summary()["load"]
    assert (summary["avg_time"], summary["total_time"], summary["count"]) == (3.0, 9.0, 3)
    assert (summary["min_time"], summary["max_time"], summary["exclusive_time"]) == (1.0, 6.0, 9.0)
    assert [summary[key] for key in ("p50_time", "p95_time", "p99_time")] == pytest.approx([2.0, 6.0, 6.0], rel=0.004)
    assert summary["wall_share"] == 0.5


def test_what_was_started_and_not_ended_is_not_in_the_summary(profiler):
    """An operation is in it once it was measured."""
    profiler.start_timer("load")
    assert profiler.get_summary() == {}


def test_a_summary_does_not_wait_for_ever(profiler, monkeypatch):
    """A call whose arrays never come is left out, and everything else is reported."""

    class StuckArray:
        is_there = threading.Event()

        def block_until_ready(self):
            self.is_there.wait(300)

        def is_ready(self):
            return self.is_there.is_set()

    monkeypatch.setattr("trackside.profiling.timers.training_profiler.MAX_WAIT_S", 0.01)
    spend(profiler, "load", 1.0)
    profiler.completions.watch(Call(0.0, 0.0, [StuckArray()], profiler.operation("stuck").add_many))
    assert set(profiler.get_summary()) == {"load"}
    StuckArray.is_there.set()


def test_reset_starts_over(profiler):
    """Operations, steps and wall time."""
    spend(profiler, "load", 1.0)
    profiler.step()
    profiler.clock.advance(7.0)
    profiler.reset()
    assert (profiler.get_summary(), profiler.step_count) == ({}, 0)
    spend(profiler, "load", 2.0)
    assert profiler.get_summary()["load"]["wall_share"] == 1.0


def test_a_timer_that_is_open_at_a_reset_can_be_ended(profiler):
    """No error, and it is counted."""
    start = profiler.start_timer("load")
    profiler.reset()
    profiler.end_timer("load", start)
    assert profiler.get_summary()["load"]["count"] == 1


def test_the_console_output_is_that_of_the_guide(profiler, capsys):
    """To the letter."""
    for _ in range(100):
        spend(profiler, "data_batch_production", 0.0234)
        spend(profiler, "make_step_total", 0.0789)
    profiler.log_metrics(100)
    assert capsys.readouterr().out == (
        "--- Profiling Metrics (Step 100) ---\n"
        "data_batch_production: avg=0.0234s, total=2.34s, count=100\n"
        "make_step_total: avg=0.0789s, total=7.89s, count=100\n"
    )


def test_what_has_to_be_sampled_is_shown_as_such(profiler, capsys):
    """Until there are enough samples it is in the console output, and not in the summary."""
    steps = DurationSketch()
    share = profiler.sampled.expect("loss_fn_computation", steps)
    profiler.log_metrics(1)
    assert "loss_fn_computation: not sampled yet\n" in capsys.readouterr().out
    assert (profiler.get_summary(), profiler.not_sampled_yet()) == ({}, ["loss_fn_computation"])
    steps.add(2.0)
    for _ in range(MIN_SAMPLES):
        share.add(ShareSample(0.75, 0.75, 1.0))
    assert profiler.get_summary()["loss_fn_computation"]["avg_time"] == 1.5
    assert profiler.not_sampled_yet() == []


def test_it_logs_itself_by_its_cadence(clock, capsys):
    """At every `log_every`-th call of `step`, with that step."""
    profiler = TrainingProfiler(log_to_wandb=False, log_every=2, clock=clock)
    for _ in range(5):
        profiler.step()
    assert capsys.readouterr().out.count("---\n") == 2
    profiler.log_metrics()
    assert capsys.readouterr().out == "--- Profiling Metrics (Step 5) ---\n"


def test_the_cadence_can_be_changed(profiler, capsys):
    """Setting `log_every` has an effect from the next step on."""
    profiler.log_every = 2
    profiler.step()
    profiler.step()
    assert capsys.readouterr().out == "--- Profiling Metrics (Step 2) ---\n"
    profiler.log_every = -1
    for _ in range(200):
        profiler.step()
    assert (profiler.log_every, capsys.readouterr().out) == (-1, "")


def test_a_cadence_that_makes_no_sense_cannot_be_set(profiler):
    """The error names the attribute, and the cadence stays as it was."""
    with pytest.raises(ConfigError, match="log_every"):
        profiler.log_every = 0
    assert profiler.log_every == 100


def test_a_loop_that_never_calls_step_has_steps(profiler, capsys):
    """The calls of a wrapped step count for it, or the batches of a timed loader."""
    for _ in profile_data_loader([1, 2, 3], profiler=profiler):
        pass
    profiler.log_metrics()
    step = profile_make_step(lambda: None, profiler=profiler)
    for _ in range(5):
        step()
    profiler.log_metrics()
    profiler.step()
    profiler.log_metrics()
    headers = [line for line in capsys.readouterr().out.splitlines() if line.startswith("---")]
    assert headers == [f"--- Profiling Metrics (Step {step}) ---" for step in (3, 5, 1)]


def test_switched_off_it_does_not_log_itself(clock, capsys):
    """Steps are counted all the same."""
    profiler = TrainingProfiler(log_every=1, enabled=False, clock=clock)
    profiler.step()
    assert (profiler.step_count, capsys.readouterr().out) == (1, "")


def test_the_event_file_gets_everything(profiler, tmp_path):
    """One row per logging, with all figures of each operation."""
    profiler.events = EventWriter(tmp_path / "events.jsonl")
    spend(profiler, "load", 2.0)
    profiler.log_metrics(7)
    row = next(row for row in read_events(tmp_path / "events.jsonl") if row["kind"] == "profiling")
    assert (row["step"], row["operations"]["load"]["max_time"], row["not_sampled"]) == (7, 2.0, [])


def test_a_logger_gets_the_metrics(profiler, tmp_path):
    """Under the mode `profiling`, which its tools make a prefix."""
    profiler.logger = Logger(LoggerConfig(log_path=tmp_path))
    spend(profiler, "load", 2.0)
    profiler.log_metrics(7)
    profiler.logger.finalize("success")
    rows = [row for row in read_events(tmp_path / "events-00000.jsonl") if row["kind"] == "metrics"]
    assert [(row["step"], row["mode"]) for row in rows] == [(7, "profiling")]
    assert rows[0]["values"] == {"load_avg_time": 2.0, "load_total_time": 2.0, "load_count": 1.0}


def test_without_a_run_wandb_is_left_alone(clock, caplog):
    """No run, no error, no warning."""
    profiler = TrainingProfiler(clock=clock)
    spend(profiler, "load", 2.0)
    profiler.log_metrics(100)
    assert caplog.records == []


class BrokenSink:
    def write(self, kind, **fields):
        raise OSError("disk full")

    def log_host_metrics(self, host_metrics, step, mode=None):
        raise RuntimeError("no server")


def test_training_continues_when_a_profile_cannot_be_logged(profiler, caplog):
    """A failure is reported once, and the other places still get the metrics."""
    profiler.events = profiler.logger = BrokenSink()
    spend(profiler, "load", 2.0)
    with caplog.at_level(logging.WARNING):
        profiler.log_metrics(1)
        profiler.log_metrics(2)
    assert sorted(record.getMessage().split(" to ")[1] for record in caplog.records) == [
        "the event file: OSError: disk full",
        "the logger: RuntimeError: no server",
    ]


def test_the_process_has_one_profiler(own_profiler, capsys):
    """It is always the same, and the module's functions use it."""
    assert get_profiler() is own_profiler
    own_profiler.end_timer("my_operation", own_profiler.start_timer("my_operation"))
    log_profiling_metrics()
    log_profiling_metrics(step=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("---")] == [
        "--- Profiling Metrics (Step 0) ---",
        "--- Profiling Metrics (Step 3) ---",
    ]
    assert sum(line.startswith("my_operation: avg=") for line in lines) == 2


def test_an_unknown_name_lists_those_that_exist():
    """A misspelt import is an AttributeError that lists the names."""
    with pytest.raises(AttributeError, match="TrainingProfiler"):
        _ = profiling.TrainingProfilr
