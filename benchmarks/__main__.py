"""All benchmarks, one after the other: `make bench`."""

from benchmarks import (
    capture_cost,
    checkpoint_cost,
    compare_calibration,
    decoding_cost,
    idle_callbacks,
    import_time,
    ledger_cost,
    loop_overhead,
    many_hosts,
    memory_sample,
    recompile_sentinel,
    run_reading,
    share_truth,
    step_truth,
    timer_cost,
    trace_analysis,
    trace_truth,
)

for benchmark in (
    import_time,
    loop_overhead,
    idle_callbacks,
    ledger_cost,
    recompile_sentinel,
    checkpoint_cost,
    memory_sample,
    timer_cost,
    share_truth,
    step_truth,
    decoding_cost,
    capture_cost,
    trace_analysis,
    trace_truth,
    run_reading,
    many_hosts,
    compare_calibration,
):
    benchmark.main()
    print()
