"""Pages in a real browser without a window, and all that it complains about."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 200_000  # the machine may be busy; nothing waits that long otherwise

# What the policy blocks is a console message as well; this records which rule and what.
_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


def find_browser() -> str | None:
    """A Chromium: the one that the variable CHROMIUM names, else the first that is installed."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched_browser() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium found: install one (apt-get install chromium) or set CHROMIUM to its path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A report in a tab, with what went wrong in it."""

    def __init__(self, browser: Any, file: Path, width: int = 1280, **options: Any):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.file = file
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.add_init_script(_WATCH_POLICY)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def draw(self, chart_id: str) -> Any:
        """A chart, scrolled into view and drawn."""
        place = self.page.locator(f"#{chart_id}")
        place.scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#{chart_id}[data-drawn]")
        return place

    def draw_all(self) -> list[str]:
        """Scroll through the page, so that every chart that can be seen is drawn; their ids."""
        ids = self.page.eval_on_selector_all(
            "[data-chart]", "places => places.filter((place) => place.checkVisibility()).map((place) => place.id)"
        )
        for chart_id in ids:
            self.draw(chart_id)
        return ids

    def wait_until(self, expression: str, arg: Any = None) -> None:
        """Wait until an expression is true.

        What Playwright has for this evaluates text inside the page, which the page's policy forbids.
        """
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while not self.page.evaluate(expression, arg):
            assert time.monotonic() < deadline, f"never true: {expression}"
            self.page.wait_for_timeout(20)

    def double_click_until(self, x: float, y: float, expression: str) -> None:
        """Double-click at a place until an expression is true, as a person does.

        On a busy machine the second click may come too late for plotly, which then takes it for another first one.
        """
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            self.page.mouse.dblclick(x, y)
            self.page.wait_for_timeout(1000)

    def violations(self) -> list[str]:
        """What the page's policy has blocked."""
        return self.page.evaluate("window.violations")

    def layout(self, chart_id: str, path: str) -> Any:
        """A value of the layout with which plotly has drawn a chart, such as `xaxis.range`."""
        return self.page.evaluate(
            """([id, path]) => path.split(".").reduce(
                 (value, key) => value[key], document.getElementById(id)._fullLayout)""",
            [chart_id, path],
        )

    def close(self) -> None:
        """Close the tab."""
        self.context.close()
