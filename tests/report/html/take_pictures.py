"""Take the pictures of the documentation: python -m tests.report.html.take_pictures RUN OTHER_RUN [FOLDER].

RUN is shown by itself, and compared with OTHER_RUN: `trackside demo` writes runs/demo-slow and runs/demo. Their paths
are in the pictures as they are given.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.report.html.browser import Opened, launched_browser
from trackside.compare import compare_runs
from trackside.report.html import write_comparison_html, write_html_report
from trackside.runs import open_run

MAX_BYTES = 200_000


class Picture(NamedTuple):
    """A picture of a part of a page."""

    width: int
    height: int
    place: str
    """The section at its top; `top` for the beginning of the page."""
    scheme: str = "light"
    page: str = "report"
    button: str = ""
    """What is pressed before: runs that differ in speed alone have one loss over the steps, and two over time."""


PICTURES = {
    "report": Picture(1280, 1260, "top"),
    "report-profile": Picture(1280, 1000, "profile"),
    "report-dark": Picture(1280, 1000, "time", "dark"),
    "report-phone": Picture(390, 1300, "metrics"),
    "report-phone-profile": Picture(390, 1300, "profile"),
    "compare": Picture(1280, 1010, "metrics", page="comparison", button="Time"),
}


def main(run: str, other: str, folder: str = "docs/pictures") -> None:
    with tempfile.TemporaryDirectory() as temporary, launched_browser() as browser:
        pages = {
            "report": write_html_report(open_run(run), Path(temporary) / "report.html"),
            "comparison": write_comparison_html(compare_runs(run, other), Path(temporary) / "comparison.html"),
        }
        for name, picture in PICTURES.items():
            file = Path(folder) / f"{name}.png"
            _take(Opened(browser, pages[picture.page], picture.width, color_scheme=picture.scheme), picture, file)
            assert file.stat().st_size < MAX_BYTES, f"{file} has {file.stat().st_size:,} bytes"


def _take(opened: Opened, picture: Picture, file: Path) -> None:
    opened.draw_all()
    if picture.button:
        opened.page.locator(f"#{picture.place} .toolbar button", has_text=picture.button).click()
    opened.page.set_viewport_size({"width": picture.width, "height": picture.height})
    _scroll(opened, picture.place)
    opened.page.screenshot(path=file)
    opened.close()


def _scroll(opened: Opened, place: str) -> None:
    offset = f"document.getElementById('{place}').getBoundingClientRect().top + scrollY - 70" if place != "top" else "0"
    opened.page.evaluate(f"window.scrollTo({{top: {offset}, behavior: 'instant'}})")
    opened.page.wait_for_timeout(500)  # charts that came into view draw


if __name__ == "__main__":
    main(*sys.argv[1:])
