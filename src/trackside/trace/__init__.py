"""Traces: files in, tables out. No device is needed."""

from trackside.trace.analyse import analyse_trace
from trackside.trace.errors import TraceError
from trackside.trace.render import render_report
from trackside.trace.report import TraceReport, step_markers

__all__ = ["TraceError", "TraceReport", "analyse_trace", "render_report", "step_markers"]
