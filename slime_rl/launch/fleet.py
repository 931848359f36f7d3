"""The engines of a run and their router, started together and ended together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from slime_rl.actors.crew import Crew, Member
from slime_rl.actors.engine import EngineActor
from slime_rl.config import Config
from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.router import Router

STOP_TIMEOUT_S = 30.0
START_MARGIN_S = 60.0
"""How long an engine that did not start in time may take to end."""
WATCH_S = 0.25


class Fleet:
    """Engines behind a router; used as `async with Fleet(...) as fleet`, which returns once all of them answer."""

    def __init__(self, config: Config, *, logs: Path) -> None:
        self._start_timeout_s = config.rollout.start_timeout_s + START_MARGIN_S
        keys = Keys.draw()
        self._router = Router(rollout=config.rollout, log_folder=logs, keys=keys)
        self._crew = Crew(
            [
                Member(
                    EngineActor.remote(index, config, keys, logs),
                    f"engine {index}",
                    logs / f"engine-{index}.log",
                    EngineError,
                )
                for index in range(config.rollout.num_engines)
            ]
        )

    async def __aenter__(self) -> Self:
        try:
            await self._crew.appear()
            self.addresses: list[Address] = await self._crew.call(
                "start", doing="as it started", timeout_s=self._start_timeout_s
            )
            self.router = await self._router.start(self.addresses)
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
            group.create_task(self._crew.call("watch", doing="while the run needs it"))
            group.create_task(self._watch_router())

    async def _watch_router(self) -> None:
        while True:
            self._router.process.check_running()
            await asyncio.sleep(WATCH_S)

    async def _stop(self) -> None:
        try:
            await asyncio.to_thread(self._router.stop)
        finally:
            await self._crew.end(timeout_s=STOP_TIMEOUT_S)
