import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.decoding.problem import JaxProblem, Linear
from trackside.decoding import mse_loss, train_decoding_jax
from trackside.errors import ConfigError
from trackside.profiling.compiles import compile_counter
from trackside.runs import open_run


def train(problem, **changes):
    return train_decoding_jax(**{"loss_fn": mse_loss} | problem.arguments | changes)


@pytest.fixture
def problem():
    return JaxProblem()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A profiled training of sixty steps, as the reader of runs sees it."""
    directory = tmp_path_factory.mktemp("runs") / "decoding"
    train(JaxProblem(), epochs=20, log_every=10, enable_profiling=True, save_dir=directory)
    return open_run(directory)


def test_it_is_a_run_as_any_other(run):
    """The reader finds how it ended, where its time went and how long its steps took."""
    assert run.status == "success"
    assert run.ledger is not None
    assert run.ledger.num_steps == 60
    assert len(run.step_times.seconds) == 1


def test_training_and_evaluation_have_names_of_their_own(run):
    """The loss during training is one metric, that of evaluations another."""
    assert np.isfinite(run.metrics["train_epoch"]["epoch_loss_mean"]).sum() == 20
    assert "loss" not in run.metrics["train_epoch"]
    assert np.isfinite(run.metrics["train"]["loss"]).sum() == len(run.metrics["val"]["loss"]) == 2


def test_only_what_the_filter_selects_is_trained(problem):
    """A frozen leaf comes back as it was, and the optimizer has no state for it."""
    spec = eqx.tree_at(lambda tree: tree.layer.bias, jax.tree.map(eqx.is_inexact_array, problem.model), replace=False)
    opt_state = problem.opt.init(eqx.filter(problem.model, spec))
    model = train(problem, filter_spec=spec, opt_state=opt_state)
    assert np.array_equal(model.layer.bias, problem.model.layer.bias)
    assert not np.array_equal(model.layer.weight, problem.model.layer.weight)


def test_an_optimizer_that_knows_the_form_of_the_model(problem):
    """Its masks and labels are those of the user's model, not of what crosses jit."""

    def without_bias(params):
        return eqx.tree_at(lambda tree: tree.layer.bias, jax.tree.map(lambda leaf: True, params), replace=False)

    opt = optax.chain(optax.masked(optax.add_decayed_weights(0.1), without_bias), problem.opt)
    opt_state = opt.init(eqx.filter(problem.model, eqx.is_inexact_array))
    assert isinstance(train(problem, opt=opt, opt_state=opt_state), Linear)


def test_a_key_of_another_kind(problem):
    """The generator of the key given is the one that is used."""
    problem = JaxProblem(dropout=0.3)
    rbg, again = (train(problem, key=jax.random.key(0, impl="rbg")) for _ in range(2))
    assert np.array_equal(rbg.layer.weight, again.layer.weight)
    assert not np.array_equal(rbg.layer.weight, train(problem).layer.weight)


def test_a_state_made_of_python_numbers_compiles_once(problem):
    """Arrays that came from them have no type of their own until the first step."""
    counter, compiled = compile_counter(), []

    class Counting:
        def __iter__(self):
            compiled.append(counter.num_events)
            return iter(problem.arguments["train_loader"])

    train(problem, state={"num_steps": jnp.asarray(0)}, train_loader=Counting(), epochs=3, log_every=1)
    assert compiled[1] == compiled[2]


def test_a_state_that_changes_its_form_is_refused(problem):
    """The error shows both."""

    def loss(params, static, state, inputs, targets, key):
        return jnp.sum(params.layer.weight**2), {"steps": state["num_steps"]}

    with pytest.raises(ConfigError, match=r"changed the structure of the model's state .*num_steps.*steps"):
        train(problem, loss_fn=loss)


def test_a_model_on_several_devices_is_refused(problem):
    """The error names the trainer that can."""
    mesh = jax.make_mesh((2,), ("dp",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays, static = eqx.partition(problem.model, eqx.is_array)
    with pytest.raises(ConfigError, match=r"model: its arrays are on 2 devices.*trackside.trainer.Trainer"):
        train(problem, model=eqx.combine(jax.device_put(arrays, sharding), static))


def test_a_model_trains_where_it_is(problem):
    """On a device other than the first, if its arrays are there."""
    device = jax.devices()[1]
    placed = jax.tree.map(
        lambda leaf: jax.device_put(leaf, device) if eqx.is_array(leaf) else leaf,
        problem.arguments | {"train_loader": None, "key": None},
    )
    loader = problem.arguments["train_loader"]
    model = train(problem, **placed | {"train_loader": loader, "key": jax.random.PRNGKey(0)})
    assert model.layer.weight.devices() == {device}
