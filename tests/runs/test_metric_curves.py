"""Which curves belong to one metric, and which a name means."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs.written import WrittenRun
from trackside.errors import ConfigError
from trackside.runs import MetricTable, open_run
from trackside.runs.metric_curves import Curve, curves_by_metric, find_curves, is_flattened


def tables(**names_by_mode: list[str]) -> dict[str, MetricTable]:
    """Tables of one row, in which each metric is 1."""
    row = np.array([1])
    return {
        mode: MetricTable(row, row, np.array([1.0]), {name: np.ones(1) for name in names})
        for mode, names in names_by_mode.items()
    }


def titles(curves: list[Curve]) -> list[str]:
    return [curve.title for curve in curves]


def test_log_modes_and_stages_are_one_metric() -> None:
    """Mean, maximum and single value of training, validation and test belong together; a deviation does not."""
    groups = curves_by_metric(
        tables(train=["loss_mean", "loss_max", "loss_single", "loss_std", "epoch"], val=["loss"], test=["loss"])
    )
    assert {base: titles(curves) for base, curves in groups.items()} == {
        "loss": ["train", "train max", "train single", "val", "test"],
        "loss_std": ["train"],
    }


def test_data_sets_of_a_validation_belong_to_their_metric() -> None:
    """With several validation loaders, all data sets of a metric are in one group, next to its training."""
    groups = curves_by_metric(
        tables(train=["loss_mean", "accuracy_mean"], val=["a_loss", "a_accuracy", "a_b_loss", "a_b_accuracy"])
    )
    assert {base: titles(curves) for base, curves in groups.items()} == {
        "loss": ["train", "val a", "val a_b"],
        "accuracy": ["train", "val a", "val a_b"],
    }


def test_terms_of_a_loss_are_no_data_sets() -> None:
    """Losses that training has by the same names, or next to a plain loss, are separate metrics."""
    terms = ["kl_loss_mean", "rec_loss_mean"]
    assert list(curves_by_metric(tables(train=terms, val=["kl_loss", "rec_loss"]))) == ["kl_loss", "rec_loss"]
    assert list(curves_by_metric(tables(train=["loss_mean"], val=["loss", "kl_loss"]))) == ["loss", "kl_loss"]


def test_losses_come_first_and_norms_last() -> None:
    """What people look at first comes first; what measures the training itself is no metric."""
    groups = curves_by_metric(tables(train=["grad_norm_mean", "f1_mean", "kl_loss_mean", "loss_mean"], time=["x_ms"]))
    assert list(groups) == ["loss", "kl_loss", "f1", "grad_norm"]


def test_epochs_of_training_are_left_to_its_steps() -> None:
    """The means of epochs are drawn only where there are no rows of steps."""
    assert titles(curves_by_metric(tables(train=["loss_mean"], train_epoch=["loss_mean"]))["loss"]) == ["train"]
    assert curves_by_metric(tables(train_epoch=["loss_mean"]))["loss"][0].covers_interval


def test_metric_that_was_never_finite_is_no_curve(tmp_path: Path) -> None:
    """A column of NaN has nothing to draw."""
    WrittenRun(tmp_path).leg().metrics(1, loss_mean=float("nan"), f1_mean=1.0)
    assert list(curves_by_metric(open_run(tmp_path).metrics)) == ["f1"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("loss", ["train/loss", "val/a_loss", "val/b_loss"]),
        ("train_loss", ["train/loss"]),
        ("val/loss", ["val/a_loss", "val/b_loss"]),
        ("val_a_loss", ["val/a_loss"]),
        ("a_loss", ["val/a_loss"]),
        ("loss_mean", ["train/loss"]),
        ("ood/score", ["ood/score"]),
    ],
)
def test_names(name: str, found: list[str]) -> None:
    """A name means a metric, a stage of it, a data set, or a column as it was logged."""
    metrics = tables(train=["loss_mean"], val=["a_loss", "b_loss"], ood=["score"])
    assert [curve.path for curve in find_curves(metrics, name)] == found


def test_unknown_name_with_very_many_metrics() -> None:
    """The error has the first metrics and says how many more there are."""
    with pytest.raises(ConfigError, match=r"it has m0, .*, m19 and 30 more\. Did you mean 'm49'\?"):
        find_curves(tables(train=[f"m{number}" for number in range(50)]), "mm49")


@pytest.mark.parametrize(
    ("values", "expected"), [([100.0, 1, 1, 1], True), ([10.0, 1, 1], False), ([100.0, 1, 1, 0], False), ([], False)]
)
def test_flattened_values(values: list[float], expected: bool) -> None:
    """Values of which the largest hides the others suit a logarithmic axis, unless one has no logarithm."""
    assert is_flattened(np.array([*values, np.nan])) is expected
