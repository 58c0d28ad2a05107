"""Saved trainings: they go on as if nothing had happened, and what cannot be loaded is said to be so."""

import logging
import math
from pathlib import Path
from typing import Any

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import Linear, MSETrainer, make_batch, make_loader, rows_of
from trackside.callbacks import CheckpointConfig
from trackside.errors import CheckpointError
from trackside.logger import LoggerConfig
from trackside.runs import open_run
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
)
from trackside.trainer.checkpoint_store import CheckpointStore


class NoisyNet(nn.Module):
    """Has all that a training must not lose: parameters, statistics and randomness."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(1)(x)


class WideNet(nn.Module):
    """As `Linear`, with more outputs and another layer."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.Dense(3)(x))


class NoisyTrainer(MSETrainer):
    def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
        pred, updates = apply_fn({"params": params}, batch.inputs, train=train, mutable=["batch_stats"])
        error = (pred - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, updates)


def make_trainer(
    trainer_class: type = MSETrainer, model_class: type = Linear, parallel: ParallelConfig | None = None, **config: Any
) -> Any:
    """A trainer whose optimizer has a state."""
    return trainer_class(
        TrainerConfig(**{"enable_progress_bar": False, **config}),
        ModelConfig(model_class=model_class, parallel=parallel or ParallelConfig(data_axis_size=1)),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=0.1)),
        batch=make_batch(8),
    )


def make_noisy(**config: Any) -> Any:
    return make_trainer(NoisyTrainer, NoisyNet, **config)


def contents(trainer: Any) -> dict[str, Any]:
    """Copies of all arrays of a trainer's state."""
    state = trainer.state
    trees = {
        "params": state.params,
        "opt_state": state.opt_state,
        "mutable_variables": state.mutable_variables,
        "step": state.step,
        "rng": jax.random.key_data(state.rng),
    }
    return jax.tree.map(np.array, trees)


def assert_same(trees: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, trees, expected)


def save(trainer: Any, root: Path, **kwargs: Any) -> None:
    trainer.save_checkpoint(root, **kwargs)
    trainer.finish_saving()


def save_steps(root: Path, losses: dict[int, float], trainer: Any = None) -> Any:
    """Train and save at each of the steps, with a validation loss each."""
    trainer = make_trainer() if trainer is None else trainer
    for step, loss in losses.items():
        trainer.train_model(make_loader(4), num_train_steps=step)
        save(trainer, root, metrics={"loss": loss})
    return trainer


def damage(root: Path, step: int) -> str:
    path = next((root / str(step) / "state" / "d").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.relative_to(root / str(step)).as_posix()


def list_loader() -> list[Batch]:
    return make_loader(4)


def grain_dataset() -> grain.MapDataset:
    return grain.MapDataset.range(4).seed(3).shuffle().map(lambda at: make_batch(8, int(at)))


def grain_stream() -> Any:
    return iter(grain_dataset().repeat(3).to_iter_dataset())


# --- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build_loader", "steps_per_epoch", "cuts"),
    [
        (list_loader, None, (2, 4, 7)),
        (grain_dataset, None, (2, 4, 7)),
        (list_loader, 3, (2, 3, 5)),
        (grain_stream, 4, (2, 4, 7)),
    ],
    ids=["list", "grain", "list across epochs", "grain iterator"],
)
def test_training_goes_on_bit_identically(
    tmp_path: Path, build_loader: Any, steps_per_epoch: int | None, cuts: tuple[int, ...]
) -> None:
    """A training that is loaded in or at the end of an epoch ends as one that was never interrupted."""
    whole, first, second = make_noisy(), make_noisy(), make_noisy(seed=99)
    whole.train_model(build_loader(), num_train_steps=10, steps_per_epoch=steps_per_epoch)
    saved, loader = {}, build_loader()
    for step in cuts:
        first.train_model(loader, num_train_steps=step, steps_per_epoch=steps_per_epoch)
        save(first, tmp_path)
        saved[step] = contents(first)
    for step in reversed(cuts):
        assert second.load_pretrained_model(tmp_path, step_idx=step) == step
        assert_same(contents(second), saved[step])
        second.train_model(build_loader(), num_train_steps=10, steps_per_epoch=steps_per_epoch)
        assert_same(contents(second), contents(whole))


def test_metrics_of_a_cut_epoch_survive(tmp_path: Path) -> None:
    """Rows of the log interval and of the epoch that were cut hold all of their steps, before and after the cut."""
    loggers = {
        name: LoggerConfig(log_path=tmp_path / name, log_every_n_steps=3) for name in ("whole", "first", "second")
    }
    whole = make_trainer(logger=loggers["whole"])
    expected = whole.train_model(make_loader(4), num_epochs=2)
    first = make_trainer(logger=loggers["first"])
    first.train_model(make_loader(4), num_train_steps=5)
    save(first, tmp_path / "saved")
    second = make_trainer(logger=loggers["second"], seed=99)
    second.load_pretrained_model(tmp_path / "saved")
    results = second.train_model(make_loader(4), num_epochs=2)
    assert losses(results["train"]) == losses(expected["train"])
    rows, all_rows = (rows_of(tmp_path / name, mode="train") for name in ("second", "whole"))
    assert rows
    assert [values_of(row) for row in rows] == [values_of(row) for row in all_rows if row["step"] > 5]


def losses(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "time" not in name}


def values_of(row: dict[str, Any]) -> tuple[int, dict[str, float]]:
    return row["step"], losses(row["values"])


def test_best_validation_survives(tmp_path: Path) -> None:
    """The best validation before a cut is still the best after it, if none was better."""
    val_loader = make_loader(1, seed=50)
    first = make_trainer()
    before = first.train_model(make_loader(4), val_loader, num_epochs=3)
    save(first, tmp_path)
    second = make_trainer(seed=99)
    second.load_pretrained_model(tmp_path)
    noise = [Batch(batch.inputs, -100 * batch.targets) for batch in make_loader(4)]
    after = second.train_model(noise, val_loader, num_epochs=4)
    assert after["val_epoch_4"]["loss"] > before["val"]["loss"]
    assert after["val"] == before["val"]


def test_data_loader_is_set_to_its_position(tmp_path: Path) -> None:
    """A grain iterator that is handed over while loading goes on with the batch after the last."""
    logger = LoggerConfig(log_path=tmp_path / "run")
    first = make_trainer(logger=logger)
    loader = grain_stream()
    first.train_model(loader, num_train_steps=3, steps_per_epoch=4)
    first.save_checkpoint()
    first.finish_saving()
    expected = next(loader)
    by_model, by_loaders = grain_stream(), grain_stream()
    make_trainer().load_pretrained_model(tmp_path / "run", train_loader=by_model)
    first.load_data_loaders(train_loader=by_loaders)
    for restored in (by_model, by_loaders):
        assert_same(next(restored), expected)


def test_checkpoint_after_a_training_is_in_its_log(tmp_path: Path) -> None:
    """A run whose files are closed gets the row of a checkpoint that is saved then, and keeps its status."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    trainer.train_model(make_loader(2), num_epochs=1)
    save(trainer, tmp_path / "elsewhere")
    run = open_run(tmp_path / "run")
    assert [(row["step"], row["path"]) for row in run.checkpoints] == [(2, str(tmp_path / "elsewhere"))]
    assert run.status == "success"


# --- which step -----------------------------------------------------------------------------------------------------


def test_model_is_loaded_from_the_runs_folder(tmp_path: Path) -> None:
    """load_model takes the latest step of the run's own folder, or the one named."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    saved = {}
    for step in (2, 3):
        trainer.train_model(make_loader(4), num_train_steps=step)
        trainer.save_checkpoint()
        saved[step] = contents(trainer)
    for step_idx, step in ((-1, 3), (2, 2)):
        trainer.load_model(step_idx)
        assert trainer.global_step == step
        assert_same(contents(trainer), saved[step])


def test_nothing_to_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a checkpoint, load_model raises, or warns and leaves the trainer as it is."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    before = contents(trainer)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        trainer.load_model()
    with caplog.at_level(logging.WARNING):
        trainer.load_model(raise_if_not_found=False)
    assert "there is no checkpoint" in caplog.text
    assert_same(contents(trainer), before)


def test_no_folder_for_checkpoints() -> None:
    """Without a run's folder, saving says what to set."""
    with pytest.raises(CheckpointError, match="log_path"):
        make_trainer().save_checkpoint()


def test_folder_without_checkpoints(tmp_path: Path) -> None:
    """A folder that holds no checkpoint is an error that names it."""
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        make_trainer().load_pretrained_model(tmp_path)


def test_step_that_is_not_there(tmp_path: Path) -> None:
    """A step that was not saved is an error with those that were."""
    save_steps(tmp_path, {1: 1.0, 2: 1.0})
    with pytest.raises(CheckpointError, match=r"no step 7 .*\[1, 2\]"):
        make_trainer().load_pretrained_model(tmp_path, step_idx=7)


def test_damaged_step_that_was_asked_for(tmp_path: Path) -> None:
    """A step named by its number is not replaced by another: its damaged file is named."""
    save_steps(tmp_path, {1: 1.0, 2: 1.0})
    name = damage(tmp_path, 2)
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        make_trainer().load_pretrained_model(tmp_path, step_idx=2)


def test_damaged_latest_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the latest step is damaged, the one before is loaded, with a warning that names the file."""
    save_steps(tmp_path, {1: 1.0, 2: 1.0})
    name = damage(tmp_path, 2)
    with caplog.at_level(logging.WARNING):
        assert make_trainer().load_pretrained_model(tmp_path) == 1
    assert name in caplog.text


def test_all_steps_damaged(tmp_path: Path) -> None:
    """Where no step is intact, there is nothing to load, and the trainer keeps its parameters."""
    save_steps(tmp_path, {1: 1.0})
    damage(tmp_path, 1)
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be loaded"):
        trainer.load_pretrained_model(tmp_path)
    contents(trainer)


def test_best_step(tmp_path: Path) -> None:
    """load_best takes the lowest validation loss, never one that is not a number."""
    save_steps(tmp_path, {1: math.nan, 2: 3.0, 3: 0.5, 4: 4.0, 5: -math.inf, 6: math.nan})
    assert make_trainer().load_pretrained_model(tmp_path, load_best=True) == 3


def test_best_step_by_the_monitored_metric(tmp_path: Path) -> None:
    """load_best goes by what was monitored when the steps were saved, also in a trainer that monitors nothing."""
    config = CheckpointConfig(dirpath=str(tmp_path / "own"), monitor="accuracy", mode="max", every_n_epochs=-1)

    class Judged(MSETrainer):
        def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
            train_metrics["accuracy"] = 0.0

    source = make_trainer(Judged, callbacks=[config])
    for step, (loss, accuracy) in enumerate([(1.0, 0.5), (2.0, 0.9), (0.5, 0.7)], start=1):
        source.train_model(make_loader(4), num_train_steps=step)
        save(source, tmp_path / "all", metrics={"loss": loss, "accuracy": accuracy})
    assert make_trainer().load_pretrained_model(tmp_path / "all", load_best=True) == 2


def test_kept_steps_are_chosen_by_their_metrics(tmp_path: Path) -> None:
    """Whoever saves chooses from the metrics of all steps which to keep."""
    trainer = save_steps(tmp_path, {1: 0.5, 2: 3.0})
    trainer.train_model(make_loader(4), num_train_steps=3)
    seen: dict[int, Any] = {}

    def keep(metrics: Any) -> list[int]:
        seen.update(metrics)
        return [1, 3]

    save(trainer, tmp_path, metrics={"loss": math.nan}, keep=keep)
    assert CheckpointStore(tmp_path).steps() == [1, 3]
    assert [seen[step]["val"]["loss"] for step in (1, 2)] == [0.5, 3.0]
    assert math.isnan(seen[3]["val"]["loss"])


def test_step_with_a_damaged_manifest_does_not_stop_pruning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A step whose metrics cannot be read is left alone, and the others are still chosen from."""
    trainer = save_steps(tmp_path, {1: 0.5, 2: 3.0})
    (tmp_path / "1" / "manifest.json").write_text("")
    trainer.train_model(make_loader(4), num_train_steps=3)
    save(trainer, tmp_path, keep=lambda metrics: [3])
    assert CheckpointStore(tmp_path).steps() == [1, 3]
    assert "could not be written" not in caplog.text


# --- into which trainer ---------------------------------------------------------------------------------------------


def test_parameters_without_the_optimizer(tmp_path: Path) -> None:
    """Without the optimizer, parameters are taken over and the training starts at its own beginning."""
    source = save_steps(tmp_path, {3: 1.0})
    target = make_trainer(seed=99)
    fresh = contents(target)["opt_state"]
    assert target.load_pretrained_model(tmp_path, load_optimizer=False) == 3
    assert_same(contents(target)["params"], contents(source)["params"])
    assert_same(contents(target)["opt_state"], fresh)
    assert (target.global_step, int(target.state.step)) == (0, 0)
    target.train_model(make_loader(4), num_epochs=1)
    assert target.global_step == 4


@pytest.mark.parametrize("delete", [True, False])
def test_old_parameters_are_freed_on_demand(tmp_path: Path, delete: bool) -> None:
    """The arrays that are replaced are freed before loading, unless they shall be kept."""
    trainer = save_steps(tmp_path, {2: 1.0})
    old = jax.tree.leaves(trainer.state.params)
    trainer.load_pretrained_model(tmp_path, delete_params_before_loading=delete)
    assert [leaf.is_deleted() for leaf in old] == [delete] * len(old)
    contents(trainer)


def test_changed_model_is_refused(tmp_path: Path) -> None:
    """A model that does not fit is an error with each path and both shapes."""
    save_steps(tmp_path, {1: 1.0})
    with pytest.raises(CheckpointError) as caught:
        make_trainer(model_class=WideNet).load_pretrained_model(tmp_path)
    message = str(caught.value)
    assert "Dense_0/kernel: float32[4, 1] in the saved state, float32[3, 1] in the model" in message
    assert "Dense_1/bias: missing in the saved state, float32[3] in the model" in message


def test_refused_model_costs_nothing(tmp_path: Path) -> None:
    """Parameters that shall be freed first are still there if the saved ones turn out not to fit."""
    save_steps(tmp_path, {2: 1.0})
    trainer = make_trainer(model_class=WideNet)
    with pytest.raises(CheckpointError, match="do not fit"):
        trainer.load_pretrained_model(tmp_path, delete_params_before_loading=True)
    contents(trainer)


@pytest.mark.parametrize("is_saved", [True, False])
def test_changed_statistics_are_refused(tmp_path: Path, is_saved: bool) -> None:
    """Statistics that the model has and the checkpoint has not, or the other way round, are an error by path."""
    plain, noisy = make_trainer(NoisyTrainer, BareNet), make_noisy()
    source, target = (noisy, plain) if is_saved else (plain, noisy)
    save(source, tmp_path)
    with pytest.raises(CheckpointError, match="batch_stats/BatchNorm_0/mean"):
        target.load_pretrained_model(tmp_path)


class BareNet(nn.Module):
    """Parameters of the same form as `NoisyNet` has, without its statistics."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(BareNorm(name="BatchNorm_0")(x))


class BareNorm(nn.Module):
    """Scale and bias alone."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.param("scale", nn.initializers.ones, (4,)) + self.param("bias", nn.initializers.zeros, (4,))


def test_other_meshes(tmp_path: Path) -> None:
    """A state goes from one device onto eight and back with equal values, laid out for the mesh that loads it."""
    split = ParallelConfig(fsdp_axis_size=4, fsdp_min_weight_size=1)
    one = save_steps(tmp_path / "one", {3: 1.0})
    many = make_trainer(parallel=split, seed=99)
    many.load_pretrained_model(tmp_path / "one")
    assert_same(contents(many), contents(one))
    assert many.state.params["Dense_0"]["kernel"].sharding.spec[0] == "fsdp"
    save_steps(tmp_path / "many", {5: 1.0}, many)
    back = make_trainer(seed=98)
    back.load_pretrained_model(tmp_path / "many")
    assert_same(contents(back), contents(many))
    back.train_model(make_loader(4), num_train_steps=6)


# --- a trainer from a checkpoint ------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["run", "run/checkpoints", "run/checkpoints/2"])
def test_trainer_from_a_checkpoint(tmp_path: Path, folder: str) -> None:
    """A trainer is built from the run's folder or that of its checkpoints, with equal configs and state."""
    source = make_noisy(logger=LoggerConfig(log_path=tmp_path / "run"), seed=7)
    source.train_model(make_loader(4), num_train_steps=2)
    source.save_checkpoint()
    source.finish_saving()
    loaded = NoisyTrainer.load_from_checkpoint(tmp_path / folder, make_batch(8))
    assert type(loaded) is NoisyTrainer
    for name in ("trainer_config", "model_config", "optimizer_config"):
        assert getattr(loaded, name) == getattr(source, name)
    assert_same(contents(loaded), contents(source))


def test_look_at_a_run_leaves_it_alone(tmp_path: Path) -> None:
    """A trainer built from a run writes nothing to it; once it trains on, its rows follow those of the run."""
    run = tmp_path / "run"
    source = make_trainer(logger=LoggerConfig(log_path=run), callbacks=[CheckpointConfig()])
    source.train_model(make_loader(4), num_epochs=1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    loaded = MSETrainer.load_from_checkpoint(run, make_batch(8))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    loaded.trainer_config.resume = "auto"
    loaded.train_model(make_loader(4), num_epochs=2)
    assert [row["step"] for row in rows_of(run, mode="train")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_run_that_was_moved(tmp_path: Path) -> None:
    """A trainer built from a run that was moved logs to where it lies now."""
    source = make_trainer(logger=LoggerConfig(log_path=tmp_path / "old"), callbacks=[CheckpointConfig()])
    source.train_model(make_loader(2), num_epochs=1)
    (tmp_path / "old").rename(tmp_path / "new")
    loaded = MSETrainer.load_from_checkpoint(tmp_path / "new", make_batch(8))
    assert loaded.logger.log_path == tmp_path / "new"
    assert not (tmp_path / "old").exists()


def test_configs_of_another_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved config with a field that this version does not have is still loaded, with a warning that names it."""
    plain = TrainerConfig.to_dict
    with monkeypatch.context() as patch:
        patch.setattr(TrainerConfig, "to_dict", lambda config: {**plain(config), "invented_later": 1})
        save(make_trainer(seed=3), tmp_path)
    assert MSETrainer.load_from_checkpoint(tmp_path, make_batch(8)).trainer_config.seed == 3
    assert "invented_later: TrainerConfig has no field 'invented_later', ignoring it" in caplog.text


def test_example_of_some_examples(tmp_path: Path) -> None:
    """batch_size takes that many examples of the example batch."""
    save(make_trainer(), tmp_path)
    assert MSETrainer.load_from_checkpoint(tmp_path, make_batch(8), batch_size=2).exmp_batch.inputs.shape == (2, 4)


def test_configs_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model of a class without an address can be saved and loaded; only a trainer cannot be built from it."""

    class Local(Linear):
        pass

    trainer = make_trainer(model_class=Local)
    save(trainer, tmp_path)
    make_trainer(model_class=Local, seed=99).load_pretrained_model(tmp_path)
    with pytest.raises(CheckpointError, match="the model config was not saved"):
        MSETrainer.load_from_checkpoint(tmp_path, make_batch(8))
    assert "the model config is not saved" in caplog.text


def test_example_is_needed(tmp_path: Path) -> None:
    """Without an example batch, the error says what is needed."""
    with pytest.raises(CheckpointError, match="exmp_input: an example batch"):
        MSETrainer.load_from_checkpoint(tmp_path)


# --- what is never written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_state_that_is_not_finite_is_never_committed(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A single number that is not finite keeps a state from being saved; the log says so."""
    trainer = make_trainer()
    params = trainer.state.params
    kernel = params["Dense_0"]["kernel"].at[0, 0].set(jnp.float32(value))
    trainer.restore_model({"params": {"Dense_0": {**params["Dense_0"], "kernel": kernel}}, "step": 3})
    save(trainer, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "step 3 is not saved" in caplog.text


def test_failed_save_is_reported_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that cannot be written is logged with its cause, and the trainer stays usable."""
    (tmp_path / "file").write_text("")
    trainer = make_trainer()
    save(trainer, tmp_path / "file")
    assert "could not be written" in caplog.text
    trainer.train_model(make_loader(2), num_epochs=1)


def test_no_pickles(tmp_path: Path) -> None:
    """No file of a checkpoint is a pickle, whose loading would run code."""
    trainer = make_noisy()
    trainer.train_model(grain_stream(), num_train_steps=2, steps_per_epoch=4)
    save(trainer, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert path.suffix not in {".pkl", ".pickle"}
        assert not path.read_bytes().startswith(b"\x80")
