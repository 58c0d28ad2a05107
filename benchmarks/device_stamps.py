"""Operations that read the clock on the device, as a part of a compiled program on a CPU.

A callback to Python would do that, too, but a CPU program with one is run by the call itself: nothing is in flight, and
the loop under test never meets what it has to deal with. So the operation is a few lines of C++, compiled when needed.
"""

import ctypes
import functools
import pathlib
import shutil
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

_SOURCE = r"""
#include <atomic>
#include <cstdint>
#include <ctime>
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
constexpr int64_t kCapacity = 1 << 20;
static double stamps_s[2][kCapacity];
static std::atomic<int64_t> num_stamps[2];

static ffi::Error Stamp(int64_t kind, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t index = num_stamps[kind].fetch_add(1);
  if (index < kCapacity) stamps_s[kind][index] = now.tv_sec + 1e-9 * now.tv_nsec;
  y->typed_data()[0] = x.typed_data()[0];
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(stamp, Stamp,
    ffi::Ffi::Bind().Attr<int64_t>("kind").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

extern "C" int64_t count_stamps(int64_t kind) { return num_stamps[kind]; }
extern "C" double* stamps_of(int64_t kind) { return stamps_s[kind]; }
extern "C" void clear_stamps() { num_stamps[0] = num_stamps[1] = 0; }
"""

BEGIN, END = 0, 1


def stamp(kind: int, x: jax.Array) -> jax.Array:
    """Note when the device got here, as `time.perf_counter` counts.

    Args:
        kind: `BEGIN` or `END`: which list the time is added to.
        x: A number. The time is that at which it is known.

    Returns:
        The same number. The time is before anything that is computed from it.
    """
    _library()
    call = jax.ffi.ffi_call("trackside_stamp", jax.ShapeDtypeStruct((), jnp.float32), has_side_effect=True)
    return call(x, kind=np.int64(kind))


def clear_stamps() -> None:
    """Forget the times."""
    _library().clear_stamps()


def stamps_s(kind: int) -> np.ndarray:
    """The times since the last `clear_stamps`, in the order in which they were taken."""
    library = _library()
    return np.ctypeslib.as_array(library.stamps_of(kind), (library.count_stamps(kind),)).copy()


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or jax.default_backend() != "cpu":
        raise RuntimeError("this benchmark reads the clock inside of CPU programs: it needs a CPU and a C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder) / "stamp.cc", pathlib.Path(folder) / "stamp.so"
        source.write_text(_SOURCE)
        options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([compiler, *options, str(source), "-o", str(target)], check=True)
        library = ctypes.CDLL(str(target))
    library.count_stamps.restype = ctypes.c_int64
    library.count_stamps.argtypes = library.stamps_of.argtypes = [ctypes.c_int64]
    library.stamps_of.restype = ctypes.POINTER(ctypes.c_double)
    jax.ffi.register_ffi_target("trackside_stamp", jax.ffi.pycapsule(library.stamp), platform="cpu")
    return library
