"""A Ray actor that generates and scores groups, and evaluates."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ray

from slime_rl import loop
from slime_rl.actors.crew import write_output_to
from slime_rl.buffer.dataset import Selection, load_held_out, load_selected
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.config import Config, SamplingConfig
from slime_rl.errors import cause_first
from slime_rl.interfaces import Filter
from slime_rl.rewards.filters import BUILT_IN, BuiltIn
from slime_rl.rewards.pool import FilterPool, GraderPool
from slime_rl.rollout.address import Address
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.evaluation import Evaluation, evaluate
from slime_rl.rollout.rendering import Renderer
from slime_rl.rollout.seeds import NO_GROUP, Seeds
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a worker finds the rest of the run, and which rows all use; one that only evaluates has no `buffer`."""

    router: Address
    logs: Path
    buffer: tuple[Endpoint, Pacing] | None
    selection: Selection


@ray.remote(num_cpus=0, max_restarts=0)
class WorkerActor:
    """One rollout worker: its own connection to the buffer and to the router, and its own graders."""

    def __init__(self, index: int, config: Config, around: Surroundings) -> None:
        write_output_to(around.logs / f"worker-{index}.log")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        self._name = f"worker {index}"
        self._grader_log = around.logs / f"grader-{index}.log"
        self._config, self._around = config, around
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Load the tokenizer, start the graders and open the connections."""
        config = self._config
        limit_s, deterministic = config.rollout.request_timeout_s, config.run.deterministic
        http = EngineHttp(self._around.router, timeout_s=limit_s, serial=deterministic)
        self._http = await self._stack.enter_async_context(http)
        self._renderer = Renderer(config.model, config.data)
        self._prompts = load_selected(config.data, self._around.selection)
        self._reward = await self._stack.enter_async_context(GraderPool(config.reward, log=self._grader_log))
        self._filters = [await self._filter(name) for name in config.loop.filters]

    async def produce(self) -> None:
        """Fill slots until no prompt remains."""
        with cause_first():
            await self._produce()

    async def canary(self) -> Group:
        """One sample of the first prompt of the data set, outside the buffer."""
        config = self._config
        program = self._program(config.sampling, "canary")
        samples = await program(self._prompts[0], num_samples=1, temperature=config.sampling.temperature)
        return Group(id=NO_GROUP, prompt_index=0, attempt=1, samples=tuple(samples))

    async def _produce(self) -> None:
        config = self._config
        assert self._around.buffer is not None, "a worker without a buffer only evaluates"
        endpoint, pacing = self._around.buffer
        buffer = await RedisBuffer.open(endpoint, pacing, create=False)
        self._stack.push_async_callback(buffer.close)
        await loop.produce(
            loop.Worker(
                name=self._name,
                config=config.loop,
                prompts=self._prompts,
                slots=buffer,
                partials=buffer,
                program=self._program(config.sampling, "train", segment_tokens=config.rollout.segment_tokens),
                reward=self._reward,
                filters=self._filters,
                episodes=asyncio.Semaphore(self._max_episodes(pacing)),
            )
        )

    async def evaluate(self) -> Evaluation:
        """Score the held-out set on the weights that the engines serve now."""
        config = self._config
        evaluation = config.evaluation
        assert evaluation is not None, "the configuration has no evaluation section"
        limit = evaluation.max_new_tokens or config.sampling.max_new_tokens
        sampling = config.sampling.model_copy(update={"max_new_tokens": limit})
        program = self._program(sampling, "evaluate")
        prompts = load_held_out(evaluation, config.data.columns)
        return await evaluate(prompts, program, self._reward, evaluation=evaluation)

    async def _filter(self, name: str) -> Filter:
        if name in BUILT_IN:
            return BuiltIn(name)
        pool = FilterPool(name, timeout_s=self._config.loop.filter_timeout_s, log=self._grader_log)
        return await self._stack.enter_async_context(pool)

    def _program(
        self,
        sampling: SamplingConfig,
        purpose: Literal["train", "evaluate", "canary"],
        *,
        segment_tokens: int | None = None,
    ) -> SingleTurn:
        run = self._config.run
        return SingleTurn(
            http=self._http,
            renderer=self._renderer,
            sampling=sampling,
            segment_tokens=segment_tokens,
            seeds=Seeds(run.seed, purpose) if run.deterministic else None,
            max_attempts=self._config.loop.max_attempts,
            may_be_short=purpose == "train" and self._config.loop.allow_smaller_groups,
        )

    def _max_episodes(self, pacing: Pacing) -> int:
        """Groups at a time; one in a deterministic run, so that they are scored in the order of their prompts."""
        if self._config.run.deterministic:
            return 1
        return self._config.rollout.max_concurrent_episodes or pacing.slots

    async def stop(self) -> None:
        """End the graders and close the connections."""
        await self._stack.aclose()
