"""Profiles of training: which steps they hold, when they are taken, and that nothing else is lost or changed."""

import gzip
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests import compile_cache
from tests.trainer.delay_clock import DelayClock
from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside.callbacks import (
    Callback,
    CallbackConfig,
    CallbackList,
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    JAXProfiler,
    JaxProfiler,
    JaxProfilerConfig,
    MemoryProfileConfig,
    MemoryProfiler,
    ModelCheckpoint,
    ProfilingConfig,
    ProgressBarCallback,
)
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.profiling.capture import start_capture
from trackside.trace import analyse_trace
from trackside.trainer import Batch

pytestmark = pytest.mark.usefixtures("names_in_compile_cache")

STEP_PROGRAM = "jit_train_call"


def periodic(**config: Any) -> JaxProfiler:
    return JaxProfiler(JaxProfilerConfig(**{"profile_every_n_minutes": -1, "on_demand": False, **config}))


def window(directory: Path, **config: Any) -> JAXProfiler:
    return JAXProfiler(ProfilingConfig(**{"log_dir": str(directory), "on_demand": False, **config}))


def logger_config(tmp_path: Path) -> LoggerConfig:
    return LoggerConfig(log_path=tmp_path / "run")


def sessions(directory: Path) -> list[Path]:
    return sorted((directory / "plugins" / "profile").iterdir())


def marked_steps(session: Path) -> list[int]:
    """The steps that are marked in a session's trace."""
    return [marker.step for marker in analyse_trace(session).markers]


def captures(tmp_path: Path) -> list[dict[str, Any]]:
    return rows_of(tmp_path / "run", "capture")


class Waiting:
    """A loader whose batches take their time at some steps, by the machine's clock unless told otherwise."""

    def __init__(self, num_batches: int, seconds: dict[int, float], wait: Callable[[float], None] = time.sleep):
        self._batches = make_loader(num_batches)
        self._seconds = seconds
        self._wait = wait

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for step, batch in enumerate(self._batches, start=1):
            self._wait(self._seconds.get(step, 0.0))
            yield batch


def wait_for_captures() -> None:
    """Wait until all captures that have ended are written and analysed."""
    for thread in threading.enumerate():
        if thread.name.startswith("capture-"):
            thread.join()


# --- which steps ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run with a profile of steps 10 to 19, with validations and checkpoints around it."""
    folder = tmp_path_factory.mktemp("profiled")
    trainer = make_trainer(logger=logger_config(folder), check_val_every_n_steps=5)
    with compile_cache.switched_off():  # a cached program does not say what memory it takes
        trainer.fit(
            make_loader(12),
            make_loader(1),
            num_epochs=2,
            callbacks=[
                window(folder / "profiles"),
                ModelCheckpoint(CheckpointConfig(dirpath=str(folder / "checkpoints"), every_n_steps=3)),
            ],
        )
    return folder, trainer


def test_window_holds_its_steps_and_no_other(profiled: tuple[Path, Any]) -> None:
    """Steps 10 to 19 are marked, across epochs and validations, each once, and no other."""
    steps = [marked_steps(session) for session in sessions(profiled[0] / "profiles")]
    assert [step for part in steps for step in part] == list(range(10, 20))
    assert len(steps) > 1  # validation ends a session, and another takes up the rest of the window


def test_tables_hold_training_only(profiled: tuple[Path, Any]) -> None:
    """Every execution in the tables is one of a marked training step; there are as many as steps."""
    for row in captures(profiled[0]):
        report = row["report"]
        assert set(report["runs"]["program"]) == {STEP_PROGRAM}
        assert report["runs"]["step"] == list(range(row["first_step"], row["last_step"] + 1))


def test_training_is_the_same_with_a_profile(profiled: tuple[Path, Any]) -> None:
    """A profiled training ends with exactly the parameters of one that was not."""
    plain = make_trainer(check_val_every_n_steps=5)
    plain.fit(make_loader(12), make_loader(1), num_epochs=2)
    jax.tree.map(np.testing.assert_array_equal, profiled[1].state.params, plain.state.params)


def test_files_are_where_tools_look(profiled: tuple[Path, Any]) -> None:
    """Each session's folder holds the xplane, a trace for Perfetto that JSON can read, and the memory."""
    for session in sessions(profiled[0] / "profiles"):
        suffixes = {"".join(path.suffixes[-2:]) for path in session.iterdir()}
        assert suffixes == {".xplane.pb", ".json.gz", ".memory.json"}
        trace = next(session.glob("*.trace.json.gz"))
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_memory_is_recorded(profiled: tuple[Path, Any]) -> None:
    """With trace_memory, live arrays by owner and the program's peak by scope are in the file and the event."""
    session = sessions(profiled[0] / "profiles")[0]
    memory = json.loads(next(session.glob("*.memory.json")).read_text())
    assert memory["live"]["params"] == 5 * 4
    assert memory["program"]["peak_temporary_bytes"] > 0
    assert captures(profiled[0])[0]["memory"] == memory


def test_xprof_finds_the_steps(profiled: tuple[Path, Any]) -> None:
    """The trace viewer of xprof shows a marker for each step."""
    from xprof.convert import raw_to_tool_data

    found = []
    for session in sessions(profiled[0] / "profiles"):
        files = [str(path) for path in session.glob("*.xplane.pb")]
        data, _ = raw_to_tool_data.xspace_to_tool_data(files, "trace_viewer", {})
        events = json.loads(data)["traceEvents"]
        found += [int(event["args"]["step_num"]) for event in events if "step_num" in event.get("args", {})]
    assert sorted(found) == list(range(10, 20))


def test_disturbed_steps_have_no_step_time(profiled: tuple[Path, Any]) -> None:
    """Rows of steps that were captured have no step time; those before have."""
    rows = {row["step"]: row["values"] for row in rows_of(profiled[0] / "run", mode="train")}
    assert all("step_time" in rows[step] for step in range(2, 10))
    assert not any("step_time" in rows[step] for step in range(10, 20))


def test_capture_reaches_the_logger(profiled: tuple[Path, Any]) -> None:
    """The figures of each capture are logged as scalars, and its table is in the log file."""
    rows = rows_of(profiled[0] / "run", mode="profile")
    assert len(rows) == len(captures(profiled[0]))
    assert 0 < rows[0]["values"]["coverage"] <= 1
    text = (profiled[0] / "run" / "output.log").read_text()
    assert "profile of steps 10 to" in text
    assert re.search(r"^update .*%", text, re.MULTILINE)  # scopes within the loss are shown where they take long


def test_python_is_traced_on_demand_only(profiled: tuple[Path, Any], tmp_path: Path) -> None:
    """Python calls are in the trace with trace_python=True, and not otherwise."""
    make_trainer().fit(make_loader(4), callbacks=[window(tmp_path, start_step=2, end_step=4, trace_python=True)])

    def names(session: Path) -> str:
        return next(session.glob("*.xplane.pb")).read_bytes().decode("latin-1")

    assert "loop.py" in names(sessions(tmp_path)[0])
    assert "loop.py:" not in names(sessions(profiled[0] / "profiles")[0])


def test_periodic_profile_starts_at_the_end_of_its_first_step(tmp_path: Path) -> None:
    """profile_first_step=10, profile_n_steps=5 gives steps 11 to 15, once, below the run's folder."""
    callback = periodic()
    make_trainer(logger=logger_config(tmp_path)).fit(make_loader(20), callbacks=[callback])
    (session,) = sessions(tmp_path / "run" / "tensorboard")
    assert marked_steps(session) == [11, 12, 13, 14, 15]
    assert not callback.profiler_active


def test_periodic_profile_ends_with_the_epoch(tmp_path: Path) -> None:
    """A periodic profile is cut by the end of the epoch, and says so."""
    make_trainer(logger=logger_config(tmp_path)).fit(make_loader(12), num_epochs=2, callbacks=[periodic()])
    (row,) = captures(tmp_path)
    assert (row["first_step"], row["last_step"], row["cut_by"]) == (11, 12, "the end of the epoch")


def test_periodic_profile_ends_before_validation(tmp_path: Path) -> None:
    """A periodic profile is cut by a validation."""
    trainer = make_trainer(logger=logger_config(tmp_path), check_val_every_n_steps=13)
    trainer.fit(make_loader(20), make_loader(1), callbacks=[periodic()])
    (row,) = captures(tmp_path)
    assert (row["first_step"], row["last_step"], row["cut_by"]) == (11, 13, "validation")


def test_no_minutes_between_profiles(tmp_path: Path) -> None:
    """profile_every_n_minutes=0 starts the next profile where the last one ended; none is left without steps."""
    callback = periodic(profile_every_n_minutes=0, profile_first_step=2, profile_n_steps=3)
    make_trainer(logger=logger_config(tmp_path)).fit(make_loader(9), callbacks=[callback])
    assert [(row["first_step"], row["last_step"]) for row in captures(tmp_path)] == [(3, 5), (6, 8), (9, 9)]
    assert len(sessions(tmp_path / "run" / "tensorboard")) == 3


def test_first_step_can_be_profiled(tmp_path: Path) -> None:
    """A window from step 1 holds the first step, with its compilation."""
    make_trainer().fit(make_loader(4), callbacks=[window(tmp_path, start_step=1, end_step=3)])
    assert marked_steps(sessions(tmp_path)[0]) == [1, 2]


@pytest.mark.parametrize(("end_step", "steps"), [(1, [1]), (3, [1, 2, 3])])
def test_window_from_0_holds_as_many_steps_as_asked_for(tmp_path: Path, end_step: int, steps: list[int]) -> None:
    """Who counts from 0 gets as many steps, from the first one on."""
    make_trainer().fit(make_loader(4), callbacks=[window(tmp_path, start_step=0, end_step=end_step)])
    assert marked_steps(sessions(tmp_path)[0]) == steps


def test_trace_ends_with_its_last_step(tmp_path: Path) -> None:
    """Validation, which follows a window at once, is in none of its traces, not even outside of the tables."""
    trainer = make_trainer(logger=logger_config(tmp_path), check_val_every_n_steps=2)
    trainer.fit(make_loader(6), make_loader(4), callbacks=[window(tmp_path / "profiles", start_step=2, end_step=6)])
    found = [analyse_trace(session) for session in sessions(tmp_path / "profiles")]
    assert len(found) == 3
    for report in found:
        assert set(report.runs.program) == {STEP_PROGRAM}


def test_adjacent_windows_are_both_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A window that begins where another one ends waits for it, in whichever order they are given."""
    first, second = tmp_path / "first", tmp_path / "second"
    late = window(second, start_step=6, end_step=9)
    make_trainer().fit(make_loader(10), callbacks=[late, window(first, start_step=3, end_step=6)])
    assert marked_steps(sessions(first)[0]) == [3, 4, 5]
    assert marked_steps(sessions(second)[0]) == [6, 7, 8]
    assert "not started" not in caplog.text


@pytest.mark.parametrize("is_periodic", [True, False])
def test_window_behind_the_end_is_said_so(tmp_path: Path, is_periodic: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A profile that was planned for steps that never came is reported at the end; one that was taken is not."""
    trainer = make_trainer(logger=logger_config(tmp_path))
    late, text = periodic(profile_first_step=10), "JaxProfiler: no profile of profile_first_step=10 was taken"
    if not is_periodic:
        late, text = window(tmp_path / "late"), "JAXProfiler: no profile of steps 10 to 19 was taken"
    trainer.fit(make_loader(4), callbacks=[late, window(tmp_path / "good", start_step=2, end_step=3)])
    assert caplog.text.count("was taken") == 1
    assert f"{text}: training ended after step 4" in caplog.text


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_evaluation_traced_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A trace around an evaluation is written, without step marks, and with the evaluation in its tables."""
    trainer = make_trainer(logger=logger_config(tmp_path))
    profiler = JaxProfilerConfig().create(trainer)
    assert isinstance(profiler, JaxProfiler)
    trainer.eval_model(make_loader(1), "val", 0)
    profiler.start_trace(0)
    trainer.eval_model(make_loader(3), "val", 0)
    profiler.stop_trace()
    profiler.finalize("success")
    (session,) = sessions(tmp_path / "run" / "tensorboard")
    report = analyse_trace(session)
    assert not report.markers
    assert len(report.runs.program) >= 3
    assert captures(tmp_path)[0]["error"] == ""


def test_own_loop_traced_by_hand(tmp_path: Path) -> None:
    """A trace around a loop that is not the trainer's is written."""
    double = jax.jit(lambda x: x * 2)
    value = double(np.ones(4, np.float32))
    profiler = window(tmp_path)
    profiler.bind(make_trainer())
    profiler.start_trace(0)
    for _ in range(3):
        value = double(value)
    value.block_until_ready()
    profiler.stop_trace()
    profiler.finalize("success")
    assert len(analyse_trace(sessions(tmp_path)[0]).runs.program) == 3


@pytest.mark.parametrize("base", [JaxProfiler, JAXProfiler])
def test_step_hook_of_a_subclass_is_called(tmp_path: Path, base: type[Any]) -> None:
    """An override of `on_training_step` hears every step, and the profile is taken as without it."""
    heard = []

    class Listening(base):
        def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
            heard.append(step_idx)
            super().on_training_step(step_metrics, epoch_idx, step_idx)

    template = periodic(profile_first_step=1, profile_n_steps=2)
    if base is JAXProfiler:
        template = window(tmp_path / "run" / "tensorboard", start_step=2, end_step=4)
    make_trainer(logger=logger_config(tmp_path)).fit(make_loader(5), callbacks=[Listening(template.config)])
    assert heard == [1, 2, 3, 4, 5]
    assert marked_steps(sessions(tmp_path / "run" / "tensorboard")[0]) == [2, 3]


# --- what else asks -------------------------------------------------------------------------------------------------


class Request(Callback):
    """Asks for a profile after a step, from outside as it were."""

    def __init__(self, step: int, ask: Any):
        super().__init__(CallbackConfig())
        self._step, self._ask = step, ask

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == self._step:
            self._ask()


@pytest.mark.parametrize("how", ["file", "signal"])
def test_profile_on_demand(tmp_path: Path, how: str) -> None:
    """Touching capture.now in the run's folder, or SIGUSR2, gives one profile, and the signal is given back."""
    file = tmp_path / "run" / "capture.now"
    before = signal.getsignal(signal.SIGUSR2)

    def ask() -> None:
        file.touch() if how == "file" else os.kill(os.getpid(), signal.SIGUSR2)

    callback = periodic(profile_first_step=10_000, profile_n_steps=2, on_demand=True)
    trainer = make_trainer(logger=logger_config(tmp_path))
    trainer.fit(Waiting(60, dict.fromkeys(range(60), 0.01)), callbacks=[callback, Request(5, ask)])
    (row,) = captures(tmp_path)
    assert row["reason"] == ("capture.now was touched" if how == "file" else "SIGUSR2")
    assert row["last_step"] - row["first_step"] == 1
    assert not file.exists()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_profile_after_a_slow_step(tmp_path: Path) -> None:
    """A step much slower than the median asks for a profile, as often as allowed."""
    clock = DelayClock()
    trainer_class = type("ClockedTrainer", (MSETrainer,), {"clock": clock})
    seconds = dict.fromkeys(range(300), 0.002) | {60: 0.5, 120: 0.5, 180: 0.5}
    config = JaxProfilerConfig(
        profile_every_n_minutes=-1,
        profile_first_step=10_000,
        profile_n_steps=2,
        on_demand=False,
        slow_step_factor=20.0,
        slow_step_max_per_hour=2,
    )

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        wait_for_captures()  # which disturb steps for as long as they are written

    # With one step in flight it is certain between which readings of the clock each step completes.
    trainer = make_trainer(trainer_class, logger=logger_config(tmp_path), max_inflight_steps=1)
    trainer.fit(Waiting(240, seconds, wait), callbacks=[JaxProfiler(config, clock=clock)])
    rows = captures(tmp_path)
    assert len(rows) == 2
    assert re.match(r"a step near (59|60) took 50\d", rows[0]["reason"])  # known when a later one is dispatched


# --- limits and faults ----------------------------------------------------------------------------------------------


def test_seconds_bound_a_capture(tmp_path: Path) -> None:
    """A capture that takes too long is ended, and says that it was cut."""
    callback = periodic(profile_first_step=2, profile_n_steps=1000, max_seconds=0.2)
    trainer = make_trainer(logger=logger_config(tmp_path))
    trainer.fit(Waiting(60, dict.fromkeys(range(60), 0.02)), callbacks=[callback])
    (row,) = captures(tmp_path)
    assert row["cut_by"] == "max_seconds=0.2"
    assert row["last_step"] < 60


def test_next_window_shrinks_after_a_large_trace(tmp_path: Path) -> None:
    """After a trace that was too large, the next one holds fewer steps."""
    callback = periodic(profile_every_n_minutes=0, profile_first_step=2, profile_n_steps=8, max_megabytes=0.001)
    loader = Waiting(24, {}, lambda seconds: wait_for_captures())
    make_trainer(logger=logger_config(tmp_path)).fit(loader, callbacks=[callback])
    rows = captures(tmp_path)
    assert rows[0]["last_step"] - rows[0]["first_step"] == 7
    assert rows[-2]["last_step"] == rows[-2]["first_step"]


def test_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A profile without a place is reported before it starts, training goes on, and later profiles work."""
    (tmp_path / "file").write_text("")
    trainer = make_trainer()
    trainer.fit(make_loader(4), callbacks=[window(tmp_path / "file", start_step=2, end_step=3)])
    assert trainer.global_step == 4
    assert "cannot be written to" in caplog.text
    trainer.fit(make_loader(4), num_epochs=2, callbacks=[window(tmp_path / "good", start_step=2, end_step=3)])
    assert len(sessions(tmp_path / "good")) == 1


def test_error_ends_the_capture(tmp_path: Path) -> None:
    """When training fails, the open capture is closed and written, and the next training can be profiled."""

    def failing() -> Iterator[Batch]:
        yield from make_loader(6)
        raise RuntimeError("no more data")

    trainer = make_trainer(logger=logger_config(tmp_path))
    with pytest.raises(RuntimeError, match="no more data"):
        trainer.fit(failing(), callbacks=[window(tmp_path / "first", start_step=3, end_step=20)])
    (row,) = captures(tmp_path)
    assert (row["first_step"], row["last_step"], row["error"]) == (3, 6, "")
    assert marked_steps(sessions(tmp_path / "first")[0]) == [3, 4, 5, 6]
    start_capture(tmp_path / "second", "after", 1).cancel()


def test_second_profiler_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two profilers that overlap, the second is refused by name of the first, and the first is complete."""
    first, second = tmp_path / "first", tmp_path / "second"
    callbacks = [window(first, start_step=3, end_step=9), window(second, start_step=5, end_step=7)]
    make_trainer().fit(make_loader(10), callbacks=callbacks)
    assert "capture step_00000005: not started, because the capture step_00000003 has been running" in caplog.text
    assert marked_steps(sessions(first)[0]) == [3, 4, 5, 6, 7, 8]
    assert not any(second.rglob("*.pb"))


def test_resumed_training_still_profiles(tmp_path: Path) -> None:
    """A training resumed beyond the first step is profiled, unless it was before it was interrupted."""

    def leg(num_steps: int, profiler: JaxProfiler) -> None:
        trainer = make_trainer(logger=logger_config(tmp_path), resume="auto")
        trainer.fit(
            make_loader(40), num_train_steps=num_steps, callbacks=[ModelCheckpoint(CheckpointConfig()), profiler]
        )

    leg(12, periodic(profile_first_step=100))
    leg(24, periodic(profile_first_step=4, profile_n_steps=2))
    leg(36, periodic(profile_first_step=4, profile_n_steps=2))
    assert [(row["first_step"], row["last_step"]) for row in captures(tmp_path)] == [(17, 18)]


def test_training_resumed_inside_a_window_profiles_the_rest(tmp_path: Path) -> None:
    """What is left of the window is captured from the first step of the leg on."""
    for num_steps in (12, 24):
        trainer = make_trainer(logger=logger_config(tmp_path), resume="auto")
        profilers = [window(tmp_path / "profiles", start_step=10, end_step=20)] if num_steps == 24 else []
        callbacks = [ModelCheckpoint(CheckpointConfig()), *profilers]
        trainer.fit(make_loader(40), num_train_steps=num_steps, callbacks=callbacks)
    assert [(row["first_step"], row["last_step"]) for row in captures(tmp_path)] == [(13, 19)]


# --- as documented --------------------------------------------------------------------------------------------------


def test_documented_defaults() -> None:
    """The configs have the documented fields, defaults and order."""
    config = JaxProfilerConfig()
    assert (config.every_n_epochs, config.every_n_steps, config.main_process_only) == (-1, -1, True)
    assert (config.profile_every_n_minutes, config.profile_first_step, config.profile_n_steps) == (60, 10, 5)
    assert config.profile_log_dir == "tensorboard"
    assert ProfilingConfig("logs/profiles", 10, 20, True, False) == ProfilingConfig()


def test_documented_attributes_and_methods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A profiler tells its state, and can be started and stopped by hand."""
    trainer = make_trainer(logger=logger_config(tmp_path))
    profiler = JaxProfilerConfig(profile_n_steps=3).create(trainer)
    assert isinstance(profiler, JaxProfiler)
    assert profiler.log_path == tmp_path / "run" / "tensorboard"
    assert (profiler.profiler_active, profiler.profiler_last_time, profiler.profile_n_steps) == (False, None, 3)
    profiler.stop_trace()
    profiler.start_trace(0)
    profiler.start_trace(0)
    assert "a trace is already being taken" in caplog.text
    assert profiler.profiler_active
    profiler.finalize("success")
    assert not profiler.profiler_active


def test_periodic_profile_needs_a_run() -> None:
    """Without log_path there is no place for a periodic profile, and the error says so."""
    with pytest.raises(ConfigError, match=r"LoggerConfig\.log_path"):
        make_trainer().fit(make_loader(2), callbacks=[periodic()])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: ProfilingConfig(start_step=20, end_step=10), "start_step=20, end_step=10"),
        (lambda: JaxProfilerConfig(profile_n_steps=0), "profile_n_steps: expected 1 or more, got 0"),
        (lambda: JaxProfilerConfig(profile_first_step=-1), "profile_first_step: expected 0 or more, got -1"),
        (lambda: JaxProfilerConfig(max_seconds=0), "max_seconds: expected a positive number, got 0"),
        (lambda: JaxProfilerConfig(slow_step_factor=0.5), "slow_step_factor: expected more than 1"),
    ],
)
def test_bad_configs(config: Any, message: str) -> None:
    """A config that cannot work names the field and the value."""
    with pytest.raises(ConfigError, match=message):
        config()


def test_profilers_come_first_in_a_list(tmp_path: Path) -> None:
    """Profilers, progress bar, early stopping and checkpoints work in one list."""
    callbacks = CallbackList(
        [
            window(tmp_path / "profiles", start_step=10, end_step=20),
            MemoryProfiler(MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=10)),
            ProgressBarCallback(),
            EarlyStopping(EarlyStoppingConfig(monitor="val_loss", patience=10)),
            ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "checkpoints"), monitor="val_loss")),
        ]
    )
    make_trainer().fit(make_loader(8), make_loader(1), num_epochs=4, callbacks=callbacks)
    steps = [step for session in sessions(tmp_path / "profiles") for step in marked_steps(session)]
    assert steps == list(range(10, 20))
    samples = json.loads((tmp_path / "memory" / "memory_profile.json").read_text())
    assert [sample["step"] for sample in samples] == [0, 10, 20, 30]
    assert (tmp_path / "checkpoints" / "32").is_dir()
