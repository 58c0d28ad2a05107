"""The jax checks of `trackside doctor`, run in a separate process: `python -m trackside.cli.doctor_probe`.

Prints each answer as one line of JSON as soon as it is known, so that a hanging profiler loses only its own answer.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec

from trackside.jax_internals import config_value
from trackside.text import num_bytes, percent
from trackside.trace import analyse_trace

NUM_STEPS = 5


def devices() -> dict[str, Any]:
    """The devices that jax sees."""
    found = jax.devices()
    kinds = sorted({device.device_kind for device in found})
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    lines = [f"{len(found)} x {', '.join(kinds)} ({jax.default_backend()}){processes}"]
    details = {"backend": jax.default_backend(), "devices": [str(device) for device in found], "kinds": kinds}
    return {"status": "ok", "lines": lines, "details": details}


def compile_cache() -> dict[str, Any]:
    """Whether compiled programs are cached for the next run, and where."""
    directory = config_value("jax_compilation_cache_dir")
    if not directory:
        lines = [
            "each run of a trainer keeps its own programs; to share them, set TrainerConfig.compile_cache=<dir>, or "
            "JAX_COMPILATION_CACHE_DIR=<dir> for all of JAX"
        ]
        return {"status": "ok", "lines": lines, "details": {"directory": None}}
    if "://" in directory:
        return {"status": "ok", "lines": [directory], "details": {"directory": directory}}
    path = Path(directory)
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    writable = os.access(path if path.is_dir() else path.parent, os.W_OK)
    lines = [f"{directory}: {len(sizes)} files, {num_bytes(sum(sizes))}{'' if writable else '; not writable'}"]
    details = {"directory": directory, "num_files": len(sizes), "size_bytes": sum(sizes), "is_writable": writable}
    return {"status": "ok" if writable else "failed", "lines": lines, "details": details}


def profiler() -> dict[str, Any]:
    """Whether a tiny profile can be taken and read."""

    @jax.jit
    def probe(x: jax.Array) -> jax.Array:
        with jax.named_scope("probe"):
            return jnp.tanh(x @ x)

    x = probe(jnp.ones((128, 128))).block_until_ready()
    with tempfile.TemporaryDirectory(prefix="trackside-doctor-") as directory:
        with jax.profiler.trace(directory):
            for _ in range(NUM_STEPS):
                x = probe(x)
            x.block_until_ready()
        report = analyse_trace(Path(directory))
    resolved = report.coverage.resolved_share
    details = {"num_events": report.num_events, "num_runs": len(report.runs), "resolved_share": resolved}
    if resolved is None:
        lines = [f"profiles can be taken, but none of the {NUM_STEPS} steps was seen on a device", *report.missing]
        return {"status": "failed", "lines": lines, "details": details}
    lines = [f"works: {len(report.runs)} of {NUM_STEPS} steps seen, {percent(resolved)} of their time attributed"]
    return {"status": "ok" if len(report.runs) == NUM_STEPS else "note", "lines": lines, "details": details}


def main() -> None:
    """Run all probes independently."""
    probes: dict[str, Callable[[], dict[str, Any]]] = {
        "devices": devices,
        "compile cache": compile_cache,
        "profiler": profiler,
    }
    for name, probe in probes.items():
        try:
            answer = probe()
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            answer = {"status": "failed", "lines": [message[:300]]}
        sys.stdout.buffer.write(msgspec.json.encode({"name": name, **answer}) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
