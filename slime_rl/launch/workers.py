"""The rollout workers of a run, started together and ended together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from slime_rl.actors.calls import Callee, end, result
from slime_rl.actors.worker import Surroundings, WorkerActor
from slime_rl.config import Config
from slime_rl.errors import EngineError
from slime_rl.rollout.evaluation import Evaluation

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Member:
    actor: Any
    callee: Callee


class Workers:
    """Used as `async with Workers(...) as workers`, which returns once all of them are ready."""

    def __init__(self, config: Config, around: Surroundings, *, num_workers: int) -> None:
        self._config = config
        self._members = [
            _Member(
                WorkerActor.remote(index, config, around),
                Callee(f"rollout worker {index}", around.logs / f"worker-{index}.log", EngineError),
            )
            for index in range(num_workers)
        ]

    async def __aenter__(self) -> Self:
        try:
            await self._all("start", doing="as it started", timeout_s=self._config.rollout.start_timeout_s)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def produce(self) -> None:
        """Fill slots until no prompt remains; the first worker that fails is the error."""
        await self._all("produce", doing="as it generated")

    async def evaluate(self) -> Evaluation:
        """The held-out set's scores, by the first worker, on the weights that the engines serve now."""
        first = self._members[0]
        limit_s = self._config.loop.wait_timeout_s
        return await result(first.actor.evaluate.remote(), of=first.callee, doing="as it evaluated", timeout_s=limit_s)

    async def _all(self, method: str, *, doing: str, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for member in self._members:
                    call = getattr(member.actor, method).remote()
                    group.create_task(result(call, of=member.callee, doing=doing, timeout_s=timeout_s))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _stop(self) -> None:
        stops = [
            result(member.actor.stop.remote(), of=member.callee, doing="as it stopped", timeout_s=STOP_TIMEOUT_S)
            for member in self._members
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        end(*(member.actor for member in self._members))
