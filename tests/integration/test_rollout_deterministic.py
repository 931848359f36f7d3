"""A deterministic engine: the same seed gives the same bits, and seeds draw from the model's own distribution."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from slime_rl.config import ModelConfig, RolloutConfig, SamplingConfig
from slime_rl.rollout.address import Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import Completion, EngineHttp
from slime_rl.rollout.seeds import Seeds
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Prompt, Sample, Version

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROMPT = [10, 20, 30, 40, 50]
NUM_DRAWS = 3000
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def deterministic(model_config: ModelConfig, rollout_config: RolloutConfig, keys: Keys, log_folder: Path):
    """An engine that samples by seeds, running."""
    engine = Engine(
        7, model=model_config, rollout=rollout_config, log_folder=log_folder, keys=keys, seed=0, deterministic=True
    )
    try:
        asyncio.run(engine.start(Version(0)))
        yield engine
    finally:
        engine.stop()


@pytest.fixture
async def seeded(deterministic: Engine):
    async with EngineHttp(deterministic.address, timeout_s=60.0, serial=True) as client:
        yield client


async def sample(http: EngineHttp, *, seed: int | None, num_tokens: int = 48, temperature: float = 1.0) -> Completion:
    [completion] = await http.generate(
        PROMPT, num_samples=1, temperature=temperature, max_new_tokens=num_tokens, stop_token_ids=(), seed=seed
    )
    return completion


def bits(completion: Completion | Sample) -> tuple[bytes, bytes]:
    return completion.tokens.tobytes(), completion.logprobs.tobytes()


async def test_a_seed_gives_the_same_bits_again_after_a_flush_and_after_a_restart(deterministic, seeded):
    first = [bits(await sample(seeded, seed=seed)) for seed in range(8)]
    assert len({tokens for tokens, _ in first}) == 8
    assert [bits(await sample(seeded, seed=seed)) for seed in range(8)] == first
    await seeded.flush_cache()
    backwards = [bits(await sample(seeded, seed=seed)) for seed in reversed(range(8))]
    assert backwards == first[::-1]
    deterministic.stop()
    async with EngineHttp(await deterministic.start(Version(0)), timeout_s=60.0, serial=True) as again:
        assert [bits(await sample(again, seed=seed)) for seed in range(8)] == first


async def test_the_samples_of_a_group_differ_and_come_again_and_another_run_seed_gives_others(seeded, renderer):
    async def group(run_seed: int) -> list[Sample]:
        program = SingleTurn(
            http=seeded,
            renderer=renderer,
            sampling=SamplingConfig(max_new_tokens=24),
            segment_tokens=8,
            seeds=Seeds(run_seed, "train"),
        )
        return await program(Prompt(index=3, text="1+2="), num_samples=4, temperature=1.0)

    first, again, others = await group(0), await group(0), await group(1)
    assert len({bits(one) for one in first}) == 4
    assert [bits(one) for one in again] == [bits(one) for one in first]
    assert not {one.tokens.tobytes() for one in first} & {one.tokens.tobytes() for one in others}


async def test_tokens_are_the_same_however_many_requests_run_together(deterministic, seeded):
    alone = [(await sample(seeded, seed=seed)).tokens.tolist() for seed in range(16)]
    async with EngineHttp(deterministic.address, timeout_s=60.0) as http:
        together = await asyncio.gather(*[sample(http, seed=seed) for seed in range(16)])
    assert [one.tokens.tolist() for one in together] == alone


async def test_seeds_draw_from_the_distribution_of_the_model(deterministic, model_folder):
    model = Qwen3ForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0, -1].double()
    expected = NUM_DRAWS * torch.softmax(logits / TEMPERATURE, 0).numpy()
    async with EngineHttp(deterministic.address, timeout_s=60.0) as http:
        requests = [sample(http, seed=s, num_tokens=1, temperature=TEMPERATURE) for s in range(NUM_DRAWS)]
        drawn = await asyncio.gather(*requests)
    counts = np.bincount([one.tokens[0] for one in drawn], minlength=len(expected))
    common = expected >= 5
    counts = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    assert abs(normal_score(counts, expected)) < 3


def normal_score(counts: np.ndarray, expected: np.ndarray) -> float:
    """How many standard deviations chi-square lies above its mean, nearly (Wilson and Hilferty, 1931)."""
    freedom = len(counts) - 1
    squares = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((squares / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


async def test_an_engine_that_is_not_deterministic_ignores_seeds(http):
    assert len({bits(await sample(http, seed=5)) for _ in range(3)}) == 3
