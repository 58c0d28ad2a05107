"""The report of a run: its summary (`summarise_run`), for the terminal (`render_summary`), and as a page.

The comparison of two runs is a page as well (`write_comparison_html`). Nothing here needs jax. Modules are loaded on
first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside.report.html import render_comparison_html, write_comparison_html, write_html_report
    from trackside.report.notebook_frame import show_report
    from trackside.report.run_summary import RunSummary, summarise_run
    from trackside.report.terminal import render_summary

# Each public name -> the module that defines it.
_EXPORTS = {
    "RunSummary": "run_summary",
    "render_comparison_html": "html",
    "render_summary": "terminal",
    "show_report": "notebook_frame",
    "summarise_run": "run_summary",
    "write_comparison_html": "html",
    "write_html_report": "html",
}

__all__ = [
    "RunSummary",
    "render_comparison_html",
    "render_summary",
    "show_report",
    "summarise_run",
    "write_comparison_html",
    "write_html_report",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'trackside.report' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"trackside.report.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
