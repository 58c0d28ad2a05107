"""A convolutional network in Flax Linen learns handwritten digits: python examples/digits_cnn.py [RUN_DIR].

Needs scikit-learn for the images: pip install ".[demo]".
"""

import sys
import tempfile

import flax.linen as nn
import numpy as np
import optax
from sklearn.datasets import load_digits

from trackside import Trainer

BATCH_SIZE = 64


class DigitsNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        for index, features in enumerate((16, 32)):
            x = nn.Conv(features, (3, 3), strides=(1 + index, 1 + index), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x.reshape(len(x), -1))
        return nn.Dense(10)(x)


def loss_fn(model, batch, rng):
    """`model` is called without its parameters; batch statistics and the mode are taken care of."""
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean(), {"accuracy": (logits.argmax(-1) == batch["y"]).mean()}


def make_batches(images, labels):
    starts = range(0, len(images) - BATCH_SIZE + 1, BATCH_SIZE)
    return [{"x": images[at : at + BATCH_SIZE], "y": labels[at : at + BATCH_SIZE]} for at in starts]


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
images = (digits.images[order, ..., None] / 16).astype(np.float32)
labels = digits.target[order].astype(np.int32)
train, val, test = (make_batches(images[part], labels[part]) for part in np.split(np.arange(len(order)), (1280, 1536)))

run_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
trainer = Trainer(DigitsNet(), loss_fn, optax.adamw(3e-3), run=run_dir)
print(trainer.summary(train))
metrics = trainer.fit(train, val, test, num_epochs=4)
print(f"test accuracy {metrics['test']['accuracy']:.3f}; trackside report {run_dir}")
