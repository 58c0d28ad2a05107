"""The trainer as users see it: set-up, state, evaluation, saved states, and what it says of bad input."""

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import Linear, MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig
from trackside.config import ConfigDict
from trackside.errors import CheckpointError, ConfigError, DataError, MetricError
from trackside.logger import LoggerConfig
from trackside.runs import open_run
from trackside.trainer import Batch, DataloaderModule, ModelConfig, OptimizerConfig, ParallelConfig, TrainerConfig


class NormNet(nn.Module):
    """Batch normalisation, dropout and a sown scalar."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        self.sow("intermediates", "input_scale", jnp.abs(x).mean())
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(1)(x)


class NormTrainer(MSETrainer):
    def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
        pred, updates = apply_fn(
            {"params": params}, batch.inputs, train=train, mutable=["batch_stats", "intermediates"]
        )
        error = (pred - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, updates)


def test_mutable_variables_reach_the_loss_and_are_kept() -> None:
    """Batch statistics are completed into apply_fn, change in training and stay as they are in evaluation."""
    trainer = make_trainer(NormTrainer, NormNet)
    before = jax.tree.map(np.asarray, trainer.state.mutable_variables)
    assert before.keys() == {"batch_stats"}
    trainer.train_model(make_loader(3), num_epochs=1)
    after = jax.tree.map(np.asarray, trainer.state.mutable_variables)
    assert not np.array_equal(before["batch_stats"]["BatchNorm_0"]["mean"], after["batch_stats"]["BatchNorm_0"]["mean"])
    trainer.eval_model(make_loader(1), "val", 1)
    jax.tree.map(np.testing.assert_array_equal, after, trainer.state.mutable_variables)


def test_intermediates_are_logged(run_config: LoggerConfig) -> None:
    """Scalars that the model sows are logged by their path in the modes asked for."""
    trainer = make_trainer(
        NormTrainer, NormNet, logger=run_config, log_intermediates=True, intermediates_log_modes=["max"]
    )
    trainer.train_model(make_loader(2), num_epochs=1)
    assert "intermediates/input_scale_max" in rows_of(run_config.log_path, mode="train")[0]["values"]


def test_training_is_reproducible_and_depends_on_the_seed() -> None:
    """Two trainings with one seed are bit-identical, dropout included; another seed differs."""
    params = []
    for seed in (1, 1, 2):
        trainer = make_trainer(NormTrainer, NormNet, seed=seed)
        trainer.train_model(make_loader(3), num_epochs=1)
        params.append(np.asarray(trainer.state.params["Dense_0"]["kernel"]))
    np.testing.assert_array_equal(params[0], params[1])
    assert not np.array_equal(params[0], params[2])


def test_norms_per_parameter(run_config: LoggerConfig) -> None:
    """Gradient and parameter norms are logged in all and by parameter, and agree with each other."""
    trainer = make_trainer(logger=run_config, log_grad_norm_per_param=True, log_param_norm_per_param=True)
    trainer.train_model(make_loader(1), num_epochs=1)
    values = rows_of(run_config.log_path, mode="train")[0]["values"]
    for name, tree in (("grad_norm", None), ("param_norm", trainer.state.params)):
        parts = [values[f"{name}/Dense_0/{leaf}_mean"] for leaf in ("bias", "kernel")]
        assert values[f"{name}_mean"] == pytest.approx(np.hypot(*parts), rel=1e-5)
        if tree is not None:
            squares = sum(float((np.asarray(leaf) ** 2).sum()) for leaf in jax.tree.leaves(tree))
            assert values[f"{name}_mean"] == pytest.approx(np.sqrt(squares), rel=1e-5)


def test_norms_can_be_left_out(run_config: LoggerConfig) -> None:
    """Without norms, the row holds the loss alone."""
    trainer = make_trainer(logger=run_config, log_grad_norm=False, log_param_norm=False)
    trainer.train_model(make_loader(1), num_epochs=1)
    assert rows_of(run_config.log_path, mode="train")[0]["values"].keys() == {"loss_mean", "epoch", "step_time"}


def test_log_modes_of_training(run_config: LoggerConfig) -> None:
    """Training metrics are logged in each default mode under its postfix; validation logs the mean alone."""
    trainer = make_trainer(logger=run_config, default_train_log_modes=["mean", "max", "single", "std"])
    trainer.train_model(make_loader(2), make_loader(1), num_epochs=1)
    values = rows_of(run_config.log_path, mode="train")[0]["values"]
    assert {"loss_mean", "loss_max", "loss_single", "loss_std"} <= values.keys()
    assert rows_of(run_config.log_path, mode="val")[0]["values"].keys() == {"loss", "epoch_time"}


@pytest.mark.parametrize("use_scan", [False, True])
def test_gradient_accumulation_is_one_large_batch(use_scan: bool) -> None:
    """Accumulating over microbatches gives the parameters of the undivided batch."""
    loader = make_loader(5, size=16)
    whole = make_trainer(batch=loader[0])
    parts = make_trainer(batch=loader[0], gradient_accumulate_steps=4, gradient_accumulate_scan=use_scan)
    for trainer in (whole, parts):
        trainer.train_model(loader, num_epochs=1)
    np.testing.assert_allclose(
        whole.state.params["Dense_0"]["kernel"], parts.state.params["Dense_0"]["kernel"], rtol=1e-5
    )


def test_gradient_accumulation_that_does_not_divide() -> None:
    """A batch that cannot be split into the microbatches is an error with both numbers."""
    with pytest.raises(DataError, match=r"8 examples.*gradient_accumulate_steps=3"):
        make_trainer(gradient_accumulate_steps=3).train_model(make_loader(1), num_epochs=1)


def test_mesh_gives_the_result_of_one_device() -> None:
    """Training on eight devices, with batch and parameters split, agrees with training on one."""
    loader = make_loader(5, size=16)
    one = make_trainer(batch=loader[0])
    many = make_trainer(batch=loader[0], parallel=ParallelConfig(fsdp_axis_size=4, fsdp_min_weight_size=1))
    for trainer in (one, many):
        trainer.train_model(loader, num_epochs=1)
    assert many.state.params["Dense_0"]["kernel"].sharding.spec[0] == "fsdp"
    assert not one.state.params["Dense_0"]["kernel"].sharding.spec
    np.testing.assert_allclose(one.state.params["Dense_0"]["kernel"], many.state.params["Dense_0"]["kernel"], rtol=1e-5)


def test_many_steps_on_a_mesh_do_not_deadlock() -> None:
    """Steps in flight on eight devices of one process stay bounded, so that its collectives never starve."""
    trainer = make_trainer(parallel=ParallelConfig())
    trainer.train_model(make_loader(50), num_epochs=6)
    assert trainer.global_step == 300


def test_own_mesh_is_taken() -> None:
    """A mesh of the user's is used, with axes that leave the sharding to the compiler."""
    mesh = jax.make_mesh((2,), ("dp",), devices=jax.devices()[:2])
    trainer = MSETrainer(
        TrainerConfig(enable_progress_bar=False),
        ModelConfig(model_class=Linear),
        OptimizerConfig(name="sgd"),
        batch=make_batch(8),
        mesh=mesh,
    )
    trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.mesh.shape == {"dp": 2}
    assert set(trainer.mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize("parallel", [ParallelConfig(data_axis_size=1), ParallelConfig()], ids=["one", "mesh"])
def test_evaluation_counts_each_example_once(parallel: ParallelConfig) -> None:
    """The mean over batches of different sizes is the mean over examples, also where the mesh cannot split one."""
    loader = [make_batch(16, 1), make_batch(8, 2), make_batch(5, 3)]
    trainer = make_trainer(batch=loader[0], parallel=parallel)
    predictions = trainer.predict(loader)
    assert predictions.shape == (29, 1)
    targets = np.concatenate([batch.targets for batch in loader])
    metrics = trainer.eval_model(loader, "val", 1)
    assert metrics["loss"] == pytest.approx(float(np.mean((predictions - targets) ** 2)), rel=1e-5)


def test_predictions_are_the_models() -> None:
    """Predict gives the outputs in the loader's order."""
    trainer = make_trainer()
    batch = make_batch(8)
    params = trainer.state.params["Dense_0"]
    expected = batch.inputs @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
    np.testing.assert_allclose(trainer.predict([batch]), expected, rtol=1e-5)


def test_several_data_sets() -> None:
    """Metrics of a dict of loaders carry the loader's key, in validation and test."""
    trainer = make_trainer()
    loaders = {"easy": make_loader(1), "hard": make_loader(1, seed=9)}
    results = trainer.train_model(make_loader(2), loaders, loaders, num_epochs=1)
    assert results["val"].keys() == {"easy_loss", "hard_loss", "epoch_time"}
    assert results["test"].keys() == {"easy_loss", "hard_loss", "epoch_time"}


def test_best_model_is_that_of_the_lowest_validation_loss() -> None:
    """The metrics returned as train and val are those of the best validation, not of the last."""
    trainer = make_trainer(lr=0.1)
    results = trainer.train_model(make_loader(5), make_loader(1, seed=50), num_epochs=2)
    # A poisoned last epoch: targets that have nothing to do with the inputs.
    noise = [Batch(batch.inputs, batch.targets + 100) for batch in make_loader(5)]
    later = trainer.train_model(noise, make_loader(1, seed=50), num_epochs=3)
    assert later["val_epoch_3"]["loss"] > results["val_epoch_2"]["loss"]
    assert later["val"] == results["val_epoch_2"]


def test_row_of_the_test_is_that_of_the_best_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where an earlier model is tested, the row has its step and epoch; the run is where it was."""
    keeper = CheckpointConfig(monitor="val_loss")
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"), callbacks=[keeper], lr=0.1)
    trainer.train_model(make_loader(5), make_loader(1, seed=50), num_epochs=2)
    noise = [Batch(batch.inputs, batch.targets + 100) for batch in make_loader(5)]
    with caplog.at_level("INFO", "trackside"):
        trainer.train_model(noise, make_loader(1, seed=50), make_loader(1, seed=60), num_epochs=3)
    run = open_run(tmp_path / "run")
    tested = run.metrics["test"]
    assert (tested.step.tolist(), tested.epoch.tolist()) == ([10], [2])
    assert (run.step, run.epoch, trainer.global_step) == (15, 3, 15)
    assert "test of the best model, that of step 10, after step 15" in caplog.text


def test_evaluation_randomness_is_fixed_by_seed_eval() -> None:
    """A model with randomness in evaluation gives the same metrics each time, and others with another seed."""

    class Noisy(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
            loss = jax.random.uniform(rng)
            return loss, ({"loss": loss}, None)

    first, second = make_trainer(Noisy, seed_eval=1), make_trainer(Noisy, seed_eval=2)
    loader = make_loader(3)
    losses = [trainer.eval_model(loader, "val", 1)["loss"] for trainer in (first, first, second)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_example_batch_of_shapes_only() -> None:
    """A batch of ShapeDtypeStructs gives the same parameters as one of arrays."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), make_batch(8))
    jax.tree.map(np.testing.assert_array_equal, make_trainer(batch=shapes).state.params, make_trainer().state.params)


def test_batches_of_another_kind() -> None:
    """Any pytree is a batch where batch_to_input says what the model gets."""

    class DictTrainer(MSETrainer):
        @staticmethod
        def batch_to_input(batch: Any) -> Any:
            return batch["x"]

        def loss_function(self, params: Any, apply_fn: Any, batch: Any, rng: Any, train: bool = True) -> Any:
            return super().loss_function(params, apply_fn, Batch(batch["x"], batch["y"]), rng, train)

    loader = [{"x": batch.inputs, "y": batch.targets} for batch in make_loader(3)]
    trainer = make_trainer(DictTrainer, batch=loader[0])
    trainer.train_model(loader, loader, num_epochs=1)
    assert trainer.global_step == 3


def test_debug_mode_runs_without_jit() -> None:
    """In debug mode the loss sees values that Python can look at, and the result is that of jit."""
    seen: list[float] = []

    class Looking(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
            loss, aux = super().loss_function(params, apply_fn, batch, rng, train)
            if self.trainer_config.debug:
                seen.append(float(jax.lax.stop_gradient(loss)))
            return loss, aux

    jitted, debugged = make_trainer(Looking), make_trainer(Looking, debug=True)
    for trainer in (jitted, debugged):
        trainer.train_model(make_loader(2), make_loader(1), num_epochs=1)
    assert seen
    np.testing.assert_allclose(
        jitted.state.params["Dense_0"]["kernel"], debugged.state.params["Dense_0"]["kernel"], rtol=1e-6
    )


def test_own_step_functions() -> None:
    """A trainer may bring its own step on states, and it is used."""

    class Frozen(MSETrainer):
        def create_training_step_function(self) -> Any:
            def train_step(state: Any, batch: Batch, metrics: Any) -> Any:
                return state.replace(step=state.step + 1), metrics.update({"loss": {"value": 6.0, "count": 3}})

            return train_step

    trainer = make_trainer(Frozen)
    before = jax.tree.map(np.asarray, trainer.state.params)
    results = trainer.train_model(make_loader(2), num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, before, trainer.state.params)
    assert results["train"]["loss_mean"] == 2.0


def test_public_step_functions() -> None:
    """train_step and eval_step work on states, for loops of the user's own."""
    trainer = make_trainer()
    batch = make_batch(8)
    state, metrics = trainer.train_step(trainer.state, batch, trainer.init_train_metrics())
    evaluated = trainer.eval_step(state, batch, trainer.init_eval_metrics())
    assert int(state.step) == 1
    assert int(metrics.num_steps) == 1
    assert float(evaluated["loss"]["count"]) == 8


def test_state_that_is_not_donated_stays_valid() -> None:
    """With donate_train_state=False an old state can be used after a step."""
    trainer = make_trainer(donate_train_state=False)
    old = trainer.state
    trainer.train_model(make_loader(1), num_epochs=1)
    assert np.isfinite(np.asarray(old.params["Dense_0"]["kernel"])).all()


def test_no_logger_and_no_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without logger, path and validation, training runs and writes nothing to the working directory."""
    monkeypatch.chdir(tmp_path)
    for logger in (None, LoggerConfig()):
        trainer = make_trainer(logger=logger)
        assert "train" in trainer.train_model(make_loader(2), None, num_epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_postprocessed_metrics(run_config: LoggerConfig) -> None:
    """Rows pass through the trainer's own function before they are logged."""

    class WithPerplexity(MSETrainer):
        def get_metric_postprocess_fn(self) -> Any:
            return lambda metrics: (
                {**metrics, "doubled": 2 * metrics["loss_mean"]} if "loss_mean" in metrics else metrics
            )

    trainer = make_trainer(WithPerplexity, logger=run_config)
    trainer.train_model(make_loader(1), num_epochs=1)
    values = rows_of(run_config.log_path, mode="train")[0]["values"]
    assert values["doubled"] == 2 * values["loss_mean"]


def test_default_postprocessing_changes_nothing() -> None:
    """The default function returns the metrics as they are."""
    assert make_trainer().get_metric_postprocess_fn()({"a": 1.0}) == {"a": 1.0}


def test_configs_of_a_run_come_back(run_config: LoggerConfig) -> None:
    """config.json holds the configs, and they are read back equal."""
    trainer = make_trainer(logger=run_config, seed=3)
    saved = ConfigDict.from_dict(dict, json.loads((run_config.log_path / "config.json").read_text()))
    for name, config in (("trainer", trainer.trainer_config), ("optimizer", trainer.optimizer_config)):
        assert ConfigDict.from_dict(type(config), saved[name]) == config
    model = ConfigDict.from_dict(ModelConfig, saved["model"])
    assert model.model_class is Linear


def test_configs_as_dicts() -> None:
    """Configs may be given as plain dicts."""
    trainer = MSETrainer(
        {"enable_progress_bar": False, "seed": 4},
        ModelConfig(model_class=Linear, parallel=ParallelConfig(data_axis_size=1)),
        {"name": "sgd"},
        batch=make_batch(8),
    )
    assert trainer.trainer_config.seed == 4
    assert trainer.optimizer_config.name == "sgd"


def test_datasets_reach_the_callbacks() -> None:
    """set_dataset hands the loaders to trainer and callbacks."""
    trainer = make_trainer()
    module = DataloaderModule(train_dataloader=make_loader(1))
    trainer.set_dataset(module)
    assert trainer.dataset is module


def test_parameter_table() -> None:
    """The table names each parameter with shape, dtype, sharding, decay and count, and the total."""
    trainer = MSETrainer(
        TrainerConfig(enable_progress_bar=False),
        ModelConfig(model_class=Linear, parallel=ParallelConfig(fsdp_axis_size=4, fsdp_min_weight_size=4)),
        OptimizerConfig(name="adamw", weight_decay=0.1, weight_decay_exclude=["bias"]),
        batch=make_batch(8),
    )
    lines = {line.split()[0]: line for line in trainer.tabulate_params().splitlines() if line.strip()}
    kernel, bias = lines["Dense_0/kernel"], lines["Dense_0/bias"]
    assert all(part in kernel for part in ("(4, 1)", "float32", "fsdp", "yes", "4"))
    assert all(part in bias for part in ("(1,)", "replicated", "no", "1"))
    assert lines["Total"].split()[-1] == "5"
    assert trainer.get_num_params() == 5


@dataclass
class PrunedState:
    """A state that only evaluates."""

    step: Any
    params: Any
    mutable_variables: Any = None
    rng: Any = None


def test_pruned_state_keeps_its_class_when_restored() -> None:
    """A state without optimizer is restored as such, evaluates, and refuses to train."""
    source = make_trainer()
    source.train_model(make_loader(3), num_epochs=1)
    saved = {"params": source.state.params, "opt_state": source.state.opt_state, "step": source.state.step}
    trainer = make_trainer(seed=9)
    trainer.state = PrunedState(step=trainer.state.step, params=trainer.state.params, rng=trainer.state.rng)
    trainer.restore_model(saved)
    assert type(trainer.state) is PrunedState
    assert trainer.global_step == 3
    loader = make_loader(1)
    assert trainer.eval_model(loader, "val", 1)["loss"] == source.eval_model(loader, "val", 1)["loss"]
    with pytest.raises(ConfigError, match="optimizer"):
        trainer.train_model(loader, num_epochs=9)


def test_restored_state_continues_bit_identically() -> None:
    """A trainer restored from another's state goes on exactly as that one does."""
    source, target = make_trainer(NormTrainer, NormNet), make_trainer(NormTrainer, NormNet, seed=5)
    source.train_model(make_loader(3), num_train_steps=3)
    state = source.state
    target.restore_model(
        jax.tree.map(
            np.asarray,
            {
                "params": state.params,
                "opt_state": state.opt_state,
                "mutable_variables": state.mutable_variables,
                "step": state.step,
                "rng": jax.random.key_data(state.rng),
            },
        )
    )
    assert target.first_step
    for trainer in (source, target):
        trainer.train_model(make_loader(3, seed=7), num_train_steps=6)
    jax.tree.map(np.testing.assert_array_equal, source.state.params, target.state.params)


def test_state_of_another_model_is_refused() -> None:
    """Restoring a state that does not fit names the path and both shapes."""
    trainer = make_trainer()
    wrong = {"Dense_0": {"kernel": np.zeros((7, 1), np.float32), "bias": np.zeros(1, np.float32)}}
    with pytest.raises(CheckpointError, match=r"Dense_0/kernel: float32\[7, 1\].*float32\[4, 1\]"):
        trainer.restore_model({"params": wrong})


def test_tracker_passes_arguments_to_tqdm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Tracker wraps in tqdm with its arguments where a bar is shown, and returns the iterator itself otherwise."""
    items = [1, 2]
    assert make_trainer().tracker(items) is items
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    trainer = make_trainer(enable_progress_bar=True)
    assert list(trainer.tracker(items, desc="looking")) == items
    assert "looking" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gradient_accumulate_steps", 0),
        ("max_inflight_steps", 0),
        ("check_val_every_n_epoch", 0),
        ("check_val_every_n_steps", -2),
        ("default_train_log_modes", ["median"]),
        ("intermediates_log_modes", "mean"),
    ],
)
def test_config_values_that_cannot_work(field: str, value: Any) -> None:
    """A setting that cannot work is an error that names the field and the value."""
    with pytest.raises(ConfigError, match=field) as caught:
        TrainerConfig(**{field: value})
    assert str(value if not isinstance(value, list) else value[0]) in str(caught.value)


class BadLoss(MSETrainer):
    """Returns whatever the test wants."""

    returned: Any = None

    def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (1.0, "loss, \\(metrics, mutable_variables\\)"),
        ((1.0, {"loss": 1.0}), "loss, \\(metrics, mutable_variables\\)"),
        ((np.ones(3, np.float32), ({}, None)), "scalar float"),
        ((1, ({}, None)), "scalar float"),
        ((1.0, ({"acc": np.ones(2, np.float32)}, None)), "acc.*scalar"),
        ((1.0, ({"acc": {"value": 1.0, "n": 2}}, None)), "acc"),
        ((1.0, ({"acc": {"value": 1.0, "log_modes": ["median"]}}, None)), "median"),
        ((1.0, ([1.0], None)), "dict of step metrics"),
    ],
)
def test_loss_of_the_wrong_form(returned: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What loss_function returns is checked before training starts, with an error that says what is wrong."""
    monkeypatch.setattr(BadLoss, "returned", returned)
    trainer = make_trainer(BadLoss)
    with pytest.raises(MetricError, match=message):
        trainer.train_model(make_loader(1), num_epochs=1)
    assert trainer.global_step == 0


def test_missing_loss_function() -> None:
    """A trainer without loss_function says so."""
    from trackside.trainer import TrainerModule

    with pytest.raises(NotImplementedError, match="loss_function"):
        make_trainer(TrainerModule).train_model(make_loader(1), num_epochs=1)


def test_unwritable_log_path(tmp_path: Path) -> None:
    """A log path that is a file is an error when the trainer is built."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="log_path"):
        make_trainer(logger=LoggerConfig(log_path=tmp_path / "file"))


def test_failing_set_up_closes_the_logger(run_config: LoggerConfig) -> None:
    """A model that cannot be built leaves no open log behind, and the run says that it failed."""

    class Broken(nn.Module):
        config: Any = None

        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            raise RuntimeError("cannot be built")

    handlers_before = list(logging.getLogger("trackside").handlers)
    with pytest.raises(RuntimeError, match="cannot be built"):
        make_trainer(model_class=Broken, logger=run_config)
    assert rows_of(run_config.log_path, "status")[-1]["status"] == "error"
    assert logging.getLogger("trackside").handlers == handlers_before


def test_empty_validation_loader() -> None:
    """An empty validation loader is an error before the first step."""
    trainer = make_trainer()
    with pytest.raises(DataError, match="val_loader"):
        trainer.train_model(make_loader(1), [], num_epochs=1)
    assert trainer.global_step == 0


def test_evaluation_is_tried_before_training() -> None:
    """An error in evaluation shows before the first step and not after an epoch."""

    class BrokenEvaluation(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
            if not train:
                raise RuntimeError("evaluation is broken")
            return super().loss_function(params, apply_fn, batch, rng, train)

    trainer = make_trainer(BrokenEvaluation)
    with pytest.raises(RuntimeError, match="evaluation is broken"):
        trainer.train_model(make_loader(1), make_loader(1), num_epochs=1)
    assert trainer.global_step == 0


def test_restored_step_counts_towards_the_epochs() -> None:
    """A state restored at a step is placed in its epoch, so that totals in epochs hold."""
    trainer = make_trainer()
    trainer.restore_model({"params": trainer.state.params, "step": 5})
    trainer.train_model(make_loader(4), num_epochs=2)
    assert trainer.global_step == 8
    assert trainer.epoch == 2


def test_status_tells_how_training_ended() -> None:
    """The trainer says how its last training ended."""
    trainer = make_trainer()
    trainer.train_model(make_loader(1), num_epochs=1)
    assert trainer.status == "success"
    poisoned = make_loader(2)
    poisoned[0].inputs[:] = np.nan
    trainer.train_model(poisoned, num_epochs=3)
    assert trainer.status == "nan"


def test_test_after_training_leaves_the_run_finished(run_config: LoggerConfig) -> None:
    """A test after training is logged, and the run still ends with its status."""
    trainer = make_trainer(logger=run_config)
    trainer.train_model(make_loader(1), num_epochs=1)
    trainer.test_model(make_loader(1))
    assert not trainer.logger.is_open
    assert rows_of(run_config.log_path, mode="test")
    assert rows_of(run_config.log_path, "status")[-1]["status"] == "success"


def test_state_that_is_set_brings_its_step() -> None:
    """Setting a state moves the trainer to that state's step."""
    trainer = make_trainer()
    trainer.state = trainer.state.replace(step=jnp.int32(7))
    assert trainer.global_step == 7


def test_model_that_does_not_take_a_config_is_explained() -> None:
    """A model without a field for its config is an error that says how to add one."""

    class NoField(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            return nn.Dense(1)(x)

    with pytest.raises(ConfigError, match="config: Any = None"):
        make_trainer(model_class=NoField)


def test_batch_without_inputs_is_explained() -> None:
    """A batch of another kind is an error that names the method to override."""
    with pytest.raises(DataError, match="batch_to_input"):
        make_trainer(batch={"x": np.zeros((8, 4), np.float32)})


def test_second_run_in_a_folder_is_announced(run_config: LoggerConfig, caplog: pytest.LogCaptureFixture) -> None:
    """A run that goes to a folder with a run in it says so."""
    make_trainer(logger=run_config).train_model(make_loader(1), num_epochs=1)
    caplog.clear()
    make_trainer(logger=run_config)
    assert "holds a run already" in caplog.text
