import json
import logging
import math
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import ConfigError, MetricError, TracksideError
from trackside.logger import (
    FileLoggerConfig,
    LoggerConfig,
    LoggerToolsConfig,
    TensorBoardLoggerConfig,
    WandBLoggerConfig,
)


def test_a_new_logger_has_the_documented_state(make_logger):
    """Nothing was logged yet, and no epoch runs."""
    logger = make_logger()
    assert (logger.epoch, logger.step, logger.last_step) == (0, 0, 0)
    assert logger.last_step_time is None
    assert logger.found_nans is False
    assert logger.epoch_start_time_stack == logger.mode_stack == []
    assert logger.mode == "default"
    assert logger.metric_postprocess_fn is None
    assert logger.log_path is None


def test_validation_inside_training_returns_to_training(make_logger):
    """Ending the inner epoch switches back to the mode and epoch around it."""
    logger = make_logger()
    logger.start_epoch(epoch=2, step=10)
    assert logger.mode == "train"
    logger.start_epoch(epoch=1, step=15, mode="val")
    assert (logger.mode, logger.epoch) == ("val", 1)
    logger.end_epoch({"loss": 1.0}, step=15)
    assert (logger.mode, logger.epoch) == ("train", 2)
    logger.end_epoch({"loss": 1.0}, step=20)
    assert logger.mode == "default"


def test_any_name_is_a_mode(make_logger, tmp_path, rows_of):
    """An evaluation may be called whatever the user likes."""
    logger = make_logger(tmp_path)
    logger.start_epoch(1, 0, mode="ood")
    logger.end_epoch({"loss": 1.0}, step=0)
    assert [row["mode"] for row in rows_of(tmp_path)] == ["ood"]


@pytest.mark.parametrize("mode", ["", "time", "memory", 3])
def test_a_mode_that_rows_about_the_run_have_is_refused(make_logger, mode):
    """The error names the mode and those that are taken."""
    with pytest.raises(ConfigError, match=f"{mode!r}.*memory, profile, time"):
        make_logger().start_epoch(1, 0, mode=mode)


def test_ending_an_epoch_that_never_started_is_refused(make_logger):
    """The error says what to call."""
    with pytest.raises(TracksideError, match="start_epoch"):
        make_logger().end_epoch({}, step=1)


def test_log_step_keeps_its_cadence(make_logger, recording_tool):
    """Metrics pass through unchanged between rows, and come back reset from a row."""
    logger = make_logger(tools=[recording_tool], log_every_n_steps=5)
    logger.start_epoch(1, 0)
    metrics = {"loss": {"value": 6.0, "count": 3, "log_modes": ["mean", "max"]}}
    for step in range(1, 5):
        assert logger.log_step(metrics, step) is metrics
    reset = logger.log_step(metrics, 5)
    (tool,) = logger.tools
    ((row, step, epoch, mode),) = tool.rows()
    assert row["loss_mean"] == row["loss_max"] == 2.0
    assert row["epoch"] == 1
    assert (step, epoch, mode) == (5, 1, "train")
    assert reset["loss"]["value"] == 0.0
    assert reset["loss"]["count"] == 0


def test_step_time_counts_from_the_start_of_training(make_logger, recording_tool, clock):
    """The first row's time is that since the epoch started, per step; the next one's since the row before."""
    logger = make_logger(tools=[recording_tool])
    logger.on_training_start()
    clock.advance(100)
    logger.start_epoch(1, step=40)
    clock.advance(10)
    logger.log_row({"loss": 1.0}, step=45)
    clock.advance(3)
    logger.log_row({"loss": 1.0}, step=46)
    assert [row[0]["step_time"] for row in logger.tools[0].rows()] == [2.0, 3.0]
    assert (logger.last_step, logger.last_step_time) == (46, clock.now())


def test_step_time_leaves_out_validation_and_excluded_time(make_logger, recording_tool, clock):
    """Nested epochs and what the loop excludes do not count, and no time is left out twice."""
    logger = make_logger(tools=[recording_tool])
    logger.start_epoch(1, step=0)
    clock.advance(4)
    logger.start_epoch(1, step=2, mode="val")
    clock.advance(50)
    logger.start_epoch(1, step=2, mode="test")
    clock.advance(30)
    logger.exclude_time(30)
    logger.end_epoch({}, step=2)
    logger.end_epoch({}, step=2)
    clock.advance(20)
    logger.exclude_time(20)
    clock.advance(4)
    logger.log_row({}, step=4)
    clock.advance(1)
    logger.log_row({}, step=5)
    assert [row[0]["step_time"] for row in logger.tools[0].rows("train")] == [2.0, 1.0]


def test_step_time_survives_the_end_of_an_epoch(make_logger, recording_tool, clock):
    """A row that spans two epochs counts the steps of both, without the validation between them."""
    logger = make_logger(tools=[recording_tool])
    logger.start_epoch(1, step=0)
    clock.advance(3)
    logger.end_epoch({}, step=3)
    logger.start_epoch(1, step=3, mode="val")
    clock.advance(60)
    logger.end_epoch({}, step=3)
    logger.start_epoch(2, step=3)
    clock.advance(2)
    logger.log_row({}, step=5)
    assert logger.tools[0].rows("train")[0][0]["step_time"] == 1.0


def test_a_row_outside_training_has_no_step_time(make_logger, recording_tool):
    """Rows of a validation epoch carry the epoch only."""
    logger = make_logger(tools=[recording_tool])
    logger.start_epoch(3, step=0, mode="val")
    logger.log_row({"loss": 1.0}, step=0)
    assert logger.tools[0].rows()[0][0] == {"loss": 1.0, "epoch": 3}


def test_the_event_file_has_every_row(make_logger, tmp_path, rows_of, clock):
    """A row is there when the call returns, with step, epoch and mode."""
    logger = make_logger(tmp_path / "run")
    logger.start_epoch(1, step=0)
    clock.advance(0.5)
    logger.log_row({"loss": 0.25}, step=1)
    (row,) = rows_of(tmp_path / "run")
    assert row["values"] == {"loss": 0.25, "epoch": 1, "step_time": 0.5}
    assert (row["step"], row["epoch"], row["mode"]) == (1, 1, "train")


def test_the_row_passed_is_not_changed(make_logger):
    """What is added to a row is not added to the caller's dict."""
    metrics = {"loss": 1.0}
    logger = make_logger(postprocess=lambda row: row | {"more": 1.0})
    logger.log_row(metrics, step=1)
    assert metrics == {"loss": 1.0}


def test_end_epoch_returns_the_metrics_and_what_was_added(make_logger, clock):
    """The dict passed comes back with the epoch's time and what the postprocessing added, none of it reset."""
    logger = make_logger(postprocess=lambda row: {**row, "ppl": 2 * row["loss"], "loss": -1.0})
    logger.start_epoch(1, step=0, mode="val")
    clock.advance(7)
    metrics = {"loss": 3.0}
    assert logger.end_epoch(metrics, step=4) == {"loss": 3.0, "epoch_time": 7.0, "ppl": 6.0}
    assert metrics == {"loss": 3.0}


def test_end_epoch_takes_step_metrics(make_logger, recording_tool):
    """Metrics with values and counts are logged as numbers."""
    logger = make_logger(tools=[recording_tool])
    logger.start_epoch(1, step=0, mode="test")
    returned = logger.end_epoch({"loss": {"value": 6.0, "count": 3, "log_modes": ["mean_nopostfix"]}}, step=4)
    assert logger.tools[0].rows("test")[0][0]["loss"] == 2.0
    assert returned["loss"]["value"] == 6.0


def test_rows_of_an_epoch_do_not_collide_with_those_of_its_last_step(make_logger, tmp_path, rows_of):
    """A training epoch's row has its own mode."""
    logger = make_logger(tmp_path)
    logger.start_epoch(1, step=0)
    logger.log_row({"loss": 1.0}, step=3)
    logger.end_epoch({"loss": 2.0}, step=3)
    assert [(row["mode"], row["values"]["loss"]) for row in rows_of(tmp_path)] == [("train", 1.0), ("train_epoch", 2.0)]


def test_postprocessing_comes_before_everything(make_logger, recording_tool, tmp_path, rows_of):
    """Event file, tools and the check for NaNs see what the function returned, of callbacks' rows too."""
    logger = make_logger(
        tmp_path, tools=[recording_tool], postprocess=lambda row: {"ppl": jnp.exp(row["loss"]), "n": len(row)}
    )
    logger.log_row({"loss": 0.0}, step=1)
    logger.log_host_metrics({"loss": math.inf}, step=1)
    first, second = (row["values"] for row in rows_of(tmp_path))
    assert first == {"ppl": 1.0, "n": 2}
    assert second == {"ppl": math.inf, "n": 1}
    assert [row[0] for row in logger.tools[0].rows()] == [first, second]
    assert logger.found_nans


def test_postprocessing_that_raises_is_named(make_logger):
    """The user's error comes through, with a note about where it was called."""

    def broken_postprocess(row):
        return row["no_such_metric"]

    with pytest.raises(KeyError) as caught:
        make_logger(postprocess=broken_postprocess).log_row({"loss": 1.0}, step=12)
    (note,) = caught.value.__notes__
    assert "broken_postprocess" in note
    assert "12" in note


def test_postprocessing_must_return_a_dict(make_logger):
    """A forgotten return is told as such."""
    with pytest.raises(MetricError, match=r"metric_postprocess_fn=.*returned None"):
        make_logger(postprocess=lambda row: None).log_row({"loss": 1.0}, step=1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_found(make_logger, caplog, value):
    """The warning names metric and step once, not for each row, and not the metrics that are fine."""
    logger = make_logger()
    for step in (5, 6):
        logger.log_row({"loss": value, "acc": 0.5}, step=step)
    assert logger.found_nans
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"step 5: loss={value}" in record.getMessage()
    assert "acc" not in record.getMessage()


def test_a_new_training_starts_without_nans(make_logger, caplog):
    """What an earlier training found is forgotten."""
    logger = make_logger()
    logger.log_row({"loss": math.nan}, step=1)
    logger.on_training_start()
    assert not logger.found_nans
    logger.log_row({"loss": math.nan}, step=1)
    assert len(caplog.records) == 2


def test_large_values_are_not_taken_for_infinity(make_logger):
    """Only single values count, not what they add up to."""
    logger = make_logger()
    logger.log_row({"a": 1.7e308, "b": 1.7e308}, step=1)
    assert not logger.found_nans


def test_host_metrics_of_other_packages_are_converted(make_logger, recording_tool):
    """Scalars of numpy and JAX become floats, and the current mode is the default."""
    logger = make_logger(tools=[recording_tool])
    logger.start_epoch(1, step=0, mode="val")
    logger.log_host_metrics(
        {"a": np.float32(0.5), "b": jnp.asarray(2.0, jnp.bfloat16), "c": np.array([3]), "d": True}, step=7
    )
    logger.log_host_metrics({"lr": 1e-3}, step=7, mode="optimizer")
    (first, *_, mode), (second, *_, given) = logger.tools[0].rows()
    assert first == {"a": 0.5, "b": 2.0, "c": 3.0, "d": 1.0}
    assert all(type(value) is float for value in first.values())
    assert second == {"lr": 1e-3}
    assert (mode, given) == ("val", "optimizer")


@pytest.mark.parametrize("value", [np.zeros(3), "0.5", None, 1j])
def test_what_is_not_a_number_is_refused(make_logger, value):
    """The error names the metric."""
    with pytest.raises(MetricError, match="'weights'"):
        make_logger().log_host_metrics({"weights": value}, step=1)


def test_config_is_logged_without_secrets(make_logger, recording_tool, tmp_path, rows_of):
    """A dict of configs reaches file, event file and tools, merged over calls, with secrets replaced."""
    logger = make_logger(tmp_path, tools=[recording_tool])
    logger.log_config({"logger": LoggerConfig(log_every_n_steps=7), "service": {"api_key": "abc", "num_tokens": 5}})
    logger.log_config({"model": {"width": 3}})
    on_disk = json.loads((tmp_path / "config.json").read_text())
    assert on_disk["logger"]["log_every_n_steps"] == 7
    assert on_disk["service"] == {"api_key": "***", "num_tokens": 5}
    assert on_disk["model"] == {"width": 3}
    assert logger.tools[0].shown("log_config")[-1][0] == on_disk
    assert [list(row["config"]) for row in rows_of(tmp_path, "config")] == [["logger", "service"], ["model"]]
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "output.log", "events-00000.jsonl"}


def test_a_single_config_is_logged_by_its_fields(make_logger, tmp_path):
    """A config alone is not wrapped in anything, and can be read back."""
    config = LoggerConfig(log_path=tmp_path / "x", log_tools=[FileLoggerConfig(log_dir="tables"), WandBLoggerConfig()])
    make_logger(tmp_path).log_config(config)
    on_disk = json.loads((tmp_path / "config.json").read_text())
    assert LoggerConfig.from_dict(LoggerConfig, on_disk) == config


def test_the_environment_is_recorded(make_logger, tmp_path, rows_of):
    """Opening writes where the run runs; what is added later is a row of its own."""
    logger = make_logger(tmp_path, process_index=3)
    logger.log_environment({"devices": ["cpu:0"], "auth_token": "abc"})
    first, second = rows_of(tmp_path, "environment", process_index=3)
    assert first["process_index"] == 3
    assert first["versions"]["jax"]
    assert (second["devices"], second["auth_token"]) == (["cpu:0"], "***")


def test_finalize_records_the_status_once(make_logger, recording_tool, tmp_path, rows_of):
    """Tools and event file are told how the run ended; a second call changes nothing."""
    logger = make_logger(tmp_path, tools=[recording_tool])
    (tool,) = logger.tools
    logger.log_row({"loss": 1.0}, step=8)
    logger.finalize("error")
    logger.finalize("success")
    (row,) = rows_of(tmp_path, "status")
    assert (row["status"], row["step"]) == ("error", 8)
    assert tool.shown("finalize") == [("error",)]
    assert not logger.is_open


def test_a_logger_used_after_finalize_reopens(make_logger, recording_tool, tmp_path, rows_of):
    """Rows are appended, tools are made anew and get the config."""
    logger = make_logger(tmp_path, tools=[recording_tool])
    logger.log_config({"a": 1})
    logger.start_epoch(1, step=0)
    logger.log_row({"loss": 1.0}, step=1)
    logger.finalize("error")
    logger.start_epoch(1, step=1, mode="test")
    logger.end_epoch({"loss": 2.0}, step=1)
    assert [row["values"]["loss"] for row in rows_of(tmp_path)] == [1.0, 2.0]
    assert [method for method, _ in logger.tools[0].calls] == ["setup", "log_config", "log_metrics"]
    assert len(rows_of(tmp_path, "environment")) == 2


def test_without_a_path_nothing_is_written(make_logger, tmp_path, monkeypatch):
    """No file appears in the working directory, and the events go nowhere."""
    monkeypatch.chdir(tmp_path)
    logger = make_logger()
    logger.log_config({"a": 1})
    logger.log_row({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", [FileLoggerConfig(), TensorBoardLoggerConfig()], ids=lambda c: type(c).__name__)
def test_tools_that_write_files_need_a_path(make_logger, config):
    """The error names the tool and what to set."""
    with pytest.raises(ConfigError, match=rf"{type(config).__name__}.*log_path"):
        make_logger(tools=[config])


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_a_path_that_cannot_be_used_is_refused(make_logger, tmp_path, below):
    """The error names the field, the value and the fix, at construction."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the run's folder .*file.*Choose a directory.*LoggerConfig\.log_path"):
        make_logger(tmp_path / below)


def test_a_failed_construction_leaves_nothing_open(make_logger, tmp_path):
    """Log handlers are gone when a tool's config was refused."""
    handlers = list(logging.getLogger("trackside").handlers)

    def refuse():
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        make_logger(tmp_path, tools=[refuse])
    assert logging.getLogger("trackside").handlers == handlers


def test_only_the_first_process_has_tools_and_config(make_logger, recording_tool, tmp_path):
    """Another process keeps to its own event file and log file."""
    logger = make_logger(tmp_path, tools=[recording_tool], process_index=2)
    logger.log_config({"a": 1})
    assert logger.tools == []
    assert {path.name for path in tmp_path.iterdir()} == {"events-00002.jsonl", "output-00002.log"}


def test_images_reach_the_tools_as_bytes(make_logger, recording_tool):
    """An image is brought into one form, and later changes to the array do not show."""
    logger = make_logger(tools=[recording_tool])
    image = np.full((4, 5), 0.5, np.float32)
    logger.log_image("sample", image, step=3, mode="val")
    image[:] = 0
    ((name, shown, step, mode),) = logger.tools[0].shown("log_image")
    assert (name, step, mode) == ("sample", 3, "val")
    assert shown.dtype == np.uint8
    assert shown.shape == (4, 5, 1)
    assert (shown == 128).all()


def test_text_goes_to_tools_and_event_file(make_logger, recording_tool, tmp_path, rows_of):
    """The event file keeps text as well."""
    logger = make_logger(tmp_path, tools=[recording_tool])
    logger.log_text("sample", "once upon", step=3)
    assert logger.tools[0].shown("log_text") == [("sample", "once upon", 3, "default")]
    (row,) = rows_of(tmp_path, "text")
    assert (row["name"], row["text"], row["step"]) == ("sample", "once upon", 3)
    with pytest.raises(MetricError, match="'sample' is an int"):
        logger.log_text("sample", 3, step=3)  # pyright: ignore


def test_histograms_reach_the_tools_flat_and_finite(make_logger, recording_tool):
    """What is not finite has no place in a distribution."""
    logger = make_logger(tools=[recording_tool])
    logger.log_histogram("weights", jnp.asarray([[1.0, jnp.nan], [2.0, jnp.inf]]), step=1)
    ((_, values, *_),) = logger.tools[0].shown("log_histogram")
    assert values.tolist() == [1.0, 2.0]


def test_figures_reach_the_tools_drawn(make_logger, recording_tool):
    """A figure is drawn as it is at the call and left open."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    canvas = figure.canvas
    logger = make_logger(tools=[recording_tool])
    logger.log_figure("curve", figure, step=1)
    ((_, drawn, *_),) = logger.tools[0].shown("log_figure")
    assert drawn.shape == (50, 100, 4)
    assert figure.canvas is canvas
    with pytest.raises(MetricError, match="matplotlib"):
        logger.log_figure("curve", np.zeros((2, 2)), step=1)


def test_a_tool_may_change_what_it_gets(make_logger, recording_tool):
    """Each tool has a row of its own."""

    class Greedy(recording_tool):
        def log_metrics(self, metrics, step, epoch, mode):
            metrics.clear()

    logger = make_logger(tools=[Greedy, recording_tool])
    logger.log_host_metrics({"loss": 1.0}, step=1)
    assert logger.tools[1].rows()[0][0] == {"loss": 1.0}


def test_flush_reaches_the_tools(make_logger, recording_tool):
    """Flushing the logger flushes its tools."""
    logger = make_logger(tools=[recording_tool])
    logger.flush()
    assert logger.tools[0].shown("flush") == [()]


def test_a_tool_that_cannot_be_created_is_left_out(make_logger, recording_tool, caplog):
    """It is reported by name and cause, and the others get their rows."""

    def explode():
        raise OSError("no such device")

    logger = make_logger(tools=[explode, recording_tool])
    logger.log_host_metrics({"loss": 1.0}, step=1)
    assert len(logger.tools[0].rows()) == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "MadeByTest" in record.getMessage()
    assert "no such device" in record.getMessage()


def test_importing_the_logger_does_not_import_jax():
    """Nor any of the optional packages."""
    code = """
import sys, trackside.logger
loaded = {"jax", "wandb", "tensorboardX", "matplotlib"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "5"])
def test_the_cadence_must_be_positive(value):
    """The error names field and value."""
    with pytest.raises(ConfigError, match=rf"log_every_n_steps is {value!r}"):
        LoggerConfig(log_every_n_steps=value)


@pytest.mark.parametrize("value", ["", "a/b", "../x", "a\\b", ".."])
def test_the_log_name_must_be_a_file_name(value):
    """Nothing is written outside of the run's directory."""
    with pytest.raises(ConfigError, match="cmd_logging_name"):
        LoggerConfig(cmd_logging_name=value)


def test_log_dir_is_the_path_as_text(tmp_path):
    """A path may be given as a string; without one, the directory is empty."""
    assert LoggerConfig().log_dir == ""
    config = LoggerConfig(log_path=str(tmp_path))  # pyright: ignore
    assert config.log_path == tmp_path
    assert config.log_dir == tmp_path.as_posix()


def test_a_tools_config_must_say_how_to_create_it(make_logger):
    """The base class cannot be used by itself."""
    with pytest.raises(ConfigError, match=r"create\(logger\)"):
        LoggerToolsConfig().create(make_logger())
