"""What the batches of a run came from, in words."""

from collections.abc import Mapping
from typing import Any

from trackside.findings.loader_facts import loaders_of


def loader_texts(environment: Mapping[str, Any]) -> list[str]:
    """The loaders of a run, each with its use: `train loader: list of 20 batches of 8`.

    Args:
        environment: `RunSummary.environment`. Runs of earlier versions do not say what their loaders were.
    """
    return [f"{name} loader: {loader.text}" for name, loader in loaders_of(environment.get("loaders")).items()]
