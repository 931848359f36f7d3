"""Where the seconds of a synchronous step go, as shares."""

from __future__ import annotations

from pathlib import Path

from bench.setting import configuration
from slime_rl.launch import training

PHASES = ("wait", "train", "publish", "buffer")


def measure(root: Path) -> dict[str, float]:
    """The share of each phase in a run of ten steps on one engine, start and end aside."""
    seconds = training.run(configuration(root, "phases"))["seconds_by_phase"]
    total = sum(seconds[phase] for phase in PHASES)
    return {phase: round(seconds[phase] / total, 4) for phase in PHASES}
