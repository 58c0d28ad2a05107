"""Every feature of the trainer, with a model of every library.

A pair that cannot work is listed in `LACKING` with its reason, and skipped. Any other test that is skipped fails
(`conftest.py`).
"""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.trainer.models.libraries import KITS, Kit, apply_with_names, init_fn, make_data
from tests.trainer.process_pair import results, start
from tests.trainer.process_script import train_kit
from tests.trainer.tiny import rows_of
from trackside.callbacks import CheckpointConfig, EMAConfig, ProfilingConfig
from trackside.logger import LoggerConfig
from trackside.run_layout import CONFIG_FILE_NAME
from trackside.runs import open_run
from trackside.trainer import ParallelConfig, Trainer, TrainerConfig

DATA = make_data()
LACKING = {
    ("equinox", "intermediates"): "Equinox has no way to sow values",
    ("functions", "intermediates"): "functions have no way to sow values",
}

FEATURES = {
    "dp and fsdp": "test_eight_devices",
    "tp": "test_tensor_parallelism",
    "gradient accumulation": "test_gradient_accumulation",
    "mutable state": "test_state_of_the_model",
    "dropout rng": "test_dropout",
    "intermediates": "test_intermediates",
    "EMA": "test_average_of_the_parameters",
    "checkpoint and bit-exact resume": "test_resume_is_bit_exact",
    "trace scopes": "test_layers_have_names_in_traces",
    "tabulate_params": "test_parameters_have_names",
    "debug": "test_debug_mode",
    "two processes": "test_two_processes",
    "summary": "test_summary",
}
"""The test of each feature. Every one of them runs for every library."""

pytestmark = pytest.mark.parametrize("library", KITS)


def test_every_feature_has_its_test(library: str) -> None:
    """No feature lost its test, and what a library lacks is a feature."""
    tests = {name for name, value in globals().items() if name.startswith("test_") and callable(value)}
    assert set(FEATURES.values()) <= tests
    assert {feature for name, feature in LACKING if name == library} <= set(FEATURES)


def skip_if_lacking(library: str, feature: str) -> None:
    if (reason := LACKING.get((library, feature))) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def optax_as_it_is() -> Iterator[None]:
    """Optax's own optimizers do not live with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def make_trainer(
    model: Any, loss: Any, run: Path | None = None, parallel: ParallelConfig | None = None, **config: Any
) -> Trainer:
    config = {"enable_progress_bar": False, **config}
    one_device = ParallelConfig(data_axis_size=1)
    return Trainer(
        model, loss, optax.adam(1e-2), run=run, config=TrainerConfig(**config), parallel=parallel or one_device
    )


def train(kit: Kit, num_epochs: int = 2, model: Any = None, loss: Any = None, **kwargs: Any) -> Trainer:
    trainer = make_trainer(kit.plain() if model is None else model, loss or kit.loss, **kwargs)
    trainer.fit(DATA, DATA[:1], num_epochs=num_epochs)
    return trainer


def is_key(leaf: jax.Array) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def leaves(trainer: Trainer) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.module.progress.carry[1:4])]


def test_it_learns(library: str) -> None:
    """The loss falls, in training and in evaluation, and predictions are as good as the loss says."""
    trainer = make_trainer(KITS[library].plain(), KITS[library].loss)
    before = trainer.evaluate(DATA)["loss"]
    results = trainer.fit(DATA, DATA, num_epochs=20)
    assert results["val"]["loss"] < 0.5 * before
    targets = np.concatenate([batch["y"] for batch in DATA])
    assert ((trainer.predict(DATA) - targets) ** 2).mean() == pytest.approx(results["val"]["loss"], rel=1e-5)


def test_the_users_model_is_left_alone(library: str) -> None:
    """Training neither changes nor deletes the arrays of the model that was passed."""
    model = KITS[library].plain()
    held = [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array) and not is_key(leaf)]
    before = [np.array(leaf) for leaf in held]
    trainer = make_trainer(model, KITS[library].loss)
    trainer.fit(DATA, num_epochs=1)
    for leaf, old in zip(held, before, strict=True):
        np.testing.assert_array_equal(leaf, old)
    assert jax.tree.leaves(trainer.model)


def test_model_that_is_built_on_demand(library: str) -> None:
    """A function that builds the model is enough; its parameters depend on the seed."""
    kit = KITS[library]
    first, second, third = (train(kit, 1, kit.built_on_demand, seed=seed) for seed in (0, 0, 1))
    for one, same in zip(leaves(first), leaves(second), strict=True):
        np.testing.assert_array_equal(one, same)
    assert any(not np.array_equal(one, other) for one, other in zip(leaves(first), leaves(third), strict=True))


@pytest.fixture(scope="module")
def alone() -> Callable[[str], list[np.ndarray]]:
    """What a training on one device ends with, for each library; trained once, and only read."""
    return functools.cache(lambda library: leaves(train(KITS[library])))


def test_eight_devices(library: str, alone: Callable[[str], list[np.ndarray]]) -> None:
    """With batches and parameters split over a mesh, training ends as on one device within float tolerance."""
    kit = KITS[library]
    axes = ParallelConfig(data_axis_size=2, fsdp_axis_size=4, fsdp_min_weight_size=8)
    spread = train(kit, parallel=axes)
    kernels = [leaf for leaf in jax.tree.leaves(spread.module.progress.carry.params) if leaf.size == 32]
    assert not any(leaf.is_fully_replicated for leaf in kernels)
    for one, other in zip(alone(library), leaves(spread), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_tensor_parallelism(library: str, alone: Callable[[str], list[np.ndarray]]) -> None:
    """Layers split over the axis `tp`, by the paths of their parameters, train as on one device."""
    kit = KITS[library]
    first, last = (["tp", None], [None, "tp"]) if library == "equinox" else ([None, "tp"], ["tp", None])
    axes = {"first/(kernel|weight)": first, "first/bias": ["tp"], "last/(kernel|weight)": last}
    parallel = ParallelConfig(data_axis_size=2, model_axis_size=4, param_axes=axes)
    spread = train(kit, model=kit.plain(), parallel=parallel)
    state = spread.module.progress.carry
    sizes = {leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves((state.params, state.opt_state))}
    assert sizes >= {(2, 4) if library == "equinox" else (4, 2), (2,)}
    for one, other in zip(alone(library), leaves(spread), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_gradient_accumulation(library: str, alone: Callable[[str], list[np.ndarray]]) -> None:
    """Two microbatches give what the whole batch gives."""
    parts = train(KITS[library], gradient_accumulate_steps=2)
    for one, other in zip(alone(library), leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_state_of_the_model(library: str) -> None:
    """Statistics of the batches are kept from step to step, and evaluation leaves them alone."""
    kit = KITS[library]
    trainer = make_trainer(kit.stateful(), kit.stateful_loss)
    trainer.build(DATA[0])
    start = jax.tree.leaves(trainer.module.progress.carry.mutable_variables)
    start = [np.array(leaf) for leaf in start]
    trainer.fit(DATA, num_epochs=1)
    trained = [np.array(leaf) for leaf in jax.tree.leaves(trainer.module.progress.carry.mutable_variables)]
    assert any(not np.array_equal(one, other) for one, other in zip(start, trained, strict=True))
    assert trainer.evaluate(DATA) | {"epoch_time": 0} == trainer.evaluate(DATA) | {"epoch_time": 0}
    after = jax.tree.leaves(trainer.module.progress.carry.mutable_variables)
    jax.tree.map(np.testing.assert_array_equal, trained, [np.array(leaf) for leaf in after])


def test_dropout(library: str) -> None:
    """Training drops out, differently at each step and with each seed; evaluation does not."""
    kit = KITS[library]
    plain, dropped, other = (
        train(kit, 1, model, seed=seed) for model, seed in ((kit.plain(), 0), (kit.dropout(), 0), (kit.dropout(), 1))
    )
    assert not np.array_equal(leaves(plain)[0], leaves(dropped)[0])
    assert not np.array_equal(leaves(other)[0], leaves(dropped)[0])
    first, second = dropped.evaluate(DATA), dropped.evaluate(DATA)
    assert first["loss"] == second["loss"]


def test_intermediates(library: str, tmp_path: Path) -> None:
    """Values that the model sows are logged."""
    skip_if_lacking(library, "intermediates")
    kit = KITS[library]
    logger = LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=1)
    train(kit, 1, logger=logger, log_intermediates=True)
    assert "intermediates/mean_mean" in rows_of(tmp_path / "run", mode="train")[0]["values"]


def test_average_of_the_parameters(library: str) -> None:
    """Evaluation uses the average that EMA keeps, and so does the model that is handed out."""
    trainer = train(KITS[library], callbacks=[EMAConfig(decay=0.9)])
    trained = leaves(trainer)[0]
    average = np.asarray(jax.tree.leaves(trainer.module.evaluation_params())[0])
    assert not np.array_equal(trained, average)


def test_resume_is_bit_exact(library: str, tmp_path: Path) -> None:
    """A training that was cut and continued by the same command ends with the bits of one that was not."""
    kit = KITS[library]
    saving = {"callbacks": [CheckpointConfig(every_n_steps=4)]}
    arguments = (kit.stateful, kit.stateful_loss)
    whole = make_trainer(arguments[0](), arguments[1], tmp_path / "whole", **saving)
    whole.fit(DATA, num_epochs=2)
    cut = make_trainer(arguments[0](), arguments[1], tmp_path / "cut", **saving)
    with pytest.raises(OSError, match="gone"):
        cut.fit(Failing(DATA), num_epochs=2)
    resumed = make_trainer(arguments[0](), arguments[1], tmp_path / "cut", **saving)
    resumed.fit(DATA, num_epochs=2)
    assert [row["step"] for row in rows_of(tmp_path / "cut", "leg")] == [0, 4]
    for one, other in zip(leaves(whole), leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


class Failing(list):
    """A loader that fails after five batches."""

    def __iter__(self) -> Any:
        yield from self[:5]
        raise OSError("the disk is gone")


def test_finished_run_keeps_its_folder(library: str, tmp_path: Path) -> None:
    """The same command after the end starts a run of its own next to the first."""
    kit = KITS[library]
    for _ in range(2):
        make_trainer(kit.plain(), kit.loss, tmp_path / "run").fit(DATA, num_epochs=1)
    assert [open_run(tmp_path / name).status for name in ("run", "run-2")] == ["success", "success"]
    given = json.loads((tmp_path / "run" / CONFIG_FILE_NAME).read_text())["given"]
    assert set(given) == {"model", "loss_fn"}


def test_layers_have_names_in_traces(library: str, tmp_path: Path, fresh_compiles: None) -> None:
    """Device time is attributed to the layers of the user's model; those of functions are named by their author."""
    window = ProfilingConfig(log_dir=str(tmp_path / "trace"), start_step=4, end_step=6)
    kit = KITS[library]
    model = (init_fn, apply_with_names) if library == "functions" else kit.plain()
    train(kit, model=model, run=tmp_path / "run", callbacks=[window])
    report = open_run(tmp_path / "run").captures[0].report
    assert report is not None
    scopes = {name for row in report.scopes for name in row.scope.split("/")}
    assert {"first", "last"} <= scopes


def test_parameters_have_names(library: str) -> None:
    """The table of parameters has the names of the user's model."""
    trainer = make_trainer(KITS[library].plain(), KITS[library].loss)
    table = trainer.build(DATA[0]).tabulate_params()
    assert "first/" in table
    assert "last/" in table


def test_debug_mode(library: str) -> None:
    """Without jit, the same step runs and gives the same loss within float tolerance."""
    kit = KITS[library]
    compiled, plain = make_trainer(kit.plain(), kit.loss), make_trainer(kit.plain(), kit.loss, debug=True)
    for trainer in (compiled, plain):
        trainer.fit(DATA[:1], num_epochs=1)
    for one, other in zip(leaves(compiled), leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes have trained, a model of each library."""
    return results(start("libraries", tmp_path_factory.mktemp("processes")))


@pytest.mark.slow
def test_two_processes(library: str, pair: list[dict[str, Any]]) -> None:
    """Two processes agree on parameters and state, which are those of one process with two devices."""
    assert pair[0][library] == pair[1][library]
    alone = train_kit(KITS[library], ParallelConfig(data_axis_size=2))
    for one, other in zip(pair[0][library], alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_summary(library: str) -> None:
    """Before the first step, the layers are listed with their parameters, and the step's operations are known."""
    summary = make_trainer(KITS[library].plain(), KITS[library].loss).summary(DATA)
    assert {row.name: row.num_params for row in summary.rows if row.num_params} == {"loss": 49, "first": 40, "last": 9}
    assert summary.total.step_flops == 1408
