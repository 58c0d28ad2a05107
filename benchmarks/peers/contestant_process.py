"""Contestants in processes of their own, started together and timed in turn.

Each has its own libraries and threads, and sleeps while another is measured. A measurement is the difference between a
long and a short call, so that what a call does once (opening a log, building a loop, saving at its end) is not in it.
The long call takes half a second or more: who is faster makes more steps, in one epoch as the others.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.contestants import CONTESTANTS, Run
from benchmarks.peers.tasks import TASKS, Task

SHORT_SHARE = 5
"""The short call has this fraction of the steps of the long one."""
MIN_CALL_S = 0.5
"""How long the long call takes at least. In a shorter one, chance has too large a share."""
MAX_TIMES_MORE = 20
"""How many times the steps of its task a contestant may make in it."""


class ContestantError(RuntimeError):
    """A contestant's process failed; the message has the end of what it wrote."""


@dataclass
class ContestantProcess:
    """The process of one contestant."""

    name: str
    task: str
    folder: Path
    log: IO[bytes]
    process: subprocess.Popen[str]
    rounds_s: list[float] = field(default_factory=list)
    """Seconds per step, one figure per round."""

    @classmethod
    def start(cls, name: str, task: str) -> "ContestantProcess":
        """Start the process, which builds its training and makes a first run."""
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        log = (folder / "output.txt").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.contestant_process", name, task, str(folder / "run")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        started = cls(name, task, folder, log, process)
        started._ask({})
        return started

    def measure(self) -> float:
        """Train, and give the seconds per step."""
        seconds = float(self._ask({"measure": True})["seconds"])
        self.rounds_s.append(seconds)
        return seconds

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer that does not come says it
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            raise ContestantError(f"{self.name} on {self.task}:\n{(self.folder / 'output.txt').read_text()[-3000:]}")
        return json.loads(answer)

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def _serve(name: str, task_name: str, folder: Path) -> None:
    """Measure whenever asked. What the training prints goes to the log, its own answers to the real output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = TASKS[task_name]
    run = _warm(name, task, folder)
    began_s = time.perf_counter()
    run(task.num_steps)
    times_more = min(math.ceil(MIN_CALL_S / (time.perf_counter() - began_s)), MAX_TIMES_MORE)
    if times_more > 1:
        task = replace(task, num_steps=times_more * task.num_steps)
        run = _warm(name, task, folder.with_name("longer"))
    for line in sys.stdin:
        answer = {"seconds": _seconds_per_step(run, task.num_steps)} if json.loads(line) else {}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _warm(name: str, task: Task, folder: Path) -> Run:
    """A training that has compiled, and learned whatever a library learns from its first steps."""
    run = CONTESTANTS[name].build(task, folder)
    for _ in range(2):
        run(task.num_steps)
        run(task.num_steps // SHORT_SHARE)
    return run


def _seconds_per_step(run: Any, num_steps: int) -> float:
    short = num_steps // SHORT_SHARE
    began_s = time.perf_counter()
    run(short)
    between_s = time.perf_counter()
    run(num_steps)
    ended_s = time.perf_counter()
    return ((ended_s - between_s) - (between_s - began_s)) / (num_steps - short)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
