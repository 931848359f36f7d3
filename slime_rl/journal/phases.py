"""Where the seconds of a run go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from slime_rl.interfaces import Steps, Trainer
from slime_rl.types import Assignment, BufferStatus, StepReport, Version


class Phases:
    """Adds up seconds by phase, over the run and since the last step."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.total: defaultdict[str, float] = defaultdict(float)
        self._step: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count what runs inside towards `name`, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - start
            self.total[name] += spent
            self._step[name] += spent

    def take_step(self) -> dict[str, float]:
        """The seconds since the last call, by phase."""
        taken, self._step = dict(self._step), defaultdict(float)
        return taken


class TimedTrainer:
    """A trainer whose calls are measured; implements interfaces.Trainer."""

    def __init__(self, trainer: Trainer, phases: Phases) -> None:
        self._trainer = trainer
        self._phases = phases

    async def load(self) -> Version:
        with self._phases.measure("start"):
            return await self._trainer.load()

    async def step(self, assignment: Assignment) -> StepReport:
        with self._phases.measure("train"):
            return await self._trainer.step(assignment)

    async def publish(self, version: Version) -> None:
        with self._phases.measure("publish"):
            await self._trainer.publish(version)

    async def save(self, version: Version, snapshot: bytes) -> None:
        with self._phases.measure("save"):
            await self._trainer.save(version, snapshot)


class TimedSteps:
    """A buffer's trainer side whose waits are measured; implements interfaces.Steps."""

    def __init__(self, steps: Steps, phases: Phases) -> None:
        self._steps = steps
        self._phases = phases

    async def assign(self, step: int) -> Assignment:
        with self._phases.measure("wait"):
            return await self._steps.assign(step)

    async def publish(self, version: Version) -> None:
        with self._phases.measure("buffer"):
            await self._steps.publish(version)

    async def commit(self, step: int) -> None:
        with self._phases.measure("buffer"):
            await self._steps.commit(step)

    async def snapshot(self, version: Version) -> bytes:
        with self._phases.measure("buffer"):
            return await self._steps.snapshot(version)

    async def status(self) -> BufferStatus:
        return await self._steps.status()
