import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.trainer.sharding import (
    ParallelConfig,
    auto_spec,
    batch_axes,
    batch_specs,
    build_mesh,
    num_batch_shards,
    optimizer_specs,
    param_specs,
    to_shardings,
    use_mesh_in_trace,
)


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, np.float32)


@pytest.fixture(scope="module")
def mesh():
    return build_mesh(ParallelConfig(data_axis_size=2, fsdp_axis_size=2, model_axis_size=2))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, (8, 1, 1, 1)),
        ({"fsdp_axis_size": 4}, (2, 4, 1, 1)),
        ({"data_axis_size": 1, "fsdp_axis_size": -1, "model_axis_size": 2}, (1, 4, 1, 2)),
        ({"data_axis_size": 2, "fsdp_axis_size": 2, "model_axis_size": 2}, (2, 2, 1, 2)),
    ],
)
def test_mesh_is_filled_with_all_devices(sizes, expected, caplog):
    """An axis of -1 takes what the others leave; the mesh has all four axes and every device once."""
    mesh = build_mesh(ParallelConfig(**sizes))
    assert tuple(mesh.shape.items()) == tuple(zip(("dp", "fsdp", "pp", "tp"), expected, strict=True))
    assert set(mesh.devices.flat) == set(jax.devices())
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data_axis_size": 4, "fsdp_axis_size": 4}, "need 16 devices, and there are 8"),
        ({"fsdp_axis_size": 3}, "do not divide the 8 devices"),
        ({"fsdp_axis_size": 16}, "do not divide the 8 devices"),
    ],
)
def test_mesh_that_does_not_fit_is_refused(sizes, message):
    """Axes that need more devices than there are, or that leave a remainder, are an error with both numbers."""
    with pytest.raises(ConfigError, match=f"mesh: axes .*'fsdp'.* {message}"):
        build_mesh(ParallelConfig(**sizes))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp_axis_size": -1}, r"only one axis may be -1, got \{'dp': -1, 'fsdp': -1"),
        ({"pipeline_axis_size": 2}, "pipeline_axis_size: pipeline parallelism is not supported yet, got 2"),
        ({"model_axis_size": 0}, "axis 'tp': .*got 0"),
        ({"data_axis_size": -2}, "axis 'dp': .*got -2"),
    ],
)
def test_impossible_axes_are_refused_by_name(sizes, message):
    """Axis sizes that no number of devices can satisfy are refused when the config is made."""
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**sizes)


def test_mesh_over_a_part_of_the_devices_warns(caplog):
    """A mesh that leaves devices idle works, and the log says how many it uses."""
    with caplog.at_level(logging.WARNING):
        mesh = build_mesh(ParallelConfig(data_axis_size=2, model_axis_size=2))
    assert mesh.size == 4
    assert "uses 4 of 8 devices" in caplog.text


def test_own_mesh_is_rebuilt_with_auto_axes():
    """A user's mesh keeps its devices and names; its axes become Auto, so that an ordinary step compiles on it."""
    own = jax.make_mesh((4, 2), ("dp", "model"), axis_types=(AxisType.Explicit,) * 2)
    mesh = build_mesh(ParallelConfig(), own)
    assert (mesh.axis_names, mesh.axis_types) == (("dp", "model"), (AxisType.Auto, AxisType.Auto))
    assert np.array_equal(mesh.devices, own.devices)
    assert (batch_axes(mesh), num_batch_shards(mesh)) == (("dp",), 4)


def test_own_mesh_needs_an_axis_for_the_batch():
    """A mesh over which no batch can be split is refused with its axes."""
    with pytest.raises(ConfigError, match=r"at least one of the axes \('dp', 'fsdp'\), got \('x',\)"):
        build_mesh(ParallelConfig(), Mesh(np.array(jax.devices()), ("x",)))


def test_rules_round_trip_and_take_several_axes():
    """Logical axis rules survive the config's dict form, and a list of mesh axes becomes a tuple for Flax."""
    config = ParallelConfig(logical_axis_rules={"embed": ["dp", "fsdp"], "mlp": "tp", "heads": None})
    assert ConfigDict.from_dict(ParallelConfig, config.to_dict()) == config
    assert config.rules == (("embed", ("dp", "fsdp")), ("mlp", "tp"), ("heads", None))


def test_batch_leaves_are_split_along_their_first_dimension(mesh):
    """Arrays and shapes of a batch are split over `dp` and `fsdp` together; scalars are not."""
    specs = batch_specs(mesh, {"x": shape(8, 3), "y": np.zeros(8), "scale": 1.0})
    split = PartitionSpec(("dp", "fsdp"))
    assert specs == {"x": split, "y": split, "scale": PartitionSpec()}


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((16, 8), PartitionSpec("fsdp", None)),
        ((8, 16), PartitionSpec(None, "fsdp")),
        ((16, 16), PartitionSpec("fsdp", None)),
        ((33, 8), PartitionSpec(None, "fsdp")),
        ((33, 9), PartitionSpec()),
        ((4, 4), PartitionSpec()),
        ((64,), PartitionSpec("fsdp")),
        ((), PartitionSpec()),
    ],
)
def test_automatic_rule(dims, expected, mesh):
    """Arrays that are large enough are split over `fsdp` along the longest dimension that divides, others are whole."""
    assert auto_spec(mesh, dims, min_weight_size=32) == expected


def test_automatic_rule_without_fsdp():
    """Without devices along `fsdp`, or without such an axis, every parameter is whole."""
    for mesh in (build_mesh(ParallelConfig()), Mesh(np.array(jax.devices()), ("dp",))):
        assert auto_spec(mesh, (64, 64), min_weight_size=0) == PartitionSpec()


def test_wishes_of_the_model_come_first(mesh):
    """A parameter with a spec of its own has it, whatever its size; the rest follows the automatic rule."""
    params = {"a": shape(4, 2), "b": shape(16, 8)}
    specs = param_specs(mesh, params, {"a": PartitionSpec(None, "tp"), "b": None}, min_weight_size=32)
    assert specs == {"a": PartitionSpec(None, "tp"), "b": PartitionSpec("fsdp", None)}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PartitionSpec("embed"), "parameter dense/kernel: .*axis 'embed', the mesh has .*logical_axis_rules"),
        (PartitionSpec(None, ("fsdp", "heads")), "parameter dense/kernel: .*axis 'heads'"),
        (PartitionSpec(None, "tp"), r"parameter dense/kernel: dimension 9 of shape \(8, 9\) .*over 2 devices"),
        (PartitionSpec(None, ("fsdp", "tp")), r"dimension 9 of shape \(8, 9\) .*4 devices along \('fsdp', 'tp'\)"),
        (PartitionSpec(None, None, "tp"), r"parameter dense/kernel: .*3 dimensions, its shape is \(8, 9\)"),
    ],
)
def test_wishes_that_cannot_be_met_name_the_parameter(spec, message, mesh):
    """Metadata with an unknown axis, an indivisible or a surplus dimension is an error with the parameter's path."""
    with pytest.raises(ConfigError, match=message):
        param_specs(mesh, {"dense": {"kernel": shape(8, 9)}}, {"dense": {"kernel": spec}}, 0)


# Every parameter has a shape of its own, so that the shape tells which one a part of the optimizer's state belongs to.
PARAMS = {"dense": {"kernel": shape(16, 8), "bias": shape(6)}, "head": {"kernel": shape(8, 24)}}
SPECS = {
    "dense": {"kernel": PartitionSpec("tp", "fsdp"), "bias": PartitionSpec("tp")},
    "head": {"kernel": PartitionSpec(None, ("fsdp", "tp"))},
}
SPEC_OF_SHAPE = {PARAMS[layer][name].shape: spec for layer, specs in SPECS.items() for name, spec in specs.items()}


def label(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: "slow" if "head" in str(path) else "fast", params)


OPTIMIZERS = {
    "adamw": (optax.adamw(1e-3), 6),
    "adafactor": (optax.adafactor(1e-3), 3),
    "lion": (optax.lion(1e-3), 3),
    "multi_transform": (optax.multi_transform({"fast": optax.adam(1e-3), "slow": optax.sgd(1e-3, 0.9)}, label), 5),
    "inject_hyperparams": (optax.inject_hyperparams(optax.adamw)(learning_rate=optax.constant_schedule(1e-3)), 6),
    "MultiSteps": (optax.MultiSteps(optax.adam(1e-3), 2), 9),
    "chain": (optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.ema(0.9)), 9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_lies_as_its_parameter(name, mesh):
    """Every moment of every optimizer has the spec of the parameter that it belongs to; counters are whole."""
    tx, num_moments = OPTIMIZERS[name]
    state = jax.eval_shape(tx.init, PARAMS)
    specs = optimizer_specs(mesh, state, PARAMS, SPECS, min_weight_size=0)
    leaves = jax.tree.leaves(state)
    found = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    moments = [(leaf.shape, spec) for leaf, spec in zip(leaves, found, strict=True) if leaf.shape in SPEC_OF_SHAPE]
    assert len(moments) == num_moments
    assert all(spec == SPEC_OF_SHAPE[shape] for shape, spec in moments)
    others = [spec for leaf, spec in zip(leaves, found, strict=True) if leaf.shape not in SPEC_OF_SHAPE]
    assert all(spec == PartitionSpec() for spec in others)


def test_parameters_of_one_shape_are_told_apart_by_path(mesh):
    """Two parameters of equal name and shape in different layers keep their own specs in the optimizer's state."""
    params = {"a": {"kernel": shape(8, 8)}, "b": {"a": {"kernel": shape(8, 8)}}, "kernel": shape(8, 8)}
    wanted = {
        "a": {"kernel": PartitionSpec("fsdp", None)},
        "b": {"a": {"kernel": PartitionSpec(None, "tp")}},
        "kernel": PartitionSpec("tp", "fsdp"),
    }
    state: Any = jax.eval_shape(optax.scale_by_adam().init, params)
    specs = optimizer_specs(mesh, state, params, wanted, min_weight_size=0)
    assert (specs.mu, specs.nu) == (wanted, wanted)


def test_factored_moments_follow_the_automatic_rule(mesh):
    """State of another shape than its parameter, such as adafactor's rows and columns, cannot have its spec."""
    tx = optax.scale_by_factored_rms(min_dim_size_to_factor=4)
    state: Any = jax.eval_shape(tx.init, {"kernel": shape(16, 8)})
    specs = optimizer_specs(mesh, state, {"kernel": shape(16, 8)}, {"kernel": PartitionSpec("tp", None)}, 16)
    assert {state.v_row["kernel"].shape, state.v_col["kernel"].shape} == {(16,), (8,)}
    by_shape = {(16,): PartitionSpec("fsdp"), (8,): PartitionSpec()}
    assert specs.v_row["kernel"] == by_shape[state.v_row["kernel"].shape]
    assert specs.v_col["kernel"] == by_shape[state.v_col["kernel"].shape]


def test_parameters_that_are_one_array(mesh):
    """Parameters may be a bare array, and its moments still lie as it does."""
    state: Any = jax.eval_shape(optax.scale_by_adam().init, shape(8, 4))
    specs = optimizer_specs(mesh, state, shape(8, 4), PartitionSpec(None, "tp"), min_weight_size=0)
    assert (specs.count, specs.mu) == (PartitionSpec(), PartitionSpec(None, "tp"))


def test_constraints_in_a_trace_may_name_axes(mesh):
    """Inside a traced function, a sharding constraint by axis name refers to the trainer's mesh."""

    def constrained(x):
        with use_mesh_in_trace(mesh):
            return jax.lax.with_sharding_constraint(x * 2, PartitionSpec(None, "tp"))

    shardings = to_shardings(mesh, PartitionSpec())
    y = jax.jit(constrained, in_shardings=shardings)(jnp.ones((4, 6)))
    assert {shard.data.shape for shard in y.addressable_shards} == {(4, 3)}


def test_parameters_are_split_by_their_paths():
    """Patterns split parameters of which the model says nothing; the first that matches counts, metadata before it."""
    mesh = build_mesh(ParallelConfig(data_axis_size=2, model_axis_size=4))
    params = {"up": {"kernel": shape(8, 8), "bias": shape(8)}, "down": {"kernel": shape(8, 8)}}
    asked = {"up": {"kernel": PartitionSpec(), "bias": None}, "down": {"kernel": None}}
    specs = param_specs(mesh, params, asked, 64, {"kernel": ["tp", None], "down|bias": ["tp"]})
    assert specs == {
        "up": {"kernel": PartitionSpec(), "bias": PartitionSpec("tp")},
        "down": {"kernel": PartitionSpec("tp", None)},
    }


def test_pattern_that_matches_no_parameter_is_warned_of():
    """A misspelled pattern is named with the first of the paths."""
    mesh = build_mesh(ParallelConfig(data_axis_size=2, model_axis_size=4))
    with pytest.warns(UserWarning, match=r"param_axes: 'kernle' matches none.*'up/kernel'"):
        param_specs(mesh, {"up": {"kernel": shape(8, 8)}}, {"up": {"kernel": None}}, 64, {"kernle": ["tp", None]})
