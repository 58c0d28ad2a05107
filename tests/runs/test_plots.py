"""Figures of a run: which curves a name means, over what they are drawn, and what is said about a wrong name."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.runs.written import WrittenRun
from trackside.errors import ConfigError
from trackside.runs import Run, open_run
from trackside.runs.plots import smoothed


def write(folder: Path, num_rows: int = 6, **more: float) -> Run:
    """A run with a row of training every ten steps and two validations, a second between all rows."""
    run = WrittenRun(folder).leg()
    for row in range(1, num_rows + 1):
        run.metrics(10 * row, loss_mean=1.0 / row, accuracy_mean=0.1 * row, step_time=0.01, **more)
        run.metrics(10 * row, "time", data_wait_ms=1.0, device_wait_ms=3.0, callbacks_ms=1.0)
        if row in (2, 4):
            run.metrics(10 * row, "val", loss=0.3 * row)
    run.ledger(10 * num_rows, 10 * num_rows, data_wait=1.0, device_wait=3.0).end(step=10 * num_rows)
    return open_run(folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write(tmp_path / "run")


def test_metric_is_training_and_validation(run: Run) -> None:
    """A plain name draws both stages; means of training are levels, validations are points."""
    figure = run.plot("loss")
    train, val = figure.data
    assert [train.name, val.name] == ["train", "val"]
    assert train.x.tolist() == [10, 20, 30, 40, 50, 60]
    assert (train.line.shape, val.line.shape) == ("vh", None)
    assert np.asarray(val.y) == pytest.approx([0.6, 1.2])
    assert figure.layout.yaxis.title.text == "loss"


@pytest.mark.parametrize("name", ["val/loss", "val_loss"])
def test_stage_is_one_curve(run: Run, name: str) -> None:
    """A stage is written as a monitor is: with a slash or an underscore."""
    assert [trace.name for trace in run.plot(name).data] == ["val"]


def test_without_a_name_what_the_run_is_judged_by(run: Run) -> None:
    """The validation loss judges this run, so its losses are drawn."""
    assert run.plot().layout.yaxis.title.text == "loss"


def test_several_names_are_in_one_figure(run: Run) -> None:
    """Curves of several metrics have the metric in their names."""
    assert [trace.name for trace in run.plot("train/loss", "accuracy").data] == ["loss train", "accuracy train"]


def test_over_time_and_examples(run: Run) -> None:
    """Time is in a unit that suits the run, since its start; examples are those of the ledger."""
    timed, counted = run.plot("val/loss", x="time"), run.plot("val/loss", x="examples")
    assert timed.layout.xaxis.title.text == "seconds since the start"
    # The file is opened, then come the leg and two rows for each step of training, a second apart.
    assert timed.data[0].x.tolist() == [6.0, 11.0]
    assert counted.data[0].x.tolist() == [160.0, 320.0]


def test_smoothing_is_drawn_over_the_logged_curve(run: Run) -> None:
    """The logged values stay visible, and only training is smoothed; both are one name in the legend."""
    logged, smooth, val = run.plot("loss", smooth=0.5).data
    assert (logged.opacity, logged.showlegend, logged.name) == (0.3, False, smooth.name)
    assert smooth.y[1] == pytest.approx((0.5 * 1.0 + 0.5) / 1.5)
    assert np.asarray(val.y) == pytest.approx([0.6, 1.2])


def test_smoothing_keeps_gaps() -> None:
    """A value that is not finite stays a gap and does not spread."""
    assert smoothed(np.array([1.0, math.nan, 1.0, math.inf]), 0.9) == pytest.approx(
        [1.0, math.nan, 1.0, math.nan], nan_ok=True
    )


def test_log_axis(run: Run) -> None:
    """The values can have a logarithmic axis."""
    assert run.plot("loss", log=True).layout.yaxis.type == "log"


def test_other_runs_in_one_figure(run: Run, tmp_path: Path) -> None:
    """Each run has a color and its name; a run without the metric adds nothing."""
    other = write(tmp_path / "other", num_rows=3)
    figure = run.plot("val/loss", "accuracy", others=[other])
    assert [trace.name for trace in figure.data] == [
        *("run loss val", "run accuracy train", "other loss val", "other accuracy train")
    ]
    colors = [trace.line.color for trace in figure.data]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    WrittenRun(tmp_path / "bare").leg().metrics(1, other_mean=1.0)
    assert len(run.plot("accuracy", others=open_run(tmp_path / "bare")).data) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("losss", "got 'losss'; it has loss, accuracy. Did you mean 'loss'?"),
        ("val/accuracyy", "Did you mean 'accuracy'?"),
        ("vall/loss", "Did you mean 'val/loss'?"),
        ("zzz", "it has loss, accuracy."),
    ],
)
def test_wrong_name_has_a_suggestion(run: Run, name: str, said: str) -> None:
    """The error has the metrics of the run, and the nearest one."""
    with pytest.raises(ConfigError, match="name: expected a metric of the run") as raised:
        run.plot(name)
    assert said in str(raised.value)


def test_wrong_options(run: Run) -> None:
    """Axes and smoothing are checked before anything is drawn."""
    with pytest.raises(ConfigError, match=r"x: expected 'step', 'time', 'examples'; got 'steps'\. Did you mean 'step'"):
        run.plot("loss", x="steps")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="smooth: expected a number from 0 to below 1"):
        run.plot("loss", smooth=1.0)


def test_examples_that_were_not_counted(tmp_path: Path) -> None:
    """A run without counts says so instead of drawing something else."""
    WrittenRun(tmp_path).leg().metrics(1, loss_mean=1.0)
    with pytest.raises(ConfigError, match="did not count its examples; use x='step' or x='time'"):
        open_run(tmp_path).plot("loss", x="examples")


def test_step_time(run: Run) -> None:
    """Undisturbed steps are levels in milliseconds."""
    figure = run.plot.step_time()
    (trace,) = figure.data
    assert trace.line.shape == "vh"
    assert trace.y[-1] == pytest.approx(10.0)
    assert figure.layout.yaxis.title.text == "ms per step"


def test_ledger_adds_up(run: Run) -> None:
    """The parts are stacked and add up to 100 %."""
    figure = run.plot.ledger()
    assert {trace.name for trace in figure.data} == {"waiting for the device", "waiting for data", "callbacks"}
    assert sum(np.asarray(trace.y) for trace in figure.data) == pytest.approx(100.0)


def test_nothing_to_draw_says_so(tmp_path: Path) -> None:
    """A run without step times, ledger or metrics has no empty figures but errors that say what to do."""
    WrittenRun(tmp_path).leg()
    run = open_run(tmp_path)
    with pytest.raises(ConfigError, match="no undisturbed step time; log more often"):
        run.plot.step_time()
    with pytest.raises(ConfigError, match="no two rows of where its time went"):
        run.plot.ledger()
    with pytest.raises(ConfigError, match="has logged no metric"):
        run.plot()


def test_names_from_a_run_are_no_markup(tmp_path: Path) -> None:
    """Plotly reads some HTML: a name of a run stays text in titles and legends."""
    write(tmp_path / "<b>x", **{"<i>y</i>_mean": 1.0})
    figure = open_run(tmp_path / "<b>x").plot("<i>y</i>", others=write(tmp_path / "other"))
    assert "<" not in f"{figure.layout.yaxis.title.text}{figure.data[0].name}"


def test_long_runs_make_small_figures(tmp_path: Path) -> None:
    """A notebook keeps a figure in its file: a long series is thinned out, and its spike stays."""
    run = WrittenRun(tmp_path).leg()
    for step in range(1, 20_001):
        run.metrics(step, loss_mean=99.0 if step == 12_345 else 1.0, step_time=0.01)
    logged, smooth = open_run(tmp_path).plot("loss", smooth=0.9).data
    assert max(len(logged.x), len(smooth.x)) < 8_000
    assert logged.x[np.argmax(logged.y)] == 12_345
