"""Take the pictures of a report for the documentation: python -m tests.report.html.take_pictures RUN [FOLDER]."""

import sys
import tempfile
from pathlib import Path

from tests.report.html.browser import Opened, launched_browser
from trackside.report.html import write_html_report
from trackside.runs import open_run

PICTURES = {
    # name: width, height, the chart or section that stands at the top, colours
    "report": (1280, 1300, "top", "light"),
    "report-profile": (1280, 1000, "profile", "light"),
    "report-dark": (1280, 1000, "time", "dark"),
    "report-phone": (390, 1300, "top", "light"),
}


def main(run: str, folder: str = "docs/pictures") -> None:
    with tempfile.TemporaryDirectory() as temporary, launched_browser() as browser:
        report = write_html_report(open_run(run), Path(temporary) / "report.html")
        for name, (width, height, place, scheme) in PICTURES.items():
            opened = Opened(browser, report, width, color_scheme=scheme)
            opened.draw_all()
            opened.page.set_viewport_size({"width": width, "height": height})
            _scroll(opened, place)
            opened.page.screenshot(path=Path(folder) / f"{name}.png")
            opened.close()


def _scroll(opened: Opened, place: str) -> None:
    offset = f"document.getElementById('{place}').getBoundingClientRect().top + scrollY - 70" if place != "top" else "0"
    opened.page.evaluate(f"window.scrollTo({{top: {offset}, behavior: 'instant'}})")
    opened.page.wait_for_timeout(500)  # charts that came into view draw


if __name__ == "__main__":
    main(*sys.argv[1:])
