"""The configuration and the environment of the run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trackside.report.html.markup import Child, Column, Html, code, element, joined, table
from trackside.report.html.section import Section
from trackside.run_layout import CONFIG_FILE_NAME
from trackside.text import head

_MAX_VALUE = 2_000
_MAX_CONFIG = 200_000


def build(configs: Mapping[str, Any], environment: Mapping[str, Any]) -> Section:
    """The section.

    Args:
        configs: `Run.config`.
        environment: `RunSummary.environment`.
    """
    content: list[Child] = [_config(name, config) for name, config in configs.items()]
    hints = []
    if not configs:
        hints.append(joined("It is in neither ", code(CONFIG_FILE_NAME), " nor the event file."))
    if environment:
        content.append(_folded("Environment", _environment_table(environment)))
    else:
        hints.append(joined("The run did not record its environment."))
    return Section("configs", "Configuration", content or None, missing=hints)


def _folded(title: str, *content: Child) -> Html:
    return element("details", element("summary", title), *content)


def _config(name: str, config: Any) -> Html:
    text = json.dumps(config, indent=2, ensure_ascii=False, default=str)
    cut = None
    if len(text) > _MAX_CONFIG:
        where = code(CONFIG_FILE_NAME)
        cut = element("p", f"The first {_MAX_CONFIG:,} characters; ", where, " has the rest.", class_="note")
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
            yield f"{prefix}{name}", head(text, _MAX_VALUE)
