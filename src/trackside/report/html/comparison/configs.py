"""Where two runs differ in configuration and environment, value by value."""

import json
from collections.abc import Mapping
from typing import Any

from trackside.compare import Comparison
from trackside.compare.run_causes import flat_config
from trackside.report.html.markup import Column, Html, element, joined, table
from trackside.report.html.section import Section, panel
from trackside.text import count, head

_MAX_ROWS = 200
_MAX_VALUE = 500
_NOT_SET = "(not set)"
# These differ between any two processes.
_INCIDENTAL = frozenset({"pid", "process_index"})


def build(comparison: Comparison) -> Section:
    """The section."""
    before, after = comparison.before, comparison.after
    recorded = {
        "Configuration": (before.config, after.config),
        "Environment": (before.environment, after.environment),
    }
    content = [_panel(title, *pair) for title, pair in recorded.items() if all(pair)]
    note = element("p", "Names and output paths of the runs are left out.", class_="note")
    missing = [title.lower() for title, pair in recorded.items() if not all(pair)]
    hint = joined(f"Not both runs recorded their {' and '.join(missing)}, so these are not compared.")
    return Section(
        "configs",
        "Configuration and environment",
        [*content, note] if content else None,
        missing=[hint] if missing else [],
    )


def _panel(title: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Html:
    first, second = dict(flat_config(before)), dict(flat_config(after))
    names = [name for name in dict.fromkeys((*first, *second)) if name not in _INCIDENTAL]
    changed = [name for name in names if first.get(name, _NOT_SET) != second.get(name, _NOT_SET)]
    if not changed:
        return panel(title, element("p", f"{count(len(names), 'value')}, all the same.", class_="note"))
    columns = [
        Column("name", is_code=True, is_long=True),
        Column("before", is_code=True),
        Column("after", is_code=True),
    ]
    rows = [[name, _text(first, name), _text(second, name)] for name in changed[:_MAX_ROWS]]
    note = f"{len(changed):,} of {count(len(names), 'value')} {'differs' if len(changed) == 1 else 'differ'}."
    if len(changed) > len(rows):
        note += f" The first {len(rows)} are shown."
    return panel(title, table(columns, rows, f"{title}: what differs"), note=note)


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return _NOT_SET
    value = values[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return head(text, _MAX_VALUE)
