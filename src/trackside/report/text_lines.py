"""Lines of text for a terminal: cut and filled to columns, wrapped below a label, and free of control characters.

Everything that a run wrote may be shown: a metric's name must not be able to move the cursor or to clear the screen.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from trackside.text import without_controls

LABEL_WIDTH = 11
_UNBROKEN = "\xa0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[kMG]?B|[mu]?s|min|h|d)\b)")


def printable(text: Text) -> Text:
    """The text with a replacement character for each control character; line ends stay."""
    text.plain = without_controls(text.plain)
    return text


def labelled(label: str, lines: Sequence[str | Text], width: int) -> list[Text]:
    """Lines beside a label, wrapped to the width."""
    shown: list[Text] = []
    for line in lines:
        if isinstance(line, Text):
            shown.append(line)
        else:
            shown += [Text(part) for part in wrap(line, width - LABEL_WIDTH)]
    margin = [Text(f"{label:<{LABEL_WIDTH}}", style="bold"), *(Text(" " * LABEL_WIDTH) for _ in shown[1:])]
    return [Text.assemble(left, right) for left, right in zip(margin, shown, strict=True)]


def wrap(text: str, width: int, hanging: str = "") -> list[str]:
    """A text in lines that fit; numbers stay with their units.

    Args:
        text: The text.
        width: The columns that a line may have.
        hanging: What all lines but the first begin with.
    """
    unbroken = _BEFORE_UNIT.sub(_UNBROKEN, text)
    lines = textwrap.wrap(unbroken, max(width, 20), subsequent_indent=hanging, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]


def fit(text: str, width: int) -> str:
    """Exactly so many columns: filled up, or cut with an ellipsis."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def fit_tail(text: str, width: int) -> str:
    """Exactly so many columns of a path's end, which says more than its beginning."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return "…" + set_cell_size(text[-(width - 1) :], width - 1)


def join(lines: Iterable[Text]) -> Text:
    """Lines as one text."""
    return Text("\n").join(lines)
