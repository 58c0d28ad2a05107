"""How much of a script's time is in the ledger: it builds a trainer, trains, validates, tests and saves, and resumes.

The script measures itself from before the trainer is built to after the last call. It runs twice, each time in its own
process, the second time from the checkpoint of the first. It has a logging tool that is slow and runs on a thread, so
that there is something to wait for at the end.
"""

import sys
import tempfile

from benchmarks.fresh_process import measure

MIN_COVERAGE = 0.98
NUM_EPOCHS = 3

SCRIPT = """
import dataclasses, json, logging, pathlib, sys, time

from benchmarks.loop_overhead import LEARNING_RATE, MLP, MSETrainer, make_batches
from trackside import open_run
from trackside.callbacks import CheckpointConfig
from trackside.logger import FileLoggerConfig, LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.trainer import ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig


class SlowTool(LoggerTool):
    def log_metrics(self, metrics, step, epoch, mode):
        time.sleep(0.005)


@dataclasses.dataclass(kw_only=True)
class SlowToolConfig(LoggerToolsConfig):
    def create(self, logger):
        return SlowTool()


logging.getLogger("trackside").setLevel(logging.ERROR)
folder, num_epochs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
batches = make_batches(32, 64)
began_s = time.perf_counter()
trainer = MSETrainer(
    TrainerConfig(
        logger=LoggerConfig(log_path=folder, log_every_n_steps=5, log_tools=[FileLoggerConfig(), SlowToolConfig()]),
        callbacks=[CheckpointConfig(monitor="val_loss")],
        enable_progress_bar=False,
        resume="auto",
    ),
    ModelConfig(model_class=MLP, parallel=ParallelConfig()),
    OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
    batch=batches[0],
)
trainer.train_model(batches * 10, batches[:8], batches[8:12], num_epochs=num_epochs)
trainer.eval_model(batches[12:16], "holdout", num_epochs)
trainer.save_checkpoint(folder / "last")
trainer.finish_saving()
took_s = time.perf_counter() - began_s
run = open_run(folder)
first = [None if leg.time_to_first_step is None else leg.time_to_first_step.text for leg in run.legs]
print(json.dumps({"took_s": took_s, "ledger": run.ledger.to_dict(), "first_steps": first}))
"""


def main() -> int:
    """Print the share of two legs' time that is in the ledger.

    Returns:
        1 if that is too little.
    """
    with tempfile.TemporaryDirectory() as folder:
        first = measure(SCRIPT, f"{folder}/run", str(NUM_EPOCHS))
        second = measure(SCRIPT, f"{folder}/run", str(2 * NUM_EPOCHS))
    took_s, ledger = first["took_s"] + second["took_s"], second["ledger"]
    coverage = ledger["wall_s"] / took_s
    is_enough = coverage >= MIN_COVERAGE
    print(
        f"of {took_s:.2f} s in two legs, {ledger['wall_s']:.2f} s are in the ledger: {100 * coverage:.2f} %, at least "
        f"{100 * MIN_COVERAGE:.0f} % expected{'' if is_enough else ': TOO LITTLE'}"
    )
    largest = sorted(ledger["parts"].items(), key=lambda item: -item[1])[:6]
    print("  " + ", ".join(f"{part} {part_s:.2f} s" for part, part_s in largest))
    for number, text in enumerate(second["first_steps"], 1):
        print(f"  first step of leg {number} after {text}")
    return 0 if is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
