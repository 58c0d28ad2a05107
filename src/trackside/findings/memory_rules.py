"""Rules on memory: what grows without end, as the memory profiler found it."""

from collections.abc import Iterator

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding
from trackside.text import num_bytes

SEVERE_BYTES_PER_STEP = 1 << 20
"""At a gigabyte per thousand steps, most runs fail before they are done."""

_HOST = "host memory"


def memory_growth(facts: RunFacts) -> Iterator[Finding]:
    """Memory keeps growing: `host_memory_growth` or `device_memory_growth`, one for each thing that grows."""
    for leak in {leak["name"]: leak for leak in facts.leaks}.values():  # each leg finds its own; the last counts
        name, rate = leak["name"], leak["bytes_per_step"]
        is_host = name == _HOST
        has = "have" if name.endswith("s") else "has"
        yield Finding(
            "host_memory_growth" if is_host else "device_memory_growth",
            "severe" if rate >= SEVERE_BYTES_PER_STEP else "warning",
            f"{name} {has} grown by {num_bytes(100 * rate)} per 100 steps since step {leak['since_step']}",
            {"memory": name, "bytes_per_step": rate, "since_step": leak["since_step"], "found_at_step": leak["step"]},
            "look for lists and caches that keep batches, metrics or results of earlier steps"
            if is_host
            else "look for arrays that are kept from step to step, such as a list of losses; keep plain numbers "
            "instead: float(x)",
            subject=name,
        )
