"""Who trained the run: its legs one after the other, its processes beside each other."""

from trackside.profiling.ledger import DATA_WAIT, DEVICE_WAIT, DISPATCH
from trackside.profiling.ledger_text import part_name
from trackside.report.html.markup import Cell, Child, Column, Html, element, missing, table
from trackside.report.html.section import Section, panel
from trackside.report.moments import duration, moment
from trackside.runs import Host, HostTable, Leg, Run, SlowHost
from trackside.runs.hosts import SilentHost
from trackside.text import count, percent, seconds

_MAX_HOSTS = 40
_MAX_LEGS = 100
_PARTS = (DATA_WAIT, DISPATCH, DEVICE_WAIT)


def build(run: Run) -> Section:
    """The section."""
    content: list[Child] = []
    if run.legs:
        content.append(panel("Legs", _leg_table(run.legs), note=_leg_note(run)))
    else:
        content.append(missing("No leg has begun: the run was opened, but no training."))
    if run.hosts is not None:
        content.append(_host_panel(run.hosts))
    else:
        content.append(missing("One process trained this run; with several, slow hosts are named here."))
    return Section("processes", "Legs and hosts", content)


def _leg_note(run: Run) -> str:
    if len(run.legs) == 1:
        return "A leg is one process's work on the training; one that is stopped and goes on has several."
    lost = sum(
        max((before.last_step or before.first_step) - after.first_step, 0)
        for before, after in zip(run.legs, run.legs[1:], strict=False)
    )
    told = f"{count(lost, 'step')} had to be made again after a restart." if lost else "No step had to be made again."
    return told if len(run.legs) <= _MAX_LEGS else f"The last {_MAX_LEGS} of {len(run.legs):,} legs. {told}"


def _leg_table(legs: list[Leg]) -> Html:
    columns = [
        Column("leg", is_number=True),
        Column("steps", is_number=True),
        Column("began", is_minor=True),
        Column("took", is_number=True),
        Column("ended as"),
        Column("goodput", is_number=True, explanation="Up to its end, since the training first began."),
    ]
    rows = [
        [
            leg.number,
            Cell(_steps(leg), leg.first_step),
            Cell(moment(leg.started_at), leg.started_at),
            Cell(duration(leg.ended_at - leg.started_at), leg.ended_at - leg.started_at),
            leg.status,
            Cell("-" if leg.goodput is None else percent(leg.goodput), leg.goodput or 0.0),
        ]
        for leg in legs[-_MAX_LEGS:]
    ]
    return table(columns, rows, "Legs")


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
            explanation="Wall time per step without waiting for the device, where it waits for the slowest.",
        ),
        *(Column(part_name(part), is_number=True, is_minor=True) for part in _PARTS),
        Column("last step", is_number=True),
        Column("status", is_minor=True),
    ]
    rows = [_host_row(host) for host in ordered[:_MAX_HOSTS]]
    note = None
    if len(hosts) > _MAX_HOSTS:
        note = f"Those that stand out and those with the longest time of their own: {_MAX_HOSTS} of {len(hosts):,}."
    return panel("Hosts", _named(hosts), table(columns, rows, "Hosts"), note=note)


def _named(hosts: HostTable) -> Html:
    """Those that stand out, each in a sentence."""
    sentences = [*map(_slow_text, hosts.slow), *map(_silent_text, hosts.silent)]
    if not sentences:
        return element("p", "No host holds the others up.", class_="all-clear")
    hidden = len(sentences) - _MAX_HOSTS
    shown = [*sentences[:_MAX_HOSTS], *([f"and {hidden:,} more"] if hidden > 0 else [])]
    return element("ul", [element("li", sentence) for sentence in shown], class_="problems")


def _slow_text(one: SlowHost) -> str:
    since = f" since step {one.since_step:,}" if one.since_step else ""
    return (
        f"{_name(one)} takes {seconds(one.own_s_per_step)} per step of its own{since}, the median of the others is "
        f"{seconds(one.median_s_per_step)}; most of it in {part_name(one.part)}: {seconds(one.part_s_per_step)} "
        f"against {seconds(one.part_median_s_per_step)}."
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
