"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Points = Sequence[tuple[int, float]]
"""(step, value) pairs in the order of the steps."""


def draw_curve(path: Path, *, title: str, rewards: Points, scores: Points) -> None:
    """Write a PNG of the training reward and the held-out score over the steps."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if rewards:
        axes.plot(*zip(*rewards, strict=True), color="tab:blue", alpha=0.6, label="training reward (sampled)")
    if scores:
        axes.plot(*zip(*scores, strict=True), color="tab:orange", marker="o", label="held-out score")
    axes.set(title=title, xlabel="step", ylabel="mean reward")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
