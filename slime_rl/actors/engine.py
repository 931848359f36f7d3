"""A Ray actor that owns one SGLang server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import ray

from slime_rl.actors.crew import write_output_to
from slime_rl.config import Config
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine import Engine
from slime_rl.types import Version

WATCH_S = 0.25


@ray.remote(num_cpus=0, max_restarts=0)
class EngineActor:
    """Starts an engine, says when it dies, and ends it."""

    def __init__(self, index: int, config: Config, keys: Keys, logs: Path) -> None:
        write_output_to(logs / f"engine-{index}.actor.log")
        self._engine = Engine(
            index,
            model=config.model,
            rollout=config.rollout,
            log_folder=logs,
            keys=keys,
            seed=config.run.seed,
            deterministic=config.run.deterministic,
        )

    async def start(self) -> Address:
        """Where the engine answers, once it does; it counts its weights as version 0."""
        return await self._engine.start(Version(0))

    async def watch(self) -> None:
        """Never returns; raises EngineError with the end of the log as soon as the server has ended."""
        while True:
            self._engine.process.check_running()
            await asyncio.sleep(WATCH_S)

    def stop(self) -> None:
        """End the server."""
        self._engine.stop()
