"""Who trained the run: its legs one after the other, and its processes side by side."""

from trackside.profiling.ledger_text import part_name
from trackside.profiling.ledger_totals import DATA_WAIT, DEVICE_WAIT, DISPATCH
from trackside.report.html.markup import Cell, Child, Column, Html, element, table, term
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.runs import Host, HostTable, Leg, SlowHost
from trackside.runs.hosts import SilentHost
from trackside.text import count, duration, moment, percent, seconds

_MAX_HOSTS = 40
_MAX_LEGS = 100
_PARTS = (DATA_WAIT, DISPATCH, DEVICE_WAIT)


def build(summary: RunSummary, hosts: HostTable | None) -> Section:
    """The section; without content for a run of one leg and one process, of which the header says everything.

    Args:
        summary: The summary of the run.
        hosts: The processes of the run; None for a run of one.
    """
    content: list[Child] = []
    if len(summary.legs) > 1:
        content.append(panel("Legs", _leg_table(summary.legs), note=_leg_note(summary)))
    if hosts is not None:
        content.append(_host_panel(hosts))
    return Section("processes", "Legs and hosts", content or None)


def _leg_note(summary: RunSummary) -> str:
    repeated = summary.num_repeated_steps
    note = f"{count(repeated, 'step')} had to be repeated after a restart." if repeated else "No step was repeated."
    cut = f"The last {_MAX_LEGS} of {len(summary.legs):,} legs. " if len(summary.legs) > _MAX_LEGS else ""
    return cut + note


def _leg_table(legs: list[Leg]) -> Html:
    columns = [
        Column("leg", is_number=True),
        Column("steps", is_number=True),
        Column("began", is_minor=True),
        Column("took", is_number=True),
        Column(
            "first step after", is_number=True, explanation="Since its trainer was built, or called to train again."
        ),
        Column("ended as"),
        Column("goodput", is_number=True, explanation="At its end, since training first began."),
    ]
    rows = [
        [
            leg.number,
            Cell(_steps(leg), leg.first_step),
            Cell(moment(leg.started_at), leg.started_at),
            Cell(duration(leg.ended_at - leg.started_at), leg.ended_at - leg.started_at),
            _first_step(leg),
            leg.status,
            Cell("-" if leg.goodput is None else percent(leg.goodput), leg.goodput or 0.0),
        ]
        for leg in legs[-_MAX_LEGS:]
    ]
    return table(columns, rows, "Legs")


def _first_step(leg: Leg) -> Cell:
    first = leg.time_to_first_step
    return Cell("-", 0.0) if first is None else Cell(term(seconds(first.wall_s), f"{first.text}."), first.wall_s)


def _steps(leg: Leg) -> str:
    return f"{leg.first_step:,} to {'?' if leg.last_step is None else f'{leg.last_step:,}'}"


def _host_panel(hosts: HostTable) -> Html:
    named = {one.process_index for one in (*hosts.slow, *hosts.silent)}
    ordered = sorted(hosts, key=lambda host: (host.process_index not in named, -host.own_s_per_step))
    columns = [
        Column("process", is_number=True),
        Column("host", is_code=True),
        Column(
            "own time per step",
            is_number=True,
            explanation="Wall time per step without waiting for the device, which is waiting for the slowest host.",
        ),
        *(Column(part_name(part), is_number=True, is_minor=True) for part in _PARTS),
        Column("last step", is_number=True),
        Column("status", is_minor=True),
    ]
    rows = [_host_row(host) for host in ordered[:_MAX_HOSTS]]
    note = None
    if len(hosts) > _MAX_HOSTS:
        note = f"{_MAX_HOSTS} of {len(hosts):,} hosts: those listed above, then those with the longest own time."
    return panel("Hosts", _named(hosts), table(columns, rows, "Hosts"), note=note)


def _named(hosts: HostTable) -> Html:
    """The hosts that stand out, one sentence each."""
    sentences = [*map(_slow_text, hosts.slow), *map(_silent_text, hosts.silent)]
    if not sentences:
        return element("p", "No host slows the others down.", class_="all-clear")
    hidden = len(sentences) - _MAX_HOSTS
    shown = [*sentences[:_MAX_HOSTS], *([f"and {hidden:,} more"] if hidden > 0 else [])]
    return element("ul", [element("li", sentence) for sentence in shown], class_="problems")


def _slow_text(one: SlowHost) -> str:
    since = f" since step {one.since_step:,}" if one.since_step else ""
    return (
        f"{_name(one)} spends {seconds(one.own_s_per_step)} of its own time per step{since}, against a median of "
        f"{seconds(one.median_s_per_step)} for the others; mostly {part_name(one.part)}, "
        f"{seconds(one.part_s_per_step)} against {seconds(one.part_median_s_per_step)}."
    )


def _silent_text(one: SilentHost) -> str:
    return f"{_name(one)} wrote its last row {duration(one.silent_s)} before the others, at step {one.step:,}."


def _name(one: SlowHost | SilentHost) -> str:
    return f"Process {one.process_index} on {one.hostname or 'an unknown host'}"


def _host_row(host: Host) -> list[Child | Cell]:
    parts = [host.parts_s_per_step.get(part) for part in _PARTS]
    return [
        host.process_index,
        host.hostname or "-",
        Cell(seconds(host.own_s_per_step) if host.num_steps else "-", host.own_s_per_step),
        *(Cell("-" if part_s is None else seconds(part_s), part_s or 0.0) for part_s in parts),
        Cell(f"{host.step:,}", host.step),
        host.status or "-",
    ]
