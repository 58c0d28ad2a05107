"""Traces: files in, tables out. No device is needed."""

from trackside.errors import TraceError
from trackside.trace.analyse import analyse_trace
from trackside.trace.trace_report import TraceReport, step_markers
from trackside.trace.trace_report_console import render_report

__all__ = ["TraceError", "TraceReport", "analyse_trace", "render_report", "step_markers"]
