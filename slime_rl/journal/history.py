"""What a run has recorded up to a version, for when it goes on from there."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_rl.types import Version


@dataclass(frozen=True, slots=True)
class History:
    """The metrics of the steps that stand, and the held-out scores as (version, score)."""

    rows: list[dict[str, float]] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)


def rewind(folder: Path, version: Version) -> History:
    """What stands at `version`; the metrics of later steps, which are taken again, leave `metrics.jsonl`.

    A line that a crash has cut leaves its file too, so that the next one does not join it.
    """
    rows = [row for row in _read(folder / "metrics.jsonl") if row["step"] <= version]
    events = _read(folder / "events.jsonl")
    _write(folder / "metrics.jsonl", rows)
    _write(folder / "events.jsonl", events)
    scored = [event for event in events if event.get("event") == "evaluation" and event["version"] <= version]
    scores = {event["version"]: event["score"] for event in scored}
    return History([_as_numbers(row) for row in rows], sorted(scores.items()))


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    aside = file.with_name(f"{file.name}.part")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    aside.replace(file)


def _as_numbers(row: dict[str, Any]) -> dict[str, float]:
    """A row as it was recorded: what is null in the file was no number, since nothing was counted."""
    return {name: math.nan if value is None else value for name, value in row.items()}
