"""Every config of the package comes back equal."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trackside.callbacks
import trackside.logger
import trackside.trainer
from trackside.callbacks import CheckpointConfig, EarlyStopping, EarlyStoppingConfig, EMAConfig, JaxProfilerConfig
from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig, WandBLoggerConfig
from trackside.trainer import LossScaleConfig, TrainerConfig

NAN = float("nan")
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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TrainerConfig(seed=2**70), "seed: expected a number of at most 64 bits"),
        (lambda: TrainerConfig(gradient_accumulate_steps="2"), "gradient_accumulate_steps: expected int, got '2'"),
        (lambda: TrainerConfig(watchdog_timeout_s=NAN), "watchdog_timeout_s: expected a positive number, or -1"),
        (lambda: TrainerConfig(max_recompiles=-5), "max_recompiles: expected 0 or more, or -1"),
        (lambda: TrainerConfig(logger="runs/x"), r"logger: .* write LoggerConfig\(log_path='runs/x'\)"),
        (lambda: TrainerConfig(callbacks=EarlyStopping), r"callbacks: .*; write EarlyStopping\(\)"),
        (lambda: TrainerConfig(callbacks=["ema"]), "callbacks: expected callbacks or their configs, got 'ema'"),
        (lambda: CheckpointConfig(save_top_k=1.5), "save_top_k: expected int, got 1.5"),
        (lambda: CheckpointConfig(every_n_epochs=0), "CheckpointConfig.every_n_epochs: expected a positive number"),
        (lambda: CheckpointConfig(every_n_steps=2.5), "every_n_steps: expected int, got 2.5"),
        (lambda: CheckpointConfig(every_n_minutes=NAN), "CheckpointConfig.every_n_minutes: expected a positive number"),
        (lambda: CheckpointConfig(dirpath=3), "dirpath: expected str, got 3"),
        (lambda: EarlyStoppingConfig(min_delta=NAN), "EarlyStoppingConfig.min_delta: expected 0 or more, got nan"),
        (lambda: EarlyStoppingConfig(stopping_threshold=NAN), "stopping_threshold: expected a number, or None"),
        (lambda: JaxProfilerConfig(profile_every_n_minutes=NAN), "profile_every_n_minutes: expected a number"),
        (lambda: JaxProfilerConfig(max_seconds=NAN), "max_seconds: expected a positive number, got nan"),
        (lambda: JaxProfilerConfig(slow_step_factor=NAN), "slow_step_factor: expected more than 1"),
        (lambda: LossScaleConfig(factor=NAN), "factor: expected more than 1, got nan"),
        (lambda: LoggerConfig(log_path=3), "log_path: expected a path"),
        (lambda: LoggerConfig(log_tools=["csv"]), "log_tools.0.: expected LoggerToolsConfig, got 'csv'"),
        (lambda: TensorBoardLoggerConfig(flush_secs=NAN), "flush_secs is nan"),
        (lambda: WandBLoggerConfig(finish_timeout_s=NAN), "finish_timeout_s is nan"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(build: Any, message: str) -> None:
    """The error names the field, the value and the fix, in Python as in files."""
    with pytest.raises(ConfigError, match=message):
        build()


def test_numbers_of_numpy_are_numbers() -> None:
    """Also where a config looks at them itself."""
    one = np.int64(1)
    config = TrainerConfig(seed=one, steps_per_call=one, prefetch_batches=one, gradient_accumulate_steps=one)
    assert round_trip(config) == config
    assert LoggerConfig(log_every_n_steps=one).log_every_n_steps == 1


def test_one_in_place_of_a_list() -> None:
    """A callback or a tool alone is a list of one."""
    stopping = EarlyStopping()
    assert TrainerConfig(callbacks=stopping).callbacks == [stopping]  # type: ignore[arg-type]
    assert TrainerConfig(callbacks=EMAConfig()).callbacks == [EMAConfig()]  # type: ignore[arg-type]
    assert LoggerConfig(log_tools=FileLoggerConfig()).log_tools == [FileLoggerConfig()]  # type: ignore[arg-type]


def test_a_path_in_place_of_text_is_written_as_text() -> None:
    """So that the config of a run that was given one can be read back."""
    assert round_trip(CheckpointConfig(dirpath=Path("a/b"))).dirpath == "a/b"  # type: ignore[arg-type]
