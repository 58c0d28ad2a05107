from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from trackside.trace.flops import count_flops
from trackside.trace.scopes import parse_op_name

pytestmark = pytest.mark.usefixtures("default_compiler")


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


# One primitive at a time, against calculation by hand.


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (jnp.matmul, [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        (jnp.dot, [(5,), (5,)], 2 * 5),
        (jnp.matmul, [(2, 4, 3, 5), (2, 4, 5, 7)], 2 * 4 * 2 * 3 * 5 * 7),
        (partial(jnp.einsum, "abc,bcd->ad"), [(2, 3, 4), (3, 4, 5)], 2 * 2 * 3 * 4 * 5),
    ],
)
def test_matrix_products_are_counted_exactly(function, shapes, expected):
    """Two operations per output and contracted element, with batch dimensions and without."""
    assert count_flops(function, *(array(*shape) for shape in shapes)).flops == expected


def test_a_ragged_product_is_counted_by_its_rows():
    """Each row is multiplied with one group's matrix only."""
    arguments = array(12, 5), array(3, 5, 7), array(3, dtype=jnp.int32)
    assert count_flops(jax.lax.ragged_dot, *arguments).flops == 2 * 12 * 5 * 7


def test_complex_products_are_four_real_ones():
    """A complex multiply-add is four real multiply-adds."""
    operands = array(3, 5, dtype=jnp.complex64), array(5, 7, dtype=jnp.complex64)
    assert count_flops(jnp.matmul, *operands).flops == 4 * 2 * 3 * 5 * 7


CONVOLUTIONS = {
    # Each of 6 x 6 outputs meets 3 x 3 elements.
    "valid": ({"window_strides": (1, 1), "padding": "VALID"}, (3, 3), 18 * 18),
    # Each of 8 x 8 outputs has 3 x 3 places, some of them in the padding.
    "same": ({"window_strides": (1, 1), "padding": "SAME"}, (3, 3), 24 * 24),
    "strided": ({"window_strides": (2, 2), "padding": "VALID"}, (3, 3), 9 * 9),
    "dilated window": ({"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (2, 2)}, (3, 3), 12 * 12),
    # A transposed convolution: each of 8 x 8 inputs has 3 x 3 places.
    "dilated input": (
        {"window_strides": (1, 1), "padding": [(2, 2), (2, 2)], "lhs_dilation": (2, 2)},
        (3, 3),
        24 * 24,
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_are_counted_exactly(case):
    """Each output with each place of the window, padding included; holes are not counted."""
    options, window, num_products = CONVOLUTIONS[case]
    table = count_flops(
        lambda x, w: jax.lax.conv_general_dilated(x, w, **options), array(2, 4, 8, 8), array(6, 4, *window)
    )
    assert table.flops == 2 * 2 * 4 * 6 * num_products


def test_grouped_convolutions_are_counted_exactly():
    """With groups, an output sees the channels of its own group only."""
    convolve = partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="VALID", feature_group_count=4)
    assert count_flops(convolve, array(2, 8, 8, 8), array(12, 2, 3, 3)).flops == 2 * 2 * 12 * 2 * 18 * 18


def test_batch_grouped_convolutions_are_counted_exactly():
    """With batch groups, the batch is what is divided, and an output sees all channels."""
    convolve = partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="VALID", batch_group_count=4)
    assert count_flops(convolve, array(8, 3, 8, 8), array(12, 3, 3, 3)).flops == 2 * 2 * 12 * 3 * 18 * 18


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 4)])
def test_the_gradient_of_a_convolution_costs_twice_the_convolution(stride, groups, padding):
    """The gradients by input and by kernel cost as much as the forward pass each, and holes are not counted."""
    convolve = partial(
        jax.lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding=padding,
        feature_group_count=groups,
    )
    operands = array(2, 8, 16, 16), array(12, 8 // groups, 3, 3)
    forward = count_flops(convolve, *operands).flops
    gradient = jax.grad(lambda x, w: (convolve(x, w) ** 2).sum() / 2, argnums=(0, 1))
    assert count_flops(gradient, *operands).by_phase() == {"forward": forward, "backward": 2 * forward}


@pytest.mark.parametrize("case", ["valid", "strided", "dilated window", "dilated input"])
def test_convolutions_without_padding_cost_what_the_compiler_says(case):
    """The compiler's cost analysis, which leaves padding out, has the same figure where there is none."""
    options = CONVOLUTIONS[case][0]
    operands = array(2, 4, 8, 8), array(6, 4, 3, 3)
    convolve = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, **options))
    assert count_flops(convolve, *operands).flops == convolve.lower(*operands).compile().cost_analysis()["flops"]


def test_elementwise_operations_and_reductions_are_counted_apart():
    """They are no matrix products: one operation per element, none for moving data or for integers."""

    def function(x):
        y = jnp.exp(x) * x  # two times twelve
        return y.T.reshape(-1).sum(), jnp.arange(5) * 2  # twelve

    table = count_flops(function, array(3, 4))
    assert (table.flops, table.other_flops) == (0, 36)


def test_half_precision_elements_count_as_well():
    """Types that numpy has no name of its own for are floating-point numbers, too."""
    assert count_flops(jnp.exp, array(3, 4, dtype=jnp.bfloat16)).other_flops == 12


def test_pooling_counts_the_window():
    """A reduction over windows costs the window's size per output."""
    pool = partial(
        jax.lax.reduce_window,
        init_value=-jnp.inf,
        computation=jax.lax.max,
        window_dimensions=(2, 2),
        window_strides=(2, 2),
        padding="VALID",
    )
    assert count_flops(pool, array(4, 4)).other_flops == 2 * 2 * 4


def test_types_are_told_apart():
    """What is multiplied in which type decides which peak to compare with."""

    def function(x, y):
        return x @ x, y @ y

    table = count_flops(function, array(2, 2), array(3, 3, dtype=jnp.bfloat16))
    assert table.flops_by_dtype == {"float32": 16, "bfloat16": 54}


@pytest.mark.parametrize(
    ("function", "primitive"),
    [(jnp.linalg.cholesky, "cholesky"), (jnp.fft.fft, "fft"), (jnp.linalg.eigh, "eigh")],
)
def test_what_has_no_figure_is_named(function, primitive):
    """A primitive that is not counted is listed, and the table is a lower bound."""
    table = count_flops(function, array(4, 4))
    assert primitive in table.uncounted
    assert table.is_lower_bound
    assert primitive in " ".join(table.notes)


# Control flow, calls and devices.


def layer(w, x):
    with jax.named_scope("layer"):
        return jnp.tanh(x @ w)


W, X = array(4, 4), array(2, 4)
LAYER = 2 * 2 * 4 * 4


def test_the_body_of_a_scan_is_multiplied_by_its_length():
    """Also where scans are nested."""

    def inner(x, w):
        return jax.lax.scan(lambda x, _: (layer(w, x), None), x, None, length=3)[0]

    def outer(w, x):
        return jax.lax.scan(lambda x, _: (inner(x, w), None), x, None, length=5)[0]

    table = count_flops(outer, W, X)
    assert table.flops == 15 * LAYER
    assert not table.is_lower_bound


def test_a_while_loop_is_a_lower_bound():
    """A loop of unknown length is counted once, and said to be."""

    def function(w, x):
        return jax.lax.while_loop(lambda x: x.sum() < 1, partial(layer, w), x)

    table = count_flops(function, W, X)
    assert table.flops == LAYER
    assert table.num_while_loops == 1
    assert table.is_lower_bound
    assert "lower bound" in " ".join(table.notes)


def test_the_most_expensive_branch_counts():
    """Of a conditional's branches one runs; the table says that it took the most expensive."""

    def function(w, x, flag):
        return jax.lax.switch(flag, [lambda x: x, partial(layer, w), lambda x: layer(w, layer(w, x))], x)

    table = count_flops(function, W, X, array(dtype=jnp.int32))
    assert (table.flops, table.num_conditionals) == (2 * LAYER, 1)
    assert "most expensive branch" in " ".join(table.notes)


def test_devices_of_a_shard_map_are_added_up():
    """A body that sees one device's part is counted for all devices it is mapped over."""
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, whole = PartitionSpec("dp"), PartitionSpec()
    mapped = jax.shard_map(layer, mesh=mesh, in_specs=(whole, rows), out_specs=rows, axis_names={"dp"})
    assert count_flops(jax.jit(mapped), W, X).flops == LAYER


def with_custom_jvp(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


def with_custom_vjp(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(partial(jax.vjp, function), lambda backward, grad: backward(grad))
    return wrapped


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, with_custom_jvp, with_custom_vjp])
def test_calls_are_followed(wrap):
    """A function counts the same when it is called through a wrapper of JAX."""
    wrapped = wrap(layer)
    assert count_flops(lambda w, x: wrapped(w, x), W, X).flops == LAYER


def test_static_arguments_of_a_jitted_function_stay_static():
    """A jitted function is traced by itself, so that what is static for it is no array here."""
    function = jax.jit(lambda n, x: sum(x @ x for _ in range(n)), static_argnums=0)
    assert count_flops(function, 3, array(4, 4)).flops == 3 * 2 * 4**3


def test_a_jaxpr_can_be_given():
    """A jaxpr and the result of `trace` count as the function does."""
    traced = jax.jit(layer).trace(W, X)
    assert (
        count_flops(traced).flops == count_flops(traced.jaxpr).flops == count_flops(traced.jaxpr.jaxpr).flops == LAYER
    )


def test_what_no_output_needs_is_not_counted():
    """The gradient of a linear function does not compute the function, and neither does the compiler."""
    gradient = jax.grad(lambda w, x: (x @ w).sum())
    assert count_flops(gradient, W, X).by_phase() == {"backward": LAYER}


# By scope and phase.


def training_step(w, x):
    """A rematerialised layer, a scan over another, and an update with a product of its own."""

    def loss(w):
        with jax.named_scope("loss"):
            with jax.named_scope("first"):
                y = jax.checkpoint(partial(layer, w))(x)
            with jax.named_scope("stack"):
                y, _ = jax.lax.scan(jax.checkpoint(lambda y, _: (layer(w, y), None)), y, None, length=3)
            return (y**2).mean()

    value, grads = jax.value_and_grad(loss)(w)
    with jax.named_scope("update"):
        return w - 0.1 * (w @ grads), value


@pytest.fixture(scope="module")
def training_table():
    return count_flops(jax.jit(training_step), W, X)


def test_operations_are_split_by_scope_and_phase(training_table):
    """Forward once, backward twice (once where the input needs no gradient), recompute once, by layer."""
    expected = {
        ("loss/first/layer", "forward"): LAYER,
        ("loss/first/layer", "backward"): LAYER,
        ("loss/first/layer", "recompute"): LAYER,
        ("loss/stack/layer", "forward"): 3 * LAYER,
        ("loss/stack/layer", "backward"): 6 * LAYER,
        ("loss/stack/layer", "recompute"): 3 * LAYER,
        ("update", "optimizer"): 2 * 4**3,
    }
    assert {("/".join(row.scope), row.phase): row.flops for row in training_table.rows if row.flops} == expected


def test_recomputation_is_no_part_of_the_models_operations(training_table):
    """Model FLOPs utilisation does not reward computing things twice."""
    assert training_table.flops - training_table.model_flops == 4 * LAYER


def test_the_table_joins_with_the_compiled_operations(training_table):
    """Scope and phase of each matrix product in the compiled program are a row of the table."""
    compiled = jax.jit(training_step).lower(W, X).compile()
    names = [
        line.partition('op_name="')[2].partition('"')[0] for line in compiled.as_text().splitlines() if " dot(" in line
    ]
    rows = {(row.scope, row.phase) for row in training_table.rows if row.flops}
    parsed = [parse_op_name(name) for name in names]
    assert parsed
    assert {(operation.scope, operation.phase) for operation in parsed} <= rows


def test_counting_needs_no_arrays():
    """A product too large for any device is counted, to the last digit."""
    size = 10**7 + 1
    assert count_flops(jnp.matmul, array(size, size), array(size, size)).flops == 2 * size**3
