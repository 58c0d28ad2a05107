"""Where the time went as one bar: in colours on a terminal, by letters in plain text."""

from rich.text import Text

from trackside.profiling.ledger import (
    CALLBACK,
    CHECKPOINTING,
    COMPILE,
    DATA_WAIT,
    DEVICE_WAIT,
    DISPATCH,
    HOST_TO_DEVICE,
    LOGGING,
    OTHER,
    VALIDATION,
    LedgerTotals,
)
from trackside.profiling.ledger_text import part_name

# Steps are green and blue, what they wait for is red and yellow, the rest lies between.
_STYLES = {
    DEVICE_WAIT: "green",
    DISPATCH: "cyan",
    HOST_TO_DEVICE: "blue",
    DATA_WAIT: "red",
    COMPILE: "yellow",
    VALIDATION: "magenta",
    CHECKPOINTING: "bright_blue",
    LOGGING: "bright_magenta",
    OTHER: "bright_black",
}
_LETTERS = {
    DEVICE_WAIT: "#",
    DISPATCH: "d",
    HOST_TO_DEVICE: "h",
    DATA_WAIT: "D",
    COMPILE: "C",
    VALIDATION: "V",
    CHECKPOINTING: "K",
    LOGGING: "L",
    OTHER: ".",
}
_CALLBACK_STYLE, _CALLBACK_LETTER = "bright_yellow", "c"
_MIN_SHARE = 0.005


def part_style(part: str) -> str:
    """The colour of a part."""
    return _CALLBACK_STYLE if part.startswith(CALLBACK) else _STYLES.get(part, _STYLES[OTHER])


def render_bar(totals: LedgerTotals, width: int, plain: bool = False) -> list[Text]:
    """The bar, and below it what its colours or letters stand for.

    Args:
        totals: What the ledger shows.
        width: The columns that it may take.
        plain: By letters, for where there are no colours.
    """
    shares = {part: totals.share(part) for part in totals.parts}
    shown = sorted((part for part in shares if shares[part] >= _MIN_SHARE), key=lambda part: -shares[part])
    bar = Text()
    done = 0.0
    for part in shown:
        begin, done = done, done + shares[part]
        cells = round(done * width) - round(begin * width)
        bar.append((_letter(part) if plain else "█") * cells, style="" if plain else part_style(part))
    return [bar, *_legend(shown, shares, width, plain)]


def _legend(parts: list[str], shares: dict[str, float], width: int, plain: bool) -> list[Text]:
    lines = [Text()]
    for part in parts:
        mark = Text(_letter(part) if plain else "■", style="" if plain else part_style(part))
        entry = Text.assemble(mark, f" {part_name(part)} {100 * shares[part]:.0f} %")
        if lines[-1] and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], "  " if lines[-1] else "", entry)
    return lines


def _letter(part: str) -> str:
    return _CALLBACK_LETTER if part.startswith(CALLBACK) else _LETTERS.get(part, _LETTERS[OTHER])
