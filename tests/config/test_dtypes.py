"""Dtypes, those of numpy and those that jax adds."""

import subprocess
import sys
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
import pytest

from trackside.config import ConfigDict
from trackside.errors import ConfigError


@dataclass
class DtypeConfig(ConfigDict):
    dtype: np.dtype | None = None
    exact: np.dtype = field(default_factory=lambda: np.dtype("float32"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.dtype("int8"), "int8"),
        (np.dtype(">f4"), ">f4"),
        (np.float64, "float64"),
        (jnp.float32, "float32"),
        (jnp.bfloat16, "bfloat16"),
        (jnp.dtype(jnp.bfloat16), "bfloat16"),
        (jnp.float8_e4m3fn, "float8_e4m3fn"),
        (jnp.int4, "int4"),
        (jnp.zeros(()).dtype, "float32"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_a_dtype_is_written_by_name(value, text):
    """Dtypes and scalar types are written as text and read back as the equal dtype."""
    config = DtypeConfig(value, value)
    assert config.to_dict() == {"__class__": "DtypeConfig", "dtype": text, "exact": text}
    back = ConfigDict.from_dict(DtypeConfig, config.to_dict())
    assert back == config
    assert isinstance(back.dtype, np.dtype)


@pytest.mark.parametrize("value", ["bf17", 3, "version", ConfigDict, None])
def test_what_is_no_dtype_is_refused(value):
    """Unknown names and other values are named; None is not taken for float64, nor a class for object."""
    with pytest.raises(ConfigError, match="exact: expected the name of a dtype"):
        ConfigDict.from_dict(DtypeConfig, {"exact": value})
    with pytest.raises(ConfigError, match="exact: expected the name of a dtype"):
        DtypeConfig(exact=value)


def test_a_structured_dtype_is_refused():
    """A dtype that its name does not describe cannot be written."""
    with pytest.raises(ConfigError, match="exact: cannot write"):
        DtypeConfig(exact=np.dtype([("a", "i4"), ("b", "f4")])).to_dict()


def test_bfloat16_is_known_without_jax():
    """The name is understood in a program that has imported only numpy."""
    code = (
        "import sys, numpy\n"
        "from trackside.config import ConfigDict\n"
        "assert ConfigDict.from_dict(numpy.dtype, 'bfloat16').name == 'bfloat16'\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
