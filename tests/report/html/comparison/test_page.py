"""The page of a comparison as a file: complete, closed against the outside, and honest about what is not sure."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.compare.written_runs import write_run
from tests.report.html.test_report_page import MAX_BYTES, Page, policy_hash
from tests.runs.written import WrittenRun
from trackside.compare import Cause, Comparison, Difference, StepTimeChange, compare_runs
from trackside.compare.disturbance import StepSeries
from trackside.compare.metric_changes import metric_changes
from trackside.compare.sides import Side
from trackside.compare.traced_steps import TracedSteps
from trackside.errors import ConfigError
from trackside.report import render_comparison_html, write_comparison_html
from trackside.report.html.assets import plotly_library
from trackside.runs import MetricTable

SECTIONS = ["verdict", "metrics", "step-time", "time", "device", "memory", "compiles", "configs"]


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A run of steps that take a fifth longer, against a limit of 5 %."""
    folder = tmp_path_factory.mktemp("runs")
    before, after = write_run(folder / "before", 2e-3), write_run(folder / "after", 2.4e-3, seed=1)
    return compare_runs(before, after, max_slowdown=0.05)


@pytest.fixture(scope="module")
def page(slower: Comparison) -> Page:
    return Page(render_comparison_html(slower))


def side(name: str, **facts: object) -> Side:
    """A side of which nothing is known but what a test says."""
    return Side(name, f"runs/{name}", "run", StepSeries(name, np.zeros(0), np.zeros(0, np.int64)), **facts)  # type: ignore[arg-type]


def comparison_of(**facts: object) -> Comparison:
    """A comparison in which nothing was found but what a test says."""
    empty: dict = dict.fromkeys(("parts", "scopes", "ops", "memory", "compiles", "causes"), ())
    sides = {"before": side("a"), "after": side("b"), "step_time": StepTimeChange(None, None, problem="too short")}
    return Comparison(**{**empty, **sides, **facts})


def named_comparison(text: str) -> Comparison:
    """A comparison in which everything that a run names is `text`."""
    steps = StepSeries(text, np.full(50, 2e-3), np.ones(50, np.int64))
    sides = [
        Side(
            text,
            f"{number}/{text}",
            "run",
            steps,
            trace=capture_of(text),
            config={text: number},
            environment={text: text + number},
            metrics={"val": table_of(text)},
        )  # type: ignore[arg-type]
        for number in "12"
    ]
    return comparison_of(
        before=sides[0],
        after=sides[1],
        parts=(Difference(text, 1e-3, 2e-3, "s", 5e-4, 2e-3),),
        scopes=(Difference(text, 1e-3, 2e-3, "s", 5e-4, 2e-3, phase="forward"),),
        ops=(Difference(text, 1e-3, 2e-3, "s", 5e-4, 2e-3, phase="forward", scope=text),),
        memory=(Difference(text, 1.0, 2.0, "bytes", is_exact=True),),
        compiles=(Difference(text, 1, 2, "count", is_exact=True), Difference(text, 1.0, 2.0, "s")),
        metrics=metric_changes(sides[0], sides[1]),
        causes=(Cause("config_changed", text, {text: text}, text, 1e-3),),
        notes=(text,),
    )


def table_of(name: str) -> MetricTable:
    """Two validations of one metric."""
    return MetricTable(np.array([1, 2]), np.array([1, 1]), np.array([5.0, 6.0]), {name: np.array([2.0, 1.0])})


def capture_of(source: str) -> TracedSteps:
    """A capture of which only the path is known."""
    return TracedSteps(source, step_program=None, num_steps=None, scopes={}, ops={})


def section_of(text: str, section: str) -> str:
    """A section of the page as HTML."""
    body = text[text.index(f'<section id="{section}"') :]
    return body[: body.index("</section>")]


def test_sections_come_in_order(page: Page) -> None:
    """The verdict comes first, what the runs were made of last. What was not measured takes one list at the end."""
    assert Page(render_comparison_html(named_comparison("a"))).sections == SECTIONS
    assert page.sections == ["verdict", "metrics", "step-time", "time", "not-measured"]


def test_nothing_refers_to_the_outside(page: Page) -> None:
    """Links lead to sections of the page itself; nothing is loaded from anywhere."""
    assert {reference for reference in page.references if not reference.startswith("#")} == {"data:,"}


def test_policy_allows_just_what_is_in_the_page(page: Page) -> None:
    """Scripts and styles are allowed by their hashes alone, as in the report."""
    code = [text for attributes, text in page.scripts if "type" not in attributes]
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules["script-src"].split()) == {*map(policy_hash, code), plotly_library().source_hash}
    assert page.handlers == []


def test_page_is_small(slower: Comparison) -> None:
    """With plotly inside, it is below 6 MB by far."""
    assert len(render_comparison_html(slower).encode()) < MAX_BYTES / 2


def test_verdict_tells_change_interval_and_limit(slower: Comparison) -> None:
    """The top says slower, by how much, in which interval, and that the limit was exceeded."""
    text = render_comparison_html(slower)
    header, verdict = text.split("</header>")[0], section_of(text, "verdict")
    assert re.search(r'class="status bad"><span[^>]*>slower</span>', header)
    assert ">Regression<" in header
    assert "A step of after takes 20.0 % more time than one of before." in verdict
    assert re.search(r"undisturbed step.*?</dt><dd>[\d.]+ ms before, [\d.]+ ms after", verdict)
    assert re.search(r"\+20\.0 %, 95 % interval \+1\d\.\d % to \+2\d\.\d %", verdict)
    assert 'class="verdict severe"' in verdict


def test_faster_run_takes_less_time(slower: Comparison) -> None:
    """In the other order the same runs are faster, which is not a warning."""
    text = render_comparison_html(compare_runs(slower.after.path, slower.before.path))
    assert re.search(r"A step of before takes 16\.\d % less time than one of after\.", text)
    assert 'class="verdict info"' in section_of(text, "verdict")


def test_runs_that_cannot_be_judged_say_why(tmp_path: Path) -> None:
    """Two short runs cannot be compared; the page gives the reason in place of a verdict."""
    before, after = (write_run(tmp_path / name, 2e-3, num_steps=30) for name in ("before", "after"))
    text = render_comparison_html(compare_runs(before, after))
    assert re.search(r'class="status fair"><span[^>]*>cannot tell</span>', text)
    assert "train longer, or log more often" in section_of(text, "verdict")


def test_both_runs_share_each_chart_of_step_times(page: Page) -> None:
    """Spread and course show both runs, with an undisturbed step of each, under the same two names."""
    for chart_id in ("spread-chart", "course-chart"):
        chart = page.charts()[chart_id]
        assert [entry["text"] for entry in chart["legend"]] == ["before: before", "after: after"]
        dashed = [trace for trace in chart["traces"] if trace["line"].get("dash")]
        assert len(dashed) == 2


def test_histograms_are_shares_of_each_run(page: Page) -> None:
    """The outline of a run covers nearly all of its steps, whatever the other run looks like."""
    outlines = [trace for trace in page.charts()["spread-chart"]["traces"] if trace.get("fill")]
    totals = [sum(trace["y"][1:-1:2]) for trace in outlines]
    assert len(totals) == 2
    assert all(95 < total <= 100.001 for total in totals)


def test_one_step_each_is_drawn(tmp_path: Path) -> None:
    """A series of one value makes a histogram, not an error."""
    sides = {
        name: Side(name, name, "run", StepSeries(name, np.array([0.002]), np.array([1])))
        for name in ("before", "after")
    }
    charts = Page(render_comparison_html(comparison_of(**sides))).charts()
    assert max(charts["spread-chart"]["traces"][0]["y"]) == 100


def test_parts_have_their_interval(page: Page) -> None:
    """The bar of a part carries the interval of its change; compiling, which has none, is not drawn."""
    chart = page.charts()["parts-change-chart"]
    (trace,) = chart["traces"]
    assert chart["layout"]["yaxis"]["ticktext"] == ["waiting for the device", "waiting for data"]
    assert trace["x"][0] == pytest.approx(400, rel=0.05)
    assert all(span > 0 for span in (trace["error_x"]["array"][0], trace["error_x"]["arrayminus"][0]))


def test_bar_without_an_interval_has_no_error_bar() -> None:
    """A part of which one figure of each run is known is a bar alone, in the colour of what is not sure."""
    parts = (Difference("data_wait", 1e-3, 2e-3, "s", 5e-4, 2e-3), Difference("logging", 1e-3, 3e-3))
    traces = Page(render_comparison_html(comparison_of(parts=parts))).charts()["parts-change-chart"]["traces"]
    found = {trace["y"][0]: ("error_x" in trace, trace["marker"]["color"]) for trace in traces}
    assert found == {1: (True, ["--severe"]), 0: (False, ["--muted"])}


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Difference("x", 1.0, 2.0, "s", 0.5, 1.5), "more"),
        (Difference("x", 2.0, 1.0, "s", -1.5, -0.5), "less"),
        (Difference("x", 1.0, 1.1, "s", -0.1, 0.3), "within noise"),
        (Difference("x", 1.0, 1.001, "s", 0.0005, 0.0015), "negligible"),
        (Difference("x", 1.0, 2.0), "no interval"),
        (Difference("x", 1.0, 1.0), "same"),
    ],
)
def test_each_difference_has_its_verdict(difference: Difference, verdict: str) -> None:
    """A table says whether a difference is one: sure, too small to matter, perhaps chance, or not known."""
    text = section_of(render_comparison_html(comparison_of(parts=(difference,))), "time")
    assert re.findall(r'<td class="minor" data-sort="([a-z ]+)">', text) == [verdict]


def test_scopes_without_a_change_are_folded_away() -> None:
    """Where captures differ by noise alone, a sentence says so and the table waits to be opened."""
    noise = Difference("loss/Dense_0", 1e-3, 1.1e-3, "s", -1e-4, 3e-4, phase="forward")
    change = Difference("loss/Dense_1", 1e-3, 3e-3, "s", 1e-3, 3e-3, phase="forward")
    traced = {name: side(name, trace=capture_of("capture")) for name in ("before", "after")}
    folded = section_of(render_comparison_html(comparison_of(scopes=(noise,), **traced)), "device")
    shown = section_of(render_comparison_html(comparison_of(scopes=(noise, change), **traced)), "device")
    assert "None of 1 scope changed beyond the noise." in folded
    assert "<details>" in folded
    assert "1 of 2 scopes changed beyond the noise." in shown
    assert "<details>" not in shown


def test_operations_that_look_alike_stay_two() -> None:
    """Names that are cut to the same text keep a bar each."""
    scope = "model/" + "x" * 60
    ops = tuple(Difference(f"fusion_{'y' * 60}_{index}", 1e-3, 2e-3, scope=scope, phase="forward") for index in (1, 2))
    traced = {name: side(name, trace=capture_of("capture")) for name in ("before", "after")}
    scopes = (Difference(scope, 2e-3, 4e-3, phase="forward"),)
    charts = Page(render_comparison_html(comparison_of(scopes=scopes, ops=ops, **traced))).charts()
    assert charts["operations-change-chart"]["traces"][0]["y"] == [0, 1]


def test_causes_carry_their_evidence() -> None:
    """A cause has its rule, its sentence, the time that it accounts for, and figures in their units."""
    cause = Cause("scope_added", "the scope extra was added", {"device_time_per_step_s": 2e-3}, "extra", 2e-3)
    verdict = section_of(render_comparison_html(comparison_of(causes=(cause,))), "verdict")
    for text in ("scope-added", "the scope extra was added", "+2 ms per step", "device time per step"):
        assert text in verdict


def test_no_cause_says_where_was_looked() -> None:
    """That nothing changed is only claimed for what both runs recorded."""
    known = {name: side(name, config={"a": 1}) for name in ("before", "after")}
    verdict = section_of(render_comparison_html(comparison_of(**known)), "verdict")
    assert "No change in configuration. Unknown: program, compiles, batch size and environment." in verdict


def test_settings_that_differ_are_listed() -> None:
    """A value that differs or is there in one run only stands with both values; those that are alike do not."""
    before = side("before", config={"model": {"width": 8, "depth": 2}}, environment={"pid": 1, "python": "3.11"})
    after = side(
        "after", config={"model": {"width": 16, "depth": 2, "bias": True}}, environment={"pid": 2, "python": "3.11"}
    )
    text = section_of(render_comparison_html(comparison_of(before=before, after=after)), "configs")
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", text)
    assert cells == ["model.width", "8", "16", "model.bias", "(not set)", "true"]
    assert "1 value, all the same." in text


def test_compiles_stand_in_one_row_per_function() -> None:
    """How often and how long are shown side by side."""
    compiles = (Difference("step", 1, 3, "count", is_exact=True), Difference("step", 0.5, 1.5, "s"))
    text = section_of(render_comparison_html(comparison_of(compiles=compiles)), "compiles")
    assert re.findall(r"<td[^>]*>([^<]*)</td>", text) == ["step", "1\xa0→ 3", "500\xa0ms\xa0→ 1.5\xa0s", "+1 s"]


def test_what_was_not_measured_says_how_to_get_it() -> None:
    """Runs without a row of measurement have no section but the verdict and a list of what is not there."""
    text = render_comparison_html(comparison_of(notes=("a has no capture",)))
    assert Page(text).charts() == {}
    assert Page(text).sections == ["verdict", "not-measured"]
    for title in (
        "Losses and metrics",
        "Step time",
        "Where the time went",
        "Device time",
        "Memory",
        "Compilation",
        "Configuration",
    ):
        assert f"<li><strong>{title}" in section_of(text, "not-measured")
    assert "a has no capture" in section_of(text, "verdict")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Two runs called alike are shown with the folders that they are in."""
    before, after = (write_run(tmp_path / name / "run", 2e-3, num_steps=30) for name in ("main", "branch"))
    assert "<h1>main/run → branch/run " in render_comparison_html(compare_runs(before, after))


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "<img src=x onerror=alert(1)>"])
def test_names_add_no_element(text: str) -> None:
    """Whatever the runs' names are, the page has no script and no kind of element that it does not have otherwise."""
    harmless, hostile = (Page(render_comparison_html(named_comparison(name))) for name in ("harmless", text))
    assert len(hostile.scripts) == len(harmless.scripts)
    assert hostile.tags <= harmless.tags
    assert hostile.handlers == []


def test_chart_names_are_escaped_for_plotly() -> None:
    """No name, label or text of a chart holds markup; what a hover label breaks lines with is our own."""
    shown = []
    for chart in Page(render_comparison_html(named_comparison("<b>x</b>"))).charts().values():
        shown += chart["layout"].get("yaxis", {}).get("ticktext", [])
        for trace in chart["traces"]:
            shown += [trace["name"], *trace.get("customdata", [])]
    assert [text for text in shown if "<" in text.replace("<br>", "")] == []
    assert any("&lt;b&gt;x" in text for text in shown)


def test_file_is_replaced_whole(slower: Comparison, tmp_path: Path) -> None:
    """The file is where it was asked for, also in a new folder; a second one replaces it and leaves nothing behind."""
    target = tmp_path / "new" / "comparison.html"
    for _ in range(2):
        assert write_comparison_html(slower, target) == target
    assert [file.name for file in target.parent.iterdir()] == ["comparison.html"]


def test_file_that_cannot_be_written_is_named(slower: Comparison, tmp_path: Path) -> None:
    """A folder in the file's place is an error that names it, and no temporary file stays."""
    target = tmp_path / "comparison.html"
    target.mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"path: cannot write the comparison to {str(target)!r}")):
        write_comparison_html(slower, target)
    assert [file.name for file in tmp_path.iterdir()] == ["comparison.html"]


def test_losses_of_both_runs_are_in_one_chart(tmp_path: Path) -> None:
    """Training and validation of both runs are drawn together, over steps, time or examples, with their values."""
    for name, factor in (("before", 1.0), ("after", 0.5)):
        run = WrittenRun(tmp_path / name).leg()
        for step in (10, 20, 30):
            run.metrics(step, loss_mean=factor / step).metrics(step, "val", loss=2 * factor / step)
        run.ledger(30, 30, device_wait=1.0).end(step=30)
    text = render_comparison_html(compare_runs(tmp_path / "before", tmp_path / "after"))
    (chart,) = [chart for name, chart in Page(text).charts().items() if name.startswith("metric-")]
    assert [trace["name"] for trace in chart["traces"]] == [
        *("before: train", "before: val", "after: train", "after: val")
    ]
    assert chart["axes"]["examples"]["x"][0] == [80, 160, 240]
    section = section_of(text, "metrics")
    assert "The best val_loss is 0.06667 before and 0.03333 after (lower is better)." in section
    assert "better</span>" in section
    assert "nothing is interpolated" in section
