"""Frozen parameters, and groups with a learning rate or an optimizer of their own."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.models.libraries import KITS, make_data
from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import Callback
from trackside.errors import ConfigError
from trackside.trainer import OptimizerConfig, ParallelConfig, ParamGroupConfig, SchedulerConfig, Trainer, TrainerConfig

DATA = make_data(3)
CONSTANT = SchedulerConfig(name="constant", lr=0.1)
NESTED = OptimizerConfig(frozen=["bias"])


def make_config(**fields: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"name": "sgd", "scheduler": CONSTANT, **fields})


def train(config: OptimizerConfig, library: str = "functions", callbacks: Any = None) -> tuple[dict, dict, Trainer]:
    """The parameters before and after three steps."""
    kit = KITS[library]
    trainer = Trainer(
        kit.plain(),
        kit.loss,
        config,
        config=TrainerConfig(enable_progress_bar=False),
        parallel=ParallelConfig(data_axis_size=1),
    )
    before = jax.device_get(trainer.build(DATA[0]).progress.carry.params)
    trainer.fit(DATA, num_epochs=1, callbacks=callbacks)
    return before, jax.device_get(trainer.module.progress.carry.params), trainer


@pytest.mark.parametrize("library", KITS)
def test_frozen_parameters_stay(library: str) -> None:
    """Parameters that match a pattern do not change in any library, and have no optimizer state; others train."""
    before, after, trainer = train(make_config(name="adam", frozen=["^first/"]), library)
    jax.tree.map(np.testing.assert_array_equal, before["first"], after["first"])
    assert any(not np.array_equal(before["last"][name], after["last"][name]) for name in before["last"])
    moments = [leaf for leaf in jax.tree.leaves(trainer.module.progress.carry.opt_state) if leaf.ndim > 0]
    trained = jax.tree.leaves(after["last"])
    assert sum(leaf.size for leaf in moments) == 2 * sum(leaf.size for leaf in trained)
    assert "frozen" in trainer.module.tabulate_params()


def test_group_has_its_own_learning_rate() -> None:
    """With sgd, a group moves as many times as far in one step as its scale says."""
    (before, after), (_, scaled) = (train_one_step(make_config(groups=groups)) for groups in ([], [TENTH]))
    np.testing.assert_allclose(scaled["last"]["kernel"], after["last"]["kernel"])
    moved, moved_scaled = (one["first"]["kernel"] - before["first"]["kernel"] for one in (after, scaled))
    np.testing.assert_allclose(moved_scaled, 0.1 * moved, rtol=1e-3, atol=1e-7)


TENTH = ParamGroupConfig(name="body", patterns=["^first/"], lr_scale=0.1)


def train_one_step(config: OptimizerConfig) -> tuple[dict, dict]:
    kit = KITS["functions"]
    trainer = Trainer(
        kit.plain(),
        kit.loss,
        config,
        config=TrainerConfig(enable_progress_bar=False),
        parallel=ParallelConfig(data_axis_size=1),
    )
    before = jax.device_get(trainer.build(DATA[0]).progress.carry.params)
    trainer.fit(DATA, num_train_steps=1)
    return before, jax.device_get(trainer.module.progress.carry.params)


def test_group_has_its_own_optimizer() -> None:
    """A group may have another optimizer with its own state."""
    adam = OptimizerConfig(name="adam", scheduler=CONSTANT)
    _, _, trainer = train(make_config(groups=[ParamGroupConfig("body", ["^first/"], optimizer=adam)]))
    moments = [leaf for leaf in jax.tree.leaves(trainer.module.progress.carry.opt_state) if leaf.ndim > 0]
    assert sum(leaf.size for leaf in moments) == 2 * (4 * 8 + 8)


class Metrics(Callback):
    """Remembers the metrics of the last step."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.last = dict(step_metrics)


def test_norm_by_group() -> None:
    """The norm of the gradients is logged for each group, and their squares add up to that of all."""
    seen = Metrics()
    train(make_config(groups=[TENTH]), callbacks=[seen])
    parts = [seen.last["grad_norm/body"], seen.last["grad_norm/rest"]]
    assert sum(part**2 for part in parts) == pytest.approx(seen.last["grad_norm"] ** 2, rel=1e-4)


def test_config_survives_a_round_trip() -> None:
    """Groups are written with the run and read back as what they were."""
    config = make_config(frozen=["x"], groups=[ParamGroupConfig("body", ["y"], optimizer=make_config())])
    assert OptimizerConfig.from_dict(OptimizerConfig, config.to_dict()) == config


def test_pattern_that_matches_nothing() -> None:
    """A misspelled pattern is warned of when the trainer is built."""
    with pytest.warns(UserWarning, match="frozen: 'frist' matches none"):
        train(make_config(frozen=["frist"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frozen": "first"}, "expected a list of regular expressions"),
        ({"frozen": ["("]}, "is not a regular expression"),
        ({"groups": [TENTH, TENTH]}, "each needs a name of its own"),
        ({"groups": [ParamGroupConfig("a", ["x"], lr_scale=0)]}, "lr_scale"),
        ({"groups": [ParamGroupConfig("a", ["x"], optimizer=3)]}, "expected an OptimizerConfig, got 3"),
        (
            {"groups": [ParamGroupConfig("a", ["x"], optimizer=OptimizerConfig(frozen=["b"]))]},
            "move them to the config",
        ),
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any], message: str) -> None:
    """Errors come when the config is made."""
    with pytest.raises(ConfigError, match=message):
        make_config(**fields)


def test_full_trainer_freezes_too() -> None:
    """The full trainer reads the same config."""
    trainer = make_trainer()
    trainer.optimizer_config.frozen = ["bias"]
    trainer.init_optimizer(trainer.optimizer_config)
    trainer.init_model(trainer.batch_to_input(trainer.exmp_batch))
    trainer.create_jitted_functions()
    before = np.array(trainer.state.params["Dense_0"]["bias"])
    trainer.train_model(make_loader(2), num_epochs=1)
    np.testing.assert_array_equal(trainer.state.params["Dense_0"]["bias"], before)
