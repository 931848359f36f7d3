"""Tokens per second through the whole rollout side over the bare engine's, with identical request bodies."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import aiohttp
import numpy as np
import orjson

from bench.setting import configuration
from slime_rl.buffer.dataset import load_prompts
from slime_rl.buffer.pacing import pacing_of
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.config import Config
from slime_rl.loop import Worker, produce
from slime_rl.rewards.pool import GraderPool
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.rendering import Renderer
from slime_rl.rollout.router import Router
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Prompt, Version

ROUNDS = 7


async def compare(root: Path) -> float:
    """The median ratio of rounds in which both sides run one after the other.

    The system side is a worker: reserve, router, engine, reward, fill. The bare side posts the same bodies to the
    engine and reads the bytes of the replies.
    """
    config = configuration(root, "sampling", loop={"steps": 1})
    folder = Path(config.run.folder)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    keys = Keys.draw()
    engine = Engine(0, model=config.model, rollout=config.rollout, log_folder=logs, keys=keys, seed=0)
    router, server = Router(rollout=config.rollout, log_folder=logs, keys=keys), EmbeddedServer(folder)
    try:
        address = await engine.start(Version(0))
        front = await router.start([address])
        url = server.start()
        ratios = [await _round(config, number, front, address, url, logs) for number in range(ROUNDS)]
    finally:
        router.stop()
        engine.stop()
        server.stop()
    return statistics.median(ratios[1:])


async def _round(config: Config, number: int, front: Address, engine: Address, url: str, logs: Path) -> float:
    prompts = load_prompts(config.data.path, config.data.columns, field="data.path")
    renderer = Renderer(config.model, config.data)
    pacing = pacing_of(config, run_id=f"round-{number}", num_prompts=len(prompts))
    buffer = await RedisBuffer.open(url, pacing, create=True)
    async with GraderPool(config.reward, log=logs / "grader.log") as reward, EngineHttp(front, timeout_s=60) as http:
        worker = Worker(
            name="worker",
            config=config.loop,
            prompts=prompts,
            slots=buffer,
            program=SingleTurn(http=http, renderer=renderer, sampling=config.sampling),
            reward=reward,
            episodes=asyncio.Semaphore(config.loop.slots),
        )
        start = time.perf_counter()
        await produce(worker)
        system_s = time.perf_counter() - start
    system_tokens = sum(g.num_tokens - 6 * g.num_samples for g in (await buffer.assign(0)).groups)
    await buffer.close()
    chosen = [prompts[pacing.prompt_index(id)] for id in range(config.loop.groups_per_step)]
    bare_tokens, bare_s = await _bare(config, engine, renderer, chosen)
    return (system_tokens / system_s) / (bare_tokens / bare_s)


async def _bare(config: Config, engine: Address, renderer: Renderer, prompts: list[Prompt]) -> tuple[int, float]:
    """Tokens and seconds of the same requests, all sent at once to the engine itself."""
    bodies = [
        orjson.dumps(
            {
                "input_ids": renderer.encode_prompt(prompt),
                "sampling_params": {
                    "n": config.loop.samples_per_prompt,
                    "temperature": config.sampling.temperature,
                    "max_new_tokens": config.sampling.max_new_tokens,
                    "stop_token_ids": list(renderer.stop_token_ids),
                },
                "return_logprob": True,
            }
        )
        for prompt in prompts
    ]
    headers = {"Authorization": f"Bearer {engine.keys.api}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(engine.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(body: bytes) -> bytes:
            async with session.post("/generate", data=body) as response:
                return await response.read()

        start = time.perf_counter()
        replies = await asyncio.gather(*map(post, bodies))
        seconds = time.perf_counter() - start
    tokens = int(np.sum([len(one["output_ids"]) for reply in replies for one in orjson.loads(reply)]))
    return tokens, seconds
