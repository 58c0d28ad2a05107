"""Event files of a run that never was, with a text of the test's choice wherever a run may bring text."""

from pathlib import Path
from typing import Any

from trackside.events import EventWriter
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.run_layout import event_file_name


def write_run(folder: Path, text: str, num_rows: int = 40) -> Path:
    """A finished run of two processes in which all names are `text`."""
    folder.mkdir(parents=True)
    for index in range(2):
        events = EventWriter(folder / event_file_name(index))
        events.write("environment", hostname=text, devices=[text], backend=text, versions={text: text}, command=[text])
        events.write("config", config={text: {text: text}})
        events.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
        _write_course(events, text, num_rows)
        parts = {"device_wait": 6.0, f"callback/{text}": 4.0 + index}
        ledger = LedgerTotals(10.0, parts, 10 * num_rows, 0, 0, 0.0, 6.0, 4.0, {f"callback/{text}": 4.0})
        events.write("ledger", step=10 * num_rows, **ledger.to_dict())
        events.write("profiling", step=1, operations={text: {"avg_time": 0.1, "total_time": 1.0, "count": 10}})
        events.write(
            "finding", id=text, severity="severe", title=text, evidence={text: text}, advice=text, subject=text
        )
        events.write("leg_end", leg=1, step=10 * num_rows, epoch=1, train_time_s=10.0, goodput=0.6)
        events.write("status", status="success", step=10 * num_rows, epoch=1)
        events.close()
    return folder


def _write_course(events: EventWriter, text: str, num_rows: int) -> None:
    events.write("compile", **_compile(text))
    events.write("capture", **_capture(text))
    for row in range(1, num_rows + 1):
        step = 10 * row
        events.write_metrics({f"{text}_mean": 1 / row, "step_time": 0.01}, step, 1, "train")
        events.write_metrics({text: 1.5 / row}, step, 1, "val")
        events.write_metrics({"device_wait_ms": 6.0, "callbacks_ms": 4.0, "device_idle_share": 0.4}, step, 1, "time")
        live = {"params": 100, text: 50 + row, "num_arrays": 3}
        events.write("memory", step=step, memory={text: {"bytes_in_use": row}}, host={"rss_bytes": 1000}, live=live)
    events.write("checkpoint", step=20, path=text)
    events.write("memory_leak", step=30, name=text, bytes_per_step=5.0, since_step=1)


def _compile(text: str) -> dict[str, Any]:
    change = {"path": text, "kind": text, "old": text, "new": text}
    return {
        "function": text,
        "step": 5,
        "trace_s": 0.2,
        "lower_s": 0.1,
        "compile_s": 0.5,
        "changes": [change],
        "num_changes": 1,
        "suggestion": text,
        "num_recompiles": 1,
        "is_operation": False,
    }


def _capture(text: str) -> dict[str, Any]:
    return {
        "session": "s",
        "path": text,
        "reason": text,
        "first_step": 11,
        "last_step": 14,
        "error": "",
        "warnings": [text],
        "report": report_dict(text),
    }


def report_dict(text: str) -> dict[str, Any]:
    """A report of the form that `TraceReport.to_dict` gives."""
    time = {"busy_s": 0.4, "share": 0.5, "num_ops": 4}
    coverage = {"busy_s": 0.8, "resolved_s": 0.6, "estimated_s": 0.4, "unsplit_s": 0.2}
    scopes = [{"scope": text, "phase": phase, **time, "estimated_s": 0.2} for phase in ("forward", "backward")]
    op = {"op": text, "program": text, "opcode": text, "category": text, "scope": text, "phase": "forward", **time}
    source = {"file": text, "line": 3, "function": text, **time, "estimated_s": 0.4}
    gap = {"device": text, "kind": "between runs", "start_s": 0.0, "duration_s": 0.1, "host_activity": text}
    peak = {
        "parameter_bytes": 10,
        "peak_temporary_bytes": 20,
        "peak_scope": [text],
        "peak_phase": "forward",
        "rows": [{"scope": [text], "phase": "forward", "num_bytes": 20, "num_buffers": 1}],
    }
    return {
        "step_program": text,
        "num_steps": 4,
        "device_busy": 0.8,
        "phases": {"forward": 0.4, "backward": 0.4},
        "devices": [{"name": text, "window_s": 1.0, "busy_s": 0.8, "idle_s": 0.2}],
        "coverage": coverage,
        "scopes": {"rows": scopes},
        "ops": {"rows": [{**op, "num_scopes": 2}]},
        "categories": {"rows": [{"category": text, **time}]},
        "sources": {"rows": [source], "coverage": coverage},
        "collectives": {"rows": [{**op, "span_s": 0.4, "num_bytes": 4}]},
        "gaps": {"rows": [], "largest": [gap]},
        "flops": {"rows": [{"scope": [text], "phase": "forward", "flops": 1000}]},
        "peak_memory": peak,
        "missing": [text],
        "warnings": [text],
    }
