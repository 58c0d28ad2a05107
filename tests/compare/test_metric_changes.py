"""Losses and metrics of two runs: last, best, at equal steps and at equal time."""

import json
import math
from pathlib import Path

import pytest

from tests.runs.written import WrittenRun
from trackside.compare import Comparison, MetricChange, compare_runs


def write_val(folder: Path, losses: dict[int, float], **config: object) -> Path:
    """A run that was validated at these steps, a second apart."""
    run = WrittenRun(folder)
    if config:
        run.write("config", config={"trainer": config})
    run.leg()
    for step, loss in losses.items():
        run.metrics(step, "val", loss=loss)
    run.end(step=max(losses))
    return folder


def changes_of(before: Path, after: Path) -> dict[str, MetricChange]:
    return {one.label: one for one in compare_runs(before, after).metrics}


def values(pair: object) -> tuple[float | None, float | None]:
    """The two values of a pair that must both be there."""
    return pair.before.value, pair.after.value  # type: ignore[attr-defined]


def test_last_best_and_equal_steps(tmp_path: Path) -> None:
    """A run that went further is compared where both were, by the last value that each had logged until then."""
    before = write_val(tmp_path / "a", {10: 3.0, 20: 1.0, 30: 2.0})
    after = write_val(tmp_path / "b", {15: 2.5, 40: 0.5})
    change = changes_of(before, after)["val_loss"]
    assert values(change.best) == (1.0, 0.5)
    assert values(change.last) == (2.0, 0.5)
    assert (change.equal_step, values(change.at_step)) == (30, (2.0, 2.5))
    assert change.at_step.after is not None
    assert change.at_step.after.step == 15
    assert change.best.better("min") == "after"
    assert change.at_step.relative_change == pytest.approx(0.25)


def test_equal_time(tmp_path: Path) -> None:
    """At the time at which the shorter run had its last value, the other has the last that it had logged by then."""
    before = write_val(tmp_path / "a", {step: 100.0 - step for step in range(1, 11)})
    after = write_val(tmp_path / "b", {step: 10.0 * step for step in range(1, 5)})
    change = changes_of(before, after)["val_loss"]
    # Rows are a second apart: the file is opened, then the leg and four validations.
    assert change.equal_time_s == pytest.approx(5.0)
    assert values(change.at_time) == (96.0, 40.0)


def test_time_to_the_value_that_both_reached(tmp_path: Path) -> None:
    """The comparison says how soon each run was as good as the worse of the two became."""
    before = write_val(tmp_path / "a", {10: 3.0, 20: 2.0, 30: 1.0})
    after = write_val(tmp_path / "b", {10: 1.5, 20: 2.5})
    change = changes_of(before, after)["val_loss"]
    assert change.reached_value == 1.5
    assert change.reached.before is not None
    assert change.reached.after is not None
    assert (change.reached.before.step, change.reached.after.step) == (30, 10)
    assert change.reach_time_change == pytest.approx(2 / 4 - 1)  # a second each: the leg, then the validations


def test_pauses_between_legs_do_not_count(tmp_path: Path) -> None:
    """A night between two legs is not training time: by the other run's time, the second leg is compared too."""
    run = WrittenRun(tmp_path / "a").leg().metrics(10, "val", loss=2.0)
    run.write("status", status="interrupted", step=10, epoch=1)
    run.clock.advance(36_000.0)
    run.leg(2, 10).metrics(20, "val", loss=1.0).end(step=20, number=2)
    after = write_val(tmp_path / "b", dict.fromkeys(range(10, 90, 10), 5.0))
    change = changes_of(tmp_path / "a", after)["val_loss"]
    assert change.equal_time_s is not None
    assert change.equal_time_s < 10
    assert values(change.at_time) == (1.0, 5.0)


def test_steps_that_were_repeated_count_once(tmp_path: Path) -> None:
    """What a leg logged after the step that the next one resumed from is no part of the curve."""
    run = WrittenRun(tmp_path / "a").leg().metrics(10, "val", loss=2.0).metrics(20, "val", loss=0.1)
    run.leg(2, 10).metrics(20, "val", loss=1.0).end(step=20, number=2)
    change = changes_of(tmp_path / "a", write_val(tmp_path / "b", {20: 1.5}))["val_loss"]
    assert values(change.best) == (1.0, 1.5)


def test_training_logged_at_other_intervals_is_averaged_alike(tmp_path: Path) -> None:
    """A run that logs each step is compared with the means of the other: over as many steps as these."""
    fine, coarse = WrittenRun(tmp_path / "a").leg(), WrittenRun(tmp_path / "b").leg()
    for step in range(1, 41):
        fine.metrics(step, loss_mean=step % 2 * 2.0)  # 0 and 2 take turns
        if step % 10 == 0:
            coarse.metrics(step, loss_mean=1.1)
    fine.end(step=40)
    coarse.end(step=40)
    change = changes_of(tmp_path / "a", tmp_path / "b")["train_loss"]
    assert change.num_mean_steps == 10
    assert values(change.last) == (pytest.approx(1.0), pytest.approx(1.1))
    assert values(change.at_step) == (pytest.approx(1.0), pytest.approx(1.1))


def test_equal_intervals_stay_as_logged(tmp_path: Path) -> None:
    """Where both log alike, the logged numbers are shown, digit by digit."""
    for name in "ab":
        run = WrittenRun(tmp_path / name).leg()
        for step in (5, 10, 15):
            run.metrics(step, loss_mean=1.0 / step)
        run.end(step=15)
    change = changes_of(tmp_path / "a", tmp_path / "b")["train_loss"]
    assert values(change.last) == (1.0 / 15, 1.0 / 15)
    assert change.last.better("min") == "neither"


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """A NaN is never best, is said where it is the last value, and is worse than any number."""
    before = write_val(tmp_path / "a", {10: 1.0, 20: 2.0})
    after = write_val(tmp_path / "b", {10: 1.5, 20: math.nan})
    comparison = compare_runs(before, after)
    change = comparison.metrics[0]
    assert values(change.best) == (1.0, 1.5)
    assert values(change.last) == (2.0, None)
    assert change.last.better("min") == "before"
    assert change.last.change is None
    json.loads(json.dumps(comparison.to_dict(), allow_nan=False))


def test_never_finite_has_no_row(tmp_path: Path) -> None:
    """A run that was NaN from its first row has no value of the metric, and the other still shows its own."""
    change = changes_of(write_val(tmp_path / "a", {10: 1.0}), write_val(tmp_path / "b", {10: math.nan}))["val_loss"]
    assert change.best.after is None
    assert change.equal_step is None
    assert change.reached.before is None


def test_metric_that_one_run_lacks(tmp_path: Path) -> None:
    """Without validation, or with another metric, what the other run has is shown alone."""
    WrittenRun(tmp_path / "a").leg().metrics(10, loss_mean=1.0).end(step=10)
    run = WrittenRun(tmp_path / "b").leg().metrics(10, loss_mean=2.0).metrics(10, "val", loss=3.0, f1=0.5)
    run.end(step=10)
    changes = changes_of(tmp_path / "a", tmp_path / "b")
    assert list(changes) == ["val_loss", "train_loss", "val_f1"]  # what each is judged by comes first
    assert changes["val_f1"].best.before is None
    assert changes["val_f1"].best.better("max") is None
    assert (changes["val_f1"].direction, changes["val_loss"].direction) == ("max", "min")


def test_mean_by_another_name_is_the_same_metric(tmp_path: Path) -> None:
    """`loss_mean` of one run and `loss` of another, logged without its ending, are both means over the interval."""
    WrittenRun(tmp_path / "a").leg().metrics(10, loss_mean=1.0, loss_max=9.0).end(step=10)
    WrittenRun(tmp_path / "b").leg().metrics(10, loss=2.0).end(step=10)
    (change,) = compare_runs(tmp_path / "a", tmp_path / "b").metrics
    assert (change.label, values(change.last)) == ("train_loss", (1.0, 2.0))


def test_what_both_log_is_compared(tmp_path: Path) -> None:
    """If the runs share only one way of logging a metric, that one is compared, and named."""
    WrittenRun(tmp_path / "a").leg().metrics(10, loss_mean=1.0, loss_single=1.5).end(step=10)
    WrittenRun(tmp_path / "b").leg().metrics(10, loss_single=2.0).end(step=10)
    (change,) = compare_runs(tmp_path / "a", tmp_path / "b").metrics
    assert (change.label, values(change.last)) == ("train_loss_single", (1.5, 2.0))


def test_data_sets_are_metrics_of_their_own(tmp_path: Path) -> None:
    """With several validation loaders, each data set is compared with itself."""
    for name, shift in (("a", 0.0), ("b", 1.0)):
        run = WrittenRun(tmp_path / name).leg().metrics(10, loss_mean=1.0)
        run.metrics(10, "val", near_loss=1.0 + shift, far_loss=5.0 + shift).end(step=10)
    changes = changes_of(tmp_path / "a", tmp_path / "b")
    assert values(changes["val_near_loss"].last) == (1.0, 2.0)
    assert values(changes["val_far_loss"].last) == (5.0, 6.0)


def test_monitored_metric_comes_first_in_its_direction(tmp_path: Path) -> None:
    """What a callback monitors decides what is better, also against the name, and stands first."""
    callbacks = [{"__class__": "CheckpointConfig", "monitor": "val_loss", "mode": "max"}]
    before, after = (write_val(tmp_path / name, {10: loss}, callbacks=callbacks) for name, loss in (("a", 1), ("b", 2)))
    change = compare_runs(before, after).metrics[0]
    assert (change.label, change.direction, change.is_judged) == ("val_loss", "max", True)
    assert change.best.better(change.direction) == "after"


def test_learning_rates_and_norms_are_no_results(tmp_path: Path) -> None:
    """What says nothing about the model is not compared as if it did."""
    for name in "ab":
        WrittenRun(tmp_path / name).leg().metrics(10, loss_mean=1.0, lr_single=0.1, grad_norm_mean=3.0, loss_std=0.2)
    assert list(changes_of(tmp_path / "a", tmp_path / "b")) == ["train_loss"]


def render(comparison: Comparison, width: int = 80) -> str:
    from rich.console import Console

    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(comparison.render(width))
    return captured.get()


def test_console_shows_values_steps_and_which_is_better(tmp_path: Path) -> None:
    """Each value has its step; a line says what is better, and that nothing is interpolated."""
    before = write_val(tmp_path / "a", {10: 3.0, 20: 1.0, 30: 2.0})
    after = write_val(tmp_path / "b", {15: 2.5, 40: 0.5})
    text = render(compare_runs(before, after))
    assert "best                        1         20       0.5         40  -50.0 % better" in text
    assert "by step 30                  2         30       2.5         15  +25.0 % worse" in text
    assert "lower is better" in text
    assert "the last value that it logged" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_console_keeps_control_characters_out(tmp_path: Path) -> None:
    """A metric's name cannot move the cursor."""
    for name in "ab":
        WrittenRun(tmp_path / name).leg().metrics(10, "val", **{"\x1b[2Jloss": 1.0}).end(step=10)
    assert "\x1b" not in render(compare_runs(tmp_path / "a", tmp_path / "b"))
