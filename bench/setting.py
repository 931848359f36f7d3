"""The configuration that all benchmarks share: the demo's shapes, on a model that was not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime_rl.config import Config
from slime_rl.config_file import validate


def configuration(root: Path, name: str, **sections: dict[str, Any]) -> Config:
    """A run called `name` under `root`; `sections` add to or replace fields of whole sections."""
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(root / name)},
        "model": {"path": str(root / "model"), "dtype": "float32"},
        "data": {"path": str(root / "data" / "train.jsonl"), "template": "none"},
        "sampling": {"max_new_tokens": 4},
        "loop": {"steps": 10, "groups_per_step": 128, "samples_per_prompt": 4},
        "rollout": {"sglang": {"context_length": 64, "max_total_tokens": 16384}},
        "trainer": {"lr": 1e-5},
    }
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return validate(values)
