"""The arguments that both decoding loops share."""

from typing import Any

from trackside.errors import ConfigError
from trackside.schedule import Every


def check_cadence(epochs_name: str, num_epochs: Any, log_every: Any, eval_batch_size: Any) -> Every:
    """Refuse numbers that cannot work.

    Args:
        epochs_name: What the loop calls its number of epochs.
        num_epochs: That number.
        log_every: Every how many epochs to evaluate; -1 for after the last only.
        eval_batch_size: How many samples to evaluate at once, or None for all.

    Returns:
        When to evaluate, beside after the last epoch.

    Raises:
        ConfigError: It names the argument and the value.
    """
    if not _is_whole(num_epochs) or num_epochs < 1:
        raise ConfigError(f"{epochs_name}: expected a whole number of epochs, at least 1; got {num_epochs!r}")
    if not _is_whole(log_every) or log_every == 0 or log_every < -1:
        raise ConfigError(
            f"log_every: expected a positive number of epochs, or -1 for the last only; got {log_every!r}"
        )
    if eval_batch_size is not None and (not _is_whole(eval_batch_size) or eval_batch_size < 1):
        raise ConfigError(f"eval_batch_size: expected a positive number of samples, or None; got {eval_batch_size!r}")
    return Every(log_every, "log_every")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
