"""HTML in which everything is escaped unless it was built here: text from a run cannot become markup."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Html(str):
    """Text that is markup already; only `element` and `joined` make it."""

    __slots__ = ()


Child = Any
"""`Html` as it is, None not at all, an iterable child by child, anything else as escaped text."""

_EMPTY_ELEMENTS = frozenset({"input", "link", "meta"})


def element(name: str, /, *children: Child, **attributes: Any) -> Html:
    """An element.

    Args:
        name: Its name, such as `div`.
        *children: What it holds.
        **attributes: By name; a trailing underscore is dropped (`class_`), others become hyphens. None and False leave
            an attribute out, True gives it no value.
    """
    opening = "".join([name, *(_attribute(key, value) for key, value in attributes.items())])
    if name in _EMPTY_ELEMENTS:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Children one after the other."""
    return Html("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if not isinstance(child, str) and isinstance(child, Iterable):
        return joined(*child)
    return html.escape(_shown(str(child)))


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(_shown(str(value)))}"'


def _shown(text: str) -> str:
    """Text that UTF-8 can hold: a lone surrogate, as from a file name, is shown as a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    """Numbers are aligned to the right."""
    explanation: str = ""
    """What the title means, shown on hover."""
    is_minor: bool = False
    """Left out on a narrow screen."""
    is_code: bool = False
    """Names from the program, in a fixed-width font."""
    is_long: bool = False
    """Text that may be broken anywhere."""


@dataclass(frozen=True)
class Cell:
    """What a table shows in one place."""

    content: Child
    sort: float | str | None = None
    """What to sort by, where that is not the text."""


def table(columns: Sequence[Column], rows: Iterable[Sequence[Child | Cell]], caption: str = "") -> Html:
    """A table that can be sorted by a click on a title."""
    head = element("tr", [_title(column) for column in columns])
    body = [element("tr", [_cell(column, cell) for column, cell in zip(columns, row, strict=True)]) for row in rows]
    label = element("caption", caption) if caption else None
    inner = element("table", label, element("thead", head), element("tbody", body), class_="sortable")
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def _classes(column: Column) -> str | None:
    names = [
        ("number", column.is_number),
        ("minor", column.is_minor),
        ("code", column.is_code),
        ("long", column.is_long),
    ]
    return " ".join(name for name, applies in names if applies) or None


def _title(column: Column) -> Html:
    if not column.title:
        return element("th", class_=_classes(column))
    button = element("button", column.title, type="button", data_tip=column.explanation or None)
    return element("th", button, class_=_classes(column), scope="col")


def _cell(column: Column, cell: Child | Cell) -> Html:
    content, sort = (cell.content, cell.sort) if isinstance(cell, Cell) else (cell, None)
    return element("td", content, class_=_classes(column), data_sort=sort)


def term(word: Child, explanation: str) -> Html:
    """A word whose meaning is shown on hover or tap."""
    return element("span", word, class_="term", data_tip=explanation, tabindex="0")


def share_bar(share: float, colour: str = "accent") -> Html:
    """A bar as wide as a share of its place. Drawn as SVG, whose attributes the page's policy allows."""
    width = f"{100 * min(max(share, 0.0), 1.0):.2f}%"
    return element("svg", element("rect", width=width, height="100%"), class_=f"bar fill-{colour}", aria_hidden="true")


def missing(*children: Child) -> Html:
    """What a section says instead of a chart: that data is missing, and how to get it."""
    return element("p", *children, class_="missing")


def with_code(text: str) -> Html:
    """A sentence with names in backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its partner
        return joined(text)
    return joined(code(part) if index % 2 else part for index, part in enumerate(parts))


def path_text(path: str) -> Html:
    """A path that may wrap after a slash."""
    first, *others = path.split("/")
    return joined(first, [joined("/", Html("<wbr>"), part) for part in others])


def code(text: str) -> Html:
    """Something to type."""
    return element("code", text)
