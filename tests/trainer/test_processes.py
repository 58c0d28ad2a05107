"""Two processes that train one model: the same numbers as one, and an end to everything that goes wrong.

Each pair of processes is started once, and many things are checked on what it has printed and left on disk. What they
are compared with is trained in the process of the tests.
"""

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.process_pair import Found, finish, results, start
from tests.trainer.process_script import NUM_STEPS, build, outcome, undisturbed, wide
from tests.trainer.tiny import rows_of
from trackside.events import read_events
from trackside.run_layout import event_file_name
from trackside.runs import open_run
from trackside.trainer import ParallelConfig
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.lost_process import EXIT_CODE_ALONE

pytestmark = pytest.mark.slow


def without_times(found: Found) -> Found:
    """Results without what each process measures by its own clock."""
    return {
        key: {name: value for name, value in values.items() if not name.endswith("_time")}
        for key, values in found["results"].items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pairs work."""
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Found]:
    """What two processes with one device each have found."""
    return results(start("together", folder))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What this process has found, on two of its devices."""
    return undisturbed(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("name", ["dp", "fsdp"])
def test_two_processes_train_as_one(pair: list[Found], alone: Found, name: str) -> None:
    """Parameters, losses and validations are bit-identical to one process with as many devices."""
    assert pair[0][name]["params"] == alone[name]["params"]
    assert without_times(pair[0][name]) == without_times(alone[name])


def test_two_processes_fuse_steps(pair: list[Found], alone: Found) -> None:
    """Calls of several steps give what single steps give, also where each process has its part of the batches."""
    assert pair[0]["fused"]["params"] == alone["dp"]["params"]
    assert without_times(pair[0]["fused"]) == without_times(alone["dp"])


def test_two_processes_fuse_steps_of_their_own(pair: list[Found]) -> None:
    """In a loop of the user's own, calls of several steps give what single ones give, and the same on both."""
    for found in pair:
        assert len(found["own"]["1"][0]) == 7
        assert found["own"]["4"] == found["own"]["1"]
    assert pair[0]["own"] == pair[1]["own"]


def test_two_processes_read_ahead(pair: list[Found], alone: Found) -> None:
    """Each process reads its own loader ahead, and nothing else changes."""
    assert pair[0]["ahead"]["params"] == alone["dp"]["params"]
    assert without_times(pair[0]["ahead"]) == without_times(alone["dp"])


def test_each_process_predicts_for_its_own_examples(pair: list[Found], alone: Found) -> None:
    """The outputs for the rows of each batch are on the process whose loader gave them."""
    whole = np.array(alone["fsdp"]["predicted"]).reshape(2, 2, 4)  # batch, process, row
    for index, found in enumerate(pair):
        np.testing.assert_array_equal(found["fsdp"]["predicted"], whole[:, index].ravel())


def test_export_writes_whole_parameters(pair: list[Found], folder: Path, tmp_path: Path) -> None:
    """Parameters that are split over the processes are whole in the file."""
    trainer = build(tmp_path, "importing", parallel=ParallelConfig(data_axis_size=1))
    trainer.import_params(folder / "params.safetensors")
    assert outcome(trainer)["params"] == pair[0]["fsdp"]["params"]


@pytest.mark.parametrize("name", ["dp", "fsdp", "resumed", "early"])
def test_processes_agree(pair: list[Found], name: str) -> None:
    """Both have the same parameters, step, status, validations and test."""
    assert pair[0][name]["params"] == pair[1][name]["params"]
    assert without_times(pair[0][name]) == without_times(pair[1][name])
    assert [pair[0][name][key] for key in ("step", "status")] == [pair[1][name][key] for key in ("step", "status")]


def test_each_process_logs_the_same_losses(pair: list[Found], folder: Path) -> None:
    """Each process has an event file, and both hold the same loss for each step."""
    losses = [
        [
            (row["step"], row["values"]["loss_mean"])
            for row in read_events(folder / "dp" / event_file_name(index))
            if row["kind"] == "metrics" and row["mode"] == "train"
        ]
        for index in range(2)
    ]
    assert [step for step, _ in losses[0]] == list(range(1, 21))
    assert losses[0] == losses[1]
    assert len(open_run(folder / "dp").hosts) == 2


def test_resumed_training_ends_as_an_undisturbed_one(pair: list[Found]) -> None:
    """With parameters split over the processes, a training resumed from a checkpoint ends with the same bits."""
    assert pair[0]["resumed"]["params"] == pair[0]["fsdp"]["params"]


def test_checkpoint_is_whole(pair: list[Found], folder: Path) -> None:
    """A checkpoint that both have written is verified, with the positions of both loaders."""
    store = CheckpointStore(folder / "fsdp" / "checkpoints")
    assert store.steps() == [10, 20]
    assert len(store.verify(20)["loaders_by_process"]) == 2


def test_one_process_loads_what_two_have_saved(pair: list[Found], folder: Path, tmp_path: Path) -> None:
    """A checkpoint of parameters that were split over two processes gives one process the whole of them."""
    trainer = build(tmp_path, "one", parallel=ParallelConfig(data_axis_size=1))
    assert trainer.load_pretrained_model(folder / "fsdp", step_idx=20) == 20
    assert outcome(trainer)["params"] == pair[0]["fsdp"]["params"]


def test_early_stopping_stops_both(pair: list[Found]) -> None:
    """Both stop after the first validation, which is good enough."""
    assert [found["early"]["step"] for found in pair] == [10, 10]


@pytest.fixture(scope="module")
def refused(folder: Path) -> list[Found]:
    """What two processes with two devices each have found: about data that cannot work, above all."""
    return results(start("refused", folder, num_devices=2))


def test_more_devices_than_processes(refused: list[Found], tmp_path: Path) -> None:
    """With two devices each, the same numbers as one process with four, up to the order of sums."""
    found, expected = [one["wide"] for one in refused], wide(tmp_path)
    assert found[0]["params"] == found[1]["params"]
    for mine, theirs in zip(found[0]["params"], expected["params"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    losses = [one["results"]["val_epoch_2"]["loss"] for one in (found[0], expected)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("longer", "DataError: train_loader, batches: [10, 11] by process"),
        ("larger", "DataError: val_loader, examples to evaluate: [4, 8] by process"),
        ("unequal", "DataError: train_loader, examples per batch: [4, 8] by process"),
        ("ragged", "DataError: batch of 2 examples: not divisible by the 4 devices"),
        ("alone", "ConfigError: CheckpointConfig.main_process_only=True"),
    ],
)
def test_data_that_do_not_go_together(refused: list[Found], name: str, text: str) -> None:
    """Every process gets an error that says what is wrong, and none waits for another."""
    assert [found[name].startswith(text) for found in refused] == [True, True], refused[0][name]


def test_last_batch_that_is_smaller(refused: list[Found]) -> None:
    """A last, smaller training batch is refused with the process and both sizes."""
    for index, found in enumerate(refused):
        assert found["smaller_later"].startswith(
            f"DataError: batch of 2 examples in process {index}, after batches of 4"
        )


def test_last_batch_that_cannot_be_split(refused: list[Found]) -> None:
    """A last, smaller batch of an evaluation is refused with the process, its size and its devices."""
    for index, found in enumerate(refused):
        expected = f"DataError: batch of 1 examples in process {index}: not divisible by its 2 devices"
        assert found["ragged_later"].startswith(expected)


def test_what_the_first_process_finds_fails_on_all(refused: list[Found]) -> None:
    """A folder with checkpoints of another run is refused by the first process, and so by the second."""
    assert "holds checkpoints of steps [10]" in refused[0]["kept"]
    assert "failed on the first process" in refused[1]["kept"]


def test_bad_batch_of_one_process_stops_both(refused: list[Found]) -> None:
    """A NaN in the rows of one process stops both at the same step, with the status that says so."""
    assert refused[0]["nan"] == refused[1]["nan"]
    assert refused[0]["nan"][0] == "nan"


def test_minutes_are_those_of_the_first_process(refused: list[Found], folder: Path) -> None:
    """Whether it is time to save is asked of one clock, so that both save or none."""
    assert CheckpointStore(folder / "minutes" / "checkpoints").steps() == [16, 32]


def test_sigterm_to_one_stops_both(pair: list[Found]) -> None:
    """Both stop after the same step, as interrupted, and exit as SIGTERM asks for."""
    first, second = (found["terminated"] for found in pair)
    assert first == second
    assert (first["status"], first["code"]) == ("interrupted", 143)


def test_sigterm_saves(pair: list[Found], folder: Path) -> None:
    """The step at which they stopped is saved, and it is not the last one of the training."""
    saved = CheckpointStore(folder / "terminated" / "checkpoints").steps()[-1]
    assert saved == pair[0]["terminated"]["step"] < NUM_STEPS


@pytest.fixture(scope="module")
def exit_codes(folder: Path) -> dict[str, list[int]]:
    """How the processes ended of which one, or both, were killed or failed.

    All start at once: most of the time, those that are left only wait for a heartbeat.
    """
    started = {name: start(name, folder) for name in ("killed", "all_killed", "failed")}
    return {name: finish(processes)[2] for name, processes in started.items()}


def test_a_killed_process_ends_the_other(exit_codes: dict[str, list[int]], folder: Path) -> None:
    """The process that is left sees that the other is gone, closes its run, and exits with a code that says so."""
    assert exit_codes["killed"] == [EXIT_CODE_ALONE, -signal.SIGKILL]
    assert rows_of(folder / "killed", "status")[-1]["status"] == "error"
    assert "another process of this training is gone" in (folder / "killed" / "output.log").read_text()


def test_a_failed_process_ends_the_other(exit_codes: dict[str, list[int]], folder: Path) -> None:
    """An error in one process ends both, and its own event file says that it was an error."""
    assert 0 not in exit_codes["failed"]
    statuses = [row for row in read_events(folder / "failed" / event_file_name(1)) if row["kind"] == "status"]
    assert statuses[-1]["status"] == "error"


@pytest.fixture(scope="module")
def continued(pair: list[Found], exit_codes: dict[str, list[int]], folder: Path) -> list[Found]:
    """What came of the trainings that were disturbed, when they continued."""
    return results(start("continued", folder))


@pytest.mark.parametrize("name", ["terminated", "killed", "all_killed", "failed"])
def test_disturbed_training_ends_as_an_undisturbed_one(continued: list[Found], pair: list[Found], name: str) -> None:
    """Whatever has ended the processes, the same command continues and ends with the same bits."""
    assert continued[0][name]["params"] == pair[0]["dp"]["params"]


def test_first_process_keeps_the_log_of_all_legs(continued: list[Found], folder: Path) -> None:
    """The event file of a training that was killed has the legs of both starts."""
    assert [row["leg"] for row in rows_of(folder / "all_killed", kind="leg")] == [1, 2]
