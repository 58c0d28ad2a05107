"""Set-up of the decoding tests: no W&B unless a test asks for it, and a profiler without a past."""

import os

import pytest
import torch

from trackside.profiling import get_profiler

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_profiler():
    get_profiler().reset()
    yield get_profiler()
    get_profiler().reset()


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
