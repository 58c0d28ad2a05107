"""How a run stands, in words: the one place that terminal, page, list and `watch` take them from.

The words are those of `Run.status`, and `stopped early` for a run that a callback ended before its goal: the training
reports that as a success, and writes a `stop` row with the reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trackside.runs.run import Run

Tone = Literal["good", "live", "fair", "bad"]

STOPPED_EARLY = "stopped early"

_TERMINAL_STYLES: dict[Tone, str] = {
    "good": "bold green",
    "live": "bold cyan",
    "fair": "bold yellow",
    "bad": "bold red",
}
_MEANINGS: dict[str, tuple[Tone, str]] = {
    "success": ("good", "the training reached its goal"),
    STOPPED_EARLY: ("good", "a callback ended the training before its goal"),
    "running": ("live", "a process is training this run"),
    "interrupted": ("fair", "a signal stopped the training before its goal"),
    "dead": ("bad", "no final status was written (killed or out of memory) and no process holds the run"),
    "not started": ("fair", "the trainer was built, but no training has begun"),
    "nan": ("bad", "training stopped because the loss or the gradient norm was not finite"),
    "error": ("bad", "an exception ended the training"),
    "unknown": ("bad", "none of its files could be read"),
}
_OTHER: tuple[Tone, str] = ("fair", "the status that the run itself wrote")
_SELF_EXPLANATORY = ("success", "running")


@dataclass(frozen=True)
class RunStatus:
    """How a run stands."""

    word: str
    """`success`, `stopped early`, `running`, `interrupted`, `dead`, `not started`, `nan`, `error`, `unknown`."""
    stop_reason: str | None = None
    """Why a callback ended the training before its goal."""
    stop_step: int | None = None
    """The step after which it did."""

    @property
    def tone(self) -> Tone:
        """Whether that is good or bad."""
        return _MEANINGS.get(self.word, _OTHER)[0]

    @property
    def style(self) -> str:
        """Its style in the terminal."""
        return _TERMINAL_STYLES[self.tone]

    @property
    def meaning(self) -> str:
        """What the word means, as a clause; the reason where a callback gave one."""
        return self.stop_reason or _MEANINGS.get(self.word, _OTHER)[1]

    @property
    def text(self) -> str:
        """The word, with its meaning where it does not explain itself."""
        if self.word in _SELF_EXPLANATORY:
            return self.word
        at = f" at step {self.stop_step:,}" if self.stop_step is not None else ""
        return f"{self.word}{at}: {self.meaning}"


def read_status(run: "Run") -> RunStatus:
    """How a run stands.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    return judge_status(run.status, run.events("leg", "stop"), run.step, run.goal)


def judge_status(word: str, rows: Iterable[Mapping[str, Any]], step: int, goal: int | None) -> RunStatus:
    """How a run stands, given what it wrote.

    Args:
        word: `Run.status`.
        rows: The rows `leg` and `stop`, in order.
        step: The last step.
        goal: How many steps the training was to have; None where that is not known.
    """
    reason = None
    for row in rows:  # a leg that resumes is not bound by what ended an earlier one
        reason = None if row["kind"] == "leg" else str(row.get("reason") or "")
    if word != "success" or reason is None or (goal is not None and step >= goal):
        return RunStatus(word)
    return RunStatus(STOPPED_EARLY, reason.removeprefix("early stopping: ") or None, step)
