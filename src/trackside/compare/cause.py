"""A cause: what changed in the program or around it that may explain a difference between two runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cause:
    """Something that changed from the first run to the second."""

    id: str
    """Which rule it comes from, such as `scope_added`."""
    title: str
    """What changed, in one clause."""
    evidence: Mapping[str, str | int | float] = field(default_factory=dict)
    """The figures that it rests on. Names end in their unit: `_s`, `_share`, `_bytes`."""
    subject: str = ""
    """What it is about, where a rule may find several things: a scope, a function."""
    change_s: float | None = None
    """Seconds per step that it accounts for, where the traces tell."""

    @property
    def label(self) -> str:
        """The id as people read it: `scope-added`."""
        return self.id.replace("_", "-")

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)
