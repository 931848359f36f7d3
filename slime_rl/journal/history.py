"""What a run has recorded up to a version, for when it goes on from there."""

from __future__ import annotations

import json
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
    """What stands at `version`; the metrics of later steps, which are taken again, leave `metrics.jsonl`."""
    rows = _read(folder / "metrics.jsonl")
    standing = [row for row in rows if row["step"] <= version]
    if len(standing) < len(rows):
        aside = folder / "metrics.jsonl.part"
        aside.write_text("".join(json.dumps(row) + "\n" for row in standing), encoding="utf-8")
        aside.replace(folder / "metrics.jsonl")
    events = [event for event in _read(folder / "events.jsonl") if event.get("event") == "evaluation"]
    scores = {event["version"]: event["score"] for event in events if event["version"] <= version}
    return History(standing, sorted(scores.items()))


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole: the last one may have been cut by a crash."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
