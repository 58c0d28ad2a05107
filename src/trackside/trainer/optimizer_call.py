"""What a step gives to an optax optimizer: gradients, parameters and, if it takes that, the loss as `value`."""

import re
from typing import Any

import optax

from trackside.errors import ConfigError

_MISSING = re.compile(r"missing \d+ required (?:keyword-only|positional) arguments?: (?P<names>.*)")
_OPTAX_ASKS = re.compile(r"(?P<names>\w+) must be (?:provided|passed)")
_GIVEN = "a step gives the gradients, the parameters and the loss (`value`), and computes the loss once"


def optimizer_update(
    tx: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any, loss: Any = None
) -> tuple[Any, Any]:
    """Updates and the optimizer's next state.

    Args:
        tx: The optimizer.
        grads: The gradients.
        opt_state: The optimizer's state.
        params: The parameters.
        loss: The loss, for optimizers that go by it, such as `optax.contrib.reduce_on_plateau`.

    Raises:
        ConfigError: The optimizer needs what a step does not have.
    """
    takes_more = loss is not None and isinstance(tx, optax.GradientTransformationExtraArgs)
    more = {"value": loss} if takes_more else {}
    try:
        return tx.update(grads, opt_state, params, **more)
    except (TypeError, ValueError, AttributeError) as error:
        if more and "unexpected keyword argument 'value'" in str(error):  # as of optax.contrib.sam, whatever its type
            return optimizer_update(tx, grads, opt_state, params)
        if words := _unmet_need(error):
            raise ConfigError(f"optimizer: {words}") from error
        raise


def _unmet_need(error: Exception) -> str:
    """What the optimizer needs in vain, by the error that it raised; empty if that is about something else."""
    if isinstance(error, AttributeError) and error.name == "fast":
        return (
            "optax.lookahead needs parameters in two copies, `optax.LookaheadParams`, and the model has one; use its "
            "inner optimizer alone, and the callback EMA to evaluate on averaged parameters"
        )
    found = (_MISSING if isinstance(error, TypeError) else _OPTAX_ASKS).search(str(error))
    if found is None:
        return ""
    names = found["names"].replace("'", "`") if "'" in found["names"] else f"`{found['names']}`"
    where = str(error).partition(".")[0] if isinstance(error, TypeError) else "its update"
    without = ", or leave out the line search, as in optax.lbfgs(0.1, linesearch=None)" if "value_fn" in names else ""
    return f"{where} needs {names}, and {_GIVEN}; use one that goes by the gradients, such as optax.adam(1e-3){without}"
