"""The legs of a run: each process, or call of `train_model`, that worked on it."""

from dataclasses import dataclass, replace

from trackside.profiling.first_step import TimeToFirstStep
from trackside.runs.row_collector import RowCollector


@dataclass(frozen=True)
class Leg:
    """One process's work on a training, or one call of `train_model`."""

    number: int
    """Which process it was, counted from 1."""
    first_step: int
    """The step from which it resumed: 0 for a fresh start."""
    last_step: int | None
    """The last step that is known of it; None where none was reported."""
    started_at: float
    """In seconds since the epoch."""
    ended_at: float
    """When it ended, or wrote its last row."""
    status: str
    """How it ended, as `Run.status`."""
    train_time_s: float | None
    """How long the training had taken by its end, over all legs; None for one that was killed."""
    goodput: float | None
    """The share of the time since the training began that went into steps whose results were kept, by its end."""
    time_to_first_step: TimeToFirstStep | None = None
    """From when the trainer was built, or called to train again; None for one that made no step."""


def legs_of(rows: RowCollector, unfinished: str) -> list[Leg]:
    """The legs of a run.

    Args:
        rows: The rows of the run.
        unfinished: The status of a last leg that does not say how it ended.
    """
    legs: list[Leg] = []
    before_legs = iter(rows.before_legs)
    for row in rows.events("leg", "first_step", "leg_end", "status"):
        t = float(row["t"])
        if row["kind"] == "leg":
            step, ended_at = next(before_legs)
            if legs and not legs[-1].status:
                legs[-1] = _break_off(legs[-1], "dead", step, ended_at)
            legs.append(Leg(int(row.get("leg") or 1), int(row["step"]), None, t, t, "", None, None))
        elif legs and row["kind"] == "first_step":
            first = TimeToFirstStep(
                float(row["wall_s"]), {name: float(part_s) for name, part_s in row["parts"].items()}
            )
            legs[-1] = replace(legs[-1], time_to_first_step=first)
        elif legs and row["kind"] == "leg_end":
            figures = {name: row.get(name) for name in ("train_time_s", "goodput")}
            legs[-1] = replace(legs[-1], last_step=row.get("step"), ended_at=t, **figures)
        elif legs and not legs[-1].status:  # a later one is that of an evaluation
            legs[-1] = replace(legs[-1], ended_at=t, status=str(row.get("status")))
    if legs and not legs[-1].status:
        legs[-1] = _break_off(legs[-1], unfinished, rows.step, rows.ended_at)
    return legs


def _break_off(leg: Leg, status: str, step: int, ended_at: float | None) -> Leg:
    """A leg that did not say how it ended."""
    last_step = step if leg.last_step is None and step >= leg.first_step else leg.last_step
    return replace(leg, status=status, last_step=last_step, ended_at=leg.ended_at if ended_at is None else ended_at)
