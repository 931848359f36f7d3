"""How much longer the samples of a step take in a deterministic run: one request at a time, each with a seed."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from bench.setting import configuration
from slime_rl.buffer.dataset import load_prompts
from slime_rl.config import Config
from slime_rl.rollout.address import Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.rendering import Renderer
from slime_rl.rollout.seeds import Seeds
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Prompt, Version

ROUNDS = 5
WARM_UP = 1
TIMEOUT_S = 60.0


def compare(root: Path) -> float:
    """The median of rounds in which both ways sample one step's groups, each first in every second round.

    Each way has an engine of its own; both are up over all rounds, and only one is asked at a time.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return statistics.median(runner.run(_ratios(root)))


async def _ratios(root: Path) -> list[float]:
    config = configuration(root, "deterministic", loop={"steps": 1})
    logs = Path(config.run.folder) / "logs"
    logs.mkdir(parents=True)
    prompts = load_prompts(config.data.named["data"].path, config.data.columns, field="data.path")
    async with AsyncExitStack() as stack:
        ordinary = await _program(config, logs, stack, deterministic=False)
        deterministic = await _program(config, logs, stack, deterministic=True)
        ratios = []
        for number in range(WARM_UP + ROUNDS):
            order = (ordinary, deterministic) if number % 2 else (deterministic, ordinary)
            seconds = {program: await _seconds(program, config, prompts) for program in order}
            ratios.append(seconds[deterministic] / seconds[ordinary])
    return ratios[WARM_UP:]


async def _program(config: Config, logs: Path, stack: AsyncExitStack, *, deterministic: bool) -> SingleTurn:
    keys = Keys.draw()
    engine = Engine(
        int(deterministic),
        model=config.model,
        rollout=config.rollout,
        log_folder=logs,
        keys=keys,
        seed=0,
        deterministic=deterministic,
    )
    stack.callback(engine.stop)
    http = EngineHttp(await engine.start(Version(0)), timeout_s=TIMEOUT_S, serial=deterministic)
    return SingleTurn(
        http=await stack.enter_async_context(http),
        renderer=Renderer(config.model, config.data),
        sampling=config.sampling,
        seeds=Seeds(config.run.seed, "train") if deterministic else None,
    )


async def _seconds(program: SingleTurn, config: Config, prompts: Sequence[Prompt]) -> float:
    """Seconds until every group of a step is there, all of them asked for at once."""
    chosen = prompts[: config.loop.groups_per_step]
    num_samples, temperature = config.loop.samples_per_prompt, config.sampling.temperature
    start = time.perf_counter()
    await asyncio.gather(*[program(prompt, num_samples=num_samples, temperature=temperature) for prompt in chosen])
    return time.perf_counter() - start
