"""The results as a picture: time per step next to a hand-written loop, on a logarithmic axis."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.peers.results import Results

SHOWN = ("loss only", "K=1", "trackside", "every 1", "all on", "Trainer", "keras", "lightning")
COLORS = {
    "loss only": "#9aa5b1",
    "K=1": "#7fb3d5",
    "trackside": "#1f6fb2",
    "every 1": "#5dade2",
    "all on": "#154360",
    "Trainer": "#48c9b0",
}


def draw(results: Results, path: Path) -> None:
    """Draw bars by task, and write them as a picture."""
    shown = [name for name in SHOWN if name in results.contestants]
    figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    places, width = np.arange(len(results.tasks)), 0.8 / len(shown)
    peers = iter(("#e59866", "#a04000"))
    for index, name in enumerate(shown):
        ratios = [results.ratio(t, name, "same work") if results.has(t, name) else None for t in results.tasks]
        medians = [np.nan if ratio is None else ratio.median for ratio in ratios]
        spread = [
            [0 if ratio is None else max(0.0, ratio.median - ratio.low) for ratio in ratios],
            [0 if ratio is None else max(0.0, ratio.high - ratio.median) for ratio in ratios],
        ]
        axes.bar(
            places + (index - (len(shown) - 1) / 2) * width,
            medians,
            width * 0.92,
            yerr=spread,
            label=name,
            color=COLORS.get(name) or next(peers),
            error_kw={"linewidth": 0.8},
        )
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_yscale("log")
    ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16]
    axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks(places, results.tasks)
    axes.set_ylabel("time per step, to the same work by hand")
    axes.legend(ncols=len(shown), frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
