"""Lightning on PyTorch: the same models, optimizer and batches."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.peers.tasks import LEARNING_RATE, Task, make_batches

_ACTIVATIONS = {"tanh": nn.Tanh, "swish": nn.SiLU, "gelu": nn.GELU}


class _Residual(nn.Module):
    def __init__(self, width: int, activation: nn.Module):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def _mlp(task: Task) -> nn.Module:
    parts: list[nn.Module] = []
    before = 64
    for width in task.hidden:
        activation = _ACTIVATIONS[task.activation]()
        if task.is_residual:
            parts += [] if before == width else [nn.Linear(before, width)]
            parts.append(_Residual(width, activation))
        else:
            parts += [nn.Linear(before, width), activation]
        before = width
    return nn.Sequential(*parts, nn.Linear(before, 1))


def _cnn(task: Task) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


class _Transformer(nn.Module):
    def __init__(self, task: Task):
        super().__init__()
        self.letters = nn.Embedding(task.num_classes, task.width)
        self.places = nn.Embedding(task.context, task.width)
        layer = nn.TransformerEncoderLayer(
            task.width, 4, 4 * task.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, task.num_layers, nn.LayerNorm(task.width), enable_nested_tensor=False
        )
        self.head = nn.Linear(task.width, task.num_classes)
        self.mask: torch.Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(task.context))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


_MODELS = {"mlp": _mlp, "cnn": _cnn, "transformer": _Transformer}


class _TaskModule(lightning.LightningModule):
    def __init__(self, task: Task):
        super().__init__()
        self.model = _MODELS[task.kind](task)
        self.loss = nn.CrossEntropyLoss() if task.is_classification else nn.MSELoss()

    def loss_of(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        outputs = self.model(inputs)
        if outputs.ndim > 2:
            outputs, targets = outputs.flatten(0, -2), targets.flatten()
        return self.loss(outputs, targets)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), LEARNING_RATE)


def by_hand(task: Task) -> Callable[[int], None]:
    """The same model, loss and optimizer in a `for`, without Lightning."""
    batches = [tuple(map(_tensor, batch, (task, task))) for batch in make_batches(task)]
    module = _TaskModule(task)
    optimizer = torch.optim.Adam(module.parameters(), LEARNING_RATE)

    def run(num_steps: int) -> None:
        for index in range(num_steps):
            optimizer.zero_grad()
            module.loss_of(batches[index % len(batches)]).backward()
            optimizer.step()

    return run


def fit(task: Task, folder: Path, has_bar: bool) -> Callable[[int], None]:
    """`Trainer.fit` at its defaults, which log every 50 steps and save at the end; or without bar, log and saving.

    Args:
        task: What is trained.
        folder: Where it writes.
        has_bar: Whether everything is at its default.
    """
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    batches = [tuple(map(_tensor, batch, (task, task))) for batch in make_batches(task)]
    module = _TaskModule(task)
    options: dict[str, Any] = {} if has_bar else {"logger": False, "enable_checkpointing": False}

    def run(num_steps: int) -> None:
        chosen = [batches[index % len(batches)] for index in range(num_steps)]
        loader = DataLoader(chosen, batch_size=None)  # type: ignore[arg-type]  # a list would be one loader each
        trainer = lightning.Trainer(
            max_steps=num_steps,
            default_root_dir=folder,
            accelerator="cpu",
            enable_progress_bar=has_bar,
            enable_model_summary=False,
            **options,
        )
        trainer.fit(module, loader)

    return run


def _tensor(array: Any, task: Task) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if task.kind == "cnn" and tensor.ndim == 4:
        tensor = tensor.permute(0, 3, 1, 2).contiguous()
    return tensor.long() if not tensor.is_floating_point() else tensor
