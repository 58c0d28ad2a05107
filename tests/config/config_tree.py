"""A tree of configs with every kind of field, and one filled example of it."""

from __future__ import annotations

import enum
import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trackside.config import ConfigDict, register


class Anneal(enum.Enum):
    CONSTANT = "constant"
    COSINE = "cosine"


class Net:
    """A model class; it is written as its module and name."""


class DeepNet(Net):
    pass


@register("tree.build_net")
def build_net() -> Net:
    return Net()


@dataclass
class HookConfig(ConfigDict):
    every_n_steps: int = -1
    main_process_only: bool = False


@dataclass
class SaveHookConfig(HookConfig):
    monitor: str | None = None
    mode: Literal["min", "max"] = "min"


@dataclass(kw_only=True, slots=True)
class TraceHookConfig(HookConfig):
    folder: str = "tensorboard"
    minutes: float = 60.0


@dataclass
class SinkConfig(ConfigDict):
    pass


@dataclass
class FileSinkConfig(SinkConfig):
    suffix: str = "csv"


@dataclass
class OutputConfig(ConfigDict):
    every_n_steps: int = 1
    path: pathlib.Path | None = None
    sinks: list[SinkConfig] = field(default_factory=list)


@dataclass
class Window:
    """A plain dataclass, not a config."""

    start: int = 0
    end: int = 10

    def __post_init__(self):
        if self.end < self.start:
            raise ValueError(f"end={self.end} is before start={self.start}")


@dataclass
class NetConfig(ConfigDict):
    net: type | Callable[..., Any] | None = None
    base: type[Net] = Net
    dtype: np.dtype | None = None
    axes: dict[str, int] = field(default_factory=lambda: {"dp": -1})
    names: tuple[str, ...] = ()
    shape: tuple[int, float, str] = (1, 2.0, "c")
    inner: ConfigDict | None = None


@dataclass
class RunConfig(ConfigDict):
    seed: int = 0
    debug: bool = False
    lr: float = 1e-3
    name: str = "run"
    anneal: Anneal = Anneal.CONSTANT
    modes: list[str] = field(default_factory=lambda: ["mean"])
    output: OutputConfig | None = field(default_factory=OutputConfig)
    hooks: list[HookConfig] = field(default_factory=list)
    hook_pair: tuple[HookConfig, HookConfig] | None = None
    evals: dict[str, HookConfig] = field(default_factory=dict)
    by_step: dict[int, str] = field(default_factory=dict)
    net: NetConfig | None = None
    window: Window = field(default_factory=Window)
    tags: set[str] = field(default_factory=set)
    frozen: frozenset[int] = frozenset()
    pattern: re.Pattern[str] | None = None
    source: str | pathlib.Path = "here"
    sizes: Sequence[int] = ()
    limit: int | float | str | None = None
    choice: OutputConfig | HookConfig | None = None
    extra: Any = None
    anything: dict[str, Any] = field(default_factory=dict)
    num_made: int = field(default=0, init=False)


EXAMPLE = RunConfig(
    seed=3,
    debug=True,
    anneal=Anneal.COSINE,
    modes=["mean", "max"],
    output=OutputConfig(50, pathlib.Path("out"), [FileSinkConfig("jsonl"), SinkConfig()]),
    hooks=[TraceHookConfig(minutes=-1.0), SaveHookConfig(monitor="val_loss")],
    hook_pair=(HookConfig(), SaveHookConfig()),
    evals={"a": SaveHookConfig(), "b c": HookConfig(2)},
    by_step={1: "one", -2: "two"},
    net=NetConfig(build_net, DeepNet, np.dtype("float16"), {"dp": 2}, ("a", "b"), (4, 5.0, "d"), HookConfig(7)),
    window=Window(1, 2),
    tags={"x", "y"},
    frozen=frozenset({3, 1}),
    pattern=re.compile("a+", re.IGNORECASE),
    source=pathlib.Path("there"),
    sizes=(1, 2),
    limit=2.0,
    choice=SaveHookConfig(),
    extra=[1, None, {"z": True, "t": (1, pathlib.Path("p"))}, HookConfig()],
    anything={"k": FileSinkConfig("x"), "s": {1}},
)
