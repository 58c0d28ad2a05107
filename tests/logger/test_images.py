import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import MetricError
from trackside.logger.images import to_image, to_numbers


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 5), (4, 5, 1)), ((4, 5, 3), (4, 5, 3)), ((4, 5, 4), (4, 5, 4)), ((2, 4, 5, 1), (2, 4, 5, 1))],
)
def test_shapes(shape, expected):
    """One image has its channels last, a batch has them too."""
    assert to_image("x", np.zeros(shape)).shape == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_floats_become_bytes(dtype):
    """0 to 1 becomes 0 to 255; rounding errors at the ends are forgiven."""
    image = jnp.asarray([[0.0, 0.5, 1.0]], dtype) if dtype is jnp.bfloat16 else np.array([[0.0, 0.5, 1.0]], dtype)
    assert to_image("x", image).ravel().tolist() == [0, 128, 255]
    assert to_image("x", np.array([[-1e-6, 1 + 1e-6]])).ravel().tolist() == [0, 255]


def test_bytes_and_masks():
    """uint8 stays, and a mask is black and white."""
    assert to_image("x", np.array([[0, 7, 255]], np.uint8)).ravel().tolist() == [0, 7, 255]
    assert to_image("x", np.array([[True, False]])).ravel().tolist() == [255, 0]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((3, 4, 5)), r"moveaxis"),
        (np.zeros((0, 4, 3)), r"shape \(0, 4, 3\)"),
        (np.zeros((4, 4), np.int32), "dtype int32"),
        (np.full((4, 4), 200.0), "from 200 to 200"),
        (np.full((4, 4), np.nan), "from nan to nan"),
    ],
)
def test_what_is_no_image_is_refused(image, message):
    """The error names the image and what is wrong with it."""
    with pytest.raises(MetricError, match=message) as caught:
        to_image("sample", image)
    assert "'sample'" in str(caught.value)


def test_numbers_for_a_histogram():
    """Any array of numbers, flat, without what is not finite; text is refused."""
    assert to_numbers("w", [[1, 2], [3, 4]]).tolist() == [1, 2, 3, 4]
    assert to_numbers("w", jnp.asarray([1.5, jnp.nan], jnp.bfloat16)).tolist() == [1.5]
    with pytest.raises(MetricError, match="'w'"):
        to_numbers("w", np.array(["a"]))
