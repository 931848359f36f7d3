"""Metrics by step: lines of JSON for programs, TensorBoard events for people."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from slime_rl.types import AssignedGroup, Assignment


class MetricsLog:
    """Appends to `metrics.jsonl`, `events.jsonl` and the TensorBoard folder of a run."""

    def __init__(self, folder: Path) -> None:
        self._metrics = _append(folder / "metrics.jsonl")
        self._events = _append(folder / "events.jsonl")
        self._tensorboard = EventFileWriter(str(folder / "tensorboard"))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        now = time.time()
        _write(self._metrics, {"step": step, "time": now, **values})
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._tensorboard.add_event(Event(wall_time=now, step=step, summary=Summary(value=scalars)))

    def resumed(self, step: int) -> None:
        """Tell TensorBoard that what it has of later steps is taken again."""
        start = SessionLog(status=SessionLog.START)
        self._tensorboard.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def event(self, kind: str, **details: Any) -> None:
        """Record something that happened once."""
        _write(self._events, {"time": time.time(), "event": kind, **details})

    def close(self) -> None:
        self._tensorboard.close()
        self._metrics.close()
        self._events.close()


def size_row(assignment: Assignment, *, samples_per_prompt: int) -> dict[str, float]:
    """How many groups of a step are short of samples, and of how many; how long its samples are, and those that a
    surplus gave back, which are the longer ones where short answers come first. Tokens count with their prompts.
    """
    missing = [max(0, samples_per_prompt - group.num_samples) for group in assignment.groups]
    return {
        "smaller_groups": sum(count > 0 for count in missing),
        "missing_samples": sum(missing),
        "returned_groups": len(assignment.returned),
        "sample_tokens": _mean_tokens(assignment.groups),
        "returned_sample_tokens": _mean_tokens(assignment.returned),
    }


def _mean_tokens(groups: Sequence[AssignedGroup]) -> float:
    num_samples = sum(group.num_samples for group in groups)
    return sum(group.num_tokens for group in groups) / num_samples if num_samples else math.nan


def _append(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8")


def _write(file: TextIO, row: Mapping[str, Any]) -> None:
    """One line of JSON; what is not a number (nothing was counted) is null."""
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    file.write(json.dumps(values) + "\n")
    file.flush()
