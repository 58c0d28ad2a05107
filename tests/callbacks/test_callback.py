import logging
from dataclasses import dataclass

import pytest

from trackside.callbacks import (
    EMA,
    Callback,
    CallbackConfig,
    CallbackList,
    EarlyStopping,
    EarlyStoppingConfig,
    JaxProfiler,
)
from trackside.callbacks.callback_list import bind_callbacks
from trackside.errors import ConfigError


class Recorder(Callback):
    """Notes what it is called for."""

    def __init__(self, calls, name="recorder", **config):
        super().__init__(CallbackConfig(**config))
        self.calls = calls
        self.name = name

    def on_training_start(self):
        self.calls.append(f"{self.name} start")

    def on_filtered_training_epoch_end(self, train_metrics, epoch_idx):
        self.calls.append(("train", epoch_idx))

    def on_filtered_validation_epoch_end(self, eval_metrics, epoch_idx, step_idx):
        self.calls.append(("val", epoch_idx, step_idx))

    def finalize(self, status):
        self.calls.append(f"{self.name} {status}")


class StepRecorder(Recorder):
    def on_filtered_training_step(self, step_metrics, epoch_idx, step_idx):
        self.calls.append(("step", epoch_idx, step_idx))


class Failing(Recorder):
    def on_training_start(self):
        raise RuntimeError("no disk")

    def finalize(self, status):
        raise RuntimeError("no disk")


def test_hooks_are_called_in_the_order_of_the_list():
    """Each hook goes through the callbacks in the order in which they were given."""
    calls = []
    callbacks = CallbackList([Recorder(calls, "first"), Recorder(calls, "second")])
    callbacks.call("on_training_start")
    callbacks.finalize("success")
    assert calls == ["first start", "second start", "first success", "second success"]


def test_list_reads_like_a_list():
    """Length, order and index are those of the callbacks given."""
    first, second = Recorder([]), Recorder([])
    callbacks = CallbackList(iter([first, second]))
    assert (len(callbacks), list(callbacks), callbacks[1]) == (2, [first, second], second)


@pytest.mark.parametrize(("cadence", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (-1, [])])
def test_filtered_epoch_hooks_follow_their_cadence(cadence, epochs):
    """The filtered hooks of training and validation are called after every `every_n_epochs` epochs."""
    calls = []
    callbacks = CallbackList([Recorder(calls, every_n_epochs=cadence)])
    for epoch in range(1, 6):
        callbacks.call("on_training_epoch_end", {}, epoch)
        callbacks.call("on_validation_epoch_end", {}, epoch, 10 * epoch)
    assert calls == [call for epoch in epochs for call in (("train", epoch), ("val", epoch, 10 * epoch))]


@pytest.mark.parametrize(("cadence", "steps"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (-1, [])])
def test_filtered_step_hook_follows_its_cadence(cadence, steps):
    """The filtered step hook is called after every `every_n_steps` steps."""
    calls = []
    callbacks = CallbackList([StepRecorder(calls, every_n_steps=cadence)])
    for step in range(1, 7):
        callbacks.call("on_training_step", {}, 1, step)
    assert calls == [("step", 1, step) for step in steps]


def test_steps_are_wanted_only_where_a_step_hook_is_overridden():
    """The loop hears that steps are wanted if, and only if, a callback has a step hook that is ever called."""

    class EachStep(Callback):
        def on_training_step(self, step_metrics, epoch_idx, step_idx):
            pass

    assert not CallbackList().on_step
    assert not CallbackList([Recorder([])]).on_step
    assert not CallbackList([StepRecorder([], every_n_steps=-1)]).on_step
    assert CallbackList([Recorder([]), StepRecorder([], every_n_steps=5)]).on_step
    assert CallbackList([EachStep(CallbackConfig())]).on_step


def test_error_names_the_callback_and_hook():
    """An error in a hook keeps its type and gets a note of where it came from; later callbacks are not called."""
    calls = []
    callbacks = CallbackList([Failing([]), Recorder(calls)])
    with pytest.raises(RuntimeError, match="no disk") as caught:
        callbacks.call("on_training_start")
    assert caught.value.__notes__ == ["raised in Failing.on_training_start"]
    assert calls == []


def test_finalize_reaches_every_callback(caplog):
    """A callback that fails to close is logged by name, and those after it are closed all the same."""
    calls = []
    with caplog.at_level(logging.ERROR):
        CallbackList([Failing([]), Recorder(calls, "last")]).finalize("error")
    assert calls == ["last error"]
    assert "Failing failed to close" in caplog.text


def test_metrics_of_a_hook_are_the_callers_dict():
    """What a filtered hook adds to the metrics is in the dict that the caller gave."""

    class Adds(Callback):
        def on_filtered_validation_epoch_end(self, eval_metrics, epoch_idx, step_idx):
            eval_metrics["gap"] = 0.5

    metrics = {"loss": 1.0}
    CallbackList([Adds(CallbackConfig())]).call("on_validation_epoch_end", metrics, 1, 1)
    assert metrics == {"loss": 1.0, "gap": 0.5}


def test_set_dataset_replaces_the_loaders():
    """A callback takes over the loaders that it is given later."""
    callback = Callback(CallbackConfig(), data_module="old")
    callback.set_dataset("new")
    assert callback.data_module == "new"


def test_config_without_create_says_so():
    """A config that does not build anything names its class."""
    with pytest.raises(NotImplementedError, match=r"CallbackConfig .*define `create`"):
        CallbackConfig().create(trainer=None)


class BadState(Recorder):
    def state_dict(self):
        return {"model": object()}

    def load_state_dict(self, state):
        raise ValueError("another version")


@pytest.mark.parametrize("hook", ["state_dict", "load_state_dict"])
def test_state_that_fails_is_left_out_on_request(hook, caplog):
    """With on_error="warn", a state that cannot be saved or loaded is reported once, with its callback; others work."""
    calls = []
    bad, good = BadState("bad", calls), Recorder("good", calls)
    bad.config = CallbackConfig(on_error="warn")
    callbacks = CallbackList([bad, good])
    for _ in range(2):
        if hook == "state_dict":
            assert callbacks.state_dict() == {"Recorder-0": {}}
        else:
            callbacks.load_state_dict({"BadState-0": {}, "Recorder-0": {}})
    assert caplog.text.count(f"BadState.{hook} failed; training continues without this callback") == 1


def test_state_that_fails_names_its_callback():
    """By default the error stops the run, and says which callback it came from."""
    callbacks = CallbackList([Recorder("good", []), BadState("bad", [])])
    with pytest.raises(TypeError) as caught:
        callbacks.state_dict()
    assert caught.value.__notes__ == ["raised in BadState.state_dict"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EMA(0.9), r"config: expected EMAConfig, got 0.9; write EMA\(EMAConfig\(...\)\)"),
        (lambda: EarlyStopping("val_loss"), "config: expected EarlyStoppingConfig, got 'val_loss'"),
        (lambda: JaxProfiler(config=3), "config: expected JaxProfilerConfig, got 3"),
        (lambda: EMA(EarlyStoppingConfig()), "config: expected EMAConfig, got EarlyStoppingConfig"),
        (
            lambda: EarlyStopping(patience=3),
            r"patience: .*; write EarlyStopping\(EarlyStoppingConfig\(patience=3\)\)",
        ),
    ],
)
def test_what_belongs_into_the_config(build, message):
    """A callback that is given something else in its place says what to write."""
    with pytest.raises(ConfigError, match=message):
        build()


def test_callbacks_of_users_take_what_they_like():
    """Also under the name of the config."""

    class Mine(Callback):
        def __init__(self, config):
            super().__init__()
            self.words = config

    assert Mine("a b").words == "a b"


@pytest.mark.parametrize("every", [0, -2])
def test_a_config_with_a_constructor_of_its_own_is_checked_too(every):
    """When the callback is bound, since its constructor need not call that of the base."""

    @dataclass
    class OwnConfig(CallbackConfig):
        def __post_init__(self) -> None:
            pass

    with pytest.raises(ConfigError, match=f"OwnConfig.every_n_epochs: expected a positive number, or -1.*{every}"):
        bind_callbacks([OwnConfig(every_n_epochs=every)], None)  # type: ignore[arg-type]
