"""All benchmarks, one after the other: `make bench`."""

from benchmarks import import_time, loop_overhead

for benchmark in (import_time, loop_overhead):
    benchmark.main()
    print()
