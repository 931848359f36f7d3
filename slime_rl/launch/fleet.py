"""The engines of a run and their router, started together and ended together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slime_rl.actors.calls import Callee, end, result
from slime_rl.actors.engine import EngineActor
from slime_rl.config import Config
from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.router import Router

STOP_TIMEOUT_S = 30.0
MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class _Member:
    actor: Any
    callee: Callee


class Fleet:
    """Engines behind a router; used as `async with Fleet(...) as fleet`, which returns once all of them answer."""

    def __init__(self, config: Config, *, logs: Path) -> None:
        self._config = config
        keys = Keys.draw()
        self._router = Router(rollout=config.rollout, log_folder=logs, keys=keys)
        self._members = [
            _Member(
                EngineActor.remote(index, config, keys, logs),
                Callee(f"engine {index}", logs / f"engine-{index}.log", EngineError),
            )
            for index in range(config.rollout.num_engines)
        ]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def watch(self) -> None:
        """Never returns; raises EngineError with its cause as soon as an engine or the router has died."""
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(result(member.actor.watch.remote(), of=member.callee, doing="while the run needs it"))
            group.create_task(self._watch_router())

    async def _watch_router(self) -> None:
        while True:
            self._router.process.check_running()
            await asyncio.sleep(0.25)

    async def _start(self) -> None:
        limit_s = self._config.rollout.start_timeout_s + MARGIN_S
        starts = [
            result(member.actor.start.remote(), of=member.callee, doing="as it started", timeout_s=limit_s)
            for member in self._members
        ]
        self.addresses: list[Address] = await asyncio.gather(*starts)
        self.router = await self._router.start(self.addresses)

    async def _stop(self) -> None:
        await asyncio.to_thread(self._router.stop)
        stops = [
            result(member.actor.stop.remote(), of=member.callee, doing="as it stopped", timeout_s=STOP_TIMEOUT_S)
            for member in self._members
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        end(*(member.actor for member in self._members))
