"""What fills the memory: live arrays by owner, devices and host over the run, and the peak of a step by scope."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trackside.report.html.charts import MAX_POINTS, Chart, area, byte_unit, line, series_colour
from trackside.report.html.markup import Cell, Child, Column, Html, code, element, joined, path_text, share_bar, table
from trackside.report.html.section import Section, panel
from trackside.report.run_summary import RunSummary
from trackside.runs import Run
from trackside.runs.downsample import spike_indices
from trackside.text import num_bytes
from trackside.trace.capture_row import analysed_captures
from trackside.trace.tables import NO_SCOPE

_MAX_ROWS = 20
_MAX_DEVICES = 8
_OWNER_COLOURS = {
    "params": "--series-0",
    "optimizer": "--series-1",
    "batch": "--series-2",
    "metrics": "--series-4",
    "other": "--part-other",
}


def build(summary: RunSummary, run: Run) -> Section:
    """The section.

    Args:
        summary: The summary of the run, for what grows.
        run: The run, for the samples over time and the captures.
    """
    content: list[Child] = []
    charts = _timeline(run.memory)
    content += [panel(title, chart=chart, note=note) for title, chart, note in charts]
    if summary.memory is not None and summary.memory.leaks:
        content.append(_leak_panel(summary.memory.leaks))
    hints = []
    if not charts:
        how = code("MemoryProfileConfig(profile_every_n_steps=100)")
        hints.append(joined("It was not sampled. Add ", how, " to ", code("TrainerConfig(callbacks=[...])"), "."))
    analysed = analysed_captures(run.captures)
    peaks = [row["report"]["peak_memory"] for row, report in analysed if report.peak_memory is not None]
    if peaks:
        content.append(_peak_panel(peaks[-1]))
    else:
        how = code("JaxProfilerConfig(trace_memory=True)")
        hints.append(joined("For the memory of a step at its peak, by scope, take a capture with ", how, "."))
    return Section("memory", "Memory", content or None, charts=[chart for _, chart, _ in charts], missing=hints)


def _timeline(samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, Chart, str]]:
    if not samples:
        return []
    steps = np.array([sample.get("step", 0) for sample in samples])
    charts = []
    live = _columns(samples, "live", exclude=("num_arrays",))
    if live:
        title = "Live arrays by owner"
        note = "Arrays that JAX holds between two steps, on all devices of the process together."
        charts.append((title, _live_chart(steps, live), note))
    devices = _device_columns(samples)
    lines = {**{f"host: {name}": values for name, values in _host_columns(samples).items()}, **devices}
    lines = {name: values for name, values in lines.items() if np.isfinite(values).any()}
    if lines:
        note = "Resident memory of the process" + (", and what the devices' allocators hold." if devices else ".")
        charts.append(("Host and devices", _line_chart(steps, lines), note))
    return charts


def _columns(samples: Sequence[Mapping[str, Any]], key: str, exclude: Sequence[str] = ()) -> dict[str, np.ndarray]:
    names = {name: None for sample in samples for name in (sample.get(key) or {}) if name not in exclude}
    return {name: np.array([(sample.get(key) or {}).get(name, np.nan) for sample in samples], float) for name in names}


def _host_columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    shown = {"rss_bytes": "resident", "private_bytes": "private"}
    return {shown[name]: values for name, values in _columns(samples, "host").items() if name in shown}


def _device_columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    devices = list({device: None for sample in samples for device in sample.get("memory") or {}})[:_MAX_DEVICES]
    return {
        f"{device}: {title}": np.array(
            [((sample.get("memory") or {}).get(device) or {}).get(name, np.nan) for sample in samples], float
        )
        for device in devices
        for name, title in (("bytes_in_use", "in use"), ("peak_bytes_in_use", "peak"))
    }


def _live_chart(steps: np.ndarray, live: Mapping[str, np.ndarray]) -> Chart:
    values = np.nan_to_num(np.stack(list(live.values()), axis=1))
    kept = spike_indices(values.sum(axis=1), MAX_POINTS)
    size, unit = byte_unit(values.sum(axis=1).max())
    hover = f"%{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
    traces = [
        area(
            steps[kept],
            values[kept, column] / size,
            owner,
            _OWNER_COLOURS.get(owner, series_colour(column)),
            hovertemplate=hover,
            line={"shape": "hv", "width": 0.5, "color": _OWNER_COLOURS.get(owner, series_colour(column))},
        )
        for column, owner in enumerate(live)
        if values[:, column].any()
    ]
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"ticksuffix": f" {unit}"}, "hovermode": "x unified"}
    return Chart(
        "live-chart", "Bytes of live arrays by owner over the steps", traces, layout, follows_steps=True, size="small"
    )


def _line_chart(steps: np.ndarray, lines: Mapping[str, np.ndarray]) -> Chart:
    size, unit = byte_unit(max(np.nanmax(values) for values in lines.values()))
    hover = f"step %{{x}}: %{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
    traces = []
    for index, (name, values) in enumerate(lines.items()):
        kept = spike_indices(values, MAX_POINTS)
        traces.append(line(steps[kept], values[kept] / size, name, series_colour(index), hovertemplate=hover))
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"ticksuffix": f" {unit}", "rangemode": "tozero"}}
    return Chart(
        "memory-chart", "Memory of host and devices over the steps", traces, layout, follows_steps=True, size="small"
    )


def _leak_panel(leaks: Sequence[Mapping[str, Any]]) -> Html:
    columns = [Column("what grows"), Column("per step", is_number=True), Column("since step", is_number=True)]
    rows = [
        [
            leak.get("name"),
            Cell(num_bytes(leak.get("bytes_per_step") or 0), leak.get("bytes_per_step") or 0),
            leak.get("since_step", ""),
        ]
        for leak in leaks[-_MAX_ROWS:]
    ]
    return panel("Memory that keeps growing", table(columns, rows, "Leaks"))


def _peak_panel(peak: Mapping[str, Any]) -> Html:
    figures = [
        ("arguments", "parameter_bytes"),
        ("outputs", "output_bytes"),
        ("constants", "constant_bytes"),
        ("temporaries at their peak", "peak_temporary_bytes"),
    ]
    listed = [
        element("div", element("dt", title), element("dd", num_bytes(peak[name])))
        for title, name in figures
        if peak.get(name) is not None
    ]
    columns = [
        Column("scope", is_code=True),
        Column("made in"),
        Column("buffers", is_number=True, is_minor=True),
        Column("bytes", is_number=True),
        Column("", is_minor=True),
    ]
    shown = peak.get("rows") or []
    largest = max((row["num_bytes"] for row in shown), default=1)
    rows = [
        [
            path_text("/".join(row["scope"]) or NO_SCOPE),
            row["phase"],
            Cell(f"{row['num_buffers']:,}", row["num_buffers"]),
            Cell(num_bytes(row["num_bytes"]), row["num_bytes"]),
            Cell(share_bar(row["num_bytes"] / largest, f"phase-{row['phase']}"), row["num_bytes"]),
        ]
        for row in shown[:_MAX_ROWS]
    ]
    where = "/".join(peak.get("peak_scope") or ()) or NO_SCOPE
    note = f"As planned by the compiler, on one device. The peak is reached in {where} ({peak.get('peak_phase')})."
    content = [element("dl", listed, class_="evidence"), table(columns, rows, "Memory at the peak by scope")]
    return panel("A step at its peak, by scope", *content, note=note)
