"""A training in several legs, ended by signals: together they read as one, in every log.

The event file is append-only, so it has the steps after a checkpoint once more for each time they were trained; what
shows curves has each step once.
"""

import csv
import itertools
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests import fork_server
from tests.children import environment
from tests.logger.test_wandb import read_records
from tests.trainer import survival_script
from tests.trainer.survival_script import NUM_EPOCHS, SAVED_EVERY, STEPS_PER_EPOCH
from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, EarlyStoppingConfig, EMAConfig
from trackside.events import read_events
from trackside.logger import LoggerConfig
from trackside.run_layout import event_file_name
from trackside.trainer import Batch
from trackside.trainer.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")]

NUM_STEPS = NUM_EPOCHS * STEPS_PER_EPOCH
ALL_STEPS = list(range(1, NUM_STEPS + 1))
VALIDATED = list(range(STEPS_PER_EPOCH, NUM_STEPS + 1, STEPS_PER_EPOCH))

# Killed between two checkpoints; asked to stop, which saves where it stands; failed between two checkpoints, with all
# logs closed in order; left in peace.
LEGS = ((signal.SIGKILL, 19), (signal.SIGTERM, 52), (0, 90), (0, 0))
RETURN_CODES = [-signal.SIGKILL, 128 + signal.SIGTERM, 1, 0]


def run_leg(root: pathlib.Path, number: int, at_step: int) -> subprocess.CompletedProcess[str]:
    variables = environment(compile_cache=root.with_name("compiled"))
    variables.pop("WANDB_SERVICE", None)  # of another test; it would take a killed leg for one that goes on
    return fork_server.run(
        [sys.executable, "-m", "tests.trainer.survival_script", str(root), "0", str(number), str(at_step)],
        capture_output=True,
        text=True,
        timeout=300,
        env=variables,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """The folder of a training in four legs, and what the last leg printed in the end: the parameters."""
    root = tmp_path_factory.mktemp("legs") / "run"
    ended = [run_leg(root, *leg) for leg in LEGS]
    assert [leg.returncode for leg in ended] == RETURN_CODES, ended[-1].stderr
    return root, ended[-1].stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def root(trained: tuple[pathlib.Path, str]) -> pathlib.Path:
    """The folder of the training."""
    return trained[0]


@pytest.fixture(scope="module")
def legs(root: pathlib.Path) -> list[list[dict[str, Any]]]:
    """The rows of the event file, leg by leg."""
    legs: list[list[dict[str, Any]]] = []
    for row in read_events(root / event_file_name(0)):
        if row["kind"] == "format":
            legs.append([])
        legs[-1].append(row)
    return legs


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    """The steps with metrics of their own; the learning rate has a second row for each."""
    metrics = [row for row in rows if row["kind"] == "metrics" and row["mode"] == "train"]
    return [row["step"] for row in metrics if "loss_mean" in row["values"]]


def step_rows(root: pathlib.Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(root, mode="train") if "loss_mean" in row["values"]]


def test_legs_end_as_one_that_is_left_in_peace(trained: tuple[pathlib.Path, str], tmp_path: pathlib.Path) -> None:
    """Parameters are bit-identical to those of a training in one leg, by this process."""
    undisturbed = survival_script.train(survival_script.build(tmp_path, []), num_workers=0)
    assert trained[1] == f"FINAL {undisturbed}"


def test_each_end_is_told(root: pathlib.Path) -> None:
    """Each leg that could say how it ended has done so."""
    assert [row["status"] for row in rows_of(root, "status")] == ["interrupted", "error", "success"]


def test_each_leg_goes_on_without_a_gap(legs: list[list[dict[str, Any]]]) -> None:
    """A leg starts after a checkpoint of the one before, at most one save behind it, and has each of its steps once."""
    steps = [steps_of(rows) for rows in legs]
    for leg in steps:
        assert leg == list(range(leg[0], leg[-1] + 1))
    for before, after in itertools.pairwise(steps):
        assert before[-1] - 2 * SAVED_EVERY < after[0] <= before[-1] + 1
    assert (steps[0][0], steps[-1][-1]) == (1, NUM_STEPS)


def test_a_stop_that_was_asked_for_repeats_nothing(legs: list[list[dict[str, Any]]]) -> None:
    """After SIGTERM, the next leg starts with the very next step."""
    assert steps_of(legs[2])[0] == steps_of(legs[1])[-1] + 1


def test_repeated_steps_have_the_same_numbers(root: pathlib.Path) -> None:
    """A step that was trained twice has the same values both times, but for its time."""
    first: dict[int, dict[str, float]] = {}
    for row in step_rows(root):
        values = {name: value for name, value in row["values"].items() if "time" not in name}
        assert first.setdefault(row["step"], values) == values
    assert sorted(first) == ALL_STEPS


def test_epochs_and_validations_are_logged_once(root: pathlib.Path) -> None:
    """However its steps are spread over legs, an epoch has one row, and so has its validation."""
    for mode in ("train_epoch", "val"):
        rows = rows_of(root, mode=mode)
        assert [(row["step"], row["epoch"]) for row in rows] == list(zip(VALIDATED, (1, 2, 3), strict=True))


# --- time -----------------------------------------------------------------------------------------------------------


def test_legs_are_numbered(root: pathlib.Path) -> None:
    """Each leg tells which it is."""
    assert [row["leg"] for row in rows_of(root, "leg")] == [1, 2, 3, 4]


def test_each_leg_starts_at_its_first_step(root: pathlib.Path, legs: list[list[dict[str, Any]]]) -> None:
    """A leg tells the step that it goes on from."""
    assert [row["step"] + 1 for row in rows_of(root, "leg")] == [steps_of(rows)[0] for rows in legs]


def test_time_goes_on_where_the_checkpoint_was(root: pathlib.Path) -> None:
    """The time of a leg is added to that of the legs before it, and a stop that was asked for loses none of it."""
    starts = [row["train_time_s"] for row in rows_of(root, "leg")]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    terminated = next(row for row in rows_of(root, "leg_end") if row["leg"] == 2)
    last_steps_s = sum(step_times(step_rows(root), STEPS_PER_EPOCH + 1, terminated["step"]))
    assert starts[2] <= terminated["train_time_s"]
    assert starts[2] >= starts[1] + last_steps_s


def step_times(rows: list[dict[str, Any]], first: int, last: int) -> list[float]:
    """The times of steps, each as it was trained last."""
    times = {row["step"]: row["values"]["step_time"] for row in rows if first <= row["step"] <= last}
    return list(times.values())


def test_epoch_times_hold_all_of_their_legs(root: pathlib.Path) -> None:
    """The time of an epoch that was cut is no shorter than that of its steps, from one to the next."""
    rows = step_rows(root)
    for row in rows_of(root, mode="train_epoch"):
        second = row["step"] - STEPS_PER_EPOCH + 2  # the time of the first has what lies between two epochs
        assert row["values"]["epoch_time"] >= sum(step_times(rows, second, row["step"]))


def test_training_time_adds_up(root: pathlib.Path) -> None:
    """The time of the training after an epoch holds all epochs before it and the steps of this one."""
    rows, before_s = step_rows(root), 0.0
    for row in rows_of(root, mode="train_epoch"):
        steps_s = sum(step_times(rows, row["step"] - STEPS_PER_EPOCH + 1, row["step"]))
        assert row["values"]["train_time"] >= before_s + steps_s
        before_s += row["values"]["epoch_time"]


# --- what shows curves ----------------------------------------------------------------------------------------------


def test_tables_have_each_step_once(root: pathlib.Path) -> None:
    """The file logger's tables continue without a gap or a repeat, for each of two rows of a step."""
    for mode, metric, steps in (
        ("train", "loss_mean", ALL_STEPS),
        ("train", "learning_rate", ALL_STEPS),
        ("val", "loss", VALIDATED),
        ("train_epoch", "loss_mean", VALIDATED),
    ):
        with (root / "metrics" / f"{mode}.csv").open(newline="") as file:
            assert [int(row["step"]) for row in csv.DictReader(file) if row[metric]] == steps


@pytest.fixture(scope="module")
def curves(root: pathlib.Path) -> dict[str, list[int]]:
    """The steps of each scalar, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_has_no_gap(curves: dict[str, list[int]]) -> None:
    """Each scalar of a training step has every step."""
    for tag in ("train/loss_mean", "train/epoch", "train/step_time", "train/learning_rate"):
        assert sorted(set(curves[tag])) == ALL_STEPS


def test_tensorboard_has_no_repeat(curves: dict[str, list[int]]) -> None:
    """Each scalar goes on from leg to leg, and shows no step twice or out of order."""
    for steps in curves.values():
        assert steps == sorted(set(steps))


@pytest.fixture(scope="module", params=["train/loss_mean", "train/learning_rate"])
def wandb_legs(root: pathlib.Path, request: pytest.FixtureRequest) -> list[list[int]]:
    """The steps that have a metric in each leg's W&B file, for two metrics that come in rows of their own."""
    legs = []
    for path in sorted(root.glob("wandb/offline-run-*/*.wandb")):
        histories = [record.history for record in read_records(path) if record.WhichOneof("record_type") == "history"]
        rows = [{".".join(item.nested_key) or item.key: item.value_json for item in row.item} for row in histories]
        legs.append([int(row["_step"]) for row in rows if request.param in row])
    return legs


def test_wandb_goes_on_with_the_same_run(root: pathlib.Path) -> None:
    """Each leg has a file, all of them under one id."""
    run_id = (root / "wandb" / "trackside-run-id").read_text()
    names = [path.name for path in root.glob("wandb/offline-run-*/*.wandb")]
    assert names == [f"run-{run_id}.wandb"] * len(LEGS)


def test_wandb_has_no_repeat(wandb_legs: list[list[int]]) -> None:
    """Over all legs, steps only grow: W&B refuses others."""
    steps = [step for leg in wandb_legs for step in leg]
    assert steps == sorted(set(steps))


def test_wandb_has_no_gap_after_a_kill(wandb_legs: list[list[int]]) -> None:
    """What a killed leg had logged before its last checkpoint is handed in by the next: nobody trains it again."""
    assert sorted({step for leg in wandb_legs for step in leg}) == ALL_STEPS


# --- what goes on besides the state ---------------------------------------------------------------------------------

VAL = make_loader(1, seed=50)


def build(root: pathlib.Path, patience: int = 50, lr: float = 0.1, **config: Any) -> Any:
    return make_trainer(
        logger=LoggerConfig(log_path=root),
        callbacks=[
            CheckpointConfig(monitor="val_loss", every_n_steps=2),
            EarlyStoppingConfig(monitor="val_loss", patience=patience),
            EMAConfig(decay=0.9, evaluate=False),
        ],
        resume="auto",
        lr=lr,
        **config,
    )


def train(trainer: Any, num_epochs: int, loader: Any = None) -> dict[str, dict[str, float]]:
    return trainer.train_model(make_loader(4) if loader is None else loader, VAL, VAL, num_epochs=num_epochs)


class Failing(list):
    """A loader that fails at one of its batches, counted from where the training goes on."""

    def __init__(self, fails_at: int):
        super().__init__(make_loader(4))
        self.fails_at = fails_at

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            self.fails_at -= 1
            if self.fails_at == 0:
                raise OSError("the disk is gone")
            yield batch


def assert_same_state(trainer: Any, other: Any) -> None:
    """Parameters, and the optimizer's state with the average in it."""
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params, other.state.params)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.opt_state, other.state.opt_state)


def test_patience_goes_on(tmp_path: pathlib.Path) -> None:
    """Checks without improvement are counted over legs: a training that never improves stops after its patience."""
    train(build(tmp_path, patience=4, lr=0.0), num_epochs=3)
    resumed = build(tmp_path, patience=4, lr=0.0)
    train(resumed, num_epochs=20)
    assert resumed.global_step == 5 * 4


def test_best_checkpoint_of_an_earlier_leg_is_kept_and_tested(tmp_path: pathlib.Path) -> None:
    """A leg that only makes things worse does not replace the best model."""
    before = train(build(tmp_path), num_epochs=2)
    noise = [Batch(batch.inputs, batch.targets + 100) for batch in make_loader(4)]
    after = train(build(tmp_path), num_epochs=4, loader=noise)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"8", "16"}
    assert after["test"]["loss"] == before["val"]["loss"] < after["val_epoch_4"]["loss"]


def test_second_resume_in_a_row(tmp_path: pathlib.Path) -> None:
    """A training that fails, goes on, fails again and goes on ends as one that never failed."""
    whole = build(tmp_path / "whole")
    train(whole, num_epochs=4)
    for fails_at in (6, 7):  # at step 6, with a checkpoint after an epoch; then at step 11, with one within an epoch
        with pytest.raises(OSError, match="disk is gone"):
            train(build(tmp_path / "cut"), num_epochs=4, loader=Failing(fails_at))
    resumed = build(tmp_path / "cut")
    train(resumed, num_epochs=4)
    assert_same_state(resumed, whole)


def test_finished_training_is_not_trained_again(tmp_path: pathlib.Path) -> None:
    """Run again, a training that is done returns the best metrics and the test, and logs no step."""
    done = train(build(tmp_path), num_epochs=2)
    num_rows = len(rows_of(tmp_path, mode="train"))
    again = build(tmp_path)
    results = train(again, num_epochs=2)
    assert (again.status, again.global_step) == ("success", 8)
    assert {name: results[name]["loss"] for name in ("val", "test")} == {
        name: done[name]["loss"] for name in ("val", "test")
    }
    assert results["train"]["loss_mean"] == done["train"]["loss_mean"]
    assert len(rows_of(tmp_path, mode="train")) == num_rows


def test_longer_training_goes_on(tmp_path: pathlib.Path) -> None:
    """A training that is done goes on with a larger number of epochs, as if it had been that from the start."""
    train(build(tmp_path / "longer"), num_epochs=2)
    longer, whole = build(tmp_path / "longer"), build(tmp_path / "whole")
    train(longer, num_epochs=3)
    train(whole, num_epochs=3)
    assert longer.global_step == 12
    assert_same_state(longer, whole)


class Raising(Callback):
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 7:
            raise RuntimeError("broken")


def test_checkpoint_survives_a_raising_callback(tmp_path: pathlib.Path) -> None:
    """A callback that raises ends the run as failed; the last checkpoint is whole, and the run goes on from it."""
    broken = build(tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        broken.fit(make_loader(4), VAL, num_epochs=3, callbacks=[Raising(CallbackConfig())])
    assert rows_of(tmp_path, "status")[-1]["status"] == "error"
    CheckpointStore(tmp_path / "checkpoints").verify(6)
    resumed = build(tmp_path)
    train(resumed, num_epochs=3)
    assert (resumed.status, resumed.global_step) == ("success", 12)


def test_goodput_counts_all_that_is_no_step(root: pathlib.Path) -> None:
    """Of the time since the training began, the share in steps that were kept is told at the end of each leg."""
    (first, *_), ends = rows_of(root, "leg"), rows_of(root, "leg_end")
    for row in ends:
        assert 0 < row["goodput"] < 1
    in_steps_s = ends[-1]["goodput"] * (ends[-1]["t"] - first["t"])
    assert in_steps_s < ends[-1]["train_time_s"]
    assert "goodput" in (root / "output.log").read_text()
