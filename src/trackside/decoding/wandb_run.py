"""The W&B run of a decoding training: the active one if there is one, else a new one.

Training never fails because of W&B: a failure is reported once, and training continues without it.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any, cast

from trackside.errors import MissingExtraError
from trackside.logger import WandBLogger, WandBLoggerConfig

LOGGER = logging.getLogger(__name__)


class WandBRun:
    """Logs to the active W&B run.

    Args:
        run_name: What to call the run that is started if none is active; None starts none.
        directory: Where the files of a run that is started go; None for a temporary directory.
    """

    def __init__(self, run_name: str | None, directory: Path | None):
        self._started: WandBLogger | None = None
        self._has_failed = False
        if run_name is not None and self._active() is None:
            self._start(run_name, directory)

    def log(self, row: dict[str, float]) -> None:
        """Log a row, if a run is active."""
        run = self._active()
        if run is None:
            return
        try:
            run.log(row)
        except Exception as error:
            self._report("a row could not be logged", error)

    def finish(self, status: str) -> None:
        """Finish the run if it was started here; a run of the user stays open.

        Args:
            status: `success`, or another word for what went wrong.
        """
        if self._started is None:
            return
        started, self._started = self._started, None
        try:
            started.finalize(status)
        except Exception as error:
            self._report("the run could not be finished", error)

    def _start(self, run_name: str, directory: Path | None) -> None:
        # W&B's own variable decides, as it would for wandb.init.
        mode = os.environ.get("WANDB_MODE", "online")
        try:
            config = WandBLoggerConfig(
                project=os.environ.get("WANDB_PROJECT", "trackside"), name=run_name, mode=cast(Any, mode)
            )
            tool = WandBLogger(config, directory)
            tool.setup()
        except MissingExtraError as error:
            LOGGER.warning("wandb_run_name is %r, but training continues without W&B: %s", run_name, error)
        except Exception as error:
            self._report(f"no run named {run_name!r} could be started", error)
        else:
            self._started = tool

    def _active(self) -> Any:
        wandb = sys.modules.get("wandb")  # a program with a run has imported it
        return None if wandb is None else getattr(wandb, "run", None)

    def _report(self, what: str, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            LOGGER.warning("W&B: %s; training continues without it: %s", what, error)
