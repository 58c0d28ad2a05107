"""Every config of the package comes back equal."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trackside.callbacks
import trackside.logger
import trackside.trainer
from trackside.config import ConfigDict
from trackside.errors import ConfigError

MODULES = (trackside.callbacks, trackside.logger, trackside.trainer)
CONFIGS = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ConfigDict) and value is not ConfigDict
    },
    key=lambda cls: cls.__name__,
)
VALUES: dict[type, st.SearchStrategy] = {
    bool: st.booleans(),
    int: st.integers(-1, 100),
    float: st.floats(0.01, 0.99),
}


def round_trip(config: ConfigDict) -> Any:
    return ConfigDict.from_dict(type(config), json.loads(json.dumps(config.to_dict(), allow_nan=False)))


def test_all_configs_are_looked_at() -> None:
    """The configs under test are those of trainer, callbacks and logger."""
    names = {cls.__name__ for cls in CONFIGS}
    assert {
        "TrainerConfig",
        "ModelConfig",
        "OptimizerConfig",
        "LoggerConfig",
        "WandBLoggerConfig",
        "EMAConfig",
    } <= names


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda cls: cls.__name__)
def test_defaults_come_back(config_class: type[ConfigDict]) -> None:
    """A config with its defaults is read back equal from JSON."""
    config = config_class()
    assert round_trip(config) == config


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda cls: cls.__name__)
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_other_values_come_back(config_class: type[ConfigDict], data: st.DataObject) -> None:
    """A config with other numbers and switches is read back equal from JSON."""
    defaults: Any = config_class()
    changes = {
        field.name: data.draw(VALUES[type(getattr(defaults, field.name))])
        for field in dataclasses.fields(defaults)
        if type(getattr(defaults, field.name)) in VALUES and data.draw(st.booleans())
    }
    try:
        config = dataclasses.replace(defaults, **changes)
    except ConfigError:
        assume(False)
        return
    assert round_trip(config) == config


def test_polymorphic_lists_come_back() -> None:
    """A trainer's config with callbacks and log tools of several classes is read back with each of its class."""
    config = trackside.trainer.TrainerConfig(
        logger=trackside.logger.LoggerConfig(
            log_tools=[trackside.logger.FileLoggerConfig(), trackside.logger.WandBLoggerConfig(mode="offline")]
        ),
        callbacks=[
            trackside.callbacks.EarlyStoppingConfig(patience=3),
            trackside.callbacks.CheckpointConfig(monitor="val_loss"),
        ],
    )
    assert round_trip(config) == config


def test_tuples_come_back_as_lists() -> None:
    """Callbacks and tools may be given as tuples, and the config can be saved."""
    config = trackside.trainer.TrainerConfig(
        logger=trackside.logger.LoggerConfig(log_tools=(trackside.logger.FileLoggerConfig(),)),  # pyright: ignore
        callbacks=(trackside.callbacks.EarlyStoppingConfig(),),  # pyright: ignore[reportArgumentType]
    )
    assert config.callbacks == [trackside.callbacks.EarlyStoppingConfig()]
    assert round_trip(config) == config


@pytest.mark.parametrize(("index", "key"), [(0, "sed"), (1, "modle_class"), (2, "nmae")])
def test_a_typo_in_a_trainers_dict_is_refused(index: int, key: str) -> None:
    """A misspelled key in any of the trainer's three dicts is an error before anything is built."""
    dicts: list[Any] = [{}, {}, {}]
    dicts[index] = {key: 1}
    with pytest.raises(ConfigError, match=rf"{key}: \w+ has no field '{key}'.*Did you mean"):
        trackside.trainer.TrainerModule(*dicts, batch=None)
