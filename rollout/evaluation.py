"""Scores a held-out set on the running engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slime_rl.config import EvaluationConfig
from slime_rl.errors import EngineError, RewardError
from slime_rl.interfaces import Program, Reward
from slime_rl.types import Finish, Prompt, Sample

NUM_PROMPTS_IN_FLIGHT = 256
MAX_ATTEMPTS = 3
"""How often a prompt is tried, with fresh samples each time, before its fault ends the evaluation."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scored samples of a held-out set, prompt by prompt, in the order of the set. P prompts, S samples in all."""

    samples: tuple[tuple[Sample, ...], ...]

    @property
    def scores(self) -> NDArray[np.float64]:
        """The mean reward of each prompt [P]."""
        return np.array([np.mean([_reward(s) for s in group]) for group in self.samples], dtype=np.float64)

    @property
    def score(self) -> float:
        """The mean over prompts of their mean reward."""
        return float(self.scores.mean())

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens the model wrote in each sample [S]."""
        return np.array([s.num_trained for group in self.samples for s in group], dtype=np.int64)

    @property
    def truncated_share(self) -> float:
        """The share of samples that ended at the limit of new tokens."""
        return float(np.mean([s.finish == Finish.LENGTH for group in self.samples for s in group]))


async def evaluate(
    prompts: Sequence[Prompt], program: Program, reward: Reward, *, evaluation: EvaluationConfig
) -> Evaluation:
    """Sample and score the first `evaluation.max_prompts` of `prompts`, many at a time.

    A prompt that meets an EngineError or a RewardError is tried again, MAX_ATTEMPTS times in all. Raises the first
    error that remains, with its prompt, after the rest has been cancelled.
    """
    limit = asyncio.Semaphore(NUM_PROMPTS_IN_FLIGHT)

    async def score(prompt: Prompt) -> tuple[Sample, ...]:
        async with limit:
            samples = await program(prompt, num_samples=evaluation.num_samples, temperature=evaluation.temperature)
            return tuple(await reward(prompt, samples))

    try:
        async with asyncio.TaskGroup() as tasks:
            scored = [tasks.create_task(_persist(score, prompt)) for prompt in prompts[: evaluation.max_prompts]]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return Evaluation(tuple(task.result() for task in scored))


async def _persist(score: Callable[[Prompt], Awaitable[tuple[Sample, ...]]], prompt: Prompt) -> tuple[Sample, ...]:
    """The scored samples of one prompt, by the first attempt that meets no fault."""
    attempt = 1
    while True:
        try:
            return await score(prompt)
        except (EngineError, RewardError) as fault:
            if attempt == MAX_ATTEMPTS:
                raise type(fault)(f"evaluation of prompt {prompt.index} failed {attempt} times: {fault}") from fault
            log.warning("evaluation of prompt %d, attempt %d: %s", prompt.index, attempt, fault)
            attempt += 1


def _reward(sample: Sample) -> float:
    assert sample.reward is not None, "a Reward returns samples with their rewards set"
    return sample.reward
