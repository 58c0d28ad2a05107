"""What the run was made of: timers of the user's, configuration and environment."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trackside.report.html.markup import Cell, Child, Column, Html, code, element, missing, table
from trackside.report.html.section import Section, panel
from trackside.runs import Run
from trackside.text import seconds

_MAX_TIMERS = 100
_MAX_VALUE = 2_000
_MAX_CONFIG = 200_000


def build_timers(run: Run) -> Section | None:
    """What the timers of the user's code found; None where there are none, as in most runs."""
    if not run.timers:
        return None
    columns = [
        Column("operation", is_code=True),
        Column("mean", is_number=True),
        Column("p95", is_number=True, is_minor=True),
        Column("total", is_number=True),
        Column("calls", is_number=True),
    ]
    timed = {name: row for name, row in run.timers.items() if isinstance(row, Mapping)}
    ordered = sorted(timed.items(), key=lambda item: -(item[1].get("total_time") or 0.0))
    rows = [
        [name, *(_seconds_cell(row.get(key)) for key in ("avg_time", "p95_time", "total_time")), row.get("count", "-")]
        for name, row in ordered[:_MAX_TIMERS]
    ]
    return Section("timers", "Timers", panel("Operations that the code timed", table(columns, rows, "Timers")))


def _seconds_cell(time_s: float | None) -> Cell:
    return Cell("-" if time_s is None else seconds(time_s), time_s or 0.0)


def build(run: Run) -> Section:
    """Configuration and environment."""
    content: list[Child] = []
    if run.config:
        content += [_config(name, config) for name, config in run.config.items()]
    else:
        content.append(missing("The run has no configuration: neither ", code("config.json"), " nor rows of it."))
    if run.environment:
        content.append(_folded("Environment", _environment_table(run.environment)))
    else:
        content.append(missing("The run does not tell its environment."))
    return Section("configs", "Configuration", content)


def _folded(title: str, *content: Child) -> Html:
    return element("details", element("summary", title), *content)


def _config(name: str, config: Any) -> Html:
    text = json.dumps(config, indent=2, ensure_ascii=False, default=str)
    cut = None
    if len(text) > _MAX_CONFIG:
        cut = element("p", f"The first {_MAX_CONFIG:,} characters; ", code("config.json"), " has all.", class_="note")
    return _folded(f"Configuration: {name}", element("pre", text[:_MAX_CONFIG], tabindex="0"), cut)


def _environment_table(environment: Mapping[str, Any]) -> Html:
    rows = [[name, value] for name, value in _flat(environment)]
    return table([Column("name", is_code=True), Column("value", is_code=True, is_long=True)], rows, "Environment")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{name}", text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "…"
