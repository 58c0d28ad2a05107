"""An assertion on speed, relative to a baseline that was stored by an earlier run on the same machine.

The baseline is a JSON file. It keeps the step times themselves, not only what they come to, so that a later run is
judged as `trackside compare` judges two runs, with an interval.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trackside.compare.comparison import SEED, parse_share
from trackside.compare.disturbance import StepSeries
from trackside.compare.sides import read_side
from trackside.compare.undisturbed_step import StepTimeChange, compare_step_times
from trackside.errors import ConfigError
from trackside.files import read_regular, write_atomically
from trackside.profiling.processor_use import ProcessorUse
from trackside.runs import Run
from trackside.text import percent, seconds

FORMAT = "trackside.baseline/1"
_MAX_BYTES = 1 << 28
UPDATE = "TRACKSIDE_UPDATE_BASELINES"
"""An environment variable: set to 1, baselines are written again and nothing fails."""


def assert_steps_per_second(
    run: Run | str | os.PathLike[str],
    baseline: str | os.PathLike[str],
    max_slowdown: float | str = 0.05,
    *,
    update: bool | None = None,
) -> StepTimeChange | None:
    """Fail where a run makes fewer steps per second than a stored baseline, beyond the noise and beyond a limit.

    The first time, the baseline is written and nothing fails. It holds for the machine that it was written on.

    Args:
        run: The run, by its path or opened.
        baseline: The file of the baseline.
        max_slowdown: By how much a step may take longer, as a share (0.05) or as text ("5%").
        update: Whether to write the baseline again; by the environment variable TRACKSIDE_UPDATE_BASELINES if left out.

    Returns:
        How step times changed; its `verdict` is "cannot tell" where the runs are too short or the machine too busy,
        which does not fail. None if the baseline was written.

    Raises:
        AssertionError: Steps take longer. The message has both speeds, the interval and what to look at.
        ConfigError: The limit is no share, the file is no baseline, or the run has no step times.
    """
    limit = parse_share(max_slowdown, "max_slowdown")
    side = read_side(run)
    if not len(side.steps.seconds):
        raise ConfigError(f"{side.path}: the run has no clean step times; train longer, or log more often")
    path = Path(baseline)
    must_update = os.environ.get(UPDATE, "") not in ("", "0") if update is None else update
    if must_update or not path.exists():
        _write(path, side.steps)
        return None
    change = compare_step_times(_read(path), side.steps, np.random.default_rng(SEED))
    if change.is_beyond(limit):
        raise AssertionError(_message(change, limit, side.path, path))
    return change


def _message(change: StepTimeChange, limit: float, run: str, baseline: Path) -> str:
    assert change.before_s is not None
    assert change.after_s is not None
    assert change.change is not None
    assert change.low is not None
    assert change.high is not None
    return (
        f"{1 / change.after_s:.4g} {change.per}s per second, {1 / change.before_s:.4g} in the baseline: a {change.per} "
        f"takes {seconds(change.after_s)} instead of {seconds(change.before_s)}, {percent(change.change)} longer "
        f"(95 % interval {100 * change.low:+.1f} % to {100 * change.high:+.1f} %), at most {percent(limit)} expected.\n"
        f"  `trackside report {run}` says where the time goes. If this is the speed to expect from now on, write "
        f"{baseline} again with {UPDATE}=1"
    )


def _write(path: Path, steps: StepSeries) -> None:
    plain = {
        "format": FORMAT,
        "name": steps.name,
        "batch_size": steps.batch_size,
        "num_left_out": steps.num_left_out,
        "processors": None if steps.processors is None else asdict(steps.processors),
        "num_steps": steps.num_steps.tolist(),
        "seconds": [float(f"{value:.6g}") for value in steps.seconds.tolist()],
    }
    write_atomically(path, json.dumps(plain) + "\n")


def _read(path: Path) -> StepSeries:
    try:
        plain: dict[str, Any] = json.loads(read_regular(path, _MAX_BYTES))
        if plain["format"] != FORMAT:
            raise ValueError(f"its format is {plain['format']!r}")
        return StepSeries(
            f"the baseline {path.name}",
            np.array(plain["seconds"], float),
            np.array(plain["num_steps"], np.int64),
            int(plain["num_left_out"]),
            plain["batch_size"],
            ProcessorUse.from_dict(plain["processors"]) if plain.get("processors") else None,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"baseline: {path} cannot be read as a {FORMAT} ({error}); remove it, and the next run writes it again"
        ) from error
