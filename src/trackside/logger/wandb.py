"""Metrics, images, text and distributions for Weights & Biases."""

import contextlib
import html
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.logger.tool import LoggerTool, LoggerToolsConfig
from trackside.logger.wandb_history import last_steps, rows_up_to
from trackside.optional import require
from trackside.run_layout import event_file_name

if TYPE_CHECKING:
    from trackside.logger.logger import Logger

LOGGER = logging.getLogger(__name__)

_MODES = ("online", "offline", "disabled")


@dataclass(kw_only=True)
class WandBLoggerConfig(LoggerToolsConfig):
    """A W&B run."""

    project: str = "trackside"
    """The project that the run belongs to."""
    entity: str | None = None
    """The user or team; None for the account's default."""
    name: str | None = None
    """The run's name; None lets W&B choose one."""
    group: str | None = None
    """The group that the run belongs to, if any."""
    job_type: str | None = None
    """What kind of run it is within its group, if any."""
    tags: list[str] = field(default_factory=list)
    """Tags to find the run by."""
    notes: str | None = None
    """What to remember about the run."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """`online`, `offline` (to upload later with `wandb sync`) or `disabled`. Instead of `online`, `WANDB_MODE` may ask
    for one of the others."""
    log_dir: str = ""
    """The directory inside `log_path` in which W&B makes its own, named `wandb`; the run's own by default."""
    init_timeout_s: float = 30.0
    """How long to try to reach the server at the start, in seconds; training does not wait."""
    finish_timeout_s: float = 120.0
    """How long the end of a run waits for uploads, in seconds."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further fields of `wandb.Settings`, by name."""

    def __post_init__(self):
        if self.mode not in _MODES:
            raise ConfigError(f"WandBLoggerConfig.mode is {self.mode!r}. Use one of {', '.join(map(repr, _MODES))}.")
        for name in ("init_timeout_s", "finish_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"WandBLoggerConfig.{name} is {getattr(self, name)!r}. Use seconds above 0.")

    def check_usable(self, has_folder: bool) -> None:
        """The package has to be there."""
        require("wandb", "WandBLoggerConfig")

    def create(self, logger: "Logger") -> "WandBLogger":
        """Make the tool. Without a `log_path`, what W&B keeps on disk goes to a new temporary directory."""
        run = logger.log_path
        event_file = None if run is None else run / event_file_name(0)
        return WandBLogger(self, None if run is None else run / self.log_dir, event_file)


def _mode_of(config: WandBLoggerConfig) -> Literal["online", "offline", "disabled"]:
    """The mode, which machines without a network set for all programs that use W&B."""
    wanted = os.environ.get("WANDB_MODE", "")
    if config.mode != "online":
        return config.mode
    return "offline" if wanted in ("offline", "dryrun") else "disabled" if wanted == "disabled" else "online"


class WandBLogger(LoggerTool):
    """Logs under the key `<mode>/<name>`.

    The run's id is kept in its directory, so that a resumed training continues the same W&B run. W&B refuses steps that
    go backwards: rows of steps that the run has already, as after a resume, are left out and counted in `num_skipped`.
    A test of a model from an earlier step is logged at the last one, with its own under `test/step`.
    W&B writes in the background, so a killed process loses rows: those that the event file has are handed in later.

    Args:
        config: What the run is called and where it goes.
        directory: Where W&B makes its directory `wandb`; None for a temporary one.
        event_file: The run's event file, if it has one.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, config: WandBLoggerConfig, directory: Path | None, event_file: Path | None = None):
        self.config = config
        self._event_file = event_file
        self._had_steps: dict[str, int] = {}
        self.finalize_timeout_s = config.finish_timeout_s
        self.num_skipped = 0
        self._wandb = require("wandb", "WandBLoggerConfig")
        self.mode = _mode_of(config)
        if self.mode == "disabled":
            self.directory = directory
            return
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="trackside-wandb-"))
            LOGGER.info("The run has no folder; the files of its W&B run are in %s.", directory)
        self.directory = directory
        (directory / "wandb").mkdir(parents=True, exist_ok=True)
        # On this thread, since it changes environment variables; and with a cache that is not below the user's home.
        with _environment_default("WANDB_CACHE_DIR", str(directory / "wandb" / "cache")):
            self._wandb.setup()

    def setup(self) -> None:
        """Start or continue the W&B run."""
        config, wandb = self.config, self._wandb
        if self.mode == "online" and not self._has_key():
            raise ConfigError(
                "no W&B API key is configured. Run `wandb login`, set WANDB_API_KEY, or use "
                "WandBLoggerConfig(mode='offline')"
            )
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name,
            group=config.group,
            job_type=config.job_type,
            tags=config.tags,
            notes=config.notes,
            mode=self.mode,
            dir=None if self.directory is None else str(self.directory),
            id=self._run_id(),
            resume="allow",
            reinit=None if wandb.run is None else "create_new",  # a run that the user has open stays theirs
            settings=wandb.Settings(**self._settings()),
        )
        self._last_step = self._run.step

    def rewind(self, step: int) -> None:
        """Find out what the run has already, and hand in what it lacks up to `step`."""
        next_step = self._run.step  # what a server knows; without one, the files tell
        if self.mode == "offline" and self.directory is not None:
            self._had_steps = last_steps(self.directory)
            self._last_step, next_step = max(self._had_steps.values(), default=0), 0
        if self._event_file is not None:
            for row in rows_up_to(self._event_file, step):
                if row["step"] > self._had_steps.get(row["mode"], next_step - 1):
                    self.log_metrics(row["values"], row["step"], row["epoch"], row["mode"])

    def log_config(self, config: dict[str, Any]) -> None:
        """Add to the run's config."""
        self._run.config.update(config, allow_val_change=True)

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        """Log a row of metrics."""
        if step <= self._had_steps.get(mode, -1):
            self.num_skipped += 1
            return
        row: dict[str, Any] = {f"{mode}/{name}": value for name, value in metrics.items()}
        if mode == "test" and step < self._last_step:  # of the best model, whose step W&B does not take any more
            row, step = {**row, "test/step": step}, self._last_step
        self._log(row, step)

    def log_image(self, name: str, image: np.ndarray, step: int, mode: str) -> None:
        """Log an image or several."""
        images = image if image.ndim == 4 else image[None]
        self._log({f"{mode}/{name}": [self._image(entry) for entry in images]}, step)

    def log_text(self, name: str, text: str, step: int, mode: str) -> None:
        """Log text as it is, in a panel of its own."""
        self._log({f"{mode}/{name}": self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step)

    def log_histogram(self, name: str, values: np.ndarray, step: int, mode: str) -> None:
        """Log a distribution; one without any number in it is left out."""
        if values.size:
            self._log({f"{mode}/{name}": self._wandb.Histogram(values)}, step)

    def log_figure(self, name: str, figure: np.ndarray, step: int, mode: str) -> None:
        """Log a figure as an image."""
        self._log({f"{mode}/{name}": self._image(figure)}, step)

    def finalize(self, status: str) -> None:
        """End the run, as failed unless it was a success."""
        if self.num_skipped:
            LOGGER.info("W&B had %d rows already and did not get them again.", self.num_skipped)
        self._run.finish(exit_code=0 if status == "success" else 1)

    def _log(self, row: dict[str, Any], step: int) -> None:
        if step < self._last_step:
            self.num_skipped += 1
            return
        self._last_step = step
        self._run.log(row, step=step)

    def _image(self, image: np.ndarray) -> Any:
        return self._wandb.Image(image[..., 0] if image.shape[-1] == 1 else image)

    def _has_key(self) -> bool:
        if "api_key" in self.config.settings or os.environ.get("WANDB_API_KEY"):
            return True
        # Without a key, W&B would ask for one on the terminal, and from this thread.
        return self._wandb.login(prompt=False, verify=False)

    def _run_id(self) -> str | None:
        if self.directory is None:
            return None
        path = self.directory / "wandb" / "trackside-run-id"
        if path.exists() and (run_id := path.read_text(encoding="utf-8").strip()):
            return run_id
        run_id = secrets.token_hex(4)
        write_atomically(path, run_id)
        return run_id

    def _settings(self) -> dict[str, Any]:
        # The run has its own log file; W&B's would wrap stdout and stderr, from another thread than theirs.
        return {"console": "off", "silent": True, "init_timeout": self.config.init_timeout_s, **self.config.settings}


@contextlib.contextmanager
def _environment_default(name: str, value: str) -> Iterator[None]:
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
