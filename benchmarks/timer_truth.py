"""Whether a profiled step takes what it is said to take, in loops that wait for it in different ways.

Of short steps only some completions are watched (`trackside.profiling.timers.call_durations`). Here the average of a
step is measured that way and with every completion watched, in turn; their ratio is the error of watching only some.
The step's own length varies with the machine, so it is only compared within a round.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.timer_cost import make_step
from trackside.profiling import TrainingProfiler, profile_make_step
from trackside.profiling.timers import array_waiter

NUM_ROUNDS = 9
NUM_STEPS = 200
NUM_SEEN_FIRST = array_waiter.NUM_SEEN_FIRST

Loop = Callable[[Callable[..., Any], Any, Any, int], None]


def run_ahead(step: Callable[..., Any], state: Any, x: Any, num_steps: int) -> None:
    """Waits for nothing."""
    for _ in range(num_steps):
        state, value = step(state, x)
    value.block_until_ready()


def wait_each_time(step: Callable[..., Any], state: Any, x: Any, num_steps: int) -> None:
    """Reads the loss of each step."""
    for _ in range(num_steps):
        state, value = step(state, x)
        float(value)


def keep_two_in_flight(step: Callable[..., Any], state: Any, x: Any, num_steps: int, sleep_s: float = 0.0) -> None:
    """Waits for the step before the last, as trainers do."""
    values: deque[Any] = deque()
    for _ in range(num_steps):
        time.sleep(sleep_s)
        if len(values) == 2:
            values.popleft().block_until_ready()
        state, value = step(state, x)
        values.append(value)
    value.block_until_ready()


def wait_for_data(step: Callable[..., Any], state: Any, x: Any, num_steps: int) -> None:
    """Has a loader that takes 2 ms."""
    keep_two_in_flight(step, state, x, num_steps, sleep_s=0.002)


def average_s(loop: Loop, function: Callable[..., Any], state: Any, x: Any, looks_at_each: bool) -> float:
    array_waiter.NUM_SEEN_FIRST = NUM_STEPS * 1000 if looks_at_each else NUM_SEEN_FIRST
    profiler = TrainingProfiler(log_to_wandb=False, log_every=-1)
    step = profile_make_step(function, profiler=profiler)
    while profiler.not_sampled_yet():  # captures disturb what they hold
        loop(step, state, x, NUM_STEPS)
        profiler.wait()
    profiler.reset()
    loop(step, state, x, NUM_STEPS)
    profiler.wait()
    return profiler.get_summary()["make_step_total"]["avg_time"]


def main() -> None:
    print("the average of a profiled step, counted by some of them, next to that with each looked at")
    for width in (48, 128):
        function, state, x = make_step(width)
        for loop in (run_ahead, wait_each_time, keep_two_in_flight, wait_for_data):
            rounds = [
                [average_s(loop, function, state, x, is_each) for is_each in (False, True)] for _ in range(NUM_ROUNDS)
            ]
            ratios = sorted(by_some / by_each for by_some, by_each in rounds)
            length_ms = 1e3 * statistics.median(by_each for _, by_each in rounds)
            print(
                f"  {loop.__name__.replace('_', ' '):20} {length_ms:5.2f} ms  {statistics.median(ratios):.3f}x "
                f"(half of the rounds between {ratios[NUM_ROUNDS // 4]:.3f}x and {ratios[-NUM_ROUNDS // 4]:.3f}x)"
            )
    array_waiter.NUM_SEEN_FIRST = NUM_SEEN_FIRST


if __name__ == "__main__":
    main()
