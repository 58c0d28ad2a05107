"""Trainings as their event files describe them, with figures that such trainings have, and what is true of each."""

from dataclasses import dataclass, field
from typing import Any

from tests.findings.made_up import change, compile_row, make_ledger
from trackside.findings import Finding, LoaderFacts, facts_from_events, find

LIST = LoaderFacts("list", 1000, 64)
ON_DEVICE = LoaderFacts("list", 500, 256, is_on_device=True)
GENERATOR = LoaderFacts("generator")
PREFETCHER = LoaderFacts("PrefetchingLoader", 1000, prefetch=8)
TORCH = LoaderFacts("torch DataLoader", 500, 64, num_workers=0)
TORCH_WORKERS = LoaderFacts("torch DataLoader", 500, 64, 8, prefetch=2, keeps_workers=False)
TORCH_KEPT = LoaderFacts("torch DataLoader", 500, 64, 8, prefetch=2, keeps_workers=True)
GRAIN = LoaderFacts("grain DataLoader", None, 64, 4, prefetch=1)
GRAIN_PLAIN = LoaderFacts("grain IterDataset", None, 64, 0, 0, 0)
GRAIN_THREADS = LoaderFacts("grain IterDataset", None, 64, 0, 16, 500)


@dataclass
class Described:
    """A training. `parts` are seconds of the ledger; the rest of its wall is waiting for the device."""

    name: str
    wall_s: float
    num_steps: int
    parts: dict[str, float]
    expected: set[str] = field(default_factory=set)
    """The ids that must be found; no others may be."""
    step_time_s: float | None = None
    busy_s: float | None = None
    idle: dict[str, float] = field(default_factory=dict)
    loader: LoaderFacts | None = LIST
    platform: str = "gpu"
    compiles: list[dict[str, Any]] = field(default_factory=list)
    pauses: list[dict[str, float]] = field(default_factory=list)
    """What came after each epoch, by part of the ledger."""
    epoch_time_s: float = 10.0
    gc_s: float = 0.0
    longest_s: dict[str, float] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    log_every_n_steps: int = 50
    config: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    """What the advice must say."""
    never_says: tuple[str, ...] = ()
    """What it must not, as the user has it already or cannot have it."""

    def rows(self) -> list[dict[str, Any]]:
        """Its event file."""
        loaders = {} if self.loader is None else {"loaders": {"train": self.loader.to_dict()}}
        trainer = {"logger": {"log_every_n_steps": self.log_every_n_steps}, **self.config}
        rows: list[dict[str, Any]] = [
            {"kind": "environment", "backend": self.platform, "devices": ["0"], **loaders},
            {"kind": "config", "config": {"trainer": trainer}},
            {"kind": "leg", "leg": 1, "step": 0},
            *self.compiles,
        ]
        num_epochs = len(self.pauses) + 1
        for epoch in range(1, num_epochs + 1):
            step = epoch * self.num_steps // num_epochs
            values = {"epoch_time": self.epoch_time_s}
            rows.append({"kind": "metrics", "mode": "train_epoch", "step": step, "epoch": epoch, "values": values})
            if epoch < num_epochs:
                rows.append({"kind": "between_epochs", "epoch": epoch, "parts": self.pauses[epoch - 1]})
        totals = make_ledger(self.parts, self.wall_s, self.num_steps, self.busy_s, self.idle, self.gc_s)
        rows += [{"kind": "logging_tool", **tool} for tool in self.tools]
        more = {"step_time_s": self.step_time_s, "longest_s": self.longest_s}
        return [*rows, {"kind": "ledger", "step": self.num_steps, **totals.to_dict(), **more}]

    def findings(self) -> list[Finding]:
        """What is found in it."""
        return find(facts_from_events(self.rows()))


def recompiles(number: int, step: int = 10, old: str = "(64, 32)", new: str = "(60, 32)") -> list[dict[str, Any]]:
    """As many recompiles of the training step, each for another shape."""
    return [
        compile_row(step=step + index, num_recompiles=index + 1, changes=[change(old, new)]) for index in range(number)
    ]


def compiled(seconds: float, function: str = "train_step", **fields: Any) -> dict[str, Any]:
    """A compile that took as long."""
    return compile_row(function, trace_s=0.0, lower_s=0.0, compile_s=seconds, **fields)


HEALTHY = [
    Described(
        "transformer on a GPU, an hour, with validation and checkpoints",
        wall_s=3600.0,
        num_steps=11_000,
        parts={"data_wait": 20.0, "compile": 95.0, "validation": 190.0, "checkpointing": 60.0, "logging": 9.0},
        step_time_s=0.29,
        busy_s=3190.0,
        idle={"data_wait": 15.0, "checkpointing": 50.0},
        loader=TORCH_WORKERS,
        compiles=[compiled(95.0, cache="miss")],
        pauses=[{"data_wait": 3.0, "validation": 60.0}] * 3,
        epoch_time_s=850.0,
    ),
    Described(
        "perceptron on a CPU, from a list",
        wall_s=14.0,
        num_steps=1000,
        parts={"compile": 0.9, "dispatch": 0.3, "other": 0.4, "logging": 0.05},
        step_time_s=0.012,
        busy_s=12.4,
        idle={"logging": 0.05},
        platform="cpu",
        compiles=[compiled(0.8)],
    ),
    Described(
        "loader that is slow behind a busy device",
        wall_s=600.0,
        num_steps=3000,
        parts={"data_wait": 150.0, "compile": 20.0},
        step_time_s=0.19,
        busy_s=570.0,
        idle={"data_wait": 6.0},
        loader=GRAIN,
        platform="tpu",
    ),
    Described(
        "trial run: mostly a compile, and a blink of training with a validation",
        wall_s=9.0,
        num_steps=30,
        parts={"compile": 8.6, "validation": 0.2, "data_wait": 0.1},
        step_time_s=0.003,
        platform="cpu",
    ),
    Described(
        "callback that compiles its sampler, in a ledger that does not say so",
        wall_s=60.0,
        num_steps=2000,
        parts={"compile": 6.0, "callback/Sampler": 13.0},
        step_time_s=0.02,
        compiles=[compiled(5.5), compiled(12.0, "sample")],
    ),
    Described(
        "callback that compiles its sampler, in a ledger that does",
        wall_s=70.0,
        num_steps=2000,
        parts={"setup": 2.0, "initial_state": 1.0, "restoring": 0.0, "compile": 18.0, "callback/Sampler": 1.0},
        step_time_s=0.02,
        compiles=[compiled(5.5), compiled(12.0, "sample")],
        longest_s={"callback/Sampler": 0.9, "compile": 12.0},
    ),
    Described(
        "validation that is the compile of its step, in a ledger that does not say so",
        wall_s=40.0,
        num_steps=1500,
        parts={"compile": 9.0, "validation": 16.0},
        step_time_s=0.01,
        compiles=[compiled(9.0), compiled(13.0, "eval_step")],
    ),
    Described(
        "W&B, which takes its time to close but is not behind",
        wall_s=60.0,
        num_steps=3000,
        parts={"setup": 1.0, "drain/WandBLogger": 5.0, "compile": 3.0},
        step_time_s=0.016,
        busy_s=50.0,
        tools=[{"tool": "WandBLogger", "num_waiting": 3, "num_dropped": 0, "closing_s": 5.0}],
    ),
    Described(
        "short steps on a GPU that calls keep busy, from arrays on the device",
        wall_s=30.0,
        num_steps=100_000,
        parts={"compile": 4.0, "dispatch": 16.0, "other": 6.0, "host_to_device": 2.0},
        step_time_s=2.6e-4,
        busy_s=25.0,
        idle={"dispatch": 0.9},
        loader=ON_DEVICE,
    ),
    Described(
        "workers that start again for each of some long epochs",
        wall_s=2500.0,
        num_steps=10_000,
        parts={"data_wait": 30.0, "compile": 12.0},
        step_time_s=0.24,
        busy_s=2440.0,
        idle={"data_wait": 16.0},
        loader=TORCH_WORKERS,
        pauses=[{"data_wait": 4.0}] * 4,
        epoch_time_s=490.0,
    ),
    Described(
        "callback and logging next to a device that computes all the time",
        wall_s=200.0,
        num_steps=1000,
        parts={"callback/EMA": 24.0, "logging": 14.0, "validation": 30.0, "checkpointing": 1.0},
        step_time_s=0.16,
        busy_s=162.0,
        idle={"callback/EMA": 2.0},
        loader=PREFETCHER,
        longest_s={"validation": 10.0},
    ),
    Described(
        "garbage of tracing a large model",
        wall_s=100.0,
        num_steps=500,
        parts={"compile": 25.0},
        step_time_s=0.15,
        gc_s=12.0,
        compiles=[compiled(8.0), *recompiles(1)],
        platform="cpu",
    ),
]

SICK = [
    Described(
        "PyTorch without workers",
        wall_s=120.0,
        num_steps=1000,
        parts={"data_wait": 75.0, "compile": 6.0},
        expected={"input_bound"},
        step_time_s=0.11,
        busy_s=38.0,
        idle={"data_wait": 74.0},
        loader=TORCH,
        says=("num_workers=4",),
        never_says=("prefetch", "persistent_workers"),
    ),
    Described(
        "PyTorch with workers that fall behind",
        wall_s=120.0,
        num_steps=1000,
        parts={"data_wait": 45.0, "compile": 6.0},
        expected={"input_bound"},
        busy_s=68.0,
        idle={"data_wait": 40.0},
        loader=TORCH_KEPT,
        says=("num_workers=8 now",),
        never_says=("prefetch", "persistent_workers"),
    ),
    Described(
        "generator that reads files",
        wall_s=20.0,
        num_steps=200,
        parts={"data_wait": 14.0, "compile": 2.0},
        expected={"input_bound"},
        busy_s=3.5,
        idle={"data_wait": 13.0},
        loader=GENERATOR,
        platform="cpu",
        says=("the generator makes each batch while the device waits",),
        never_says=("num_workers", "persistent_workers"),
    ),
    Described(
        "grain without anything ahead",
        wall_s=50.0,
        num_steps=500,
        parts={"data_wait": 30.0, "compile": 5.0},
        expected={"input_bound"},
        busy_s=15.0,
        idle={"data_wait": 29.0},
        loader=GRAIN_PLAIN,
        says=("to_iter_dataset", "mp_prefetch"),
        never_says=("num_workers=", "persistent_workers"),
    ),
    Described(
        "prefetcher that falls behind",
        wall_s=50.0,
        num_steps=500,
        parts={"data_wait": 30.0, "compile": 5.0},
        expected={"input_bound"},
        busy_s=15.0,
        idle={"data_wait": 29.0},
        loader=PREFETCHER,
        says=("a longer queue will not help",),
        never_says=("prefetch more", "persistent_workers"),
    ),
    Described(
        "list of memory-mapped batches",
        wall_s=50.0,
        num_steps=500,
        parts={"data_wait": 30.0, "compile": 5.0},
        expected={"input_bound"},
        busy_s=15.0,
        idle={"data_wait": 29.0},
        says=("into memory",),
        never_says=("workers", "prefetch"),
    ),
    Described(
        "small steps on a GPU",
        wall_s=20.0,
        num_steps=50_000,
        parts={"dispatch": 13.0, "other": 3.0, "compile": 2.5},
        expected={"dispatch_bound"},
        step_time_s=3.4e-4,
        busy_s=4.0,
        idle={"dispatch": 10.0, "other": 3.0},
        says=("larger batches", "steps_per_call"),
        never_says=("fuse", "jitted call"),
    ),
    Described(
        "tiny steps on a CPU, which is never seen idle",
        wall_s=1.6,
        num_steps=6000,
        parts={"compile": 0.6, "dispatch": 0.63, "other": 0.14, "data_wait": 0.003},
        expected={"dispatch_bound"},
        step_time_s=5.1e-5,
        busy_s=0.71,
        idle={"other": 0.045},
        platform="cpu",
        compiles=[compiled(0.59)],
        says=("larger batches", "steps_per_call"),
        never_says=("fuse", "jitted call"),
    ),
    Described(
        "validation at each step, mostly hidden by a compile",
        wall_s=7.0,
        num_steps=60,
        parts={"compile": 4.7, "validation": 1.82, "dispatch": 0.1},
        expected={"validation_dominates"},
        step_time_s=0.004,
        platform="cpu",
        config={"check_val_every_n_steps": 1},
        compiles=[compiled(2.4), compiled(2.2, "eval_step")],
        says=("after every step",),
    ),
    Described(
        "validation that takes long and compiles, in a ledger that has the compile as validation",
        wall_s=60.0,
        num_steps=600,
        parts={"compile": 10.0, "validation": 35.0},
        expected={"validation_dominates"},
        compiles=[compiled(10.0), compiled(8.0, "eval_step")],
    ),
    Described(
        "tool that the end waits for",
        wall_s=7.2,
        num_steps=300,
        parts={"setup": 0.4, "compile": 1.0, "drain/SlowTool": 4.3},
        expected={"slow_logging_tool"},
        step_time_s=0.005,
        busy_s=1.3,
        log_every_n_steps=1,
        tools=[{"tool": "SlowTool", "num_waiting": 215, "num_dropped": 0, "closing_s": 4.3}],
        says=("raise log_every_n_steps from 1 to 5",),
    ),
    Described(
        "tool that lost rows",
        wall_s=900.0,
        num_steps=90_000,
        parts={"compile": 5.0, "logging": 8.0},
        expected={"slow_logging_tool"},
        step_time_s=0.0095,
        busy_s=870.0,
        log_every_n_steps=1,
        tools=[{"tool": "WandBLogger", "num_waiting": 10_000, "num_dropped": 4000, "closing_s": 30.0}],
        says=("the run's event file has every row",),
    ),
    Described(
        "callback that uploads something now and then",
        wall_s=300.0,
        num_steps=10_000,
        parts={"callback/Uploader": 21.0, "compile": 8.0},
        expected={"callback_stalls"},
        step_time_s=0.025,
        busy_s=269.0,
        idle={"callback/Uploader": 19.0, "logging": 1.0},
        longest_s={"callback/Uploader": 3.2, "compile": 8.0},
    ),
    Described(
        "callback that plots at each step",
        wall_s=60.0,
        num_steps=500,
        parts={"callback/Plotter": 25.0, "compile": 3.0},
        expected={"callback_dominates"},
        busy_s=30.0,
        idle={"callback/Plotter": 20.0},
        longest_s={"callback/Plotter": 0.6},
    ),
    Described(
        "workers that start again for each of many short epochs",
        wall_s=130.0,
        num_steps=2000,
        parts={"data_wait": 57.0, "compile": 3.0},
        expected={"idle_after_epoch"},
        step_time_s=0.03,
        busy_s=68.0,
        idle={"data_wait": 56.0},
        loader=TORCH_WORKERS,
        pauses=[{"data_wait": 2.8}] * 19,
        epoch_time_s=3.5,
        says=("persistent_workers=True",),
    ),
    Described(
        "workers that are kept, and a data set that takes long to begin",
        wall_s=130.0,
        num_steps=2000,
        parts={"data_wait": 57.0, "compile": 3.0},
        expected={"idle_after_epoch"},
        busy_s=68.0,
        idle={"data_wait": 56.0},
        loader=TORCH_KEPT,
        pauses=[{"data_wait": 2.8}] * 19,
        epoch_time_s=3.5,
        never_says=("persistent_workers=True",),
    ),
    Described(
        "list, and a hook that takes long after each epoch",
        wall_s=100.0,
        num_steps=1000,
        parts={"other": 30.0, "compile": 2.0},
        expected={"idle_after_epoch"},
        busy_s=65.0,
        idle={"other": 30.0},
        pauses=[{"other": 3.0}] * 9,
        epoch_time_s=7.0,
        says=("on_training_epoch_end",),
        never_says=("workers",),
    ),
    Described(
        "row for each step, to a tool that is slow",
        wall_s=30.0,
        num_steps=400,
        parts={"logging": 14.0, "compile": 2.0},
        expected={"logging_too_often"},
        busy_s=12.0,
        idle={"logging": 10.0},
        log_every_n_steps=1,
        says=("a row takes 34.9 ms",),
    ),
    Described(
        "checkpoint every few steps",
        wall_s=100.0,
        num_steps=1000,
        parts={"checkpointing": 32.0, "compile": 4.0},
        expected={"checkpointing_dominates"},
        busy_s=60.0,
        idle={"checkpointing": 30.0},
    ),
    Described(
        "batches of many shapes",
        wall_s=60.0,
        num_steps=400,
        parts={"compile": 25.0},
        expected={"recompiling"},
        busy_s=30.0,
        compiles=[compiled(1.0), *recompiles(24)],
    ),
    Described(
        "large model that compiles for minutes, with the cache on",
        wall_s=400.0,
        num_steps=400,
        parts={"compile": 300.0},
        expected={"slow_compile"},
        busy_s=95.0,
        compiles=[compiled(298.0, cache="miss")],
        says=("the compile cache is on",),
        never_says=("jax_compilation_cache_dir",),
    ),
    Described(
        "lists of Python objects, which the collector goes through",
        wall_s=60.0,
        num_steps=1000,
        parts={"data_wait": 9.0, "compile": 3.0},
        expected={"garbage_collection"},
        busy_s=45.0,
        idle={"data_wait": 4.0},
        gc_s=8.0,
    ),
    Described(
        "two faults at once",
        wall_s=100.0,
        num_steps=1000,
        parts={"data_wait": 40.0, "callback/Plotter": 20.0, "compile": 4.0},
        expected={"input_bound", "callback_dominates"},
        busy_s=30.0,
        idle={"data_wait": 38.0, "callback/Plotter": 18.0},
        loader=GRAIN,
        says=("worker_count; 4 now",),
    ),
]
