"""Tokens per second through the whole rollout side over the bare engine's, with identical request bodies."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import uvloop

from bench.setting import configuration
from slime_rl.buffer.dataset import load_prompts
from slime_rl.buffer.pacing import Pacing, pacing_of
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.config import Config
from slime_rl.loop import Worker, produce
from slime_rl.rewards.pool import GraderPool
from slime_rl.rollout.address import Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import EngineHttp, generate_body
from slime_rl.rollout.rendering import Renderer
from slime_rl.rollout.router import Router
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Prompt, Version

ROUNDS = 20
WARM_UP = 2
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What both sides run on, open before the first round and until after the last."""

    config: Config
    prompts: Sequence[Prompt]
    renderer: Renderer
    url: str
    reward: GraderPool
    router: EngineHttp
    engine: EngineHttp
    bare: aiohttp.ClientSession


def compare(root: Path) -> float:
    """The median ratio of rounds in which both sides run, one after the other and each first in every second round.

    The system side is a worker: reserve, router, engine, reward, fill. The bare side posts the same bodies to the
    engine and reads the bytes of the replies. Processes, sessions and connections are kept over the rounds, and each
    side begins with an empty prefix cache. Both run on the event loop that Ray gives its actors.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return statistics.median(runner.run(_ratios(root)))


async def _ratios(root: Path) -> list[float]:
    async with _stand(configuration(root, "sampling", loop={"steps": 1})) as stand:
        ratios = [await _round(stand, number) for number in range(WARM_UP + ROUNDS)]
    return ratios[WARM_UP:]


@asynccontextmanager
async def _stand(config: Config) -> AsyncIterator[Stand]:
    folder = Path(config.run.folder)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    keys = Keys.draw()
    engine = Engine(0, model=config.model, rollout=config.rollout, log_folder=logs, keys=keys, seed=0)
    router, server = Router(rollout=config.rollout, log_folder=logs, keys=keys), EmbeddedServer(folder)
    try:
        address = await engine.start(Version(0))
        front = await router.start([address])
        headers = {"Authorization": f"Bearer {keys.api}", "Content-Type": "application/json"}
        async with (
            GraderPool(config.reward, log=logs / "grader.log") as reward,
            EngineHttp(front, timeout_s=TIMEOUT_S) as through_router,
            EngineHttp(address, timeout_s=TIMEOUT_S) as http,
            aiohttp.ClientSession(address.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as bare,
        ):
            yield Stand(
                config=config,
                prompts=load_prompts(config.data.named["data"].path, config.data.columns, field="data.path"),
                renderer=Renderer(config.model, config.data),
                url=server.start(),
                reward=reward,
                router=through_router,
                engine=http,
                bare=bare,
            )
    finally:
        router.stop()
        engine.stop()
        server.stop()


async def _round(stand: Stand, number: int) -> float:
    """Tokens per second of the system over those of the bare engine, on the prompts of one step."""
    pacing = pacing_of(stand.config, run_id=f"round-{number}", num_prompts=len(stand.prompts))
    sides = (_system, _bare) if number % 2 == 0 else (_bare, _system)
    speeds = {side: await side(stand, pacing) for side in sides}
    return speeds[_system] / speeds[_bare]


async def _system(stand: Stand, pacing: Pacing) -> float:
    """Tokens per second of a worker that fills the buffer for one step."""
    buffer = await RedisBuffer.open(stand.url, pacing, create=True)
    worker = Worker(
        name="worker",
        config=stand.config.loop,
        prompts=stand.prompts,
        slots=buffer,
        partials=buffer,
        program=SingleTurn(http=stand.router, renderer=stand.renderer, sampling=stand.config.sampling),
        reward=stand.reward,
        filters=[],
        episodes=asyncio.Semaphore(stand.config.loop.slots),
    )
    await stand.engine.flush_cache()
    start = time.perf_counter()
    await produce(worker)
    seconds = time.perf_counter() - start
    assignment = await buffer.assign(0)
    await buffer.close()
    reader = GroupReader(stand.url, pacing.run_id)
    groups = reader.read([group.id for group in assignment.groups])
    reader.close()
    return sum(sample.num_trained for group in groups for sample in group.samples) / seconds


async def _bare(stand: Stand, pacing: Pacing) -> float:
    """Tokens per second of the same requests, all sent at once to the engine itself."""
    config = stand.config
    prompts = [stand.prompts[pacing.prompt_index(id)] for id in range(config.loop.groups_per_step)]
    bodies = [
        generate_body(
            stand.renderer.encode_prompt(prompt),
            num_samples=config.loop.samples_per_prompt,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            stop_token_ids=stand.renderer.stop_token_ids,
        )
        for prompt in prompts
    ]

    async def post(body: bytes) -> bytes:
        async with stand.bare.post("/generate", data=body) as response:
            return await response.read()

    await stand.engine.flush_cache()
    start = time.perf_counter()
    replies = await asyncio.gather(*map(post, bodies))
    seconds = time.perf_counter() - start
    return sum(len(one["output_ids"]) for reply in replies for one in orjson.loads(reply)) / seconds
