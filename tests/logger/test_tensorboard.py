import errno
import importlib
import math
import os
import sys

import numpy as np
import pytest

from tests.fork_server import run
from trackside.errors import ConfigError, MissingExtraError
from trackside.logger import TensorBoardLogger, TensorBoardLoggerConfig
from trackside.metric_columns import MetricColumns

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")


@pytest.fixture
def read_tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory):
        accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0, "images": 0})
        accumulator.Reload()
        return accumulator

    return read


def test_scalars_are_tagged_by_mode(make_logger, tmp_path, read_tensorboard):
    """Every row is there after finalize, under `<mode>/<name>`, with its step."""
    logger = make_logger(tmp_path, tools=[TensorBoardLoggerConfig()])
    logger.start_epoch(1, step=0)
    for step in range(1, 101):
        logger.log_row({"loss": 1.0 / step}, step=step)
    logger.start_epoch(1, step=100, mode="val")
    logger.end_epoch({"loss": 0.25}, step=100)
    logger.finalize("success")
    events = read_tensorboard(tmp_path / "tensorboard")
    train = events.Scalars("train/loss")
    assert [event.step for event in train] == list(range(1, 101))
    assert [event.value for event in train] == pytest.approx([1.0 / step for step in range(1, 101)])
    assert [(event.step, event.value) for event in events.Scalars("val/loss")] == [(100, 0.25)]
    assert {"train/step_time", "train/epoch", "val/epoch_time"} <= set(events.Tags()["scalars"])


def test_flush_makes_rows_visible(make_logger, tmp_path, read_tensorboard):
    """A row can be read after flush while the logger is open."""
    logger = make_logger(tmp_path, tools=[TensorBoardLoggerConfig(log_dir="tb", flush_secs=1000)])
    logger.log_host_metrics({"loss": 0.5}, step=3, mode="val")
    logger.flush()
    (event,) = read_tensorboard(tmp_path / "tb").Scalars("val/loss")
    assert (event.step, event.value) == (3, 0.5)


def test_reopening_adds_to_the_same_directory(make_logger, tmp_path, read_tensorboard):
    """A second training continues the curves of the first."""
    logger = make_logger(tmp_path, tools=[TensorBoardLoggerConfig()])
    for step in (1, 2):
        logger.log_host_metrics({"loss": float(step)}, step=step, mode="val")
        logger.finalize("success")
    assert [event.step for event in read_tensorboard(tmp_path / "tensorboard").Scalars("val/loss")] == [1, 2]


def test_images_text_histograms_figures_and_config(make_logger, tmp_path, read_tensorboard):
    """Everything else that TensorBoard shows arrives as well."""
    from matplotlib.figure import Figure

    logger = make_logger(tmp_path, tools=[TensorBoardLoggerConfig()])
    logger.log_config({"model": {"width": 12}, "api_key": "abc"})
    logger.log_image("one", np.zeros((4, 6, 3), np.uint8), step=1, mode="val")
    logger.log_image("gray", np.zeros((4, 6)), step=1, mode="val")
    logger.log_image("several", np.zeros((2, 4, 6, 1), np.uint8), step=1, mode="val")
    logger.log_figure("curve", Figure(figsize=(2, 1), dpi=50), step=1, mode="val")
    logger.log_text("sample", "once upon a time", step=1, mode="val")
    logger.log_histogram("weights", np.arange(10.0), step=1, mode="val")
    logger.log_histogram("empty", np.array([np.nan]), step=1, mode="val")
    logger.finalize("success")
    events = read_tensorboard(tmp_path / "tensorboard")
    tags = events.Tags()
    assert set(tags["images"]) == {"val/one", "val/gray", "val/several", "val/curve"}
    assert (events.Images("val/one")[0].height, events.Images("val/one")[0].width) == (4, 6)
    assert (events.Images("val/curve")[0].height, events.Images("val/curve")[0].width) == (50, 100)
    assert tags["histograms"] == ["val/weights"]
    assert events.Histograms("val/weights")[0].histogram_value.num == 10
    texts = {tag: b"".join(events.Tensors(tag)[0].tensor_proto.string_val).decode() for tag in tags["tensors"]}
    assert texts["val/sample/text_summary"] == "once upon a time"
    assert '"width": 12' in texts["config/text_summary"]
    assert "abc" not in texts["config/text_summary"]


def test_the_package_is_named_when_it_is_missing(make_logger, tmp_path, monkeypatch):
    """The error says how to install it, before training starts."""

    def missing(name, *args):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"TensorBoardLoggerConfig needs.*trackside\[tensorboard\]"):
        make_logger(tmp_path, tools=[TensorBoardLoggerConfig()])


def test_the_flush_interval_must_be_positive():
    """The error names field and value."""
    with pytest.raises(ConfigError, match="flush_secs is 0"):
        TensorBoardLoggerConfig(flush_secs=0)


def test_several_rows_at_once(tmp_path, read_tensorboard):
    """Rows that are written together are read as those that are written one by one."""
    tool = TensorBoardLogger(tmp_path)
    tool.setup()
    tool.log_metrics_rows([({"loss": 0.5 * step}, step, 1) for step in range(5)], "train")
    tool.finalize("success")
    events = read_tensorboard(tmp_path).Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(step, 0.5 * step) for step in range(5)]


def test_several_rows_by_column(tmp_path, read_tensorboard):
    """Rows of the same metrics are read as those that are written one by one, also where numbers are not finite."""
    tool = TensorBoardLogger(tmp_path)
    tool.setup()
    losses, norms, steps = [0.5, math.nan, math.inf], [0.0, -1.0, 2.0], [7, 300, 1 << 40]
    flat = [value for row in zip(losses, norms, strict=True) for value in row]
    tool.log_metrics_columns(MetricColumns(("loss", "norm"), flat, steps, [1, 1, 2]), "train")
    tool.log_metrics_columns(MetricColumns(("norm",), [3.0], [(1 << 40) + 1], [2]), "train")
    tool.finalize("success")
    found = {name: read_tensorboard(tmp_path).Scalars(f"train/{name}") for name in ("loss", "norm")}
    assert [event.step for event in found["loss"]] == steps
    np.testing.assert_array_equal([event.value for event in found["loss"]], losses)
    assert [event.value for event in found["norm"]] == [*norms, 3.0]


def test_a_full_disk_keeps_the_rows_that_fit(tmp_path, read_tensorboard):
    """Of rows that are written together, those before the disk was full are whole, and the next ones follow them."""
    code = """
import resource, sys
from pathlib import Path
from trackside.logger.tensorboard import TensorBoardLogger
tool = TensorBoardLogger(Path(sys.argv[1]))
tool.setup()
rows = [({"loss": 0.5}, step, 1) for step in range(100)]
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
try:
    tool.log_metrics_rows(rows, "train")
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
tool.log_metrics_rows(rows[-1:], "train")
"""
    result = run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert os.strerror(errno.ENOSPC) in result.stdout
    steps = [event.step for event in read_tensorboard(tmp_path).Scalars("train/loss")]
    assert 5 < len(steps) < 50
    assert steps == [*range(len(steps) - 1), 99]
