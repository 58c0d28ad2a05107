"""What one JAX primitive costs in floating-point operations, from the shapes of its arguments.

Matrix products and convolutions are what peaks are stated for, so they are told apart from the rest. A multiply-add
counts as two, a complex one as four real ones.

A convolution is counted as is usual: each output takes a product with each place of the window, whether that meets the
input or its padding. So FLOPs and utilization can be compared with those that others state. (The compiler leaves the
padding out, which makes 8 % less of a 3 x 3 window on 16 x 16 values.) The holes of a dilated input are never counted:
the gradients by input and by kernel cost as much as the convolution itself, strided or not.
"""

import math
from collections.abc import Callable
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE = _names("""
    abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp conj cos cosh digamma
    div erf erf_inv erfc exp exp2 expm1 floor integer_pow lgamma log log1p logistic max min mul neg nextafter pow rem
    round rsqrt sign sin sinh sqrt square sub tan tanh
""")
_REDUCTIONS = _names("""
    argmax argmin cumlogsumexp cummax cummin cumprod cumsum reduce reduce_max reduce_min reduce_prod reduce_sum
""")
_SCATTERS = _names("scatter-add scatter-mul scatter-sub scatter_add scatter_mul scatter_sub")
_WINDOWS = _names("reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add")
# Moving, comparing and drawing: no floating-point operation, or none that takes the time.
_FREE = _names("""
    all_gather all_gather_invariant all_gather_reduced all_to_all and approx_top_k axis_index bitcast_convert_type
    broadcast broadcast_in_dim clz complex concatenate convert_element_type copy copy_p create_token device_put
    dynamic_slice dynamic_update_slice empty empty2 eq eq_to expand_dims gather ge gt imag iota is_finite
    layout_constraint le le_to lt lt_to mesh_cast name ne not optimization_barrier or pad pbroadcast pcast pmax pmin
    population_count ppermute psum psum2 psum_invariant psum_scatter pvary ragged_all_to_all random_bits random_clone
    random_fold_in random_seed random_split random_unwrap random_wrap real reduce_and reduce_or reduce_precision
    reduce_scatter reduce_xor reshape reshard rev rng_bit_generator rng_uniform scatter scatter-max scatter-min
    scatter_max scatter_min select_and_scatter select_n sharding_constraint shift_left shift_right_arithmetic
    shift_right_logical slice sort split squeeze stack stop_gradient threefry2x32 top_k transpose unreduced_psum
    unstack xor
""")


def matrix_flops(equation: Any) -> int | None:
    """The operations of a matrix product or convolution; None for any other primitive."""
    count = _MATRIX_PRODUCTS.get(equation.primitive.name)
    return None if count is None else count(equation) * _real_factor(equation.outvars[0].aval)


def other_flops(equation: Any) -> int | None:
    """The operations of an elementwise primitive or a reduction; None where it is not known what it costs."""
    name = equation.primitive.name
    if name in _FREE:
        return 0
    if name in _ELEMENTWISE:
        return _num_floats(equation.outvars[0])
    if name in _REDUCTIONS:
        return _num_floats(equation.invars[0])
    if name in _SCATTERS:
        return _num_floats(equation.invars[2])
    if name in _WINDOWS:
        return _num_floats(equation.outvars[0]) * math.prod(equation.params["window_dimensions"])
    if name == "select_and_scatter_add":
        return _num_floats(equation.invars[0]) * math.prod(equation.params["window_dimensions"])
    return None


def _num_floats(variable: Any) -> int:
    """The number of elements, if they are floating-point numbers; integers cost no floating-point operation."""
    aval = variable.aval
    dtype = getattr(aval, "dtype", None)
    # Among the extended types, bfloat16 and the 8-bit floats are of no kind that numpy knows.
    is_float = dtype is not None and (getattr(dtype, "kind", "") in "fc" or "float" in str(dtype))
    return math.prod(aval.shape) if is_float else 0


def _real_factor(aval: Any) -> int:
    return 4 if getattr(aval.dtype, "kind", "") == "c" else 1


def _dot_flops(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    lhs = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(lhs[axis] for axis in contracted)


def _ragged_dot_flops(equation: Any) -> int:
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    lhs, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if set(numbers.lhs_ragged_dimensions) & set(contracted):
        out = out[1:]  # the groups share the contracted rows among them
    return 2 * math.prod(out) * math.prod(lhs[axis] for axis in contracted)


def _convolution_flops(equation: Any) -> int:
    numbers = equation.params["dimension_numbers"]
    lhs, rhs, out = (variable.aval.shape for variable in (*equation.invars[:2], equation.outvars[0]))
    num_products = out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * rhs[numbers.rhs_spec[1]]
    for axis in range(2, len(out)):
        # Fewer elements than outputs: the input is spread out, as in a transposed convolution or the gradient of one.
        num_places = min(lhs[numbers.lhs_spec[axis]], out[numbers.out_spec[axis]])
        num_products *= num_places * rhs[numbers.rhs_spec[axis]]
    return 2 * num_products


_MATRIX_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot_flops,
    "ragged_dot_general": _ragged_dot_flops,
    "conv_general_dilated": _convolution_flops,
}
