"""The page of a comparison in a browser: everything is drawn, nothing is loaded, nothing from the runs becomes code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compare.pairs import train
from tests.report.html.browser import Opened, launched_browser
from tests.report.html.comparison.test_page import SECTIONS, named_comparison
from trackside.callbacks import JAXProfiler, MemoryProfileConfig, MemoryProfiler, ProfilingConfig
from trackside.compare import compare_runs
from trackside.report import write_comparison_html

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_compile_cache")]

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> &lt;b&gt; %{x} $a$ \"'" + "w" * 200
CHARTS = [
    "metric-0",
    *("spread-chart", "course-chart", "parts-chart", "parts-change-chart"),
    *("scopes-change-chart", "operations-change-chart"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def page_file(browser: Any, tmp_path_factory: pytest.TempPathFactory, no_compile_cache: None) -> Path:
    """Two real trainings, of which the second has another rate and batches of two sizes.

    Asked for after the browser, so that nothing is trained where there is none.
    """
    folder = tmp_path_factory.mktemp("runs")
    before = train_measured(folder / "before")
    after = train_measured(folder / "after", lr=0.05, batch_sizes=(8, 8, 8, 16))
    return write_comparison_html(compare_runs(before, after, max_slowdown=0.05), folder / "comparison.html")


def train_measured(folder: Path, **options: Any) -> Path:
    """A training with a capture and a timeline of its memory."""
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(folder / "traces"), start_step=20, end_step=28, on_demand=False))
    memory = MemoryProfiler(MemoryProfileConfig(log_dir=str(folder / "memory"), profile_every_n_steps=20))
    return train(folder, callbacks=[profiler, memory], **options)


@pytest.fixture(scope="module")
def shown(browser: Any, page_file: Path) -> Iterator[Opened]:
    """A tab in which nothing is folded away."""
    opened = open_unfolded(browser, page_file)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def hostile(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The comparison of runs in which every name is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    tab = open_unfolded(browser, write_comparison_html(named_comparison(HOSTILE), folder / "comparison.html"))
    yield tab
    tab.close()


def open_unfolded(browser: Any, file: Path) -> Opened:
    """A tab with everything open that can be: whether captures differ by more than noise is up to the machine."""
    opened = Opened(browser, file)
    opened.page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    return opened


def point_at_first_bar(opened: Opened, chart: Any) -> None:
    """Move the pointer to the middle of a bar, which plotly covers with another layer."""
    box = chart.locator(".barlayer .point path").first.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_each_section_is_there(shown: Opened) -> None:
    """Runs that measured everything fill every section: none says that something is missing."""
    ids = shown.page.eval_on_selector_all("main section", "sections => sections.map((section) => section.id)")
    assert ids == SECTIONS
    assert shown.page.locator("section .missing").all_text_contents() == []


def test_each_chart_is_drawn(shown: Opened) -> None:
    """Every chart has shapes of its data in it."""
    assert shown.draw_all() == CHARTS
    count = "id => document.getElementById(id).querySelectorAll('.scatterlayer path, .barlayer path').length"
    assert [chart for chart in CHARTS if not shown.page.evaluate(count, chart)] == []


def test_nothing_is_loaded_and_nothing_complains(shown: Opened) -> None:
    """Opened from disk, the page asks for nothing but itself, and neither script nor policy has a complaint."""
    shown.draw_all()
    assert shown.requests == [shown.file.as_uri()]
    assert shown.complaints == []
    assert shown.violations() == []


def test_causes_are_told(shown: Opened) -> None:
    """What was changed on purpose stands below the verdict, with its evidence, and among the settings."""
    verdict = shown.page.locator("#verdict").text_content()
    assert "more-recompiles" in verdict
    assert "optimizer.scheduler.lr" in verdict
    assert "optimizer.scheduler.lr0.10.05" in shown.page.locator("#configs").text_content()


def test_intervals_are_drawn_as_error_bars(shown: Opened) -> None:
    """Scopes of captures of several steps have an interval each, and its ends are drawn."""
    place = shown.draw("scopes-change-chart")
    num_bars = place.locator(".barlayer .point").count()
    assert num_bars > 0
    assert place.locator(".barlayer .errorbar path.xerror").count() == num_bars


def test_hover_tells_both_values_and_the_interval(shown: Opened) -> None:
    """Pointing at a bar shows what was before, what is after, and how sure that is."""
    place = shown.draw("scopes-change-chart")
    point_at_first_bar(shown, place)
    shown.page.wait_for_selector("#scopes-change-chart .hoverlayer .hovertext")
    text = place.locator(".hoverlayer .hovertext").first.text_content()
    assert "→" in text
    assert "95 % interval" in text


def test_legend_takes_a_run_away_with_its_undisturbed_step(shown: Opened) -> None:
    """A click on a run's name takes its curve and its dashed line out of the chart, another one brings them back."""
    shown.draw("course-chart")
    count = "document.querySelectorAll('#course-chart .scatterlayer .trace').length"
    before = shown.page.evaluate(count)
    key = shown.page.locator("#course-chart").locator("xpath=preceding-sibling::div[@class='keys']//button").first
    key.click()
    shown.wait_until(f"{count} === {before} / 2")
    shown.page.locator("#course-chart").locator("xpath=preceding-sibling::div[@class='keys']//button").first.click()
    shown.wait_until(f"{count} === {before}")


def test_tables_sort_by_change(shown: Opened) -> None:
    """A click on the title sorts by the number, not by its text."""
    table = shown.page.locator("#time table").first
    table.locator("th button", has_text="change").click()
    changes = table.evaluate("table => [...table.tBodies[0].rows].map((row) => Number(row.cells[3].dataset.sort))")
    assert changes == sorted(changes, reverse=True)


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_horizontal_scroll(shown: Opened, width: int) -> None:
    """The page is as wide as the screen; what is wider scrolls by itself."""
    shown.page.set_viewport_size({"width": width, "height": 900})
    shown.draw_all()
    assert shown.page.evaluate("document.documentElement.scrollWidth") == width
    shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_dark_scheme_changes_the_charts(shown: Opened) -> None:
    """Where the system turns dark, charts have the colours that go with it."""
    shown.draw("parts-change-chart")
    light = shown.layout("parts-change-chart", "font.color")
    shown.page.emulate_media(color_scheme="dark")
    shown.wait_until(
        "before => document.getElementById('parts-change-chart')._fullLayout.font.color !== before", arg=light
    )
    shown.page.emulate_media(color_scheme="light")


def test_hostile_names_run_nothing(hostile: Opened) -> None:
    """No element, request or dialog comes from the names of the runs, whatever is drawn or pointed at."""
    for chart in hostile.draw_all():
        box = hostile.page.locator(f"#{chart}").bounding_box()
        hostile.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert hostile.page.locator("main img, main script, svg image, svg a").count() == 0
    assert hostile.requests == [hostile.file.as_uri()]
    assert hostile.complaints == []


def test_hostile_names_stay_text(hostile: Opened) -> None:
    """They are shown as they are: in the title, the verdict, every section's table, and legends."""
    assert HOSTILE in hostile.page.locator("h1").text_content()
    for section in ("verdict", "time", "device", "memory", "compiles", "configs"):
        assert HOSTILE in hostile.page.locator(f"#{section}").evaluate("section => section.textContent"), section
    hostile.draw("spread-chart")
    assert HOSTILE[:40] in hostile.page.locator("#step-time .keys button").first.text_content()


def test_hostile_names_stay_text_beside_and_above_bars(hostile: Opened) -> None:
    """The name at a bar and the label under the pointer show them literally: no markup, no entity, no template."""
    place = hostile.draw("scopes-change-chart")
    assert "script> &lt;b&gt; %{x}" in "".join(place.locator(".yaxislayer-above text").all_text_contents())
    point_at_first_bar(hostile, place)
    hostile.page.wait_for_selector("#scopes-change-chart .hoverlayer .hovertext")
    assert HOSTILE[:60] in place.locator(".hoverlayer .hovertext").first.text_content()


def test_hostile_names_make_no_page_wider(hostile: Opened) -> None:
    """A name without a place to break does not make the page wider than a phone."""
    hostile.page.set_viewport_size({"width": 390, "height": 900})
    hostile.draw_all()
    assert hostile.page.evaluate("document.documentElement.scrollWidth") == 390
    hostile.page.set_viewport_size({"width": 1280, "height": 900})
