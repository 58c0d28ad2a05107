"""The memory timeline of a training: its file, its rows, and that training does not notice."""

import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import fork_server
from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.callbacks.memory_profiler import MemoryProfileConfig, MemoryProfiler
from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.schedule import NUM_FREE, Every

pytestmark = pytest.mark.usefixtures("no_garbage")

KILLED = """
import sys
import time
from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks.memory_profiler import MemoryProfileConfig, MemoryProfiler

profiler = MemoryProfiler(MemoryProfileConfig(sys.argv[1], 1, max_time_share=1.0))
print("READY", flush=True)
make_trainer().fit(make_loader(8), num_epochs=10**6, callbacks=[profiler])
"""


def profile(folder: Path, every_n_steps: int = 2, num_steps: int = 6, **trainer: Any) -> list[dict[str, Any]]:
    """Train with a profiler and read its file."""
    profiler = MemoryProfiler(MemoryProfileConfig(str(folder), every_n_steps))
    make_trainer(**trainer).fit(make_loader(num_steps), callbacks=[profiler])
    return read(folder)


def read(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "memory_profile.json").read_bytes())


def steps_of(folder: Path) -> list[int]:
    return [sample["step"] for sample in read(folder)]


class Keeper(Callback):
    """Keeps an array after every step, as a list of losses would."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig())
        self.plan = Every(1)
        self.kept: list[Any] = []

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        self.kept.append(jnp.full(500, step_idx, jnp.float32))


def test_defaults_and_order_are_as_documented() -> None:
    """The three documented fields come first, with their defaults; those of every callback are given by name."""
    assert MemoryProfileConfig() == MemoryProfileConfig("logs/memory", 100, True)
    config = MemoryProfileConfig("elsewhere", 5, False, on_error="warn", main_process_only=True)
    assert (config.log_dir, config.profile_every_n_steps, config.log_device_memory) == ("elsewhere", 5, False)
    assert ConfigDict.from_dict(MemoryProfileConfig, json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_share_that_is_none_is_refused(share: float) -> None:
    """The error names the field and the value."""
    with pytest.raises(ConfigError, match=f"max_time_share.*got {share}"):
        MemoryProfileConfig(max_time_share=share)


@pytest.mark.parametrize("cadence", [0, -2])
def test_cadence_that_cannot_work(cadence: int) -> None:
    """A cadence of no steps is an error that names the field."""
    with pytest.raises(ConfigError, match=rf"profile_every_n_steps.*got {cadence}"):
        MemoryProfileConfig(profile_every_n_steps=cadence)


def test_samples_are_taken_at_the_start_and_every_n_steps(tmp_path: Path) -> None:
    """`step` is the number of steps done: 0, then each multiple of the cadence, across epochs."""
    config = MemoryProfileConfig(str(tmp_path / "memory"), profile_every_n_steps=3)
    make_trainer(callbacks=[config]).train_model(make_loader(4), num_epochs=2)
    assert steps_of(tmp_path / "memory") == [0, 3, 6]


def test_default_folder_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defaults, the file is logs/memory/memory_profile.json."""
    monkeypatch.chdir(tmp_path)
    make_trainer().fit(make_loader(1), callbacks=[MemoryProfiler(MemoryProfileConfig())])
    assert steps_of(Path("logs/memory")) == [0]


def test_sample_tells_who_holds_the_memory(tmp_path: Path) -> None:
    """Parameters, optimizer and metrics have what they have; a CPU has no device figures; the host's are there."""
    trainer = make_trainer()
    trainer.fit(make_loader(2), callbacks=[MemoryProfiler(MemoryProfileConfig(str(tmp_path), 1))])
    sample = read(tmp_path)[-1]
    state = trainer.state
    assert sample["memory"] == {}
    assert sample["live"]["params"] == sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    counters = (state.opt_state, state.step, jax.random.key_data(state.rng))
    assert sample["live"]["optimizer"] == sum(leaf.nbytes for leaf in jax.tree.leaves(counters))
    assert sample["live"]["metrics"] >= trainer.init_train_metrics().layout.initial.nbytes
    assert sample["live"].keys() == {"params", "optimizer", "loop", "metrics", "batch", "other", "num_arrays"}
    assert sample["host"]["rss_bytes"] > 1 << 20


def test_plans_of_calls_are_the_loop_s(tmp_path: Path) -> None:
    """What calls of several steps are given and report stays on the device, and is not counted as somebody else's."""
    trainer = make_trainer(steps_per_call=4, logger=LoggerConfig(log_path=None, log_every_n_steps=5))
    trainer.fit(make_loader(23), num_epochs=2, callbacks=[MemoryProfiler(MemoryProfileConfig(str(tmp_path), 10))])
    plans = trainer.engine.plans.values()
    assert len(plans) > 2
    held = [sample["live"] for sample in read(tmp_path)]
    assert held[-1]["loop"] >= sum(plan.nbytes for plan in plans)
    assert held[-1]["other"] == held[1]["other"]


def test_batches_on_the_device_are_told(tmp_path: Path) -> None:
    """Batches that a loader holds as JAX arrays count as such."""
    loader = [jax.tree.map(jnp.asarray, batch) for batch in make_loader(5, size=24)]
    trainer = make_trainer(batch=loader[0])
    trainer.fit(loader, callbacks=[MemoryProfiler(MemoryProfileConfig(str(tmp_path), 5))])
    assert read(tmp_path)[-1]["live"]["batch"] == sum(leaf.nbytes for leaf in jax.tree.leaves(loader))


def test_devices_are_not_asked_unless_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log_device_memory=False` leaves `memory` empty, also where devices have statistics."""
    statistics = {"bytes_in_use": 5, "peak_bytes_in_use": 9}
    monkeypatch.setattr(
        "trackside.profiling.memory.allocator_statistics", lambda device: statistics if device.id == 0 else None
    )
    asked, unasked = tmp_path / "asked", tmp_path / "unasked"
    for folder in (asked, unasked):
        profiler = MemoryProfiler(MemoryProfileConfig(str(folder), 100, folder == asked))
        make_trainer().fit(make_loader(1), callbacks=[profiler])
    assert read(asked)[0]["memory"] == {str(jax.devices()[0]): statistics}
    assert read(unasked)[0]["memory"] == {}


def test_training_is_the_same_with_it(tmp_path: Path) -> None:
    """Parameters are bit-identical with and without a sample after each step."""
    plain, profiled = make_trainer(), make_trainer()
    plain.fit(make_loader(6))
    profiled.fit(make_loader(6), callbacks=[MemoryProfiler(MemoryProfileConfig(str(tmp_path), 1))])
    jax.tree.map(np.testing.assert_array_equal, plain.state.params, profiled.state.params)


def test_no_step_is_heard_in_between() -> None:
    """The callback does not ask to hear of each step."""
    assert not make_trainer(callbacks=[MemoryProfileConfig()]).callbacks.on_step


def test_same_figures_are_in_the_event_file(tmp_path: Path) -> None:
    """The run's events have each sample, and where the file is."""
    samples = profile(tmp_path / "memory", logger=LoggerConfig(log_path=tmp_path / "run"))
    rows = rows_of(tmp_path / "run", "memory")
    assert [{name: row[name] for name in samples[0]} for row in rows] == samples
    (where,) = rows_of(tmp_path / "run", "memory_profile")
    assert json.loads(Path(where["path"]).read_bytes()) == samples


def test_tools_get_scalars(tmp_path: Path) -> None:
    """A logging tool gets each sample's figures as numbers, under the mode `memory`."""
    samples = profile(
        tmp_path / "memory", logger=LoggerConfig(log_path=tmp_path / "run", log_tools=[FileLoggerConfig()])
    )
    rows = rows_of(tmp_path / "run", mode="memory")
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert rows[-1]["values"]["live/params"] == samples[-1]["live"]["params"]
    assert rows[-1]["values"]["host/rss_bytes"] == samples[-1]["host"]["rss_bytes"]


def test_resumed_training_goes_on_with_the_file(tmp_path: Path) -> None:
    """Samples after the checkpoint are taken again, so that no step is there twice."""

    class Fails(Callback):
        plan = Every(5)

        def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
            raise RuntimeError("power cut")

    def make() -> Any:
        return make_trainer(
            callbacks=[
                CheckpointConfig(dirpath=str(tmp_path / "checkpoints"), every_n_steps=3),
                MemoryProfileConfig(str(tmp_path), 1),
            ],
            resume="auto",
        )

    with pytest.raises(RuntimeError, match="power cut"):
        make().fit(make_loader(8), callbacks=[Fails(CallbackConfig())])
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5]
    resumed = make()
    resumed.train_model(make_loader(8), num_epochs=1)
    assert steps_of(tmp_path) == list(range(9))
    assert not list(tmp_path.glob("*.old-*"))


def test_second_run_does_not_overwrite_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new training in the same folder sets the file that is there aside, with a warning."""
    first = profile(tmp_path)
    with caplog.at_level(logging.WARNING):
        second = profile(tmp_path)
    assert [sample["step"] for sample in second] == [0, 2, 4, 6]
    assert json.loads((tmp_path / "memory_profile.old-1.json").read_bytes()) == first
    assert "memory_profile.old-1.json" in caplog.text


def test_each_process_has_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process has the documented name, the others their number."""
    profiler = MemoryProfiler(MemoryProfileConfig(str(tmp_path)))
    names = []
    for index in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        names.append(profiler.path.name)
    assert names == ["memory_profile.json", "memory_profile-00001.json"]


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is none is an error before the first step, which names the field and the value."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"MemoryProfileConfig\.log_dir='.*file/memory'"):
        profile(tmp_path / "file" / "memory")


def test_leak_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that keeps an array per step is found: one warning, one event row, with the slope."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    profiler = MemoryProfiler(MemoryProfileConfig(str(tmp_path), 1))
    with caplog.at_level(logging.WARNING):
        trainer.fit(make_loader(4), num_epochs=10, callbacks=[Keeper(), profiler])
    (row,) = rows_of(tmp_path / "run", "memory_leak")
    assert (row["name"], row["bytes_per_step"]) == ("other live arrays", 2000)
    assert caplog.text.count("memory may leak") == 1
    assert "other live arrays grow by 200 kB per 100 steps" in caplog.text


def test_no_leak_is_named_without_one(tmp_path: Path) -> None:
    """A training that keeps nothing, with validations, has no such row."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"), check_val_every_n_epoch=1)
    profiler = MemoryProfiler(MemoryProfileConfig(str(tmp_path), 1))
    trainer.fit(make_loader(4), make_loader(2), num_epochs=15, callbacks=[profiler])
    assert rows_of(tmp_path / "run", "memory_leak") == []


@pytest.mark.parametrize(("share", "expected"), [(1e-9, NUM_FREE + 1), (1.0, 201)])
def test_samples_that_cost_too_much_are_left_out(share: float, expected: int, tmp_path: Path) -> None:
    """After the first hundred, at most a share of the time is spent on them; with all of it there is one every N."""
    profiler = MemoryProfiler(MemoryProfileConfig(str(tmp_path), 1, max_time_share=share))
    make_trainer().fit(make_loader(40), num_epochs=5, callbacks=[profiler])
    assert steps_of(tmp_path) == list(range(expected))


@pytest.mark.slow
def test_killed_training_leaves_a_file_that_parses(tmp_path: Path) -> None:
    """After a SIGKILL in the middle of training, the file has the samples so far."""
    path = tmp_path / "memory_profile.json"
    with fork_server.Forked([sys.executable, "-c", KILLED, str(tmp_path)], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (path.exists() and path.read_bytes().count(b"rss_bytes") > 100):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    steps = steps_of(tmp_path)
    assert len(steps) > 50
    assert steps == list(range(len(steps)))
