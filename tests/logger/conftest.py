from dataclasses import dataclass

import pytest

from trackside.clock import ManualClock
from trackside.events import read_events
from trackside.logger import Logger, LoggerConfig, LoggerTool, LoggerToolsConfig


class RecordingTool(LoggerTool):
    """Keeps every call, in order."""

    threaded = False

    def __init__(self):
        self.calls = []

    def rows(self, mode=None):
        return [args for method, args in self.calls if method == "log_metrics" and mode in (None, args[3])]

    def shown(self, method):
        return [args for called, args in self.calls if called == method]

    def setup(self):
        self.calls.append(("setup", ()))

    def log_config(self, config):
        self.calls.append(("log_config", (config,)))

    def log_metrics(self, metrics, step, epoch, mode):
        self.calls.append(("log_metrics", (metrics, step, epoch, mode)))

    def log_image(self, name, image, step, mode):
        self.calls.append(("log_image", (name, image, step, mode)))

    def log_text(self, name, text, step, mode):
        self.calls.append(("log_text", (name, text, step, mode)))

    def log_histogram(self, name, values, step, mode):
        self.calls.append(("log_histogram", (name, values, step, mode)))

    def log_figure(self, name, figure, step, mode):
        self.calls.append(("log_figure", (name, figure, step, mode)))

    def flush(self):
        self.calls.append(("flush", ()))

    def finalize(self, status):
        self.calls.append(("finalize", (status,)))


@dataclass(kw_only=True)
class MadeByTest(LoggerToolsConfig):
    """Creates whatever the test wants."""

    make: object = RecordingTool

    def create(self, logger):
        return self.make()


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def make_logger(clock):
    """Builds loggers, with a `make` for each tool, and closes them after the test."""
    loggers = []

    def make(log_path=None, *, tools=(), postprocess=None, process_index=0, **config):
        log_tools = [tool if isinstance(tool, LoggerToolsConfig) else MadeByTest(make=tool) for tool in tools]
        logger = Logger(
            LoggerConfig(log_path=log_path, log_tools=log_tools, **config),
            postprocess,
            clock=clock,
            process_index=process_index,
        )
        loggers.append(logger)
        return logger

    yield make
    for logger in loggers:
        logger.finalize("success")


@pytest.fixture
def recording_tool():
    return RecordingTool


@pytest.fixture
def rows_of():
    """Reads the rows of one kind from a run's event file."""

    def read(log_path, kind="metrics", process_index=0):
        return [row for row in read_events(log_path / f"events-{process_index:05d}.jsonl") if row["kind"] == kind]

    return read
