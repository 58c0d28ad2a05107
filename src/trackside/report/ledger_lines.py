"""Where the time went, for the terminal: as a table with a bar per part, or as one bar for all parts."""

from rich.text import Text

from trackside.profiling.ledger_text import idle_interval, outside_sentence, part_name
from trackside.profiling.ledger_totals import (
    CALLBACK,
    CHECKPOINTING,
    COMPILE,
    DATA_WAIT,
    DEVICE_WAIT,
    DISPATCH,
    DRAIN,
    HOST_TO_DEVICE,
    INITIAL_STATE,
    LOGGING,
    OTHER,
    RESTORING,
    SETUP,
    VALIDATION,
    LedgerTotals,
)
from trackside.report.terminal_lines import fit
from trackside.text import percent, share_bar, three_digits, wrap

# Steps are green and blue, what they wait for is red and yellow; the rest has the colors in between.
_STYLES = {
    DEVICE_WAIT: "green",
    DISPATCH: "cyan",
    HOST_TO_DEVICE: "blue",
    DATA_WAIT: "red",
    COMPILE: "yellow",
    VALIDATION: "magenta",
    CHECKPOINTING: "bright_blue",
    LOGGING: "bright_magenta",
    SETUP: "white",
    INITIAL_STATE: "bright_cyan",
    RESTORING: "bright_green",
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
    SETUP: "S",
    INITIAL_STATE: "I",
    RESTORING: "R",
    OTHER: ".",
}
_CALLBACK_STYLE, _CALLBACK_LETTER = "bright_yellow", "c"
_MIN_SHARE = 0.005
_MIN_TABLE_SHARE = 0.0005
_NAME_WIDTH = 24
_MAX_BAR_WIDTH = 24
_NUM_IDLE_REASONS = 3


def render_ledger_table(totals: LedgerTotals, width: int) -> list[Text]:
    """One line per part, the largest first, below the rates; then what the device waited for.

    Args:
        totals: What the ledger shows.
        width: The number of columns to use.

    Returns:
        The lines; none if no step was made.
    """
    if totals.num_steps == 0 or totals.wall_s <= 0:
        return []
    shares = {part: totals.share(part) for part in sorted(totals.parts, key=lambda part: -totals.parts[part])}
    shown = {part: share for part, share in shares.items() if share >= _MIN_TABLE_SHARE}
    lines = [Text(line, style="bold") for line in wrap(_headline(totals), width)]
    lines += [_part_line(part, totals.parts[part], share, width) for part, share in shown.items()]
    if totals.idle_share is not None:
        lines += [Text(f"  {line}") for line in wrap(_idle_sentence(totals), width - 2, hanging="  ")]
    if outside := outside_sentence(totals):
        lines += [Text(f"  {line}") for line in wrap(outside, width - 2, hanging="  ")]
    return lines


def _headline(totals: LedgerTotals) -> str:
    rates = [f"{three_digits(totals.steps_per_second)} steps/s"]
    rates += [f"{three_digits(totals.samples_per_second)} examples/s"] if totals.num_samples else []
    rates += [f"{three_digits(totals.tokens_per_second)} tokens/s"] if totals.num_tokens else []
    return f"where the time went: {totals.wall_s:.1f} s, {totals.num_steps:,} steps; overall {', '.join(rates)}"


def _part_line(part: str, part_s: float, share: float, width: int) -> Text:
    figures = f"  {fit(part_name(part), _NAME_WIDTH)} {part_s:9.2f} s {100 * share:6.1f} %  "
    room = min(_MAX_BAR_WIDTH, width - len(figures))
    return Text.assemble(figures, (share_bar(share, _MAX_BAR_WIDTH)[: max(room, 0)], _part_style(part)))


def _idle_sentence(totals: LedgerTotals) -> str:
    idle_share, idle_s = totals.idle_share or 0.0, totals.device_idle_s or 0.0
    reasons = sorted(totals.idle_by_reason.items(), key=lambda item: -item[1])[:_NUM_IDLE_REASONS]
    observed_s = (totals.device_busy_s or 0.0) + idle_s
    why = ", ".join(f"{part_name(part)} {percent(part_s / observed_s)}" for part, part_s in reasons)
    shown = f"{percent(idle_share)}{idle_interval(totals)}"
    return f"the device was idle {shown} of the time between steps" + (f": {why}" if why else "")


def _part_style(part: str) -> str:
    if part.startswith(DRAIN):
        return _STYLES[LOGGING]
    return _CALLBACK_STYLE if part.startswith(CALLBACK) else _STYLES.get(part, _STYLES[OTHER])


def render_bar(totals: LedgerTotals, width: int, plain: bool = False) -> list[Text]:
    """One bar, and below it what its colors or letters stand for.

    Args:
        totals: What the ledger shows.
        width: The number of columns to use.
        plain: Use letters instead of colors.
    """
    shares = {part: totals.share(part) for part in totals.parts}
    shown = sorted((part for part in shares if shares[part] >= _MIN_SHARE), key=lambda part: -shares[part])
    bar = Text()
    done = 0.0
    for part in shown:
        begin, done = done, done + shares[part]
        cells = round(done * width) - round(begin * width)
        bar.append((_letter(part) if plain else "█") * cells, style="" if plain else _part_style(part))
    return [bar, *_legend(shown, shares, width, plain)]


def _legend(parts: list[str], shares: dict[str, float], width: int, plain: bool) -> list[Text]:
    lines = [Text()]
    for part in parts:
        mark = Text(_letter(part) if plain else "■", style="" if plain else _part_style(part))
        entry = Text.assemble(mark, f" {part_name(part)} {100 * shares[part]:.0f} %")
        if lines[-1] and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], "  " if lines[-1] else "", entry)
    return lines


def _letter(part: str) -> str:
    if part.startswith(DRAIN):
        return _LETTERS[LOGGING]
    return _CALLBACK_LETTER if part.startswith(CALLBACK) else _LETTERS.get(part, _LETTERS[OTHER])
