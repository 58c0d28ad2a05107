"""trackside next to hand-written loops, Keras and Lightning: `make bench-peers` writes `benchmarks/RESULTS.md`."""
