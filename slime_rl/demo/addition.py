"""Runs the demo: data and model, supervised warm-up, reinforcement learning, summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from slime_rl.config import Config
from slime_rl.config_file import apply_override, parse_yaml, validate
from slime_rl.demo.model import write_model
from slime_rl.demo.problems import read_problems, split_problems, write_data
from slime_rl.journal.folder import check_unused, write_json
from slime_rl.launch import supervised, training
from slime_rl.launch.progress import console

SEED = 0


def run(folder: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Run everything in `folder` (a new one under runs/ if None) and return the summary."""
    root = Path(folder) if folder is not None else _new_folder()
    config = _config("config.yaml", root, overrides)
    started = time.monotonic()
    warm_up_s = prepare(root)
    summary = training.run(config)
    summary |= {
        "heldout_overlap": len(_problems(root, "heldout") & _problems(root, "train", "warm_up", "validation")),
        "seconds_total": time.monotonic() - started,
        "seconds_by_phase": {"warm_up": warm_up_s, **summary["seconds_by_phase"]},
    }
    write_json(Path(config.run.folder) / "summary.json", summary)
    console.print(f"warm-up {warm_up_s:.1f} s, everything {summary['seconds_total']:.1f} s")
    return summary


def prepare(root: Path) -> float:
    """Make the data, the model and its warm-up in `root`, and return the seconds that took.

    Raises RunFolderError if `root` is in use.
    """
    check_unused(root)
    started = time.monotonic()
    write_data(root / "data", split_problems(SEED), SEED)
    num_parameters = write_model(root / "base", SEED)
    console.print(f"a Qwen3 of {num_parameters:,} parameters learns to add two numbers below 100, in {root}")
    supervised.run(_config("warm_up.yaml", root, ()))
    return time.monotonic() - started


def _config(name: str, root: Path, overrides: Sequence[str]) -> Config:
    """The example's configuration with its paths under `root`."""
    text = (resources.files("slime_rl.demo") / name).read_text(encoding="utf-8")
    values = _moved(parse_yaml(text, source=name), root)
    for override in overrides:
        apply_override(values, override)
    return validate(values)


def _moved(value: Any, root: Path) -> Any:
    """`value` with each path under runs/addition put under `root`."""
    if isinstance(value, dict):
        return {key: _moved(item, root) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("runs/addition/"):
        return str(root / value.removeprefix("runs/addition/"))
    return value


def _problems(root: Path, *names: str) -> set[tuple[int, int]]:
    """The problems in any of the named files."""
    return set().union(*(read_problems(root / "data" / f"{name}.jsonl") for name in names))


def _new_folder() -> Path:
    """The first of runs/demo-1, runs/demo-2, ... that is not there."""
    number = 1
    while (path := Path("runs") / f"demo-{number}").exists():
        number += 1
    return path
