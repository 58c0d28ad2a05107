"""Lines of text for a terminal: cut or padded to columns, wrapped next to a label, and free of control characters.

A report shows what a run wrote, and a metric's name must not be able to move the cursor or clear the screen.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from trackside.text import without_controls, wrap

LABEL_WIDTH = 11


def printable(text: Text) -> Text:
    """The text with a replacement character for each control character; line ends stay."""
    text.plain = without_controls(text.plain)
    return text


def labelled(label: str, lines: Sequence[str | Text], width: int) -> list[Text]:
    """Lines next to a label, wrapped to the width."""
    shown: list[Text] = []
    for line in lines:
        if isinstance(line, Text):
            shown.append(line)
        else:
            shown += [Text(part) for part in wrap(line, width - LABEL_WIDTH)]
    margin = [Text(f"{label:<{LABEL_WIDTH}}", style="bold"), *(Text(" " * LABEL_WIDTH) for _ in shown[1:])]
    return [Text.assemble(left, right) for left, right in zip(margin, shown, strict=True)]


def fit(text: str, width: int) -> str:
    """A text padded, or cut with an ellipsis, to exactly `width` columns."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def fit_tail(text: str, width: int) -> str:
    """The same, but keeps the end of the text: the end of a path says more than its beginning."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return "…" + set_cell_size(text[-(width - 1) :], width - 1)


def join(lines: Iterable[Text]) -> Text:
    """Join lines into one text."""
    return Text("\n").join(lines)
