"""How runs and tables show themselves in a notebook. Everything that comes from a run is escaped."""

import html
from collections.abc import Iterable, Sequence

from trackside.findings import Finding
from trackside.text import percent


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Args:
        names: Of the columns.
        rows: Their cells, as text.
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_run(
    name: str,
    facts: Sequence[tuple[str, str]],
    parts: Sequence[tuple[str, float]],
    findings: Sequence[Finding],
    problems: Sequence[str],
) -> str:
    """A run at a glance.

    Args:
        name: What it is called.
        facts: What is to be said of it: names and values.
        parts: Where the time went: names and shares.
        findings: The verdicts.
        problems: What is wrong with its files.
    """
    sections = [f"<h4>{html.escape(name)}</h4>", html_table([], facts)]
    if findings:
        sections.append(_list(f"{finding.severity}: {finding.message}" for finding in findings))
    if parts:
        sections.append(html_table(["where the time went", "share"], [(part, percent(share)) for part, share in parts]))
    if problems:
        sections.append(_list(problems))
    return "".join(sections)


def _list(entries: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(entry)}</li>' for entry in entries)}</ul>"
