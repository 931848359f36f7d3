"""The table and the summary that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from slime_rl.journal.folder import RunFolder
from slime_rl.launch.progress import console

NUM_ROWS = 12
PHASES = ("wait", "train", "publish", "evaluate", "save")


def show(summary: Mapping[str, Any], rows: Sequence[Mapping[str, float]], folder: RunFolder) -> None:
    """Print some of the steps, the last one among them, and where everything is."""
    table = Table(
        "step",
        "reward",
        "held-out",
        "lag",
        "sampled\ntok/s",
        "trained\ntok/s",
        *(f"{p}\ns" for p in PHASES),
        box=box.SIMPLE,
    )
    every = max(1, len(rows) // NUM_ROWS)
    for row in (r for r in rows if r["step"] % every == 0 or "heldout" in r or r is rows[-1]):
        table.add_row(
            f"{row['step']:.0f}",
            f"{row['reward']:.3f}",
            f"{row['heldout']:.3f}" if "heldout" in row else "",
            f"{row['lag_max']:.0f}",
            f"{row['rollout_tokens_per_s']:.0f}",
            f"{row['trainer_tokens_per_s']:.0f}",
            *(f"{row.get(f'seconds_{phase}', 0.0):.2f}" for phase in PHASES),
        )
    console.print(table)
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary["seconds_by_phase"].items())
    console.print(f"seconds by phase: {phases}; in all {summary['seconds_total']:.1f}")
    if summary["heldout_before"] is not None:
        console.print(f"held-out score: {summary['heldout_before']:.3f} before, {summary['heldout_after']:.3f} after")
    console.print(f"run folder: {folder.path}")
