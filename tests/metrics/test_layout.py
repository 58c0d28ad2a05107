import numpy as np
import pytest

from trackside.errors import MetricError
from trackside.metrics import LOG_MODES, MetricLayout, MetricSpec
from trackside.metrics.step_metric import split_log_modes


def layout_of(**modes):
    return MetricLayout(tuple(MetricSpec(name, tuple(modes[name])) for name in sorted(modes)))


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("mean", "loss_mean"),
        ("mean_nopostfix", "loss"),
        ("single", "loss_single"),
        ("max", "loss_max"),
        ("std", "loss_std"),
    ],
)
def test_every_mode_has_its_logged_name(mode, name):
    """Each mode is logged under the metric's name with the mode's postfix, `mean_nopostfix` without one."""
    assert layout_of(loss=[mode]).outputs[mode].names == (name,)


def test_layout_is_ordered_by_name():
    """Metrics are in the order of their names, whatever order the step returns them in."""
    arrays, modes = split_log_modes({"b": 1.0, "c": 3.0, "a": {"value": 2.0, "log_modes": ["max"]}})
    layout = MetricLayout.of(arrays, modes, default_log_modes=("mean",))
    assert layout.names == ("a", "b", "c")
    assert [spec.log_modes for spec in layout.specs] == [("max",), ("mean",), ("mean",)]


@pytest.mark.parametrize(
    "modes",
    [
        {"loss": ["mean"], "loss_mean": ["mean_nopostfix"]},
        {"loss": ["max", "mean"], "loss_max": ["mean_nopostfix", "std"]},
    ],
)
def test_colliding_names_are_refused(modes):
    """Two metrics that would be logged under one name are an error that names both and the logged name."""
    with pytest.raises(MetricError, match=r"'loss_m\w+' with mode 'mean_nopostfix' .*'loss_m\w+', .*'loss'; rename"):
        layout_of(**modes)


def test_similar_names_do_not_collide():
    """Names that only look alike are fine."""
    assert layout_of(loss=["mean", "max"], loss_mean=["mean"]).names == ("loss", "loss_mean")


def test_only_what_is_logged_takes_room():
    """The vector has five words per metric, one more for a maximum and three more for a standard deviation."""
    sizes = {mode: layout_of(loss=[mode]).num_words for mode in LOG_MODES}
    assert sizes == {"mean": 7, "mean_nopostfix": 7, "single": 7, "max": 8, "std": 10}
    assert MetricLayout(()).num_words == 2


def test_initial_vector_starts_maxima_below_everything():
    """Before any step all words are zero, except for maxima, which start at minus infinity."""
    layout = layout_of(a=["max"], b=["std"])
    words = layout.initial.copy()
    assert words[layout.slices["max"]].view(np.float32).tolist() == [-np.inf]
    words[layout.slices["max"]] = 0
    assert not words.any()


def test_initial_vector_cannot_be_written():
    """The initial vector is shared by all resets, and therefore read-only."""
    with pytest.raises(ValueError, match="read-only"):
        layout_of(loss=["mean"]).initial[0] = 1


def test_equal_layouts_are_one_key():
    """Layouts of equal metrics are equal and have the same hash, so that jit treats them as the same."""
    one, other = layout_of(loss=["mean"], acc=["max"]), layout_of(acc=["max"], loss=["mean"])
    assert one == other
    assert hash(one) == hash(other)
    assert one != layout_of(loss=["mean"], acc=["std"])
