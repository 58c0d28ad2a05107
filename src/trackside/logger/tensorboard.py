"""Metrics, images, text and distributions for TensorBoard."""

import errno
import itertools
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.logger.tool import LoggerTool, LoggerToolsConfig, check_folder, tool_directory
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.optional import require

if TYPE_CHECKING:
    from trackside.logger.logger import Logger

_NUM_BINS = 64
_file_numbers = itertools.count()


@dataclass(kw_only=True)
class TensorBoardLoggerConfig(LoggerToolsConfig):
    """TensorBoard event files."""

    log_dir: str = "tensorboard"
    """The files' directory inside `log_path`; `tensorboard --logdir` takes it."""
    flush_secs: float = 10.0
    """How often, in seconds, rows are forced to disk, for readers on a network file system; readers on this machine
    see them at once."""

    def __post_init__(self):
        if not self.flush_secs > 0:
            raise ConfigError(f"TensorBoardLoggerConfig.flush_secs is {self.flush_secs!r}. Use a number above 0.")

    def check_usable(self, has_folder: bool) -> None:
        """The files need a folder, and the package that writes them."""
        check_folder(has_folder, "TensorBoardLoggerConfig")
        require("tensorboardX", "TensorBoardLoggerConfig")

    def create(self, logger: "Logger") -> "TensorBoardLogger":
        """Make the tool; needs a `log_path`."""
        directory = tool_directory(logger, self.log_dir, "TensorBoardLoggerConfig")
        return TensorBoardLogger(directory, self.flush_secs)


class TensorBoardLogger(LoggerTool):
    """Writes everything under the tag `<mode>/<name>`.

    Args:
        directory: Where the event files go; each opening adds one.
        flush_secs: How often rows are forced to disk, in seconds.
        clock: Where the rows' times come from.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, directory: Path, flush_secs: float = 10.0, clock: Clock = SYSTEM_CLOCK):
        self.directory = directory
        self.flush_secs = flush_secs
        self._clock = clock
        self._config_summary: Any = None
        self._tags: dict[tuple[str, str], str] = {}
        self._summary = require("tensorboardX.summary", "TensorBoardLoggerConfig")

    def setup(self) -> None:
        """Open the event file."""
        self._file = _EventFile(self.directory, self.flush_secs, self._clock)

    def log_config(self, config: dict[str, Any]) -> None:
        """Show the configuration as text."""
        text = json.dumps(config, indent=2, default=str)
        self._config_summary = self._summary.text("config", "\n".join(f"    {line}" for line in text.splitlines()))
        self._file.write(self._config_summary, 0)

    def rewind(self, step: int) -> None:
        """Have TensorBoard drop what it has of later steps."""
        self._file.restart(step + 1)
        if step < 0 and self._config_summary is not None:
            self._file.write(self._config_summary, 0)

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Log each metric as a scalar."""
        self._file.write(self._scalars(metrics, mode), step)

    def log_metrics_rows(self, rows: Sequence[MetricRow], mode: str) -> None:
        """Log several rows, by one write."""
        self._file.write_all([(self._scalars(metrics, mode), step) for metrics, step, _ in rows])

    def log_metrics_columns(self, columns: MetricColumns, mode: str) -> None:
        """Log several rows that have the same metrics, by one write."""
        tags = [self._tag(mode, name) for name in columns.names]
        self._file.write_scalars(tags, columns.flat, columns.steps)

    def _scalars(self, metrics: dict[str, float], mode: str) -> Any:
        summary = self._summary.Summary
        return summary(
            value=[summary.Value(tag=self._tag(mode, name), simple_value=value) for name, value in metrics.items()]
        )

    def _tag(self, mode: str, name: str) -> str:
        """What TensorBoard calls a metric, which takes longer to find out than the rest of a row."""
        tag = self._tags.get((mode, name))
        if tag is None:
            tag = self._tags[mode, name] = self._summary.scalar(f"{mode}/{name}", 0.0).value[0].tag
        return tag

    def log_image(self, name: str, image: np.ndarray, step: int, mode: str) -> None:
        """Log an image, or a grid of several."""
        dataformats = "NHWC" if image.ndim == 4 else "HWC"
        self._file.write(self._summary.image(f"{mode}/{name}", image, dataformats=dataformats), step)

    def log_text(self, name: str, text: str, step: int, mode: str) -> None:
        """Log text, which TensorBoard shows as Markdown."""
        self._file.write(self._summary.text(f"{mode}/{name}", text), step)

    def log_histogram(self, name: str, values: np.ndarray, step: int, mode: str) -> None:
        """Log a distribution; one without any number in it is left out."""
        if values.size:
            self._file.write(self._summary.histogram(f"{mode}/{name}", values, bins=_NUM_BINS), step)

    def log_figure(self, name: str, figure: np.ndarray, step: int, mode: str) -> None:
        """Log a figure as an image."""
        self._file.write(self._summary.image(f"{mode}/{name}", figure, dataformats="HWC"), step)

    def flush(self) -> None:
        """Force everything to disk."""
        self._file.sync()

    def finalize(self, status: str) -> None:
        """Close the event file."""
        self._file.close()


class _EventFile:
    """A TensorBoard event file, written record by record on the calling thread.

    tensorboardX's own writer adds a queue and threads that its `flush` does not wait for, and it truncates a file that
    was opened in the same second; a tool has a thread of its own already.
    """

    def __init__(self, directory: Path, flush_secs: float, clock: Clock):
        self._event = require("tensorboardX.proto.event_pb2", "TensorBoardLoggerConfig").Event
        self._checksum = require("tensorboardX.record_writer", "TensorBoardLoggerConfig").masked_crc32c
        self._clock = clock
        self._flush_secs = flush_secs
        self._last_sync = clock.now()
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a directory in the order of their names.
        unique = f"{int(clock.timestamp()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_numbers):05d}"
        path = directory / f"events.out.tfevents.{unique}"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._append(self._event(wall_time=clock.timestamp(), file_version="brain.Event:2"))

    def write(self, summary: Any, step: int) -> None:
        self.write_all([(summary, step)])

    def write_all(self, summaries: Sequence[tuple[Any, int]]) -> None:
        now = self._clock.timestamp()
        self._append(*(self._event(wall_time=now, step=step, summary=summary) for summary, step in summaries))
        self._sync_if_due()

    def write_scalars(self, tags: Sequence[str], flat: Sequence[float], steps: Sequence[int]) -> None:
        """Write an event for each step, with a number for each tag. One event serves all: to make it takes longest."""
        event = self._event(wall_time=self._clock.timestamp())
        values = [event.summary.value.add(tag=tag) for tag in tags]
        records = []
        for at, step in enumerate(steps):
            event.step = step
            for value, number in zip(values, flat[at * len(tags) : (at + 1) * len(tags)], strict=True):
                value.simple_value = number
            records.append(self._record(event))
        self._append_records(records)
        self._sync_if_due()

    def restart(self, step: int) -> None:
        """Readers drop events from this step on that were written before."""
        event = require("tensorboardX.proto.event_pb2", "TensorBoardLoggerConfig")
        log = event.SessionLog(status=event.SessionLog.START)
        self._append(self._event(wall_time=self._clock.timestamp(), step=step, session_log=log))

    def sync(self) -> None:
        os.fsync(self._fd)
        self._last_sync = self._clock.now()

    def _sync_if_due(self) -> None:
        if self._clock.now() - self._last_sync >= self._flush_secs:
            self.sync()

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, *events: Any) -> None:
        self._append_records([self._record(event) for event in events])

    def _append_records(self, records: Sequence[bytes]) -> None:
        data = b"".join(records)
        num_written = os.write(self._fd, data)
        if num_written != len(data):
            # A reader stops at a record that is cut short: take it back.
            ends = accumulate(map(len, records))
            num_whole = max((end for end in ends if end <= num_written), default=0)
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - (num_written - num_whole))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _record(self, event: Any) -> bytes:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        return b"".join(
            (length, struct.pack("<I", self._checksum(length)), data, struct.pack("<I", self._checksum(data)))
        )
