"""What `import trackside` costs: a fresh interpreter with the import, against one without."""

import statistics
import subprocess
import sys
import time

CASES = {
    "nothing": "pass",
    "trackside": "import trackside",
    "trackside.config": "import trackside.config",
    "trackside.events": "import trackside.events",
    "trackside.trainer": "import trackside.trainer",
    "jax, flax, optax": "import jax, flax.linen, optax",
}


def seconds_for(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    print("import time: median of 7 fresh interpreters, less that of an empty one")
    rounds = [{name: seconds_for(code) for name, code in CASES.items()} for _ in range(8)][1:]
    for name in list(CASES)[1:]:
        extra = statistics.median(one[name] - one["nothing"] for one in rounds)
        print(f"  {name:20} {extra * 1e3:7.0f} ms")


if __name__ == "__main__":
    main()
