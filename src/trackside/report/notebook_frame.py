"""The page of a report inside a notebook."""

import html

from trackside.report.html.report_page import render_html
from trackside.runs import Run


class ReportFrame:
    """The page of a report, which shows itself in a notebook. `show_report` makes one.

    Args:
        document: The page.
        height_px: How high its frame is.
    """

    def __init__(self, document: str, height_px: int):
        self._document = document
        self._height_px = height_px

    def _repr_html_(self) -> str:
        # The page's own policy holds in the frame. The sandbox keeps its script away from the notebook as well.
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self._document)}" '
            f'style="width:100%;height:{int(self._height_px)}px;border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return "ReportFrame(a page of a report, which a notebook shows)"


def show_report(run: Run, height_px: int = 800) -> ReportFrame:
    """The report of a run as a page inside a notebook, as the last line of a cell.

    The page becomes part of the notebook, which gets about two megabytes larger with each. `run` as the last line of a
    cell shows a few kilobytes instead.

    Args:
        run: The run, as `trackside.open_run` gives it.
        height_px: How high its frame is.
    """
    return ReportFrame(render_html(run), height_px)
