"""`trackside demo`."""

from pathlib import Path
from typing import Annotated

import tyro


def demo(
    overrides: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[KEY=VALUE ...]")] = (),
    run_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo"),
) -> None:
    """Train a small network on handwritten digits twice, and show what made the first run slow.

    The first run has a slow loader; the loader of the second run prefetches. Prints the findings of the first run and
    a comparison of the two, and writes their reports. Needs the extra `demo`, but no network.

    Examples:
      trackside demo
      trackside demo trainer.seed=1 optimizer.scheduler.lr=0.01
      trackside report runs/demo               see how it went

    Args:
        overrides: Changes to the configs, such as trainer.seed=1.
        run_dir: Where to write the second run; the first is written next to it. Earlier demos there are removed.
    """
    from trackside import demo as digits  # imports jax, which --help does not need

    digits.run(run_dir, overrides)
