"""The page as a file: complete, closed against the outside, small, and written whole."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.made_up import write_run
from trackside.errors import ConfigError
from trackside.events import EventWriter
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.report.html import render_html, write_html_report
from trackside.report.html.assets import plotly_library
from trackside.run_layout import event_file_name
from trackside.runs import open_run

MAX_BYTES = 6_000_000


class Page(HTMLParser):
    """What a page holds: its scripts, styles, sections, and everything that refers to something else."""

    def __init__(self, text: str):
        super().__init__()
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.styles: list[str] = []
        self.sections: list[str] = []
        self.policy = ""
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self._raw: str | None = None
        self._attributes: dict[str, Any] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.handlers += [name for name in found if name.startswith("on") or name == "style"]
        if tag in ("script", "style"):
            self._raw, self._attributes = "", found
        elif tag == "section":
            self.sections.append(found["id"] or "")
        elif found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._raw is not None:
            self._raw += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.scripts.append((self._attributes, self._raw or ""))
        elif tag == "style":
            self.styles.append(self._raw or "")
        if tag in ("script", "style"):
            self._raw = None

    def charts(self) -> dict[str, Any]:
        """The data of the charts."""
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == "chart-data")


def policy_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", "a/name")


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(render_html(open_run(folder)))


def write_metric_rows(folder: Path, values: dict[str, np.ndarray]) -> Path:
    """A run of nothing but training rows."""
    folder.mkdir()
    events = EventWriter(folder / event_file_name(0))
    for index, row in enumerate(zip(*values.values(), strict=True)):
        events.write_metrics(dict(zip(values, map(float, row), strict=True)), index + 1, 1, "train")
    events.close()
    return folder


def test_sections_come_in_order(page: Page) -> None:
    """Findings come first, then the losses; configuration is last."""
    assert page.sections == [
        *("verdicts", "metrics", "step-time", "time", "device", "profile", "memory", "compiles", "processes"),
        *("timers", "configs"),
    ]


def test_nothing_refers_to_the_outside(page: Page) -> None:
    """Links lead to sections of the page itself; nothing is loaded from anywhere."""
    assert {reference for reference in page.references if not reference.startswith("#")} == {"data:,"}


def test_policy_allows_just_what_is_in_the_page(page: Page) -> None:
    """Scripts and styles are allowed by their hashes, and nothing by a rule that would allow more."""
    code = [text for attributes, text in page.scripts if "type" not in attributes]
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules["script-src"].split()) == {*map(policy_hash, code), plotly_library().source_hash}
    assert rules["style-src"].split() == [policy_hash(text) for text in page.styles]
    assert rules["img-src"] == "data:"
    assert "unsafe" not in page.policy


def test_nothing_needs_what_the_policy_forbids(page: Page) -> None:
    """No element has an inline handler or style."""
    assert page.handlers == []


def test_plotly_is_carried_whole() -> None:
    """What the page unpacks is what the policy allows."""
    source = gzip.decompress(base64.b64decode(plotly_library().packed))
    assert policy_hash(source.decode()) == plotly_library().source_hash


def test_page_is_small(folder: Path) -> None:
    """With plotly inside, it is below 6 MB by far."""
    assert len(render_html(open_run(folder)).encode()) < MAX_BYTES / 2


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "<img src=x onerror=alert(1)>"]
)
def test_names_add_no_element(tmp_path: Path, page: Page, text: str) -> None:
    """Whatever a run's names are, the page has no script and no kind of element that it does not have otherwise."""
    hostile = Page(render_html(open_run(write_run(tmp_path / "run", text))))
    assert len(hostile.scripts) == len(page.scripts)
    assert hostile.tags <= page.tags
    assert hostile.handlers == []


def test_chart_data_cannot_end_its_script(tmp_path: Path) -> None:
    """The data of charts holds no character that HTML gives a meaning to, and says the same as JSON."""
    page = Page(render_html(open_run(write_run(tmp_path / "run", "</script x <!--"))))
    data = next(text for attributes, text in page.scripts if attributes.get("id") == "chart-data")
    assert not {"<", ">", "&"} & set(data)
    assert any(entry["text"] == "</script x <!--" for chart in page.charts().values() for entry in chart["legend"])


def test_chart_names_are_escaped_for_plotly(tmp_path: Path) -> None:
    """No name, label or text of a trace holds markup; what a hover label breaks lines with is our own."""
    run = open_run(write_run(tmp_path / "run", "<b>x</b>"))
    shown = []
    for chart in Page(render_html(run)).charts().values():
        for trace in chart["traces"]:
            shown += [
                trace.get("name", ""),
                *trace.get("text", []),
                *trace.get("labels", []),
                *trace.get("customdata", []),
            ]
    assert [text for text in shown if "<" in text.replace("<br>", "")] == []
    assert any("&lt;b&gt;x" in text for text in shown)


def test_run_that_says_nothing_says_how_to_get_it(tmp_path: Path) -> None:
    """A run without a row of measurement has no section but the findings and one list of what was not measured."""
    events = EventWriter(tmp_path / event_file_name(0))
    events.close()
    text = render_html(open_run(tmp_path))
    page = Page(text)
    assert page.charts() == {}
    assert page.sections == ["verdicts", "not-measured"]
    for hint in ("log_every_n_steps", "JaxProfilerConfig", "MemoryProfileConfig"):
        assert hint in text[text.index('id="not-measured"') :]


def test_run_of_one_leg_and_process_has_no_section_of_them(tmp_path: Path) -> None:
    """What the header says already takes no room; a second leg makes the table appear."""
    events = EventWriter(tmp_path / event_file_name(0))
    events.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    assert "processes" not in Page(render_html(open_run(tmp_path))).sections
    events.write("leg", leg=2, step=10, epoch=0, train_time_s=1.0)
    events.close()
    assert "processes" in Page(render_html(open_run(tmp_path))).sections


@pytest.mark.parametrize(("status", "word"), [("success", "success"), ("nan", "nan"), (None, "dead")])
def test_status_is_told(tmp_path: Path, status: str | None, word: str) -> None:
    """The header says how the run ended, also where it did not say so itself."""
    events = EventWriter(tmp_path / event_file_name(0))
    events.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    if status is not None:
        events.write("status", status=status, step=1, epoch=1)
    events.close()
    header = render_html(open_run(tmp_path)).split("</header>")[0]
    assert f">{word}</span>" in header


def test_early_stop_is_shown_with_its_reason(tmp_path: Path) -> None:
    """A run that a callback ended before its goal says so, when and why, in the header and in the table of legs."""
    events = EventWriter(tmp_path / event_file_name(0))
    events.write("leg", leg=1, step=0, epoch=0, goal=100, train_time_s=0.0)
    events.write("status", status="interrupted", step=10, epoch=1)
    events.write("leg", leg=2, step=10, epoch=1, goal=100, train_time_s=0.0)
    events.write("stop", reason="early stopping: val_loss did not improve", step=28)
    events.write("leg_end", leg=2, step=28, epoch=2, train_time_s=1.0)
    events.write("status", status="success", step=28, epoch=2)
    events.close()
    header, _, body = render_html(open_run(tmp_path)).partition("</header>")
    assert ">stopped early</span>" in header
    assert "Stopped early at step 28: val_loss did not improve." in header
    assert "<td>stopped early</td>" in body


def test_damage_is_told(folder: Path, tmp_path: Path) -> None:
    """What was wrong with the files stands below the verdicts."""
    (tmp_path / event_file_name(0)).write_bytes((folder / event_file_name(0)).read_bytes() + b'{"kind": "metr')
    run = open_run(tmp_path)
    assert run.problems
    text = render_html(run)
    assert all(problem.split("'")[0] in text for problem in run.problems)


def test_train_and_validation_share_a_chart(tmp_path: Path) -> None:
    """The training's `loss_mean` and the validation's `loss` are one metric; its deviation is another."""
    events = EventWriter(tmp_path / event_file_name(0))
    for step in (1, 2):
        events.write_metrics({"loss_mean": 1.0, "loss_max": 2.0, "loss_std": 0.1, "epoch": 1}, step, 1, "train")
        events.write_metrics({"loss": 1.0, "accuracy": 0.5}, step, 1, "val")
    events.close()
    charts = Page(render_html(open_run(tmp_path))).charts()
    names = [[trace["name"] for trace in charts[f"metric-{index}"]["traces"]] for index in range(3)]
    assert names == [["train", "train max", "val", "best val: 1"], ["train"], ["val", "best val: 0.5"]]


def test_long_run_makes_a_small_page_with_its_spike(tmp_path: Path) -> None:
    """A hundred thousand rows are drawn with few points, among them the one that sticks out."""
    losses = np.linspace(2.0, 1.0, 100_000)
    losses[54_321] = 99.0
    text = render_html(open_run(write_metric_rows(tmp_path / "run", {"loss_mean": losses})))
    trace = Page(text).charts()["metric-0"]["traces"][0]
    assert len(trace["x"]) < 2_000
    assert (trace["x"][trace["y"].index(99)], max(value for value in trace["y"])) == (54_322, 99)
    assert len(text) < MAX_BYTES / 2


def test_many_metrics_make_a_small_page(tmp_path: Path) -> None:
    """Hundreds of metrics share the points that a page may have; the page says how many are not drawn."""
    rng = np.random.default_rng(0)
    text = render_html(
        open_run(write_metric_rows(tmp_path / "run", {f"m{i}": rng.normal(size=300) for i in range(500)}))
    )
    assert len(text) < MAX_BYTES
    assert "The first 200 of 500 metrics are drawn" in text


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    """A loss that was NaN for a while has a gap in its line, and a sentence says where."""
    losses = np.ones(50)
    losses[20:25] = np.nan
    text = render_html(open_run(write_metric_rows(tmp_path / "run", {"loss_mean": losses})))
    assert Page(text).charts()["metric-0"]["traces"][0]["y"][20:25] == [None] * 5
    assert "no finite value in 5 rows, first at step 21" in text


def test_report_lies_in_the_run(tmp_path: Path) -> None:
    """Without a path it is `report.html` in the run's folder; a second one replaces it and leaves nothing behind."""
    run = open_run(write_run(tmp_path / "run", "name"))
    before = {file.name for file in run.path.iterdir()}
    for _ in range(2):
        assert write_html_report(run) == run.path / "report.html"
    assert {file.name for file in run.path.iterdir()} == before | {"report.html"}


def test_report_that_cannot_be_written_names_the_file(folder: Path, tmp_path: Path) -> None:
    """A file in place of the folder is an error that says which, and what to do."""
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "report.html"
    with pytest.raises(ConfigError, match=re.escape(f"path: cannot write the report to {str(target)!r}")):
        write_html_report(open_run(folder), target)


def test_folder_in_place_of_the_file_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    """Where a folder has the file's name, the error says so, and no temporary file stays."""
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ConfigError, match="choose another file"):
        write_html_report(open_run(folder), tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_parts_of_no_time_have_no_course(tmp_path: Path) -> None:
    """Rows of which no part took any time are no chart; the totals are still there."""
    events = EventWriter(tmp_path / event_file_name(0))
    for step in (1, 2, 3):
        events.write_metrics({"device_wait_ms": 0.0, "data_wait_ms": 0.0}, step, 1, "time")
    events.write("ledger", step=3, **LedgerTotals(1e-6, {"device_wait": 1e-6}, 3).to_dict())
    events.close()
    text = render_html(open_run(tmp_path))
    assert "time-chart" not in Page(text).charts()
    assert "In total" in text
    assert "Over the run" not in text


def test_step_time_has_a_gap_where_nothing_was_timed(tmp_path: Path) -> None:
    """While a capture is written no step is timed: the line does not go across, and nothing else is lost."""
    times = np.full(300, 0.01)
    times[100:200] = np.nan
    folder = write_metric_rows(tmp_path / "run", {"loss_mean": np.ones(300), "step_time": times})
    trace = Page(render_html(open_run(folder))).charts()["step-time-chart"]["traces"][0]
    gap = trace["y"].index(None)
    assert (trace["x"][gap - 1], trace["x"][gap + 1]) == (100, 200)
    assert trace["y"].count(None) == 1


def test_slow_and_silent_hosts_are_named(tmp_path: Path) -> None:
    """Of several processes, the one that the others wait for and the one that stopped writing are named."""
    for index in range(5):
        events = EventWriter(tmp_path / event_file_name(index))
        events.write("environment", hostname=f"node{index}")
        events.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
        own_s = 8.0 if index == 3 else 1.0
        parts = {"data_wait": own_s, "device_wait": 10.0 - own_s}
        events.write("ledger", step=100, **LedgerTotals(10.0, parts, 100).to_dict())
        if index != 1:
            events.write("status", status="success", step=100, epoch=1)
        events.close()
    text = render_html(open_run(tmp_path))
    assert "Process 3 on node3 spends 80 ms of its own time per step, against a median of 10 ms for the others" in text
    assert "Process 1 on node1 wrote its last row" in text
    assert "Process 2 on" not in text
