"""The parts of a run as data frames, for those who work with pandas."""

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from trackside.errors import ConfigError
from trackside.findings import Finding
from trackside.optional import require
from trackside.runs.run_legs import Leg

if TYPE_CHECKING:
    from trackside.runs.run import Run

FRAMES = ("compiles", "captures", "memory", "checkpoints", "legs", "findings", "ledger")
"""What there is a frame of."""


def frame_of(run: "Run", what: str) -> Any:
    """A part of a run as a `pandas.DataFrame`.

    Args:
        run: The run.
        what: Which part, one of `FRAMES`.

    Raises:
        ConfigError: There is no such part.
        MissingExtraError: pandas is not installed.
    """
    if what not in FRAMES:
        hint = '; metrics are frames by mode: run.metrics["train"].to_pandas()' if what == "metrics" else ""
        raise ConfigError(f"what: expected one of {', '.join(map(repr, FRAMES))}; got {what!r}{hint}")
    pandas = require("pandas", "Run.to_pandas()")
    if what == "ledger":
        ledger = run.ledger
        rows = [] if ledger is None else [(part, ledger.parts[part], ledger.share(part)) for part in ledger.parts]
        return pandas.DataFrame(rows, columns=["part", "seconds", "share"]).set_index("part")
    if what == "legs":
        return pandas.DataFrame([asdict(leg) for leg in run.legs], columns=[field.name for field in fields(Leg)])
    if what == "findings":
        found = [finding.to_dict() for finding in run.findings]
        return pandas.DataFrame(found, columns=[field.name for field in fields(Finding)])
    # All rows of a frame are of one kind, and a report is a tree of tables of its own.
    rows = [_without(row, "kind", "report") for row in getattr(run, what)]
    return pandas.json_normalize(rows) if what == "memory" else pandas.DataFrame(rows)


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}
