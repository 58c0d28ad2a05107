"""Timers for any training loop: what an operation takes, by name.

    profiler            TrainingProfiler, the process's own one, and what they report
    host_timers         pairs of start and end, and `with` blocks: the host's time
    timed_function      a function that is timed at each call
    timed_loader        a loader whose batches are timed
    timed_step          a training step and its loss

A function that returns arrays of a device returns before they are computed. For these:

    device_outputs      finds the arrays to wait for in what a call returned
    array_waiter        the thread that waits for them, so that the loop does not have to
    call_durations      works out from the completions it saw how long each call took

The loss inside of a jitted step cannot be timed by Python at all. For it:

    step_sampler        takes short captures of the step now and then
    sampled_shares      estimates from them what share of the step the loss has

And for all of them:

    durations           any number of durations in bounded memory
    operation_summary   what is known of an operation, as plain values
    metric_output       prints these and logs them
    wandb_rows          how they get into a W&B run without disturbing it
"""

from trackside.profiling.timers.training_profiler import (
    TrainingProfiler,
    get_profiler,
    log_profiling_metrics,
    profiler_writes_to,
)

__all__ = ["TrainingProfiler", "get_profiler", "log_profiling_metrics", "profiler_writes_to"]
