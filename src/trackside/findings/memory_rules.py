"""Rules on memory: what grows without end, and what every step allocates again."""

from collections.abc import Iterator

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding
from trackside.findings.judged_time import MIN_STEPS
from trackside.text import num_bytes, percent

SEVERE_BYTES_PER_STEP = 1 << 20
"""At a gigabyte per thousand steps, most runs fail before they are done."""

MIN_FRESH_PER_S = 500e6
MIN_SYSTEM_SHARE = 0.1
"""With less of either, fresh memory costs too little time."""
_KEPT = 1 << 30
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


def memory_not_reused(facts: RunFacts) -> Finding | None:
    """Steps give their memory back to the operating system, and get fresh memory from it."""
    fresh = facts.fresh_memory
    if fresh is None or fresh.num_steps < MIN_STEPS:
        return None
    if fresh.bytes_per_s < MIN_FRESH_PER_S or fresh.system_share < MIN_SYSTEM_SHARE:
        return None
    return Finding(
        "memory_not_reused",
        "warning",
        f"each step gets {num_bytes(fresh.bytes_per_step)} of fresh memory from the operating system, which spends "
        f"{percent(fresh.system_share)} of the time on this run",
        {"bytes_per_step": fresh.bytes_per_step, "system_share": fresh.system_share, "num_steps": fresh.num_steps},
        "have the process reuse what a step frees: on Linux with glibc, set MALLOC_ARENA_MAX=1 "
        f"MALLOC_MMAP_THRESHOLD_={_KEPT} MALLOC_TRIM_THRESHOLD_={2 * _KEPT} before it starts",
    )
