"""The table and the summary that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from slime_rl.journal.folder import RunFolder
from slime_rl.launch.progress import console

NUM_ROWS = 12
PHASES = ("wait", "train", "publish", "evaluate")


def show(summary: Mapping[str, Any], rows: Sequence[Mapping[str, float]], folder: RunFolder) -> None:
    """Print the steps that were evaluated, or else some, and the last one; then the summary and where everything is."""
    speeds = ("sampled\ntok/s", "trained\ntok/s")
    table = Table("step", "reward", "held-out", "lag", *speeds, *(f"{p}\ns" for p in PHASES), box=box.SIMPLE_HEAD)
    table.collapse_padding, table.pad_edge = True, False
    for row in _chosen(rows):
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


def _chosen(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    scored = [row for row in rows if "heldout" in row]
    every = max(1, len(rows) // NUM_ROWS)
    chosen = scored or [row for row in rows if row["step"] % every == 0]
    return chosen if not rows or rows[-1] in chosen else [*chosen, rows[-1]]
