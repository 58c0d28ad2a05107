import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from trackside.trace.scopes import PHASES, OpName, parse_op_name

pytestmark = pytest.mark.usefixtures("no_compile_cache")


@pytest.mark.parametrize(
    ("op_name", "scope", "phase", "primitive"),
    [
        # Linen: the module's path, through value_and_grad.
        ("jit(train_call)/jvp(loss)/Net/Dense_0/dot_general", "loss/Net/Dense_0", "forward", "dot_general"),
        ("jit(step)/transpose(jvp(loss))/Net/Dense_0/transpose", "loss/Net/Dense_0", "backward", "transpose"),
        ("jit(step)/jvp(loss)/reduce_sum", "loss", "forward", "reduce_sum"),
        # Transformations around one name, and around none.
        (
            "jit(step)/transpose(jvp(forward))/vmap(block3)/mlp/dot_general",
            "forward/block3/mlp",
            "backward",
            "dot_general",
        ),
        ("jit(step)/vmap(transpose(jvp(loss)))/mlp/mul", "loss/mlp", "backward", "mul"),
        ("jit(step)/jvp(transpose(jvp(forward)))/mul", "forward", "backward", "mul"),
        ("jit(step)/jvp()/dot_general", "", "forward", "dot_general"),
        ("jit(step)/transpose(jvp())/cond", "", "backward", "cond"),
        # The name of a calling function, which some operations of random numbers carry, is no scope.
        ("jit(train_call)/jit(_threefry_fold_in)/build.<locals>.train_step/while/body/xor", "", "other", "xor"),
        # Scans, loops and branches.
        (
            "jit(step)/jvp(loss)/Net/while/body/closed_call/layers/block/up/dot_general",
            "loss/Net/layers/block/up",
            "forward",
            "dot_general",
        ),
        ("jit(step)/jvp(stack)/while/cond/lt", "stack", "forward", "lt"),
        ("jit(step)/transpose(jvp(stack))/while", "stack", "backward", "while"),
        ("jit(step)/while/body/closed_call/jvp(layer)/mlp/dot_general", "layer/mlp", "forward", "dot_general"),
        ("jit(step)/jvp(choice)/cond/branch_1_fun/layer/mlp/exp", "choice/layer/mlp", "forward", "exp"),
        ("jit(step)/jvp(choice)/cond/branch_12_fun/sin", "choice", "forward", "sin"),
        # Rematerialisation, which tells the path twice.
        (
            "jit(step)/transpose(jvp(stack))/while/body/closed_call/checkpoint/rematted_computation/layer/mlp/dot_general",
            "stack/layer/mlp",
            "recompute",
            "dot_general",
        ),
        ("jit(step)/transpose(jvp(stack))/while/body/closed_call/remat2", "stack", "backward", "remat2"),
        (
            "jit(step)/transpose(jvp(loss))/Net/jvp(loss)/Net/checkpoint/rematted_computation/rblock/up/dot_general",
            "loss/Net/rblock/up",
            "recompute",
            "dot_general",
        ),
        (
            "jit(step)/transpose(jvp(loss))/Net/jvp(loss)/Net/checkpoint/rblock/up/dot_general",
            "loss/Net/rblock/up",
            "backward",
            "dot_general",
        ),
        (
            "jit(f)/step/transpose(jvp(loss))/second/step/jvp(loss)/second/checkpoint/layer/dot_general",
            "step/loss/second/layer",
            "backward",
            "dot_general",
        ),
        (
            "jit(f)/transpose(jvp(n1))/jvp(n1)/checkpoint/vmap()/checkpoint/rematted_computation/layer/mlp/neg",
            "n1/layer/mlp",
            "recompute",
            "neg",
        ),
        ("jit(f)/vmap(transpose(jvp(loss)))/vmap(jvp(loss))/checkpoint/layer/mul", "loss/layer", "backward", "mul"),
        # A gradient inside of a backward rule is no repetition.
        ("jit(f)/transpose(jvp(outer))/jvp(inner)/mul", "outer/inner", "backward", "mul"),
        # Devices, custom rules, functions jitted on their own.
        ("jit(f)/jvp(sharded)/shard_map/layer/mlp/dot_general", "sharded/layer/mlp", "forward", "dot_general"),
        ("jit(f)/jvp(outer)/custom_vjp_call/cvfn/dot_general", "outer/cvfn", "forward", "dot_general"),
        ("jit(f)/jvp(a)/jit(inner)/layer/mlp/dot_general", "a/layer/mlp", "forward", "dot_general"),
        ("jit(f)/jvp(a)/pjit(inner)/layer/add", "a/layer", "forward", "add"),
        # The trainer's own scopes.
        ("jit(train_call)/while/body/update/jit(_where)/select_n", "update", "optimizer", "select_n"),
        ("jit(train_call)/metrics/mul", "metrics", "other", "mul"),
        ("jit(train_call)/shard_map/gradient_sync/psum", "gradient_sync", "other", "psum"),
        ("jit(step)/train/optimizer/mul", "train/optimizer", "optimizer", "mul"),
        ("jit(step)/update/transpose(jvp(line_search))/mul", "update/line_search", "optimizer", "mul"),
        ("jit(step)/jvp(loss)/graph/update/add", "loss/graph/update", "forward", "add"),
        ("jit(step)/graph/update/add", "graph/update", "other", "add"),
        ("jit(eval_step)/loss/Net/add", "loss/Net", "forward", "add"),
        ("jit(eval_step)/Net/add", "Net", "other", "add"),
        # Scopes that are hard to read.
        ("jit(f)/transpose(jvp(weird name (v2)))/a/b/add_any", "weird name (v2)/a/b", "backward", "add_any"),
        ("jit(f)/jvp(jvp)/cos", "jvp", "forward", "cos"),
        ("jit(f)/jvp(a/b)/cos", "a/b", "forward", "cos"),
        ("jit(f)/cond/body/while/cos", "cond/body/while", "other", "cos"),
        # What is no path.
        ("", "", "other", ""),
        ("reduce_sum", "", "other", "reduce_sum"),
        ("p['params']['Dense_0']['a/b']", "", "other", "p['params']['Dense_0']['a/b']"),
        ("jit(f)/unbalanced(/x/mul", "", "other", "unbalanced(/x/mul"),
    ],
)
def test_a_name_is_taken_apart(op_name, scope, phase, primitive):
    """Scope, phase and primitive of the forms that JAX writes."""
    parsed = parse_op_name(op_name)
    assert ("/".join(parsed.scope), parsed.phase, parsed.primitive) == (scope, phase, primitive)


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("jit(f)/jvp(a)/jit(silu)/exp", OpName(("a",), "forward", "exp", ("f", "silu"))),
        ("jit(f)/transpose(jvp(jit(silu)))/mul", OpName((), "backward", "mul", ("f", "silu"))),
        ("jit(f)/jvp(a)/jit(silu)", OpName(("a",), "forward", "jit", ("f", "silu"))),
        ("jit(f)/jvp(jit(silu))", OpName((), "forward", "jit", ("f", "silu"))),
        ("jit(<lambda>)/jvp(a)/jit(clip)/max", OpName(("a",), "forward", "max", ("<lambda>", "clip"))),
    ],
)
def test_jitted_functions_are_kept_out_of_the_scope_but_not_lost(op_name, expected):
    """A function that `jax.numpy` jits is no scope of the user's; it is listed beside it."""
    assert parse_op_name(op_name) == expected


def test_the_first_of_joined_names_counts():
    """Names joined by the compiler: the later ones may have lost their beginning."""
    joined = "jit(f)/steps/while/body/closed_call/transpose(jvp(loss))/mul;transpose(jvp(loss))/broadcast_in_dim"
    assert parse_op_name(joined)[:3] == (("steps", "loss"), "backward", "mul")


# Real programs. What JAX writes must keep the form that is read here.


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return x + nn.Dense(4, name="down")(nn.silu(nn.Dense(8, name="up")(x))), None


class LinenNet(nn.Module):
    """A plain layer, a rematerialised block and a scan over rematerialised blocks."""

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Dense(4)(x))
        x, _ = nn.remat(Block)(name="single")(x)
        stack = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = stack(name="stack")(x, None)
        return nn.Dense(1, name="head")(x)


def linen_program(x):
    net = LinenNet()
    params = jax.eval_shape(net.init, jax.random.key(0), x)

    def loss(params, x):
        with jax.named_scope("loss"):
            return (net.apply(params, x) ** 2).mean()

    return with_update(loss), params


def nnx_program(x):
    class Net(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
            self.second = nnx.Linear(8, 4, rngs=nnx.Rngs(1))

        def __call__(self, x):
            with jax.named_scope("first"):
                x = nnx.remat(lambda layer, x: nnx.silu(layer(x)))(self.first, x)
            with jax.named_scope("second"):
                return self.second(x)

    graph, params = nnx.split(Net())

    def loss(params, x):
        with jax.named_scope("loss"):
            return (nnx.merge(graph, params)(x) ** 2).mean()

    return with_update(loss), params


def function_program(x):
    """Scan, cond, vmap, a nested jit and a custom rule, with and without rematerialisation."""
    params = {"w": np.full((4, 4), 0.1, np.float32)}

    @jax.custom_vjp
    def tanh_layer(w, x):
        with jax.named_scope("custom"):
            return jnp.tanh(x @ w)

    def tanh_backward(saved, grad):
        w, x, y = saved
        with jax.named_scope("custom"):
            grad = grad * (1 - y * y)
            return x.T @ grad, grad @ w.T

    tanh_layer.defvjp(lambda w, x: ((y := tanh_layer(w, x)), (w, x, y)), tanh_backward)

    def layer(w, x):
        with jax.named_scope("layer"):
            return jax.nn.silu(x @ w)

    def loss(params, x):
        w = params["w"]
        with jax.named_scope("looped"):
            x, _ = jax.lax.scan(jax.checkpoint(lambda x, _: (layer(w, x), None)), x, None, length=3)
        with jax.named_scope("branched"):
            x = jax.lax.cond(x.sum() > 0, partial(layer, w), lambda x: x * 2, x)
        with jax.named_scope("mapped"):
            x = jax.checkpoint(jax.vmap(jax.checkpoint(partial(layer, w))))(x)
        with jax.named_scope("called"):
            x = jax.jit(layer)(w, x)
        with jax.named_scope("ruled"):
            return tanh_layer(w, x).sum()

    return with_update(loss), params


def accumulating_program(x):
    """The gradient of microbatches in a scan, all of it under a scope of the user's."""
    params = {"w": np.full((4, 4), 0.1, np.float32)}

    def loss(params, x):
        with jax.named_scope("loss"):
            return (jax.checkpoint(lambda x: jax.nn.silu(x @ params["w"]))(x) ** 2).mean()

    def gradient(params, x):
        def add(total, part):
            value, grads = jax.value_and_grad(loss)(params, part)
            return jax.tree.map(jnp.add, total, grads), value

        with jax.named_scope("microbatches"):
            grads, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), x.reshape(2, -1, 4))
        return values.sum(), grads

    return with_update(gradient, is_gradient=True), params


def sharded_program(x):
    params = {"w": np.full((4, 4), 0.1, np.float32)}
    mesh = jax.make_mesh((2,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    batch, whole = PartitionSpec("dp"), PartitionSpec()

    @partial(jax.shard_map, mesh=mesh, in_specs=(whole, batch), out_specs=whole, check_vma=False)
    def gradient(params, x):
        def loss(params):
            with jax.named_scope("loss"):
                return (jax.checkpoint(lambda x: jax.nn.silu(x @ params["w"]))(x) ** 2).sum()

        value, grads = jax.value_and_grad(loss)(params)
        with jax.named_scope("gradient_sync"):
            return jax.lax.pmean((value, grads), "dp")

    return with_update(gradient, is_gradient=True), params


def with_update(loss, is_gradient=False):
    gradient = loss if is_gradient else jax.value_and_grad(loss)
    optimizer = optax.adam(1e-3)

    def step(params, x):
        value, grads = gradient(params, x)
        with jax.named_scope("update"):
            updates, _ = optimizer.update(grads, optimizer.init(params))
            params = optax.apply_updates(params, updates)
        with jax.named_scope("metrics"):
            return params, jnp.sqrt(value)

    return step


PROGRAMS = {
    "linen": linen_program,
    "nnx": nnx_program,
    "function": function_program,
    "accumulating": accumulating_program,
    "sharded": sharded_program,
}


@pytest.fixture(scope="module", params=PROGRAMS)
def operations(request):
    """What the operations of a compiled training step say of themselves, by phase."""
    x = np.ones((4, 4), np.float32)
    with jax.numpy_dtype_promotion("standard"):
        step, params = PROGRAMS[request.param](x)
        text = jax.jit(step).lower(params, x).compile().as_text()
    by_phase = {phase: set() for phase in PHASES}
    for op_name in set(re.findall(r'op_name="(jit[^"]*)"', text)):
        parsed = parse_op_name(op_name)
        by_phase[parsed.phase].add(parsed)
    return by_phase


def scopes_of(operations):
    return {operation.scope for operation in operations}


@pytest.mark.parametrize("phase", ["backward", "recompute"])
def test_a_layer_has_one_scope_path_in_all_phases(operations, phase):
    """In a compiled step, what runs backward or again has a scope path that it had forward, or one that encloses it."""
    assert operations[phase]
    forward = scopes_of(operations["forward"])
    assert scopes_of(operations[phase]) <= {scope[:depth] for scope in forward for depth in range(len(scope) + 1)}


def test_no_structure_is_left_in_the_scopes(operations):
    """No transformation, call or loop of JAX is taken for a scope of the user's."""
    names = {name for phase in operations.values() for operation in phase for name in operation.scope}
    assert not {name for name in names if "(" in name or name in ("while", "body", "cond", "closed_call", "checkpoint")}


def test_the_update_is_the_optimizers(operations):
    """All operations of the optimizer's phase lie under `update`, and none of its in another phase."""
    assert scopes_of(operations["optimizer"]) == {("update",)}
    assert not any("update" in scope for phase in PHASES[:3] for scope in scopes_of(operations[phase]))


def test_metrics_are_no_part_of_the_gradient(operations):
    """The metrics' scope is found under `other`."""
    assert ("metrics",) in scopes_of(operations["other"])
