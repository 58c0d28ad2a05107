import json
import re
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import trackside.optional
from tests.decoding.problem import JaxProblem, Linear, make_data
from trackside.decoding import make_step, mse_loss, r2_score, train_decoding_jax
from trackside.errors import ConfigError, DataError, MetricError, MissingExtraError
from trackside.profiling import profile_data_loader
from trackside.profiling.compiles import compile_counter


def train(problem, **changes):
    return train_decoding_jax(**{"loss_fn": mse_loss} | problem.arguments | changes)


def rows_of(run, mode):
    lines = [json.loads(line) for line in (run / "events-00000.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "metrics" and line["mode"] == mode]


def same(a, b):
    return all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture
def problem():
    return JaxProblem()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training that kept everything: its directory, its problem and the model that came out of it."""
    directory, problem = tmp_path_factory.mktemp("run"), JaxProblem()
    model = train(problem, epochs=5, log_every=2, save_dir=directory)
    return types.SimpleNamespace(directory=directory, problem=problem, model=model)


def test_it_is_a_loop_of_make_step():
    """The weights are bit for bit those of a hand-written loop that splits its key at every step."""
    problem = JaxProblem(dropout=0.3)
    given = problem.arguments
    model, state, opt_state, key = problem.model, given["state"], given["opt_state"], given["key"]
    for _ in range(given["epochs"]):
        for inputs, targets in given["train_loader"]:
            key, step_key = jax.random.split(key)
            model, state, opt_state, _, _ = make_step(
                model, state, eqx.is_inexact_array, inputs, targets, mse_loss, given["opt"], opt_state, step_key
            )
    assert same(train(problem), model)


def test_the_figures_are_those_of_before(tmp_path):
    """Losses and R² of a training with dropout, as recorded when the loop was one of its own."""
    train(JaxProblem(dropout=0.3), epochs=5, save_dir=tmp_path)
    found = {
        mode: [[row["values"][name] for name in names] for row in rows_of(tmp_path, mode)]
        for mode, names in (("train", ("epoch_loss", "loss")), ("val", ("loss", "r2")), ("grads", ("norm",)))
    }
    assert found["train"] == [
        pytest.approx(row, rel=1e-5)
        for row in ([0.5716246, 0.2582350], [0.2500089, 0.1009399], [0.1396455, 0.07825689])
    ]
    assert found["val"] == [
        pytest.approx(row, rel=1e-5)
        for row in ([0.3350247, 0.5689371], [0.1199056, 0.8437727], [0.08737236, 0.8777694])
    ]
    assert found["grads"] == [pytest.approx(row, rel=1e-5) for row in ([0.2619707], [0.04451001], [0.1236517])]


def test_evaluates_every_so_many_epochs_and_after_the_last(run):
    """With five epochs and a cadence of two, after 2, 4 and 5, counted in steps of three a piece."""
    assert [(row["epoch"], row["step"]) for row in rows_of(run.directory, "val")] == [(2, 6), (4, 12), (5, 15)]


def test_r2_is_that_of_the_model_on_the_data(run):
    """Per output and in the mean, targets first, of the model as it was returned."""
    inputs, targets = run.problem.arguments["val_tensors"]
    predictions = np.asarray(jax.vmap(run.model.layer)(inputs))
    expected = r2_score(targets, predictions)
    values = rows_of(run.directory, "val")[-1]["values"]
    assert values["r2"] == pytest.approx(expected.mean, abs=1e-6)
    assert [values["r2.0"], values["r2.1"]] == pytest.approx(expected.per_output.tolist(), abs=1e-6)
    assert values["loss"] == pytest.approx(np.mean((predictions - targets) ** 2), rel=1e-5)


def test_it_learns(run):
    """R² of validation rises, and the loss of the epochs falls."""
    r2 = [row["values"]["r2"] for row in rows_of(run.directory, "val")]
    losses = [row["values"]["epoch_loss"] for row in rows_of(run.directory, "train")]
    assert r2 == sorted(r2)
    assert losses == sorted(losses, reverse=True)


def test_parameter_statistics(run):
    """Each trained array by its path, and all of them together."""
    values = rows_of(run.directory, "params")[-1]["values"]
    weight, bias = np.asarray(run.model.layer.weight), np.asarray(run.model.layer.bias)
    assert values["layer.weight.mean"] == pytest.approx(weight.mean(), abs=1e-6)
    assert values["layer.weight.std"] == pytest.approx(weight.std(), abs=1e-6)
    assert values["layer.weight.max_abs"] == pytest.approx(np.abs(weight).max(), abs=1e-6)
    assert values["norm"] == pytest.approx(np.sqrt(np.sum(weight**2) + np.sum(bias**2)), rel=1e-5)


def test_gradient_statistics_are_those_of_the_last_step(problem, tmp_path):
    """One epoch of one batch has the gradient that the loss gives there."""
    batch = problem.arguments["train_loader"][0]
    train(problem, train_loader=[batch], epochs=1, save_dir=tmp_path)
    params, static = eqx.partition(problem.model, eqx.is_inexact_array)
    _, grads = mse_loss(params, static, problem.arguments["state"], *batch, jax.random.PRNGKey(0))
    values = rows_of(tmp_path, "grads")[-1]["values"]
    assert values["layer.weight.norm"] == pytest.approx(float(jnp.linalg.norm(grads.layer.weight)), rel=1e-5)


def test_the_epoch_loss_weighs_samples_alike(problem, tmp_path):
    """A short last batch counts for as many samples as it has."""
    inputs, targets = problem.arguments["train_tensors"]
    batches = [(inputs[:8], targets[:8]), (inputs[8:10], targets[8:10])]
    frozen = optax.sgd(0.0)
    opt_state = frozen.init(eqx.filter(problem.model, eqx.is_inexact_array))
    train(problem, train_loader=batches, opt=frozen, opt_state=opt_state, epochs=1, save_dir=tmp_path)
    predictions = np.asarray(jax.vmap(problem.model.layer)(inputs[:10]))
    expected = np.mean((predictions - targets[:10]) ** 2)
    assert rows_of(tmp_path, "train")[-1]["values"]["epoch_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_model_given_is_left_alone(problem):
    """The arrays of the user are neither changed nor taken away."""
    before = jax.tree.map(np.array, eqx.filter(problem.model, eqx.is_array))
    train(problem)
    assert same(eqx.filter(problem.model, eqx.is_array), before)


def test_evaluation_leaves_no_trace(problem):
    """How often is evaluated does not change the training, dropout and all."""
    problem = JaxProblem(dropout=0.3)
    assert same(train(problem, log_every=1), train(problem, log_every=-1))


def test_evaluation_is_without_dropout(tmp_path):
    """The model is in inference mode, so that R² does not depend on a key."""
    problem = JaxProblem(dropout=0.9)
    model = train(problem, epochs=1, save_dir=tmp_path)
    inputs, targets = problem.arguments["val_tensors"]
    expected = r2_score(targets, jax.vmap(model.layer)(inputs)).mean
    assert rows_of(tmp_path, "val")[-1]["values"]["r2"] == pytest.approx(expected, abs=1e-6)


def test_evaluation_in_parts_is_the_same(run, tmp_path):
    """Samples are evaluated a few at a time, the last few being fewer."""
    train(run.problem, epochs=5, save_dir=tmp_path, eval_batch_size=7)
    found, expected = (rows_of(path, "val")[-1]["values"] for path in (tmp_path, run.directory))
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_best_model_is_kept(problem, tmp_path):
    """When a training gets worse, the file has the model from before, and the caller the last one."""
    worse = optax.sgd(lambda step: jnp.where(step < 6, 0.1, -0.3))
    opt_state = worse.init(eqx.filter(problem.model, eqx.is_inexact_array))
    last = train(problem, opt=worse, opt_state=opt_state, epochs=4, log_every=1, save_dir=tmp_path)
    r2 = [row["values"]["r2"] for row in rows_of(tmp_path, "val")]
    assert np.argmax(r2) == 1
    best, state = eqx.tree_deserialise_leaves(tmp_path / "best.eqx", (problem.model, problem.arguments["state"]))
    inputs, targets = problem.arguments["val_tensors"]
    assert r2_score(targets, jax.vmap(best.layer)(inputs)).mean == pytest.approx(r2[1], abs=1e-6)
    assert int(state["num_steps"]) == 6
    assert not same(best, last)


def test_a_nan_is_never_the_best(problem, tmp_path, caplog):
    """It is warned of once, by its step, and nothing is kept."""
    inputs, targets = make_data()
    train(problem, train_loader=[(inputs, targets), (np.full_like(inputs, np.nan), targets)], save_dir=tmp_path)
    assert not (tmp_path / "best.eqx").exists()
    assert caplog.text.count("step 2: the loss is nan") == caplog.text.count("the loss is nan") == 1


def test_a_second_training_takes_the_place_of_the_best_model(run):
    """It is a run of its own, and its model is where the caller asked for."""
    train(run.problem, epochs=1, save_dir=run.directory)
    _, state = eqx.tree_deserialise_leaves(
        run.directory / "best.eqx", (run.problem.model, run.problem.arguments["state"])
    )
    assert int(state["num_steps"]) == 3
    other = run.directory.with_name(f"{run.directory.name}-2")
    assert [row["epoch"] for row in rows_of(other, "val")] == [1]
    assert [row["epoch"] for row in rows_of(run.directory, "val")] == [2, 4, 5]


def test_nothing_is_written_without_save_dir(problem, tmp_path, monkeypatch):
    """The working directory stays as it is."""
    monkeypatch.chdir(tmp_path)
    train(problem)
    assert list(tmp_path.iterdir()) == []


def test_a_stateful_layer_is_trained(tmp_path):
    """The state of an Equinox layer goes through the training and into the file of the best model."""

    class Normed(eqx.Module):
        norm: eqx.nn.BatchNorm
        layer: eqx.nn.Linear

        def __init__(self, key):
            self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")
            self.layer = eqx.nn.Linear(3, 2, key=key)

        def __call__(self, x, state, key):
            x, state = self.norm(x, state)
            return self.layer(x), state

    problem = JaxProblem()
    with jax.numpy_dtype_promotion("standard"):
        model, state = eqx.nn.make_with_state(Normed)(jax.random.PRNGKey(0))
        opt_state = problem.opt.init(eqx.filter(model, eqx.is_inexact_array))
        train(problem, model=model, state=state, opt_state=opt_state, save_dir=tmp_path)
        model, state = eqx.tree_deserialise_leaves(tmp_path / "best.eqx", (model, state))
        predictions, _ = jax.vmap(
            eqx.nn.inference_mode(model), axis_name="batch", in_axes=(0, None, None), out_axes=(0, None)
        )(problem.arguments["val_tensors"][0], state, None)
    best = max(row["values"]["r2"] for row in rows_of(tmp_path, "val"))
    assert r2_score(problem.arguments["val_tensors"][1], predictions).mean == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("make", [jnp.asarray, torch.as_tensor], ids=["jax", "torch"])
def test_arrays_of_any_library(problem, run, make):
    """Batches and data sets of JAX and PyTorch train the same model as those of numpy."""
    batches = [tuple(map(make, batch)) for batch in problem.arguments["train_loader"]]
    data = {name: tuple(map(make, problem.arguments[name])) for name in ("train_tensors", "val_tensors")}
    assert same(train(problem, epochs=5, train_loader=batches, **data), run.model)


def test_a_torch_loader(problem, run):
    """A PyTorch DataLoader is a loader."""
    data = torch.utils.data.TensorDataset(*map(torch.as_tensor, problem.arguments["train_tensors"]))
    assert same(train(problem, epochs=5, train_loader=torch.utils.data.DataLoader(data, batch_size=8)), run.model)


def test_a_loader_that_reuses_its_memory(problem, run):
    """Batches are safe from a loader that fills the same arrays again."""

    class Reusing:
        def __iter__(self):
            buffers = [np.empty_like(part) for part in problem.arguments["train_loader"][0]]
            for batch in problem.arguments["train_loader"]:
                for buffer, part in zip(buffers, batch, strict=True):
                    buffer[:] = part
                yield tuple(buffers)

    assert same(train(problem, epochs=5, train_loader=Reusing()), run.model)


def test_one_compile_for_all_steps(problem):
    """Steps, evaluations and statistics compile in the first epoch and never again."""
    counter, compiled = compile_counter(), []

    class Counting:
        def __iter__(self):
            compiled.append(counter.num_events)
            return iter(problem.arguments["train_loader"])

    train(problem, train_loader=Counting(), epochs=4, log_every=1)
    assert compiled[0] < compiled[1] == compiled[2] == compiled[3]


def test_old_and_new_keys_are_taken(problem):
    """A typed key trains as the plain one of the same seed."""
    assert same(train(problem, key=jax.random.key(0)), train(problem, key=jax.random.PRNGKey(0)))


def test_profiling_changes_nothing(problem):
    """The weights are bit-identical, and no more is compiled."""
    problem = JaxProblem(dropout=0.3)
    assert same(train(problem, enable_profiling=True), train(problem, enable_profiling=False))


def test_the_profile_has_the_operations(problem, fresh_profiler):
    """Each batch and each step is counted once."""
    train(problem, enable_profiling=True)
    summary = fresh_profiler.get_summary()
    counts = {name: summary[name]["count"] for name in ("data_batch_production", "make_step_total", "training_step")}
    assert counts == {"data_batch_production": 12, "make_step_total": 12, "training_step": 12}


def test_a_loader_that_is_timed_already_counts_once(problem, fresh_profiler):
    """Wrapping it by hand and profiling the training do not add up."""
    train(problem, enable_profiling=True, train_loader=profile_data_loader(problem.arguments["train_loader"]))
    assert fresh_profiler.get_summary()["data_batch_production"]["count"] == 12


def test_each_training_is_timed_from_zero(problem, fresh_profiler):
    """What another training of the process took is not part of this one's summary."""
    train(problem, enable_profiling=True)
    train(problem, enable_profiling=True, epochs=1)
    assert fresh_profiler.get_summary()["make_step_total"]["count"] == 3
    assert fresh_profiler.step_count == 3


def logged_steps(output):
    return [int(step) for step in re.findall(r"--- Profiling Metrics \(Step (\d+)\) ---", output)]


@pytest.mark.parametrize(("log_every", "steps"), [(-1, [6, 9]), (3, [3, 6, 9])])
def test_the_profile_is_logged_once_at_a_step(problem, fresh_profiler, monkeypatch, capsys, log_every, steps):
    """With each evaluation, and by the profiler's own cadence; once where both fall on the same step."""
    monkeypatch.setattr(fresh_profiler, "log_every", log_every)
    train(problem, enable_profiling=True, epochs=3)
    assert logged_steps(capsys.readouterr().out) == steps


def test_compiling_is_not_counted_as_a_step(problem, fresh_profiler):
    """Each form of batch compiles once, as a separate operation."""
    counter, compiled = compile_counter(), []
    inputs, targets = problem.arguments["train_tensors"]

    class Ragged:
        def __iter__(self):
            compiled.append(counter.num_events)
            return iter([(inputs[:8], targets[:8]), (inputs[8:12], targets[8:12])])

    train(problem, train_loader=Ragged(), enable_profiling=True)
    assert fresh_profiler.get_summary()["compilation"]["count"] == 2
    assert compiled[2] == compiled[3]


def test_without_profiling_nothing_is_timed(problem, fresh_profiler):
    """The global profiler stays empty."""
    train(problem)
    assert fresh_profiler.get_summary() == {}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"epochs": 0}, ConfigError, "epochs: expected a whole number of epochs, at least 1; got 0"),
        ({"epochs": 1.5}, ConfigError, "epochs: .* got 1.5"),
        ({"log_every": 0}, ConfigError, "log_every: .* got 0"),
        ({"eval_batch_size": 0}, ConfigError, "eval_batch_size: .* got 0"),
        ({"wandb_run_name": 3}, ConfigError, "wandb_run_name: expected a string or None, got 3"),
        ({"filter_spec": lambda leaf: False}, ConfigError, "filter_spec: selects no floating-point array"),
        ({"opt_state": ()}, ConfigError, r"opt_state: .*opt.init\(equinox.filter\(model, filter_spec\)\)"),
        ({"train_loader": []}, DataError, "train_loader: gave no batch at all"),
        ({"train_loader": iter([make_data()])}, DataError, "train_loader: gave no batch in epoch 2"),
        ({"train_loader": 3}, DataError, "train_loader: .*int"),
        ({"train_loader": [(np.zeros((4, 3)), np.zeros((5, 2)))]}, DataError, "train_loader: 4 inputs and 5 targets"),
        ({"val_tensors": (np.zeros((4, 3)), np.zeros((5, 2)))}, DataError, "val_tensors: 4 inputs and 5 targets"),
        ({"train_tensors": None}, DataError, "train_tensors: expected the pair"),
        ({"loss_fn": lambda *args: None}, MetricError, "loss_fn: returned None"),
    ],
)
def test_bad_arguments_are_refused(problem, changes, error, message):
    """The error names the argument and the value."""
    with pytest.raises(error, match=message):
        train(problem, **changes)


def test_predictions_of_another_shape_are_refused_before_training(problem):
    """A loss that broadcasts would train for hours before R² fails."""

    def flat_loss(params, static, state, inputs, targets, key):
        return jnp.sum(params.layer.weight), state

    inputs, targets = problem.arguments["val_tensors"]
    with pytest.raises(DataError, match=r"val_tensors: the model predicts shape \(24, 2\) and .* \(24, 1\)"):
        train(problem, loss_fn=flat_loss, val_tensors=(inputs, targets[:, :1]), train_loader=None)


def test_equinox_that_is_not_installed_is_named(problem, monkeypatch):
    """With the extra that brings it."""

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(trackside.optional.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"train_decoding_jax needs .*trackside\[equinox\]"):
        train(problem)


def test_a_model_without_state(problem):
    """None is a state."""
    assert isinstance(train(problem, state=None), Linear)
