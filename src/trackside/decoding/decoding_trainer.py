"""The trainer of a decoding model: the trainer's own loop, around the step of `make_step`.

The Equinox adapter takes the model apart once. What belongs to a decoding training beside the model's arrays is carried
along with them: the state, the key of which each step splits off its own, and what is read at the end of an epoch, so
that no step has to wait for it: statistics of the last gradient, and the first step whose loss was not finite. The
optimizer's state is carried as plain leaves, since it has the form of the user's model.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from trackside.decoding.data import Pair, slices
from trackside.decoding.model_scores import STATISTICS, Evaluation, Score, name_statistics
from trackside.decoding.r2 import r2_score
from trackside.decoding.step_timer import StepTimer
from trackside.decoding.task import DecodingTask
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.metrics import Metrics
from trackside.optional import require
from trackside.profiling.ledger_totals import CHECKPOINTING, VALIDATION
from trackside.trainer import ModelConfig, OptimizerConfig, TrainerConfig, TrainerModule
from trackside.trainer.engine import Engine
from trackside.trainer.models.adapter import pop_params
from trackside.trainer.progress import Progress
from trackside.trainer.run_configs import RunConfigs
from trackside.trainer.sharding import replicated
from trackside.trainer.step_functions import TrainStep
from trackside.trainer.train_state import Carry, TrainState

if TYPE_CHECKING:  # imports equinox
    from trackside.trainer.models.equinox import EquinoxAdapter

LOSS = "epoch_loss"
"""The loss during training. What is called `loss` comes from evaluations."""
LOSS_OF_EPOCH = f"{LOSS}_mean"
LOG_EVERY_N_STEPS = 50
KEY, GRADIENTS, BAD_STEP = "key", "gradients", "first_bad_step"
"""What is carried beside the model: see above."""


class DecodingTrainer(TrainerModule):
    """Trains a decoding model, on the device that it is on.

    Args:
        task: The model, and what it is trained with.
        data: The data sets for training and validation, to evaluate on.
        save_dir: Where the rows of the run go; None keeps nothing on disk.
        eval_batch_size: How many samples to evaluate at once; None for all.
        timer: Times the steps; None if nothing is to be timed.
    """

    adapter: "EquinoxAdapter"

    def __init__(
        self,
        task: DecodingTask,
        data: tuple[Pair, Pair],
        save_dir: Path | None = None,
        eval_batch_size: int | None = None,
        timer: StepTimer | None = None,
    ):
        self._task, self._data, self._eval_batch_size, self._timer = task, data, eval_batch_size, timer
        self._eqx = require("equinox", "train_decoding_jax")
        self._arrays, self._static = self._eqx.partition((task.state, task.opt_state), self._eqx.is_array)
        self._is_typed_key = jnp.issubdtype(task.key.dtype, jax.dtypes.prng_key)
        self._names = task.trained_names()
        config = TrainerConfig(
            logger=LoggerConfig(log_path=save_dir, log_every_n_steps=LOG_EVERY_N_STEPS),
            enable_progress_bar=False,
            check_for_nan=False,
            steps_per_call="auto" if timer is None else 1,  # it times single steps
        )
        super().__init__(
            config, ModelConfig(library="equinox"), OptimizerConfig(), data[0], Mesh([_device_of(task.model)], ("dp",))
        )
        self._evaluation_call = self.sentinel.named(
            self.engine.compile_predict(self._loss_and_predictions, is_split=True), "evaluation"
        )
        self._param_statistics = self.sentinel.named(jax.jit(self._statistics_of_trained), "parameter statistics")

    # --- what the trainer is built of ---------------------------------------------------------------------------------

    @property
    def engine_class(self) -> type[Engine]:  # type: ignore[override]
        """One whose calls are timed, if steps are."""
        return Engine if self._timer is None else self._timer.engine_class

    def init_mesh(self, model_config: ModelConfig, mesh: Mesh | None = None) -> None:
        """Let a step begin, for the timer, when its batch is there."""
        super().init_mesh(model_config, mesh)
        if self._timer is not None:
            self.placement.place_train = self._timer.begins_with(self.placement.place_train)

    def build_run_configs(self) -> RunConfigs:
        """The names of what was given."""
        named = {"model": self._task.model, "loss_fn": self._task.loss_fn}
        given = {name: getattr(one, "__qualname__", type(one).__qualname__) for name, one in named.items()}
        return RunConfigs(self.trainer_config, None, None, given)

    def build_model(self, model_config: ModelConfig) -> None:
        """Take the model that was given, with the arrays of its state."""
        state = self._arrays[0]
        self.model = self._task.model if state is None else (self._task.model, state)

    def init_optimizer(self, optimizer_config: OptimizerConfig) -> None:
        """Take the optimizer that was given, of whose learning rate nothing is known."""
        self.tx, self.schedule = self._task.opt, optax.constant_schedule(np.nan)

    def init_model(self, exmp_input: Any) -> None:
        """Take copies of what was given: the first step overwrites them, and the model stays the user's."""
        del exmp_input
        key = jax.random.key_data(self._task.key) if self._is_typed_key else self._task.key
        params, others = pop_params(self.adapter.take_apart(self._task.model, self._arrays[0]))
        gradients = np.zeros((len(self._names), len(STATISTICS)), np.float32)
        others |= {KEY: key, GRADIENTS: gradients, BAD_STEP: np.zeros((), np.int32)}
        opt_leaves = tuple(jax.tree.leaves(self._arrays[1]))
        carry = jax.tree.map(_copied, Carry(np.zeros((), np.int32), params, others, opt_leaves, None))
        self.carry_shardings = jax.tree.map(lambda leaf: replicated(self.mesh), carry)
        self.progress = Progress(jax.device_put(carry, self.carry_shardings))

    def create_training_step_function(self) -> TrainStep:
        """The step of `make_step`."""

        def train_step(carried: TrainState, batch: Pair, metrics: Metrics) -> tuple[TrainState, Metrics]:
            model, state = self._assemble(carried)
            opt_state = self._open_opt_state(carried.opt_state)
            key, step_key = jax.random.split(self._open_key(carried.mutable_variables))
            model, state, opt_state, value, grads = self._task.step(model, state, opt_state, batch, step_key)
            num_samples = batch.inputs.shape[0]
            metrics = metrics.update({LOSS: {"value": value.astype(jnp.float32) * num_samples, "count": num_samples}})
            params, others = pop_params(self.adapter.take_apart(model, self._arrays_of(state, 0)))
            step, first_bad = carried.step + 1, carried.mutable_variables[BAD_STEP]
            is_first_bad = (first_bad == 0) & ~jnp.isfinite(value)
            others[KEY] = jax.random.key_data(key) if self._is_typed_key else key
            others |= {GRADIENTS: statistics(grads), BAD_STEP: jnp.where(is_first_bad, step, first_bad)}
            opt_leaves = tuple(jax.tree.leaves(self._arrays_of(opt_state, 1)))
            return TrainState(step, params, opt_leaves, others), metrics

        return train_step

    # --- the user's objects and what is carried -----------------------------------------------------------------------

    def model_and_state(self) -> tuple[Any, Any]:
        """The model as it is now, and its state. The next step takes their arrays away."""
        return self._assemble(self.progress.carry)

    def _assemble(self, carried: TrainState | Carry) -> tuple[Any, Any]:
        built = self.adapter.rebuild(carried.params, carried.mutable_variables)
        model, arrays = built if self.adapter.passes_state else (built, None)
        return model, self._eqx.combine(arrays, self._static[0])

    def _open_opt_state(self, leaves: Any) -> Any:
        arrays = jax.tree.unflatten(jax.tree.structure(self._arrays[1]), leaves)
        return self._eqx.combine(arrays, self._static[1])

    def _open_key(self, variables: Any) -> jax.Array:
        if not self._is_typed_key:
            return variables[KEY]
        return jax.random.wrap_key_data(variables[KEY], impl=jax.random.key_impl(self._task.key))

    def _arrays_of(self, new: Any, index: int) -> Any:
        """The arrays of a state after a step, which has to have the form that it had before."""
        arrays = self._eqx.filter(new, self._eqx.is_array)
        found, expected = jax.tree.structure(arrays), jax.tree.structure(self._arrays[index])
        if found != expected:
            what = ("the model's state", "the optimizer's state")[index]
            raise ConfigError(
                f"loss_fn: a step changed the structure of {what} from {expected} to {found}. It has to return it in "
                "the form in which it got it"
            )
        return arrays

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, epoch: int, mean_loss: float) -> Evaluation:
        """Find out how good the model is on the training and on the validation data.

        Args:
            epoch: The epoch that is over.
            mean_loss: The loss during it.
        """
        began_s = self.clock.now()
        if self.meter is not None:
            self.meter.device.pause()  # it is busy with other things
        with self.ledger.spend(VALIDATION):
            train, val = (self._score(pair) for pair in self._data)
            carry = self.progress.carry
            params = name_statistics(self._names, np.asarray(self._param_statistics(carry)))
            grads = name_statistics(self._names, np.asarray(carry.mutable_variables[GRADIENTS]))
        self.logger.exclude_time(self.clock.now() - began_s)
        return Evaluation(epoch, self.global_step, mean_loss, train, val, params, grads)

    def first_bad_step(self) -> int:
        """The first step whose loss was not finite; 0 if there was none."""
        return int(self.progress.carry.mutable_variables[BAD_STEP])

    def save(self, path: Path) -> None:
        """Write model and state."""
        with self.ledger.spend(CHECKPOINTING):
            self._eqx.tree_serialise_leaves(path, self.model_and_state())

    def _score(self, pair: Pair) -> Score:
        carry = self.progress.carry._replace(opt_state=None)
        parts = [Pair(*(one[part] for one in pair)) for part in slices(len(pair.inputs), self._eval_batch_size)]
        found = [self._evaluation_call(carry, self.placement.place(part)) for part in parts]
        loss = np.average([float(loss) for loss, _ in found], weights=[len(part.inputs) for part in parts])
        predictions = np.concatenate([np.asarray(predictions) for _, predictions in found])
        return Score(float(loss), r2_score(pair.targets, predictions))

    def _loss_and_predictions(self, carried: TrainState, pair: Pair) -> tuple[jax.Array, jax.Array]:
        return self._task.evaluate(*self._assemble(carried), pair, jax.random.fold_in(self._task.key, 0))

    def _statistics_of_trained(self, carry: Carry) -> jax.Array:
        return statistics(self._task.trained(self._assemble(carry)[0]))


def statistics(tree: Any) -> jax.Array:
    """The `STATISTICS` of each array on the device, one row per array."""
    return jnp.stack([_row(leaf) for leaf in jax.tree.leaves(tree)])


def _row(leaf: jax.Array) -> jax.Array:
    values = (jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf).astype(jnp.float32)
    return jnp.stack([values.mean(), values.std(), jnp.sqrt(jnp.sum(values * values)), jnp.abs(values).max()])


def _copied(leaf: Any) -> jax.Array:
    """A copy whose type is its own. One that came from a Python number would compile the second step again."""
    copy = leaf.copy() if isinstance(leaf, jax.Array) else jnp.array(leaf)
    return jax.lax.convert_element_type(copy, copy.dtype) if copy.weak_type else copy


def _device_of(model: Any) -> Any:
    """Where the model's arrays are.

    Raises:
        ConfigError: They are on several devices.
    """
    arrays = [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array)]
    devices = {device for array in arrays for device in array.devices()}
    if len(devices) > 1:
        raise ConfigError(
            f"model: its arrays are on {len(devices)} devices, and train_decoding_jax trains on one; "
            "trackside.trainer.Trainer trains on several"
        )
    return devices.pop() if devices else jax.local_devices()[0]
