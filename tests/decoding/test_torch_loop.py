import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_model

import trackside.optional
from tests.decoding.problem import TorchProblem, make_data
from trackside.decoding import r2_score, train_decoding_torch
from trackside.errors import ConfigError, DataError, MetricError, MissingExtraError


def train(problem, **changes):
    return train_decoding_torch(**problem.arguments | changes)


def rows_of(run, mode):
    lines = [json.loads(line) for line in (run / "events-00000.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "metrics" and line["mode"] == mode]


def weights(model):
    return [param.detach().numpy().copy() for param in model.parameters()]


def same(a, b):
    return all(np.array_equal(*pair) for pair in zip(weights(a), weights(b), strict=True))


@pytest.fixture
def problem():
    return TorchProblem()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training that kept everything: its directory, its problem and the model that came out of it."""
    directory, problem = tmp_path_factory.mktemp("run"), TorchProblem()
    model = train(problem, num_epochs=5, log_every=2, save_dir=directory)
    return types.SimpleNamespace(directory=directory, problem=problem, model=model)


def test_it_is_the_usual_loop(problem):
    """The weights are bit for bit those of a hand-written loop."""
    by_hand = TorchProblem()
    optimizer = by_hand.arguments["optimizer"]
    for _ in range(4):
        for inputs, targets in by_hand.arguments["train_loader"]:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(by_hand.model(torch.as_tensor(inputs)), torch.as_tensor(targets)).backward()
            optimizer.step()
    assert same(train(problem), by_hand.model)


def test_the_model_given_comes_back(problem):
    """It is trained in place, and left in the mode in which it was."""
    problem.model.eval()
    assert train(problem) is problem.model
    assert not problem.model.training


def test_evaluates_every_so_many_epochs_and_after_the_last(run):
    """With five epochs and a cadence of two, after 2, 4 and 5, counted in steps of three a piece."""
    assert [(row["epoch"], row["step"]) for row in rows_of(run.directory, "val")] == [(2, 6), (4, 12), (5, 15)]


def test_r2_is_that_of_the_model_on_the_data(run):
    """Per output and in the mean, targets first, of the model as it was returned."""
    inputs, targets = run.problem.arguments["val_tensors"]
    with torch.no_grad():
        predictions = run.model(torch.as_tensor(inputs)).numpy()
    expected = r2_score(targets, predictions)
    values = rows_of(run.directory, "val")[-1]["values"]
    assert values["r2"] == pytest.approx(expected.mean, abs=1e-6)
    assert [values["r2.0"], values["r2.1"]] == pytest.approx(expected.per_output.tolist(), abs=1e-6)
    assert values["loss"] == pytest.approx(np.mean((predictions - targets) ** 2), rel=1e-5)


def test_statistics_of_parameters_and_gradients(run):
    """Each array by its name; the gradients are those of the last step."""
    params, grads = (rows_of(run.directory, mode)[-1]["values"] for mode in ("params", "grads"))
    assert params["weight.norm"] == pytest.approx(float(run.model.weight.detach().norm()), rel=1e-5)
    assert grads["bias.max_abs"] == pytest.approx(float(run.model.bias.grad.abs().max()), rel=1e-5)


def test_evaluation_is_without_dropout(problem, tmp_path):
    """The model is in evaluation mode for it, and in training mode for the next epoch."""
    model = torch.nn.Sequential(problem.model, torch.nn.Dropout(0.9))
    train(problem, model=model, num_epochs=1, save_dir=tmp_path)
    inputs, targets = problem.arguments["val_tensors"]
    with torch.no_grad():
        expected = r2_score(targets, problem.model(torch.as_tensor(inputs)).numpy()).mean
    assert rows_of(tmp_path, "val")[-1]["values"]["r2"] == pytest.approx(expected, abs=1e-6)


def test_the_best_model_is_kept(problem, tmp_path):
    """When a training gets worse, the file has the model from before."""
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)

    class TurnsBad:
        num_epochs = 0

        def __iter__(self):
            self.num_epochs += 1
            optimizer.param_groups[0]["lr"] = 0.1 if self.num_epochs <= 2 else -0.3
            return iter(problem.arguments["train_loader"])

    train(problem, train_loader=TurnsBad(), optimizer=optimizer, num_epochs=4, log_every=1, save_dir=tmp_path)
    r2 = [row["values"]["r2"] for row in rows_of(tmp_path, "val")]
    assert np.argmax(r2) == 1
    best = torch.nn.Linear(3, 2)
    load_model(best, tmp_path / "best.safetensors")
    inputs, targets = problem.arguments["val_tensors"]
    with torch.no_grad():
        assert r2_score(targets, best(torch.as_tensor(inputs)).numpy()).mean == pytest.approx(r2[1], abs=1e-6)


def test_a_nan_is_never_the_best(problem, tmp_path, caplog):
    """It is warned of once, and nothing is kept."""
    inputs, targets = make_data()
    train(problem, train_loader=[(np.full_like(inputs, np.nan), targets)], save_dir=tmp_path)
    assert not (tmp_path / "best.safetensors").exists()
    assert caplog.text.count("the loss is nan") == 1


@pytest.mark.parametrize("make", [jnp.asarray, torch.as_tensor], ids=["jax", "torch"])
def test_arrays_of_any_library(problem, run, make):
    """Batches and data sets of JAX and PyTorch train the same model as those of numpy."""
    batches = [tuple(map(make, batch)) for batch in problem.arguments["train_loader"]]
    data = {name: tuple(map(make, problem.arguments[name])) for name in ("train_tensors", "val_tensors")}
    assert same(train(problem, num_epochs=5, train_loader=batches, **data), run.model)


def test_doubles_are_given_in_the_type_of_the_model(problem):
    """Arrays of numpy's default type train a model of PyTorch's."""
    batches = [tuple(part.astype(np.float64) for part in batch) for batch in problem.arguments["train_loader"]]
    assert train(problem, train_loader=batches).weight.dtype == torch.float32


def test_evaluation_in_parts_is_the_same(problem, run, tmp_path):
    """Samples are evaluated a few at a time, the last few being fewer."""
    train(problem, num_epochs=5, save_dir=tmp_path, eval_batch_size=7)
    found, expected = (rows_of(path, "val")[-1]["values"] for path in (tmp_path, run.directory))
    assert found == pytest.approx(expected, rel=1e-5)


def test_profiling_changes_nothing(problem):
    """The weights are bit-identical."""
    assert same(train(problem, enable_profiling=True), train(TorchProblem(), enable_profiling=False))


def test_the_profile_has_the_operations(problem, fresh_profiler):
    """Each batch and each part of a step is counted once."""
    train(problem, enable_profiling=True)
    parts = ["training_step", "loss_fn_computation", "forward", "backward", "optimizer_step"]
    summary = fresh_profiler.get_summary()
    assert {name: entry["count"] for name, entry in summary.items()} == dict.fromkeys(
        ["data_batch_production", *parts], 12
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_epochs": 0}, ConfigError, "num_epochs: expected a whole number of epochs, at least 1; got 0"),
        ({"log_every": 0}, ConfigError, "log_every: .* got 0"),
        ({"model": print}, ConfigError, "model: expected a torch.nn.Module"),
        ({"device": "gpu"}, ConfigError, "device: 'gpu' cannot be used"),
        ({"train_loader": []}, DataError, "train_loader: gave no batch at all"),
        ({"train_loader": iter([make_data()])}, DataError, "train_loader: gave no batch in epoch 2"),
        ({"val_tensors": (np.zeros((4, 3)), np.zeros((5, 2)))}, DataError, "val_tensors: 4 inputs and 5 targets"),
        ({"loss_fn": torch.nn.MSELoss(reduction="none")}, MetricError, r"loss_fn: its value has shape \(8, 2\)"),
        ({"loss_fn": lambda predictions, targets: 1.0}, MetricError, "loss_fn: .*got a float"),
        (
            {"train_loader": [(np.zeros((4, 3)), np.zeros((4, 1)))]},
            DataError,
            r"train_loader: the model predicts shape \(4, 2\) and the targets have shape \(4, 1\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_bad_arguments_are_refused(problem, changes, error, message):
    """The error names the argument and the value."""
    with pytest.raises(error, match=message):
        train(problem, **changes)


def test_torch_that_is_not_installed_is_named(problem, monkeypatch):
    """With the extra that brings it."""

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(trackside.optional.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"train_decoding_torch needs .*trackside\[torch\]"):
        train(problem)
