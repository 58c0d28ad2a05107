"""The epochs that are running, one inside the other, such as a validation within an epoch of training."""

from typing import NamedTuple

from trackside.errors import ConfigError, TracksideError
from trackside.logger.postprocessing import OWN_MODES


def check_mode(mode: str) -> None:
    """Check the name of what an epoch is for.

    Raises:
        ConfigError: It is no name, or that of rows about the run itself.
    """
    if not isinstance(mode, str) or not mode or mode in OWN_MODES:
        taken = ", ".join(sorted(OWN_MODES))
        raise ConfigError(f"start_epoch: mode is {mode!r}. Use a name such as 'val' that is none of {taken}.")


class OpenEpoch(NamedTuple):
    """An epoch that is running."""

    mode: str
    started_s: float
    outer_epoch: int
    """The epoch that continues after it."""

    @property
    def row_mode(self) -> str:
        """The mode of the row that it ends with. That of training is next to those of its steps."""
        return "train_epoch" if self.mode == "train" else self.mode


class OpenEpochs:
    """The running epochs, the innermost last."""

    def __init__(self) -> None:
        self._open: list[OpenEpoch] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def mode(self) -> str:
        """The mode of the innermost epoch; `default` outside of any."""
        return self._open[-1].mode if self._open else "default"

    @property
    def modes(self) -> list[str]:
        """The modes of all."""
        return [epoch.mode for epoch in self._open]

    @property
    def started_s(self) -> list[float]:
        """When they started, on the clock."""
        return [epoch.started_s for epoch in self._open]

    def start(self, mode: str, started_s: float, outer_epoch: int) -> None:
        """Start one inside of those that are running.

        Args:
            mode: What it is for, a name that `check_mode` allows.
            started_s: When it started, on the clock.
            outer_epoch: The epoch that continues after it.
        """
        self._open.append(OpenEpoch(mode, started_s, outer_epoch))

    def innermost(self) -> OpenEpoch:
        """The innermost epoch.

        Raises:
            TracksideError: No epoch is running.
        """
        if not self._open:
            raise TracksideError("end_epoch() was called and no epoch is running. Call start_epoch() before it.")
        return self._open[-1]

    def end(self) -> OpenEpoch:
        """End the innermost epoch, and give it."""
        return self._open.pop()

    def clear(self) -> None:
        """Forget all."""
        self._open.clear()
