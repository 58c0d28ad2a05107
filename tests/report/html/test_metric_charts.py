"""Losses and metrics: where they are on the page, over steps or time, smoothed, with the best value marked."""

from pathlib import Path
from typing import Any

from tests.runs.written import WrittenRun
from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.report import summarise_run
from trackside.report.html import metric_charts
from trackside.report.html.charts import Chart
from trackside.report.html.section import Section
from trackside.run_layout import event_file_name
from trackside.runs import open_run


def build(folder: Path, num_metrics: int = 0, **config: Any) -> Section:
    """The section of a run of five rows, ten steps and a minute apart, with validations after rows two and four."""
    folder.mkdir(exist_ok=True)
    clock = ManualClock(1000.0)
    events = EventWriter(folder / event_file_name(0), clock)
    if config:
        events.write("config", config={"trainer": config})
    more = {f"m{number}": 1.0 for number in range(num_metrics)}
    for row in range(1, 6):
        clock.advance(60.0)
        events.write_metrics({"loss_mean": 1 / row, "lr_single": 0.1, **more}, 10 * row, 1, "train")
        if row in (2, 4):
            events.write_metrics({"loss": 0.3 * row, "accuracy": 0.1 * row}, 10 * row, 1, "val")
    events.close()
    run = open_run(folder)
    summary = summarise_run(run)
    return metric_charts.build(run.metrics, summary.best, run.axes)


def traces_by_name(chart: Chart) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in chart.traces}


def test_mean_of_an_interval_is_a_level(tmp_path: Path) -> None:
    """A training mean covers the steps since the row before it; a validation and a single value are points in time."""
    loss, lr, _ = build(tmp_path).charts
    assert traces_by_name(loss)["train"]["line"]["shape"] == "vh"
    assert "shape" not in traces_by_name(loss)["val"]["line"]
    assert "shape" not in lr.traces[0]["line"]


def test_best_value_is_marked(tmp_path: Path) -> None:
    """The best value of the metric by which the run is judged has a star in its chart, where it was reached."""
    loss, lr, _ = build(tmp_path).charts
    star = traces_by_name(loss)["best val: 0.6"]
    assert (star["x"], star["y"], star["marker"]["symbol"]) == ([20], [0.6], "star")
    assert not any(name.startswith("best") for name in traces_by_name(lr))


def test_best_of_other_validated_metrics_is_marked_too(tmp_path: Path) -> None:
    """Any validated metric has its best value marked: the highest accuracy, not the lowest."""
    accuracy = build(tmp_path).charts[2]
    star = traces_by_name(accuracy)["best val: 0.4"]
    assert (star["x"], star["y"]) == ([40], [0.4])


def test_charts_know_the_wall_time(tmp_path: Path) -> None:
    """Each point has its time since the start of the run, in a unit that suits its length."""
    loss = build(tmp_path).charts[0]
    times = dict(zip((trace["name"] for trace in loss.traces), loss.axes["elapsed"].x, strict=True))
    assert loss.axes["elapsed"].title == "minutes since the start"
    assert times["train"] == [1, 2, 3, 4, 5]
    assert times["val"] == [2, 4]
    assert times["best val: 0.6"] == [2]


def test_charts_know_the_examples(tmp_path: Path) -> None:
    """Where the ledger counted examples, each point has how many had been trained on."""
    run = WrittenRun(tmp_path).leg().metrics(10, loss_mean=1.0).metrics(20, loss_mean=0.5)
    run.ledger(20, 20, device_wait=1.0)
    opened = open_run(tmp_path)
    (chart,) = metric_charts.build(opened.metrics, None, opened.axes).charts
    assert chart.axes["examples"].x == [[80, 160]]
    assert "examples" not in build(tmp_path / "other").charts[0].axes


def test_axis_is_logarithmic_where_the_first_rows_flatten_the_rest(tmp_path: Path) -> None:
    """A loss that falls from 100 to 0.1 begins on a logarithmic axis; one with a negative value never does."""
    for name, last in (("positive", 0.1), ("negative", -0.1)):
        run = WrittenRun(tmp_path / name).leg().metrics(1, loss_mean=100.0)
        for step in range(2, 30):
            run.metrics(step, loss_mean=0.2)
        run.metrics(30, loss_mean=last)
    first = [
        metric_charts.build(run.metrics, None, run.axes).charts[0].views[0].layout
        for run in (open_run(tmp_path / "positive"), open_run(tmp_path / "negative"))
    ]
    assert [layout.get("yaxis", {}).get("type") for layout in first] == ["log", None]


def test_training_curves_can_be_smoothed(tmp_path: Path) -> None:
    """The page may smooth curves of training; validations are few, and the star is not a curve."""
    loss = build(tmp_path).charts[0]
    assert [loss.traces[index]["name"] for index in loss.smoothable] == ["train"]


def test_many_metrics_are_folded_away(tmp_path: Path) -> None:
    """A run with many metrics shows the first ones; the others are in a fold, so that other sections stay near."""
    content = str(build(tmp_path, num_metrics=20).content)
    before, fold = content.split("17 more metrics")
    assert before.count("data-chart=") + before.count("data-chart ") == 6
    assert fold.count('class="chart') == 17
