"""All benchmarks, one after the other: `make bench`."""

from benchmarks import checkpoint_cost, import_time, loop_overhead

for benchmark in (import_time, loop_overhead, checkpoint_cost):
    benchmark.main()
    print()
