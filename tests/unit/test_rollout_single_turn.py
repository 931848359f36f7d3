"""The program of one turn, with an engine and a tokenizer that behave."""

import asyncio

import numpy as np
import pytest

from slime_rl.config import EvaluationConfig, SamplingConfig
from slime_rl.errors import DataError, EngineError, RewardError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine_http import Completion
from slime_rl.rollout.evaluation import evaluate
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Finish, Prompt, Sample, Span, Version


class FakeRendering:
    """One token a letter."""

    stop_token_ids = (2,)

    def encode_prompt(self, prompt):
        return [ord(letter) for letter in prompt.text]

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens)


class FakeHttp:
    """Writes `a` and then `num_tokens - 1` times `b`, after letting others run."""

    address = Address("engine 0", "http://nowhere", Keys("", ""))

    def __init__(self, *, num_tokens=2, finishes=(Finish.STOP,)):
        self.num_tokens = num_tokens
        self.finishes = finishes
        self.asked = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def generate(self, prompt, *, num_samples, **settings):
        self.asked.append((prompt, num_samples, settings))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        return [self.completion(len(prompt), self.finishes[i % len(self.finishes)]) for i in range(num_samples)]

    def completion(self, offset, finish):
        tokens = np.array([97, *[98] * (self.num_tokens - 1)], dtype=np.int32)
        span = Span(Version(5), offset, offset + self.num_tokens)
        logprobs = np.full(self.num_tokens, -0.5, dtype=np.float32)
        return Completion(tokens=tokens, logprobs=logprobs, versions=(span,), finish=finish)


def program_of(http, **sampling):
    return SingleTurn(http=http, renderer=FakeRendering(), sampling=SamplingConfig(**sampling))


async def test_a_sample_holds_the_prompt_masked_out_and_the_answer_masked_in():
    [sample] = await program_of(FakeHttp())(Prompt(index=4, text="xyz"), num_samples=1, temperature=0.7)
    assert sample.tokens.tolist() == [120, 121, 122, 97, 98]
    assert sample.loss_mask.tolist() == [False, False, False, True, True]
    assert sample.logprobs.tolist() == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert sample.versions == (Span(Version(5), 3, 5),)
    assert (sample.temperature, sample.text, sample.finish, sample.oldest) == (0.7, "ab", Finish.STOP, 5)


async def test_a_group_is_one_request_that_stops_at_the_models_and_the_users_tokens():
    http = FakeHttp()
    program = program_of(http, max_new_tokens=9, stop_token_ids=[11])
    samples = await program(Prompt(index=4, text="x"), num_samples=3, temperature=1.0)
    assert [(s.index, s.trajectory) for s in samples] == [(0, 0), (1, 1), (2, 2)]
    settings = {"temperature": 1.0, "max_new_tokens": 9, "stop_token_ids": (2, 11)}
    assert http.asked == [([120], 3, settings)]


async def test_one_aborted_sample_fails_its_group():
    http = FakeHttp(finishes=(Finish.STOP, Finish.ABORT))
    with pytest.raises(EngineError, match="engine 0 aborted 1 of 3 samples of prompt 4"):
        await program_of(http)(Prompt(index=4, text="x"), num_samples=3, temperature=1.0)


async def score_by_index(prompt, samples):
    """Right for even prompts."""
    return [with_reward(s, float(prompt.index % 2 == 0)) for s in samples]


def with_reward(sample, reward):
    values = {name: getattr(sample, name) for name in Sample.__slots__}
    return Sample(**{**values, "reward": reward})


def prompts(count):
    return [Prompt(index=i, text="x") for i in range(count)]


async def test_an_evaluation_keeps_the_order_of_the_set_and_averages_by_prompt():
    http = FakeHttp(finishes=(Finish.STOP, Finish.LENGTH))
    evaluation = EvaluationConfig(path="held-out.jsonl", num_samples=2, max_prompts=3)
    result = await evaluate(prompts(10), program_of(http), score_by_index, evaluation=evaluation)
    assert result.scores.tolist() == [1.0, 0.0, 1.0]
    assert result.score == pytest.approx(2 / 3)
    assert result.truncated_share == 0.5
    assert result.lengths.tolist() == [2] * 6


async def test_an_evaluation_keeps_many_prompts_in_flight():
    http = FakeHttp()
    await evaluate(prompts(600), program_of(http), score_by_index, evaluation=EvaluationConfig(path="x"))
    assert http.most_in_flight == 256


async def test_a_prompt_that_meets_a_passing_fault_of_engine_or_reward_is_sampled_again():
    http, faults = FakeHttp(), {0: 1, 2: 2}
    reward_faults = {1: 2}

    def count_down(left, prompt):
        left[prompt.index] = left.get(prompt.index, 0) - 1
        return left[prompt.index] >= 0

    async def program(prompt, *, num_samples, temperature):
        if count_down(faults, prompt):
            raise EngineError("no answer")
        return await program_of(http)(prompt, num_samples=num_samples, temperature=temperature)

    async def reward(prompt, samples):
        if count_down(reward_faults, prompt):
            raise RewardError("the grader broke")
        return await score_by_index(prompt, samples)

    result = await evaluate(prompts(4), program, reward, evaluation=EvaluationConfig(path="x"))
    assert result.scores.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert len(http.asked) == 4 + 2


async def test_a_fault_that_stays_ends_the_evaluation_after_three_attempts_and_names_the_prompt():
    attempts = []

    async def failing(prompt, samples):
        attempts.append(prompt.index)
        if prompt.index == 2:
            raise RewardError("the grader broke")
        return await score_by_index(prompt, samples)

    with pytest.raises(RewardError, match=r"^evaluation of prompt 2 failed 3 times: the grader broke$"):
        await evaluate(prompts(3), program_of(FakeHttp()), failing, evaluation=EvaluationConfig(path="x"))
    assert attempts.count(2) == 3


async def test_any_other_fault_ends_the_evaluation_at_once():
    async def failing(prompt, samples):
        attempts.append(prompt.index)
        raise DataError("not a fault of the world")

    attempts = []
    with pytest.raises(DataError):
        await evaluate(prompts(1), program_of(FakeHttp()), failing, evaluation=EvaluationConfig(path="x"))
    assert attempts == [0]
