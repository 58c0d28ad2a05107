"""A finding: a verdict on a run, with its evidence in numbers and what to do about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from trackside.errors import ConfigError

Severity = Literal["info", "warning", "severe"]
"""How bad a finding is."""

SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "info")
"""The most severe first."""


def label_of(finding_id: str) -> str:
    """The id of a finding as people read it: `input-bound`."""
    return finding_id.replace("_", "-")


@dataclass(frozen=True)
class Finding:
    """A verdict on a run."""

    id: str
    """Which rule it comes from, such as `input_bound`."""
    severity: Severity
    """`info` explains, `warning` is worth a change, `severe` wastes a large part of the run."""
    title: str
    """What is wrong, in one clause with the number that matters most."""
    evidence: dict[str, float | int | str]
    """The figures that it is based on. Names end in their unit: `_s`, `_share`, `_bytes`."""
    advice: str
    """What to do, in one line."""
    subject: str = field(default="")
    """What it is about, where a rule may find several things: a callback, a function."""

    def __post_init__(self) -> None:
        if self.severity not in get_args(Severity):
            expected = ", ".join(repr(severity) for severity in SEVERITIES)
            raise ConfigError(f"severity of the finding {self.id!r}: expected one of {expected}; got {self.severity!r}")

    @property
    def label(self) -> str:
        """The id as people read it: `input-bound`."""
        return label_of(self.id)

    @property
    def message(self) -> str:
        """Everything in one line: what is wrong, and what to do."""
        return f"{self.label}: {self.title}; {self.advice}"

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same when the finding is made again later in the run, with other figures."""
        return self.id, self.subject

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Finding":
        """Back from plain values. Other keys, such as those of an event row, are ignored.

        Raises:
            ConfigError: A field is missing, or the severity is not one of `SEVERITIES`.
        """
        missing = [name for name in ("id", "severity", "title", "evidence", "advice") if name not in plain]
        if missing:
            raise ConfigError(f"finding: {', '.join(missing)} missing in {dict(plain)!r}; pass what to_dict() gave")
        return cls(
            plain["id"],
            plain["severity"],
            plain["title"],
            dict(plain["evidence"]),
            plain["advice"],
            plain.get("subject", ""),
        )


def severity_of(share: float, severe: float) -> Severity:
    """The severity of something that takes a share of the time, and is severe from a certain share on."""
    return "severe" if share >= severe else "warning"
