"""The page in a browser: everything is drawn, nothing is loaded, nothing from the run becomes code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.html.browser import Opened, launched_browser
from tests.report.made_up import write_run
from tests.report.trained import train
from tests.runs.written import WrittenRun
from trackside.report.html import write_html_report
from trackside.runs import open_run

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> &lt;b&gt; %{x} $a$ \"'" + "w" * 200
STEP_CHARTS = ("step-time-chart", "time-chart", "live-chart")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def report(browser: Any, no_compile_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a real training. Asked for after the browser, so that nothing is trained where there is none.

    A program from the cache has no source lines and no buffers to report.
    """
    return write_html_report(open_run(train(tmp_path_factory.mktemp("trained") / "run")))


@pytest.fixture(scope="module")
def shown(browser: Any, report: Path) -> Iterator[Opened]:
    """A tab for tests that only look."""
    opened = Opened(browser, report)
    yield opened
    opened.close()


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    """A tab of the test's own."""
    tab = Opened(browser, report)
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def hostile(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The report of a run in which every name is an attack, the folder's too."""
    folder = write_run(tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(3)>", HOSTILE)
    tab = Opened(browser, write_html_report(open_run(folder), folder.parent / "report.html"))
    yield tab
    tab.close()


def test_each_section_is_there(shown: Opened) -> None:
    """A run that measured everything has every section, and none says that something is missing."""
    ids = shown.page.eval_on_selector_all("main section", "sections => sections.map((section) => section.id)")
    expected = ["verdicts", "metrics", "step-time", "time", "device", "profile", "memory", "compiles", "processes"]
    assert ids == [*expected, "configs"]
    assert shown.page.locator("section .missing").all_text_contents() == []


def test_each_chart_is_drawn(shown: Opened) -> None:
    """Every chart that can be seen has shapes of its data in it."""
    drawn = shown.draw_all()
    assert {"step-time-chart", "time-chart", "device-chart", "idle-chart", "scopes-0", "live-chart", "metric-0"} <= {
        *drawn
    }
    shapes = ".scatterlayer path, .barlayer path, .iciclelayer path"
    count = "([id, shapes]) => document.getElementById(id).querySelectorAll(shapes).length"
    assert [chart for chart in drawn if not shown.page.evaluate(count, [chart, shapes])] == []


def test_nothing_is_loaded_and_nothing_complains(shown: Opened) -> None:
    """Opened from disk, the page asks for nothing but itself, and neither script nor policy has a complaint."""
    shown.draw_all()
    assert shown.requests == [shown.file.as_uri()]
    assert shown.violations() == []
    assert shown.complaints == []


def test_charts_are_what_plotly_knows(shown: Opened) -> None:
    """No chart has an attribute that plotly does not know, or a value that it does not take."""
    shown.draw_all()
    found = shown.page.evaluate(
        """() => [...document.querySelectorAll("[data-drawn]")].flatMap((place) =>
             (Plotly.validate(place.data, place.layout) || []).filter((problem) => problem.code !== "unused")
               .map((problem) => `${place.id}: ${problem.msg}`))"""
    )
    assert found == []


def test_policy_stops_other_scripts(opened: Opened) -> None:
    """A script that got into the page does not run."""
    opened.page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.ran = true";
                   document.body.append(script); }"""
    )
    assert opened.page.evaluate("window.ran") is None
    assert len(opened.violations()) == 1


def test_hover_shows_a_label(shown: Opened) -> None:
    """Pointing into a chart of a metric shows the step and the values of its curves."""
    place = shown.draw("metric-0")
    box = place.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.page.wait_for_selector("#metric-0 .hoverlayer text")
    label = " ".join(place.locator(".hoverlayer text").all_text_contents())
    assert "step" in label
    assert "train : " in label


def test_hover_on_a_scope_tells_its_time(shown: Opened) -> None:
    """Pointing at a scope shows its share of the device's time."""
    place = shown.draw("scopes-0")
    place.locator(".iciclelayer path.surface").first.hover()
    shown.page.wait_for_selector("#scopes-0 .hoverlayer .hovertext")
    assert "of busy time" in place.locator(".hoverlayer .hovertext").first.text_content()


def test_drag_zooms_all_charts_over_steps(shown: Opened) -> None:
    """A stretch that is dragged over becomes the axis of each chart over the steps, until a double click."""
    for chart in STEP_CHARTS:
        shown.draw(chart)
    place = shown.draw("time-chart")
    whole = [shown.layout(chart, "xaxis.range") for chart in STEP_CHARTS]
    box = place.locator(".draglayer .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    shown.page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=8)
    shown.page.mouse.up()
    shown.wait_until("document.getElementById('step-time-chart')._fullLayout.xaxis.autorange === false")
    zoomed = [shown.layout(chart, "xaxis.range") for chart in STEP_CHARTS]
    assert zoomed[0] == zoomed[1] == zoomed[2]
    assert whole[1][0] < zoomed[1][0] < zoomed[1][1] < whole[1][1]
    is_whole = "document.getElementById('step-time-chart')._fullLayout.xaxis.autorange !== false"
    shown.double_click_until(box["x"] + 0.5 * box["width"], middle, is_whole)


def test_click_opens_a_scope(shown: Opened) -> None:
    """A click on a scope makes it the root of what is shown."""
    place = shown.draw("scopes-0")
    assert place.locator(".pathbar").count() == 0
    place.locator(".iciclelayer .slice", has_text="loss").first.click()
    shown.page.wait_for_selector("#scopes-0 .pathbar")
    assert place.locator(".pathbar").first.text_content() == "all"


def test_views_change_the_chart(shown: Opened) -> None:
    """The buttons next to a title choose another view of its chart."""
    shown.draw("time-chart")
    shown.page.locator("[data-charts='time-chart'] button", has_text="ms per step").click()
    shown.wait_until("document.getElementById('time-chart')._fullLayout.yaxis.ticksuffix === ' ms'")
    shown.draw("metric-0")
    shown.page.locator("#metrics .toolbar button", has_text="Logarithmic").click()
    shown.wait_until("document.getElementById('metric-0')._fullLayout.yaxis.type === 'log'")


def test_losses_over_time_and_smoothed(shown: Opened) -> None:
    """The metrics can be drawn over time or examples, and a slider lays a smoothed curve over the logged one."""
    shown.draw("metric-0")
    toolbar = shown.page.locator("#metrics .toolbar")
    toolbar.locator("button", has_text="Time").click()
    shown.wait_until("document.getElementById('metric-0')._fullLayout.xaxis.title.text.includes('since the start')")
    toolbar.locator("button", has_text="Examples").click()
    shown.wait_until("document.getElementById('metric-0')._fullLayout.xaxis.title.text === 'examples'")
    before = shown.page.evaluate("document.getElementById('metric-0').data.length")
    toolbar.locator("input[type=range]").fill("0.9")
    shown.wait_until(f"document.getElementById('metric-0').data.length > {before}")
    assert toolbar.locator("output").text_content() == "0.9"
    toolbar.locator("button", has_text="Steps").click()
    toolbar.locator("input[type=range]").fill("0")
    shown.wait_until(f"document.getElementById('metric-0').data.length === {before}")
    assert shown.layout("metric-0", "xaxis.title.text") == "step"
    assert shown.complaints == []


def test_tiny_losses_need_no_style_that_the_policy_forbids(browser: Any, tmp_path: Path) -> None:
    """A loss that falls by twelve orders of magnitude has a logarithmic axis whose labels are plain text."""
    run = WrittenRun(tmp_path / "run").leg()
    for step in range(1, 40):
        run.metrics(step, loss_mean=10.0 ** -min(step, 12))
    run.end(step=40)
    opened = Opened(browser, write_html_report(open_run(tmp_path / "run")))
    place = opened.draw("metric-0")
    labels = place.locator(".ytick text").all_text_contents()
    opened.close()
    assert opened.complaints == []
    assert any(label.startswith("1e") for label in labels)


def test_ticks_between_powers_of_ten_are_whole_numbers(browser: Any, tmp_path: Path) -> None:
    """A logarithmic axis over a small range says 0.02 where it would say 2 by itself."""
    run = WrittenRun(tmp_path / "run").leg()
    for step in range(1, 40):
        run.metrics(step, loss_mean=0.5 / (1 + step / 2))
    run.end(step=40)
    opened = Opened(browser, write_html_report(open_run(tmp_path / "run")))
    place = opened.draw("metric-0")
    opened.page.locator("#metrics .toolbar button", has_text="Logarithmic").click()
    opened.wait_until("document.getElementById('metric-0')._fullLayout.yaxis.type === 'log'")
    labels = place.locator(".ytick text").all_text_contents()
    opened.close()
    assert len(labels) > 2
    assert all(0.02 <= float(label) <= 0.5 for label in labels)


def test_legend_takes_curves_away(shown: Opened) -> None:
    """A click on a name takes its curve out of the chart, another one brings it back."""
    shown.draw("metric-0")
    count = "document.querySelectorAll('#metric-0 .scatterlayer .trace').length"
    before = shown.page.evaluate(count)
    shown.page.locator("#metrics .keys button").first.click()
    shown.wait_until(f"{count} === {before - 1}")
    shown.page.locator("#metrics .keys button").first.click()
    shown.wait_until(f"{count} === {before}")


def test_tables_sort(shown: Opened) -> None:
    """A click on a title sorts by number where the column has numbers, another one turns it round."""
    table = shown.page.locator("#time table").first
    seconds = "table => [...table.tBodies[0].rows].map((row) => Number(row.cells[1].dataset.sort))"
    title = table.locator("th button", has_text="seconds")
    title.click()
    falling = table.evaluate(seconds)
    title.click()
    assert falling == sorted(falling, reverse=True)
    assert table.evaluate(seconds) == sorted(falling)


def test_terms_explain_themselves(shown: Opened) -> None:
    """Pointing at a term shows what it means."""
    shown.page.locator(".tiles .term", has_text="Goodput").hover()
    assert "share of the time since training began" in shown.page.locator("#hint").text_content()


def test_scopes_can_be_read_on_a_phone(shown: Opened) -> None:
    """Where the icicle has no room for its labels, a list has every scope with its whole name and share."""
    assert not shown.page.locator(".scope-list").first.is_visible()
    shown.page.set_viewport_size({"width": 390, "height": 900})
    listed = shown.page.locator(".scope-list").first
    assert listed.is_visible()
    assert not shown.page.locator("#scopes-0").is_visible()
    cut = "names => names.filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent)"
    names = shown.page.locator(".scope-list .name")  # of all captures: one that was held up may show a single scope
    assert names.count() > 2
    assert names.evaluate_all(cut) == []
    shown.page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_horizontal_scroll(shown: Opened, width: int) -> None:
    """The page is as wide as the screen; what is wider scrolls by itself."""
    shown.page.set_viewport_size({"width": width, "height": 900})
    shown.draw_all()
    assert shown.page.evaluate("document.documentElement.scrollWidth") == width
    shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_dark_scheme_changes_page_and_charts(shown: Opened) -> None:
    """Where the system turns dark, so does the page, and charts have the colours that go with it."""
    shown.draw("metric-0")
    background = "getComputedStyle(document.body).backgroundColor"
    light, light_text = shown.page.evaluate(background), shown.layout("metric-0", "font.color")
    shown.page.emulate_media(color_scheme="dark")
    shown.wait_until("before => document.getElementById('metric-0')._fullLayout.font.color !== before", arg=light_text)
    assert shown.page.evaluate(background) != light
    shown.page.emulate_media(color_scheme="light")


def test_theme_button_wins_over_the_system(opened: Opened) -> None:
    """The button chooses dark on a light system, and the choice outlives a reload."""
    opened.page.locator("#theme").click()
    assert opened.page.locator("html").get_attribute("data-theme") == "dark"
    opened.page.reload()
    assert opened.page.locator("html").get_attribute("data-theme") == "dark"


def test_hostile_names_run_nothing(hostile: Opened) -> None:
    """No element, request or dialog comes from the names of a run, whatever is drawn or pointed at."""
    for chart in hostile.draw_all():
        box = hostile.page.locator(f"#{chart}").bounding_box()
        hostile.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert hostile.page.locator("main img, main script, svg image, svg a").count() == 0
    assert hostile.requests == [hostile.file.as_uri()]
    assert hostile.complaints == []


def test_hostile_names_stay_text(hostile: Opened) -> None:
    """They are shown as they are: in titles, verdicts, tables, legends, scopes and labels."""
    text = hostile.page.evaluate("document.querySelector('main').textContent")
    for section in ("verdicts", "time", "device", "profile", "memory", "metrics", "compiles", "processes", "configs"):
        assert HOSTILE in hostile.page.locator(f"#{section}").evaluate("section => section.textContent"), section
    assert "<img src=x onerror=alert(3)>" in text
    hostile.draw("scopes-0")
    labels = hostile.page.locator("#scopes-0 .iciclelayer text").all_text_contents()
    assert any(label.startswith("<img src=x onerror=alert(1)>") for label in labels)


def test_hostile_names_stay_text_under_the_pointer(hostile: Opened) -> None:
    """Labels of charts show them literally: no markup, no entity, no template is read in them."""
    place = hostile.draw("live-chart")
    box = place.bounding_box()
    hostile.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hostile.page.wait_for_selector("#live-chart .hoverlayer text")
    shown = " ".join(place.locator(".hoverlayer text").all_text_contents())
    assert HOSTILE[:60] in shown


def test_hostile_names_make_no_page_wider(hostile: Opened) -> None:
    """A name without a place to break does not make the page wider than a phone."""
    hostile.page.set_viewport_size({"width": 390, "height": 900})
    hostile.draw_all()
    assert hostile.page.evaluate("document.documentElement.scrollWidth") == 390
    hostile.page.set_viewport_size({"width": 1280, "height": 900})
