"""The short trainer: what it is built of, what its loss may return, and what it says about mistakes."""

import signal
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

from tests.trainer.models.libraries import KITS, EquinoxNet, LinenNet, NnxNet, apply_fn, init_fn, make_data, mse
from trackside.callbacks import Callback, CheckpointConfig
from trackside.errors import ConfigError, DataError, MetricError
from trackside.trainer import (
    Batch,
    FunctionModel,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    Trainer,
    TrainerConfig,
    TrainerModule,
)
from trackside.trainer.loaders import open_loader

DATA = make_data(2)
QUIET = {"config": TrainerConfig(enable_progress_bar=False), "parallel": ParallelConfig(data_axis_size=1)}
SGD = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=0.01))


def make_trainer(model: Any = None, loss: Callable = mse, optimizer: Any = SGD, **kwargs: Any) -> Trainer:
    return Trainer((init_fn, apply_fn) if model is None else model, loss, optimizer, **{**QUIET, **kwargs})


# --- arguments by their types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"run": 3}, "run: expected str | Path | None, got 3"),
        ({"config": {"seed": 1}}, r"config: expected TrainerConfig, got .*write TrainerConfig\(...\)"),
        ({"parallel": "dp"}, "parallel: expected ParallelConfig, got 'dp'"),
        ({"inputs": "x"}, "inputs: expected a function or class, got 'x'"),
        ({"predict_fn": lambda model: 1}, "predict_fn: expected it to take model, batch and rng"),
        ({"steps_per_call": "2"}, "steps_per_call: expected a whole number of at least 1, or 'auto'; got '2'"),
    ],
)
def test_arguments_of_wrong_types_are_named_at_once(kwargs: dict[str, Any], message: str) -> None:
    """When the trainer is made, and not inside of the first step."""
    with pytest.raises(ConfigError, match=message):
        make_trainer(**kwargs)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda trainer: trainer.summary(DATA, depth="x"), "depth: expected int, got 'x'"),
        (lambda trainer: trainer.summary(DATA, depth=-1), "depth: expected 0 or more, or None"),
        (lambda trainer: trainer.largest_batch(DATA, limit_bytes="1GB"), "limit_bytes: expected float, got '1GB'"),
        (lambda trainer: trainer.largest_batch(DATA, max_compiles=1.5), "max_compiles: expected int, got 1.5"),
        (lambda trainer: trainer.find_learning_rate(DATA, num_steps="20"), "num_steps: expected 10 or more, got '20'"),
        (lambda trainer: trainer.set_dataset(DATA), "dataset: expected a DataloaderModule, got a list"),
    ],
)
def test_wrong_questions_are_answered_in_words(ask: Callable, message: str) -> None:
    """Argument and value are named."""
    with pytest.raises(ConfigError, match=message):
        ask(make_trainer())


def test_a_class_in_place_of_a_loader() -> None:
    """It has to be called."""
    with pytest.raises(DataError, match=r"train_loader: .* got the class Positioned; call it"):
        make_trainer().fit(Positioned)  # type: ignore[arg-type]


def test_an_optax_optimizer_in_place_of_a_config() -> None:
    """The full trainer says what to write, and which trainer takes it."""
    with pytest.raises(ConfigError, match=r"optimizer_config: expected an OptimizerConfig, got an optax optimizer"):
        FullTrainer(TrainerConfig(), ModelConfig(), optax.adam(1e-3), DATA[0])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trainer_config: expected a mapping for TrainerConfig, got 3"):
        FullTrainer(3, ModelConfig(), SGD, DATA[0])  # type: ignore[arg-type]


def test_one_callback_is_a_list_of_one() -> None:
    """As in `TrainerConfig`; a class in place of its instance is named."""

    class Counts(Callback):
        num_steps = 0

        def on_training_step(self, *args: Any) -> None:
            self.num_steps += 1

    trainer, counts = make_trainer(), Counts()
    trainer.fit(DATA, num_epochs=np.int64(1), callbacks=counts)
    assert counts.num_steps == 2
    with pytest.raises(ConfigError, match=r"callbacks: .*; write Counts\(\)"):
        trainer.fit(DATA, num_epochs=2, callbacks=Counts)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_epochs: expected a positive whole number, got True"):
        trainer.fit(DATA, num_epochs=True)


# --- what the loss returns --------------------------------------------------------------------------------------------


def with_metrics(model: Any, batch: Any, rng: Any) -> Any:
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.mean(), {"rmse": jnp.sqrt(error.mean()), "sum": {"value": error.sum(), "count": error.size}}


def test_metrics_are_numbers_or_sums_with_counts() -> None:
    """Both forms are logged next to the loss."""
    found = make_trainer(loss=with_metrics).evaluate(DATA[:1])
    assert found["rmse"] == pytest.approx(found["loss"] ** 0.5, rel=1e-5)
    assert found["sum"] == pytest.approx(found["loss"], rel=1e-5)


def test_loss_is_told_whether_it_trains() -> None:
    """A loss that takes `train` hears it."""
    heard = []

    def loss(model: Any, batch: Any, rng: Any, train: bool) -> Any:
        heard.append(train)
        return mse(model, batch, rng)

    make_trainer(loss=loss).fit(DATA, DATA[:1], num_epochs=1)
    assert set(heard) == {True, False}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: (loss, loss), "expected it to return loss, or loss and a dict of metrics"),
        (lambda loss: (loss, {}, {}), "expected it to return loss, or loss and a dict of metrics"),
        (lambda loss: loss + jnp.zeros(3), "expected a scalar float as loss"),
        (lambda loss: None, "expected a scalar float as loss"),
    ],
)
def test_loss_that_returns_the_wrong_thing(returned: Callable, message: str) -> None:
    """What comes back is named, with the form that is expected."""
    with pytest.raises(MetricError, match=message):
        make_trainer(loss=lambda model, batch, rng: returned(mse(model, batch, rng))).fit(DATA)


# --- what it is given -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, mse, SGD), "model: expected a model"),
        (((init_fn, apply_fn), "mse", SGD), "loss_fn: expected a function"),
        (((init_fn, apply_fn), lambda model, batch: 0, SGD), "loss_fn: expected it to take model, batch and rng"),
        (((init_fn, apply_fn), mse, optax.adam), "optimizer: expected an optax optimizer.*call it with its learning"),
        (((init_fn, apply_fn), mse, 1e-3), "optimizer: expected an optax optimizer"),
    ],
)
def test_wrong_arguments_are_named_at_once(arguments: tuple, message: str) -> None:
    """Nothing has to be trained to hear of them."""
    with pytest.raises(ConfigError, match=message):
        Trainer(*arguments)


@pytest.mark.parametrize("model", [LinenNet, NnxNet, EquinoxNet])
def test_class_in_place_of_a_model(model: type) -> None:
    """A class is not called behind the user's back; the error says what to write."""
    with pytest.raises(ConfigError, match=f"got the class {model.__name__}; call it"):
        make_trainer(model).fit(DATA)


def test_something_that_is_no_model() -> None:
    """The error lists what can be trained."""
    with pytest.raises(ConfigError, match=r"expected a class of flax\.linen, flax\.nnx or equinox.*got 3"):
        make_trainer(3).fit(DATA)


@pytest.mark.parametrize("library", ["equinox", "functions"])
def test_state_that_the_loss_does_not_take(library: str) -> None:
    """A model whose state has to be passed on needs a loss that does so."""
    with pytest.raises(ConfigError, match="the model has a state; write `def loss_fn"):
        make_trainer(KITS[library].stateful()).fit(DATA)


@pytest.mark.parametrize("library", ["equinox", "functions"])
def test_state_that_the_loss_does_not_return(library: str) -> None:
    """A state that gets lost is an error, and not a model that never learns it."""
    kit = KITS[library]

    def loss(model: Any, batch: Any, rng: Any, state: Any) -> Any:
        return kit.stateful_loss(model, batch, rng, state)[0]

    with pytest.raises(MetricError, match="the model has a state, and none was returned"):
        make_trainer(kit.stateful(), loss).fit(DATA)


def test_state_that_nobody_has() -> None:
    """A loss that asks for a state that its model keeps itself is an error."""
    with pytest.raises(ConfigError, match="it takes `state`, but this model keeps its state itself"):
        make_trainer(loss=lambda model, batch, rng, state: mse(model, batch, rng)).fit(DATA)


# --- models that cannot be trained as they are ------------------------------------------------------------------------


class Counting(nnx.Module):
    """Counts its calls in an attribute that is no variable."""

    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(4, 1, rngs=rngs)
        self.num_calls = 0

    def __call__(self, x: Any) -> Any:
        self.num_calls += 1
        return self.layer(x)


class Tied(nnx.Module):
    """Uses one layer under two names."""

    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.same = self.layer

    def __call__(self, x: Any) -> Any:
        return self.same(self.layer(x)).sum(-1, keepdims=True)


class Holding(nnx.Module):
    """Holds an array in no variable."""

    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(4, 1, rngs=rngs)
        self.table = jnp.ones(3)

    def __call__(self, x: Any) -> Any:
        return self.layer(x)


def test_nnx_attribute_that_changes() -> None:
    """What a call changes outside of variables would be lost."""
    with pytest.raises(MetricError, match="Counting changed attributes that are not variables"):
        make_trainer(Counting(nnx.Rngs(0))).fit(DATA)


def test_nnx_array_outside_of_variables() -> None:
    """Such an array would be a constant of the program."""
    with pytest.raises(ConfigError, match=r"table is an array outside of any variable; write nnx.Variable"):
        make_trainer(Holding(nnx.Rngs(0))).fit(DATA)


def test_nnx_variables_that_are_shared_stay_shared() -> None:
    """A layer under two names is trained once, and both names show it afterwards."""
    trainer = make_trainer(Tied(nnx.Rngs(0)))
    trainer.fit(DATA)
    assert trainer.module.get_num_params() == 16
    assert trainer.model.same is trainer.model.layer or np.array_equal(
        trainer.model.same.kernel[...], trainer.model.layer.kernel[...]
    )


def test_model_without_parameters() -> None:
    """There is nothing to train in it."""
    with pytest.raises(ConfigError, match="has no floating-point array"):
        make_trainer(eqx.nn.Dropout(0.5)).fit(DATA)


# --- what a loss does with its model ----------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Takes its mode by another name, has a method of its own and a submodule that `setup` makes."""

    def setup(self) -> None:
        self.body = nn.Dense(64)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Dense(1)

    def encode(self, x: Any, deterministic: bool = True) -> Any:
        return self.drop(self.body(x), deterministic=deterministic)

    def __call__(self, x: Any, deterministic: bool = True) -> Any:
        return self.head(self.encode(x, deterministic))


def seen_in_training(model: Any, look: Callable[[Any, Any], Any]) -> float:
    """A number that a loss computes with its model in one training step."""
    seen: dict[str, float] = {}

    class Look(Callback):
        def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
            seen.update(step_metrics)

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return mse(model, batch, rng), {"seen": look(model, batch["x"])}

    make_trainer(model, loss).fit(DATA[:1], callbacks=[Look()])
    return seen["seen"]


DROPPING = {"linen": lambda: LinenNet(0.5), "nnx": lambda: NnxNet(0.5, rngs=nnx.Rngs(0))}


@pytest.mark.parametrize("library", DROPPING)
def test_two_calls_in_one_loss_drop_out_differently(library: str) -> None:
    """As losses that compare two views of an example need it."""
    assert seen_in_training(DROPPING[library](), lambda model, x: jnp.abs(model(x) - model(x)).mean()) > 0


def test_linen_methods_are_told_the_mode_by_its_other_names() -> None:
    """`deterministic` is False in training, for `__call__` and for other methods; submodules can be called."""
    assert seen_in_training(Noisy(), lambda model, x: (model.encode(x) == 0).mean()) > 0.2
    assert seen_in_training(Noisy(), lambda model, x: (model.body(x) == 0).mean()) == 0
    outputs = [make_trainer(Noisy()).predict(DATA) for _ in range(2)]
    np.testing.assert_array_equal(*outputs)


class Aux(nnx.Variable):
    """A type of variable of the user's own."""


class Sowing(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(4, 1, rngs=rngs)
        self.act = lambda x: x  # another object each time that the model is built

    def __call__(self, x: Any) -> Any:
        self.sow(Aux, "aux", jnp.float32(7.0), init_fn=lambda: jnp.float32(0), reduce_fn=lambda a, b: a + b)
        return self.act(self.layer(x))


@pytest.mark.filterwarnings("ignore:.*nnx.capture.*:DeprecationWarning")
def test_nnx_values_of_other_types_reach_the_loss() -> None:
    """What a model sows under a type of its own can be popped, such as an auxiliary loss."""

    def look(model: Any, x: Any) -> Any:
        model(x)
        return nnx.pop(model, Aux)["aux"][...]

    assert seen_in_training(lambda rngs: Sowing(rngs), look) >= 7.0


class Keyed(eqx.Module):
    """Has a key among its arrays, and a module in a static field."""

    layer: eqx.nn.Linear
    key: jax.Array
    shape: Any = eqx.field(static=True)

    def __init__(self, shape: Any):
        self.layer = eqx.nn.Linear(4, 1, key=jax.random.key(0))
        self.key = jax.random.key(3)
        self.shape = shape

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.shape(self.layer(x))


class Act(eqx.Module):
    def __call__(self, x: Any) -> Any:
        return x


def test_equinox_keys_are_saved_and_the_users_objects_stay_as_they_are(tmp_path: Path) -> None:
    """A training of a model with a key resumes; modules in static fields keep their class."""
    act = Act()
    for _ in range(2):
        trainer = make_trainer(
            Keyed(act),
            KITS["equinox"].loss,
            run=tmp_path / "run",
            config=TrainerConfig(enable_progress_bar=False, resume="auto"),
        )
        trainer.fit(DATA, num_epochs=1)
    assert type(act) is Act
    assert trainer.module.global_step == 2
    assert jnp.issubdtype(trainer.model.key.dtype, jax.dtypes.prng_key)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        lambda batch: batch,
        lambda batch: {"inputs": batch["x"], "y": batch["y"]},
        lambda batch: (batch["x"], batch["y"]),
        lambda batch: Batch(batch["x"], batch["y"]),
    ],
    ids=["x", "inputs", "tuple", "Batch"],
)
def test_inputs_of_common_batches_are_found(convert: Callable) -> None:
    """Shapes are inferred from the first batch, and predictions are made from its inputs."""

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return jnp.mean(model(jax.tree.leaves(batch)[0]) ** 2)

    assert make_trainer(loss=loss).predict([convert(batch) for batch in DATA]).shape == (16, 1)


def test_inputs_that_are_not_known() -> None:
    """A batch of another form needs `inputs`, which the error shows."""
    batches = [{"image": batch["x"], "label": batch["y"]} for batch in DATA]

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return ((model(batch["image"]) - batch["label"]) ** 2).mean()

    with pytest.raises(ConfigError, match="inputs=lambda batch"):
        make_trainer(loss=loss).fit(batches)
    trainer = make_trainer(loss=loss, inputs=lambda batch: batch["image"])
    trainer.fit(batches)
    assert trainer.predict(batches).shape == (16, 1)


def test_prediction_needs_to_know_the_inputs() -> None:
    """Of libraries that do not need them before, the error comes with the prediction."""
    trainer = make_trainer(NnxNet(rngs=nnx.Rngs(0)), loss=lambda model, batch, rng: model(batch["image"]).mean())
    with pytest.raises(ConfigError, match="inputs=lambda batch"):
        trainer.predict([{"image": batch["x"]} for batch in DATA])


def test_several_validation_sets(tmp_path: Path) -> None:
    """A dict of loaders is evaluated set by set, also before the training, and nothing is monitored by itself."""
    sets = {"easy": DATA[:1], "hard": DATA[1:]}
    trainer = make_trainer(run=tmp_path / "run")
    assert {"easy_loss", "hard_loss"} <= trainer.evaluate(sets).keys()
    fresh = make_trainer(run=tmp_path / "other")
    assert {"easy_loss", "hard_loss"} <= fresh.fit(DATA, sets, num_epochs=1)["val"].keys()


def test_own_prediction() -> None:
    """`predict_fn` says what is predicted."""
    trainer = make_trainer(predict_fn=lambda model, batch, rng: {"twice": 2 * model(batch["x"])})
    np.testing.assert_allclose(trainer.predict(DATA)["twice"], 2 * make_trainer().predict(DATA), rtol=1e-6)


def test_one_number_for_a_batch() -> None:
    """A prediction that is a number and not one for each example gives one for each batch."""
    trainer = make_trainer(predict_fn=lambda model, batch, rng: model(batch["x"]).mean())
    means = [make_trainer().predict([batch]).mean() for batch in DATA]
    np.testing.assert_allclose(trainer.predict(DATA), means, rtol=1e-5)


@pytest.mark.parametrize(
    "found", ["a name", np.array(["a"] * 8), ["a"] * 8, object()], ids=lambda one: type(one).__name__
)
def test_batch_with_something_that_is_no_array(found: Any) -> None:
    """It is named when the trainer is built, and when a later loader has it."""
    batches = [{**batch, "name": found} for batch in DATA]
    with pytest.raises(DataError, match=r"batch: name.* is .*; a batch holds arrays of numbers only"):
        make_trainer().fit(batches)
    trainer = make_trainer()
    trainer.build(DATA[0])
    with pytest.raises(DataError, match="a batch holds arrays of numbers only"):
        trainer.evaluate(batches)


# --- optimizers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def optax_as_it_is() -> Iterator[None]:
    """Optax's own optimizers do not live with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_optimizer_that_takes_several_steps(optax_as_it_is: None) -> None:
    """`optax.MultiSteps` is an optimizer as well: it updates the parameters every second step."""
    trainer = make_trainer(optimizer=optax.MultiSteps(optax.sgd(0.1), 2))
    before = jax.device_get(trainer.build(DATA[0]).state.params)
    trainer.fit(DATA, num_train_steps=1)
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(trainer.module.state.params))
    trainer.fit(DATA, num_train_steps=2)
    assert not np.array_equal(before["last"]["bias"], trainer.module.state.params["last"]["bias"])


def test_optimizer_that_goes_by_the_loss(optax_as_it_is: None) -> None:
    """One that reduces the learning rate where the loss falls no longer is given the loss."""
    plateau = optax.contrib.reduce_on_plateau(patience=1, factor=0.5, atol=1e9)  # nothing is ever better enough
    trainer = make_trainer(optimizer=optax.chain(optax.sgd(1e-3), plateau))
    trainer.fit(DATA, num_epochs=2)
    assert float(trainer.module.state.opt_state[1].scale) < 1


def test_optimizer_that_takes_no_loss(optax_as_it_is: None) -> None:
    """`optax.contrib.sam` trains, alone and in a chain, although its type says that it takes the loss."""
    sam = optax.contrib.sam(optax.sgd(1e-2), optax.sgd(1e-2))
    for optimizer in (sam, optax.chain(optax.clip(1.0), sam)):
        trainer = make_trainer(optimizer=optimizer)
        before = jax.device_get(trainer.build(DATA[0]).state.params)
        trainer.fit(DATA, num_epochs=1)
        assert not np.array_equal(before["last"]["bias"], trainer.module.state.params["last"]["bias"])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.lbfgs(), "optimizer: scale_by_zoom_linesearch needs `grad` and `value_fn`.*linesearch=None"),
        (optax.chain(optax.clip(1.0), optax.lbfgs()), "needs `grad` and `value_fn`"),
        (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True), "needs `grad_fn`.*optax.adam"),
        (optax.contrib.sophia(0.1), "needs `obj_fn`"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "optax.lookahead needs parameters in two copies.*EMA"),
    ],
    ids=["lbfgs", "chain", "sam", "sophia", "lookahead"],
)
def test_optimizer_that_needs_what_a_step_lacks(optimizer: Any, message: str, optax_as_it_is: None) -> None:
    """What it needs and what to use instead is said in words, before the first step."""
    trainer = make_trainer(optimizer=optimizer)
    with pytest.raises(ConfigError, match=message):
        trainer.fit(DATA)
    assert trainer.module.global_step == 0


def test_optimizer_without_a_line_search(optax_as_it_is: None) -> None:
    """What the error on `optax.lbfgs` advises works."""
    trainer = make_trainer(optimizer=optax.lbfgs(0.1, linesearch=None))
    trainer.fit(DATA, num_epochs=1)
    assert trainer.module.global_step == 2


def test_no_batch_of_a_generator_is_lost() -> None:
    """The batch that shows the shapes is trained on as well."""
    trainer = make_trainer()
    trainer.fit((batch for batch in DATA), num_epochs=1)
    assert trainer.module.global_step == 2


class Stateful:
    """Its own iterator, with a position."""

    def __init__(self) -> None:
        self.index = 0

    def __iter__(self) -> "Stateful":
        return self

    def __next__(self) -> Any:
        if self.index == len(DATA):
            raise StopIteration
        self.index += 1
        return DATA[self.index - 1]

    def get_state(self) -> int:
        return self.index

    def set_state(self, state: int) -> None:
        self.index = state


def test_loader_with_a_position_is_put_back() -> None:
    """Looking at its first batch does not move it."""
    trainer = make_trainer()
    trainer.fit(Stateful(), num_epochs=1)
    assert trainer.module.global_step == 2


def test_empty_loader() -> None:
    """There is no batch to learn the shapes from."""
    with pytest.raises(DataError, match="train_loader: it has no batches"):
        make_trainer().fit([])


def test_empty_one_of_several_loaders() -> None:
    """The error names it; where its length tells, before the first step."""
    trainer = make_trainer()
    with pytest.raises(DataError, match=r"val_loader\['b'\]: it is empty"):
        trainer.fit(DATA, {"a": DATA, "b": []})
    assert trainer.module.global_step == 0
    with pytest.raises(DataError, match=r"val_loader\['b'\]: gave no batch to evaluate"):
        trainer.fit(DATA, {"a": DATA, "b": iter(())})
    with pytest.raises(DataError, match=r"test_loader\['b'\]: it is empty"):
        trainer.fit(DATA, None, {"a": DATA, "b": []}, num_epochs=2)
    assert trainer.module.global_step == 2
    with pytest.raises(DataError, match=r"loader\['b'\]: gave no batch to evaluate"):
        trainer.evaluate({"a": DATA, "b": []})
    with pytest.raises(DataError, match=r"loader\['a'\]: it has no batches"):
        make_trainer().evaluate({"a": [], "b": DATA})
    with pytest.raises(DataError, match="data_loader: gave no batch to evaluate"):
        trainer.predict([])
    with pytest.raises(DataError, match=r"test_loader: it is a dict without loaders"):
        trainer.fit(DATA, None, {}, num_epochs=2)


# --- the full trainer with every library ------------------------------------------------------------------------------


class FullTrainer(TrainerModule):
    """The documented loss, whichever library the model is of."""

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        return batch["x"]

    def loss_function(self, params: Any, apply_fn: Callable, batch: Any, rng: Any, train: bool = True) -> Any:
        output, updates = apply_fn({"params": params}, batch["x"], train=train, mutable=["batch_stats"])
        return ((output - batch["y"]) ** 2).mean(), ({}, updates)


class ConfiguredLinen(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.Dense(1)(x)


class Pointwise(eqx.Module):
    """An Equinox model that takes a whole batch."""

    layer: eqx.nn.Linear

    def __init__(self, config: Any, *, key: Any):
        self.layer = eqx.nn.Linear(4, 1, key=key)

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.layer)(x)


@pytest.mark.parametrize(
    "model_class",
    [
        ConfiguredLinen,
        ConfiguredLinen(),
        lambda config, rngs: NnxNet(has_norm=True, rngs=rngs),
        Tied,
        NnxNet(has_norm=True, rngs=nnx.Rngs(0)),
        Pointwise,
        FunctionModel(init_fn, apply_fn),
    ],
    ids=["Linen class", "Linen module", "NNX function", "NNX class", "NNX model", "Equinox class", "functions"],
)
def test_full_trainer_takes_every_form(model_class: Any) -> None:
    """`model_class` may be a class, a function that builds a model, or a model, of any library."""
    trainer = FullTrainer(
        TrainerConfig(enable_progress_bar=False),
        ModelConfig(model_class=model_class, parallel=ParallelConfig(data_axis_size=1)),
        SGD,
        batch=DATA[0],
    )
    before = trainer.eval_model(DATA, "val", 0)["loss"]
    trainer.train_model(DATA, num_epochs=3)
    assert trainer.eval_model(DATA, "val", 0)["loss"] < before


def test_library_may_be_named() -> None:
    """A name that is none of the libraries is refused."""
    with pytest.raises(ConfigError, match="library: expected one of linen, nnx, equinox, functions"):
        ModelConfig(library="torch")


def test_ctrl_c_says_that_the_same_command_resumes(tmp_path: Path) -> None:
    """The short trainer resumes a run that did not end without being told to, and Ctrl-C says so."""

    class Stopping(Callback):
        def on_training_epoch_end(self, train_metrics: Any, epoch_idx: int) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make_trainer(run=tmp_path / "run").fit(DATA, num_epochs=3, callbacks=[Stopping()])
    assert "; run the same command to resume" in (tmp_path / "run" / "output.log").read_text()


X, Y = np.zeros((32, 4), np.float32), np.zeros((32, 1), np.float32)


@pytest.mark.parametrize(
    "data", [X, (X, Y), [X, Y.astype(np.int32)], {"x": X, "y": Y}], ids=["x", "xy", "list", "dict"]
)
def test_data_in_place_of_batches_are_refused(data: Any) -> None:
    """Arrays that were not cut into batches are told apart from loaders, wherever a loader is expected."""
    trainer = make_trainer()
    with pytest.raises(DataError, match=r"train_loader: expected an iterable of batches, got .*cut it into batches"):
        trainer.fit(data)
    with pytest.raises(DataError, match=r"expected an iterable of batches, got .*cut it into batches"):
        trainer.predict(data)
    with pytest.raises(DataError, match=r"expected an iterable of batches, got .*cut it into batches"):
        trainer.evaluate(data)


def test_batches_may_be_arrays() -> None:
    """Lists and tuples of arrays that are alike are loaders, also where a dimension varies."""
    short = X[:, :3]
    for loader in ([X, X], (X, X[:5]), [X, short]):
        assert len(list(open_loader(loader, "loader"))) == 2


class NeedsKey(eqx.Module):
    weight: jax.Array

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        return self.weight * x + 0 * jax.random.uniform(key)


def test_predict_of_a_model_that_needs_a_key_names_predict_fn() -> None:
    """A model that cannot be called with the inputs alone needs a function that says how it is called."""

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return jax.vmap(model)(batch["x"], jax.random.split(rng, len(batch["x"]))).mean()

    with pytest.raises(ConfigError, match=r"predict: the model takes more .*key.*predict_fn"):
        make_trainer(NeedsKey(jnp.ones(())), loss).predict(DATA)


# --- what is kept and what is read ------------------------------------------------------------------------------------


class Score(Callback):
    """Adds a score to each validation, the best of which is that of the second epoch."""

    def on_validation_epoch_end(self, eval_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        eval_metrics["score"] = [1.0, 3.0, 2.0, 2.5][epoch_idx - 1]


def test_a_checkpoint_callback_of_fit_takes_the_place_of_the_default(tmp_path: Path) -> None:
    """What it monitors decides what is kept and tested; nobody else deletes it."""
    keeper = CheckpointConfig(monitor="score", mode="max")
    found = make_trainer(run=tmp_path).fit(DATA, DATA, DATA, num_epochs=4, callbacks=[Score(), keeper])
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()) == [4, 8]
    assert found["val"]["score"] == 3.0


def test_two_keepers_of_one_folder_are_refused(tmp_path: Path) -> None:
    """Each would delete what the other keeps."""
    callbacks = [CheckpointConfig(monitor="val_loss"), CheckpointConfig(monitor="val_loss", mode="max")]
    trainer = make_trainer(run=tmp_path, config=TrainerConfig(enable_progress_bar=False, callbacks=callbacks))
    with pytest.raises(ConfigError, match=r"several keep checkpoints in .*checkpoints.*a dirpath of its own"):
        trainer.fit(DATA, DATA, num_epochs=1)


class Positioned:
    """A loader whose position is its own, and is not set back when it is iterated over."""

    def __init__(self, batches: list[Any]):
        self.position, self.read, self._batches = 0, [], batches

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self._batches):
            self.position += 1
            self.read.append(self.position)
            yield self._batches[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_a_look_at_the_first_batch_loses_none() -> None:
    """Loaders for training and validation that have a position are put back after it."""
    data, trainer = make_data(3), make_trainer()
    train, val = Positioned(data), Positioned(data)
    found = trainer.fit(train, val, num_epochs=2)
    assert trainer.module.global_step == 6
    assert train.read == [1, 1, 2, 3, 1, 2, 3]
    assert found["val_epoch_2"]["loss"] == pytest.approx(trainer.evaluate(data)["loss"])


def test_a_mask_with_infinities_is_saved(tmp_path: Path) -> None:
    """A constant of the model that was never finite does not keep its training from being saved."""

    class Masked(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.net = NnxNet(rngs=rngs)
            self.mask = nnx.Variable(jnp.array([0.0, -jnp.inf]))

        def __call__(self, x: Any) -> Any:
            return self.net(x) * jnp.exp(self.mask[...][0])

    make_trainer(Masked(nnx.Rngs(0)), run=tmp_path).fit(DATA, num_epochs=1)
    assert (tmp_path / "checkpoints" / "2").is_dir()


def test_validation_without_loaders() -> None:
    """An empty dict is an error that says what to do."""
    with pytest.raises(DataError, match="val_loader: it is a dict without loaders"):
        make_trainer().fit(DATA, {}, num_epochs=1)


@pytest.mark.parametrize("name", ["grad_norm", "param_norm"])
def test_a_metric_of_the_trainers_own_name_is_refused(name: str) -> None:
    """Neither of two metrics with one name is silently dropped."""

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return mse(model, batch, rng), {name: 7.0}

    with pytest.raises(MetricError, match=f"metrics: {name!r} is a metric of the trainer itself"):
        make_trainer(loss=loss).fit(DATA, num_epochs=1)


def test_a_metric_called_skipped_is_the_users(caplog: pytest.LogCaptureFixture) -> None:
    """Without `skip_bad_batches`, it is a metric like any other, and no batch is said to be skipped."""

    def loss(model: Any, batch: Any, rng: Any) -> Any:
        return mse(model, batch, rng), {"skipped": 10.0}

    assert make_trainer(loss=loss).fit(DATA, num_epochs=1)["train"]["skipped_mean"] == 10.0
    assert "were skipped" not in caplog.text


def test_arrays_of_different_lengths_are_no_batch() -> None:
    """That is said before the model fails on them."""
    batch = {"x": DATA[0]["x"], "y": DATA[0]["y"][:2]}
    with pytest.raises(DataError, match="the leading dimensions of its leaves differ"):
        make_trainer().fit([batch], num_epochs=1)
