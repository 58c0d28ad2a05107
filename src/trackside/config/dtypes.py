"""Fields that hold a dtype. numpy is imported only when one is read or written."""

from typing import Any

from trackside.config.mismatch import Mismatch


def write_dtype(hint: Any, value: Any) -> str:
    """The name of a dtype or of a scalar type such as `jnp.bfloat16`."""
    dtype = read_dtype(hint, value)
    for text in (dtype.name, dtype.str):  # the name of '>f4' is 'float32', which drops the byte order
        try:
            if read_dtype(hint, text) == dtype:
                return text
        except Mismatch:
            continue
    raise Mismatch("a dtype that its name describes")


def read_dtype(hint: Any, data: Any) -> Any:
    """The numpy dtype of a name or scalar type."""
    import numpy as np

    dtype = _as_dtype(data) if isinstance(data, str | type | np.dtype) else None
    # numpy treats every class that it does not know as `object`.
    if dtype is None or (isinstance(data, type) and dtype.hasobject and data is not object):
        raise Mismatch("the name of a dtype, such as 'float32' or 'bfloat16'")
    return dtype


def _as_dtype(data: Any) -> Any:
    import numpy as np

    try:
        return np.dtype(data)
    except TypeError:
        # numpy knows bfloat16 and similar types by name only after ml_dtypes is imported.
        import ml_dtypes

        scalar_type = vars(ml_dtypes).get(data)
        return np.dtype(scalar_type) if isinstance(scalar_type, type) else None
