"""Rules on memory: what grows without end, and what is given back at every step to be taken again."""

from collections.abc import Iterator

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding
from trackside.findings.judged_time import MIN_STEPS
from trackside.text import num_bytes, percent

SEVERE_BYTES_PER_STEP = 1 << 20
"""At a gigabyte per thousand steps, most runs fail before they are done."""

MIN_TAKEN_PER_S = 200e6
MIN_SYSTEM_SHARE = 0.1
"""Below one of these, to take the memory takes too little time."""
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


def memory_taken_anew(facts: RunFacts) -> Finding | None:
    """Each step takes its memory from the system, and gives it back at its end."""
    taken = facts.taken_memory
    if taken is None or taken.num_steps < MIN_STEPS:
        return None
    if taken.bytes_per_s < MIN_TAKEN_PER_S or taken.system_share < MIN_SYSTEM_SHARE:
        return None
    return Finding(
        "memory_taken_anew",
        "warning",
        f"each step takes {num_bytes(taken.bytes_per_step)} of memory anew from the system, which is busy with the "
        f"run for {percent(taken.system_share)} of the time",
        {"bytes_per_step": taken.bytes_per_step, "system_share": taken.system_share, "num_steps": taken.num_steps},
        f"let the process keep what a step frees; with glibc, start it with MALLOC_ARENA_MAX=1 "
        f"MALLOC_MMAP_THRESHOLD_={_KEPT} MALLOC_TRIM_THRESHOLD_={2 * _KEPT} in its environment",
    )
