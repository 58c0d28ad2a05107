"""Mixed precision with a model of every library: which types are used where, and what float16 does at an overflow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.extend import core

from tests.trainer.models.libraries import KITS, Kit, make_data, mse, mse_of_examples
from tests.trainer.tiny import rows_of
from trackside.callbacks import Callback, CheckpointConfig, EMAConfig
from trackside.errors import ConfigError, NonFiniteError
from trackside.logger import LoggerConfig
from trackside.trainer import (
    LossScaleConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    SchedulerConfig,
    Trainer,
    TrainerConfig,
)

DATA = make_data(4)
HUGE = {"x": DATA[0]["x"], "y": np.full_like(DATA[0]["y"], 3e4)}
"""A batch whose gradients have no room in float16 once they are scaled."""
SCALE = LossScaleConfig(initial=256.0, growth_interval=3)
FP16 = PrecisionConfig(compute="fp16", loss_scale=SCALE)
ALONE = ParallelConfig(data_axis_size=1)
ADAM = OptimizerConfig(scheduler=SchedulerConfig(name="constant", lr=0.01))
SGD = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=0.01), grad_clip_norm=0.1)

every_library = pytest.mark.parametrize("library", KITS)


@pytest.fixture
def standard_promotion() -> Iterator[None]:
    """For models and optimizers of others: batch norms mix float32 with the type of their inputs."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def make_trainer(
    kit: Kit, precision: Any, stateful: bool = False, optimizer: Any = None, run: Path | None = None, **config: Any
) -> Trainer:
    model, loss = (kit.stateful(), kit.stateful_loss) if stateful else (kit.plain(), kit.loss)
    config = TrainerConfig(enable_progress_bar=False, **config)
    return Trainer(model, loss, optimizer or ADAM, run, config=config, parallel=ALONE, precision=precision)


class Losses(Callback):
    """Remembers the metrics of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.rows.append(dict(step_metrics))


def losses_of(trainer: Trainer) -> list[float]:
    seen = Losses()
    trainer.fit(DATA, num_epochs=1, callbacks=[seen])
    return [row["loss"] for row in seen.rows]


def params_of(trainer: Trainer) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trainer.module.progress.carry.params)])


def traced(trainer: Trainer) -> Any:
    """The training step as it is compiled."""
    engine, carry = trainer.build(DATA[0]).engine, trainer.module.progress.carry
    layout = engine.train_layout(carry, DATA[0])
    return jax.make_jaxpr(engine.train_call(layout))(carry, engine.fresh_vector(layout), DATA[0])


def products(jaxpr: Any) -> list[tuple[str, str]]:
    """The types of the factors of all matrix products, in the whole program."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(tuple(str(factor.aval.dtype) for factor in equation.invars))
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda one: isinstance(one, core.Jaxpr)):
            if isinstance(inner, core.Jaxpr | core.ClosedJaxpr):
                found += products(getattr(inner, "jaxpr", inner))
    return found


# --- which types ------------------------------------------------------------------------------------------------------


@every_library
def test_model_computes_in_bfloat16_and_is_kept_in_float32(library: str, standard_promotion: None) -> None:
    """Parameters and inputs of every product are bfloat16; parameters, moments, statistics and loss are float32."""
    trainer = make_trainer(KITS[library], "bf16")
    used = products(traced(trainer).jaxpr)
    assert set(used) == {("bfloat16", "bfloat16")}
    carry = trainer.module.progress.carry
    floats = [leaf for leaf in jax.tree.leaves(carry) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {str(leaf.dtype) for leaf in floats} == {"float32"}
    assert trainer.predict(DATA).dtype == np.float32


@every_library
def test_bfloat16_learns_as_float32_does(library: str, standard_promotion: None) -> None:
    """The losses of the first steps agree to bfloat16's precision, also with statistics of the batches."""
    optimizer = optax.adam(1e-2)  # as in the tests of every library, which share what they compile
    full, half = (
        losses_of(make_trainer(KITS[library], precision, stateful=True, optimizer=optimizer))
        for precision in (None, "bf16")
    )
    assert full != half
    np.testing.assert_allclose(half, full, rtol=0.02)


@every_library
def test_program_is_the_same_without_mixed_precision(library: str) -> None:
    """Float32 as a policy adds nothing to the program or the state of a model that is float32 anyway."""
    programs = [str(traced(make_trainer(KITS[library], precision))) for precision in (None, "f32")]
    assert programs[0] == programs[1]


class LinenOwn(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.Dense(1, dtype=jnp.float32)(nn.tanh(nn.Dense(8)(x)))


class NnxOwn(nnx.Module):
    def __init__(self) -> None:
        self.first = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(8, 1, dtype=jnp.float32, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.tanh(self.first(x)))


class EquinoxOwn(eqx.Module):
    first: eqx.nn.Linear = eqx.field(default_factory=lambda: eqx.nn.Linear(4, 8, key=jax.random.key(0)))
    last: eqx.nn.Linear = eqx.field(default_factory=lambda: eqx.nn.Linear(8, 1, key=jax.random.key(0)))

    def __call__(self, x: Any, key: Any) -> Any:
        last = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), eqx.filter(self.last, eqx.is_array))
        return last.weight @ jnp.tanh(self.first(x)).astype(jnp.float32) + last.bias


def init_own(key: Any) -> Any:
    return {"first": jnp.ones((4, 8)), "last": jnp.ones((8, 1))}


def apply_own(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["first"]).astype(jnp.float32) @ params["last"].astype(jnp.float32)


OWN: dict[str, tuple[Callable[[], Any], Callable]] = {
    "linen": (LinenOwn, mse),
    "nnx": (NnxOwn, mse),
    "equinox": (EquinoxOwn, mse_of_examples),
    "functions": (lambda: (init_own, apply_own), mse),
}


@every_library
def test_own_type_of_a_layer_wins(library: str) -> None:
    """A layer that says in which type it computes does so, while the others follow the policy."""
    model, loss = OWN[library]
    trainer = Trainer(model(), loss, SGD, parallel=ALONE, precision="bf16", config=TrainerConfig())
    assert set(products(traced(trainer).jaxpr)) == {("bfloat16", "bfloat16"), ("float32", "float32")}


# --- float16 ----------------------------------------------------------------------------------------------------------


@every_library
def test_overflow_skips_the_step_and_halves_the_scale(library: str, standard_promotion: None) -> None:
    """Nothing changes but step count and scale, and it is no reason to stop."""
    module = make_trainer(KITS[library], FP16, stateful=True).build(DATA[0])
    layout = module.init_train_metrics().layout
    call, vector = module.engine.train_call(layout), module.engine.fresh_vector(layout)
    carry, vector = call(module.progress.carry, vector, DATA[0])
    before = jax.device_get(carry)
    after, vector = jax.device_get(call(carry, vector, HUGE))
    jax.tree.map(np.testing.assert_array_equal, before[1:5], after[1:5])
    assert (int(after.step), float(after.loss_scale.scale), int(after.loss_scale.num_finite)) == (2, 128.0, 0)
    assert not vector[0]


@every_library
def test_resume_with_a_scale_is_bit_exact(library: str, tmp_path: Path, standard_promotion: None) -> None:
    """The scale and its count are saved: a training that was cut ends with the bits of one that was not."""
    data = [DATA[0], HUGE, *DATA[1:], *DATA]

    def make(name: str) -> Trainer:
        saving = {"callbacks": [CheckpointConfig(every_n_steps=3)]}
        return make_trainer(KITS[library], FP16, stateful=True, run=tmp_path / name, **saving)

    whole, cut, resumed = make("whole"), make("cut"), make("resumed")
    whole.fit(data, num_train_steps=7)
    cut.fit(data, num_train_steps=3)
    resumed.build(DATA[0]).load_pretrained_model(tmp_path / "cut")
    resumed.fit(data, num_train_steps=7)
    first, second = (jax.device_get(one.module.progress.carry) for one in (whole, resumed))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert float(first.loss_scale.scale) == 256.0


def test_scale_grows_and_stays_in_its_bounds() -> None:
    """It doubles after as many finite steps as it is told, up to the largest."""
    scale = LossScaleConfig(initial=2.0, growth_interval=2, largest=4.0)
    seen = Losses()
    trainer = make_trainer(KITS["functions"], PrecisionConfig(compute="fp16", loss_scale=scale))
    trainer.fit([*DATA, *DATA], num_epochs=1, callbacks=[seen])
    assert [row["loss_scale"] for row in seen.rows] == [2, 2, 4, 4, 4, 4, 4, 4]


def test_what_is_not_finite_at_the_smallest_scale_stops() -> None:
    """A NaN that no scale helps against is found after the scale has come down, and the parameters are as before."""
    scale = LossScaleConfig(initial=4.0)
    trainer = make_trainer(
        KITS["functions"], PrecisionConfig(compute="fp16", loss_scale=scale), raise_on_nan=True, optimizer=SGD
    )
    before = params_of(trainer) if trainer.build(DATA[0]) else None
    bad = {"x": np.full_like(DATA[0]["x"], np.nan), "y": DATA[0]["y"]}
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.fit([bad] * 6, num_epochs=1)
    np.testing.assert_array_equal(params_of(trainer), before)


@pytest.mark.parametrize("scan", [False, True])
def test_clipping_and_accumulation_see_unscaled_gradients(scan: bool) -> None:
    """With clipped gradients of microbatches, float16 ends where float32 does."""
    kit = KITS["functions"]
    full = make_trainer(kit, None, optimizer=SGD)
    half = make_trainer(kit, FP16, optimizer=SGD, gradient_accumulate_steps=2, gradient_accumulate_scan=scan)
    np.testing.assert_allclose(losses_of(half), losses_of(full), rtol=0.01)
    np.testing.assert_allclose(params_of(half), params_of(full), atol=1e-3)


def test_frozen_parameters_and_averages_in_float16() -> None:
    """Frozen parameters stay, and the average of the others is left alone by a step that is skipped."""
    optimizer = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=0.1), frozen=["^first/"])
    trainer = make_trainer(KITS["functions"], FP16, optimizer=optimizer, callbacks=[EMAConfig(decay=0.5)])
    module = trainer.build(DATA[0])
    frozen = jax.device_get(module.state.params["first"])
    trainer.fit([DATA[0], HUGE], num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, frozen, jax.device_get(module.state.params["first"]))
    before, after = np.asarray(trainer.module.state.params["last"]["bias"]), module.evaluation_params()["last"]["bias"]
    np.testing.assert_allclose(after, before / 2, rtol=1e-6)  # after one step from 0, and not after two


def test_scale_and_skipped_steps_are_logged(tmp_path: Path) -> None:
    """Rows have the scale, the share of skipped steps and the loss as it is without the scale."""
    logger = LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=4)
    trainer = make_trainer(KITS["functions"], FP16, logger=logger)
    trainer.fit([DATA[0], HUGE, *DATA[1:3]], num_epochs=1)
    row = rows_of(tmp_path / "run", mode="train")[0]["values"]
    assert row["loss_scale_mean"] == (256 + 256 + 128 + 128) / 4
    assert row["overflow_mean"] == 0.25
    assert row["loss_mean"] < 100


def test_several_devices_in_float16() -> None:
    """With batches and parameters split over a mesh, losses are those of one device within float tolerance."""
    kit, axes = KITS["functions"], ParallelConfig(data_axis_size=2, fsdp_axis_size=4, fsdp_min_weight_size=8)
    config = TrainerConfig(enable_progress_bar=False)
    spread = Trainer(kit.plain(), kit.loss, ADAM, config=config, parallel=axes, precision=FP16)
    np.testing.assert_allclose(losses_of(spread), losses_of(make_trainer(kit, FP16)), rtol=2e-3)


@pytest.mark.parametrize(("saved", "now"), [(None, FP16), (FP16, None)])
def test_checkpoints_of_another_precision_can_be_loaded(saved: Any, now: Any, tmp_path: Path) -> None:
    """One that was saved without a scale starts with the first; a scale that is not needed is left aside."""
    before = make_trainer(KITS["functions"], saved, run=tmp_path / "run")
    before.fit(DATA[:1], num_epochs=1)
    after = make_trainer(KITS["functions"], now)
    after.build(DATA[0]).load_pretrained_model(tmp_path / "run")
    np.testing.assert_array_equal(params_of(before), params_of(after))
    after.fit(DATA, num_train_steps=2)


# --- the config -------------------------------------------------------------------------------------------------------


def test_short_names() -> None:
    """A short name stands for the type to compute in; float16 comes with a scale, the others do not."""
    assert TrainerConfig(precision="bf16").precision == PrecisionConfig("float32", "bfloat16", "float32")
    assert TrainerConfig(precision="fp16").precision.loss_scale == LossScaleConfig()  # type: ignore[union-attr]
    config = TrainerConfig(precision=FP16)
    assert TrainerConfig.from_dict(TrainerConfig, config.to_dict()) == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrecisionConfig(compute="bf61"), "PrecisionConfig.compute: expected f32, bf16, fp16 or f64.*Did you"),
        (lambda: TrainerConfig(precision="int8"), "precision: expected f32"),
        (lambda: PrecisionConfig(params="fp16", compute="fp16"), "no room for gradients"),
        (lambda: LossScaleConfig(initial=0.5), "smallest <= initial"),
        (lambda: LossScaleConfig(factor=1.0), "factor: expected more than 1"),
        (lambda: LossScaleConfig(growth_interval=0), "growth_interval: expected a positive"),
        (
            lambda: Trainer(KITS["linen"].plain(), mse, SGD, config=TrainerConfig(precision="bf16"), precision="fp16"),
            "say it once",
        ),
    ],
)
def test_bad_settings_are_named(make: Callable, message: str) -> None:
    """Errors come when the config is made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_parameters_in_bfloat16_and_outputs_as_they_are(standard_promotion: None) -> None:
    """All three types are free: here everything is bfloat16, except for the optimizer's own sums."""
    precision = PrecisionConfig("bf16", "bf16", "bf16")
    trainer = make_trainer(KITS["functions"], precision, optimizer=SGD)
    losses_of(trainer)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(trainer.module.progress.carry.params)} == {"bfloat16"}
    assert str(trainer.predict(DATA).dtype) == "bfloat16"
