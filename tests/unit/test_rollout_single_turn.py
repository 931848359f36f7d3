"""The program of one turn, with an engine and a tokenizer that behave."""

import asyncio

import numpy as np
import pytest

from slime_rl.config import EvaluationConfig, SamplingConfig
from slime_rl.errors import DataError, EngineError, FencedError, RewardError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine_http import Completion
from slime_rl.rollout.evaluation import evaluate
from slime_rl.rollout.seeds import Seeds
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
    settings = {"temperature": 1.0, "max_new_tokens": 9, "stop_token_ids": (2, 11), "seed": None}
    assert http.asked == [([120], 3, settings)]


async def test_one_aborted_sample_fails_its_group():
    http = FakeHttp(finishes=(Finish.STOP, Finish.ABORT))
    with pytest.raises(EngineError, match="engine 0 aborted 1 of 3 samples of prompt 4"):
        await program_of(http)(Prompt(index=4, text="x"), num_samples=3, temperature=1.0)


class AbortingHttp(FakeHttp):
    """Aborts so many of the samples that it is asked for, the last ones, in each of its first requests."""

    def __init__(self, *num_aborted):
        super().__init__()
        self.num_aborted = list(num_aborted)

    async def generate(self, prompt, *, num_samples, **settings):
        found = await super().generate(prompt, num_samples=num_samples, **settings)
        aborted = self.num_aborted.pop(0) if self.num_aborted else 0
        return [*found[: num_samples - aborted], *[self.completion(len(prompt), Finish.ABORT)] * aborted]


def patient_program(http, **options):
    return SingleTurn(http=http, renderer=FakeRendering(), sampling=SamplingConfig(), max_attempts=3, **options)


async def test_aborted_samples_are_asked_for_again_alone():
    http = AbortingHttp(2, 1)
    samples = await patient_program(http)(Prompt(index=4, text="x"), num_samples=4, temperature=1.0)
    assert [sample.index for sample in samples] == [0, 1, 2, 3]
    assert [num_samples for _, num_samples, _ in http.asked] == [4, 2, 1]


@pytest.mark.parametrize("may_be_short", [False, True])
async def test_a_group_that_stays_short_is_an_error_unless_it_may_be_trained_smaller(may_be_short):
    program = patient_program(AbortingHttp(2, 1, 1), may_be_short=may_be_short)
    if may_be_short:
        samples = await program(Prompt(index=4, text="x"), num_samples=4, temperature=1.0)
        assert [sample.index for sample in samples] == [0, 1, 2]
    else:
        with pytest.raises(EngineError, match="engine 0 aborted 1 of 4 samples of prompt 4"):
            await program(Prompt(index=4, text="x"), num_samples=4, temperature=1.0)


async def test_a_single_sample_is_no_smaller_group():
    program = patient_program(AbortingHttp(3, 3, 3), may_be_short=True)
    with pytest.raises(EngineError, match="aborted 3 of 4 samples"):
        await program(Prompt(index=4, text="x"), num_samples=4, temperature=1.0)


class DyingHttp(AbortingHttp):
    """Fails the second request."""

    async def generate(self, prompt, *, num_samples, **settings):
        found = await super().generate(prompt, num_samples=num_samples, **settings)
        if len(self.asked) == 2:
            raise EngineError("engine 0 died")
        return found


async def test_samples_that_are_there_outlive_a_request_for_the_others_that_fails():
    http = DyingHttp(2)
    samples = await patient_program(http)(Prompt(index=4, text="x"), num_samples=4, temperature=1.0)
    assert [sample.index for sample in samples] == [0, 1, 2, 3]
    assert [num_samples for _, num_samples, _ in http.asked] == [4, 2, 2]


class FakeDrafts:
    """Keeps the parts of samples in memory, after letting others run."""

    group = 17

    def __init__(self, earlier=()):
        self.kept = list(earlier)

    async def segments(self):
        await asyncio.sleep(0)
        return list(self.kept)

    async def extend(self, segment):
        await asyncio.sleep(0)
        self.kept.append(segment)


class CountingHttp(FakeHttp):
    """Writes the number of tokens before each token, up to 9 in all; may die or abort in the middle."""

    def __init__(self, *, fails_after=None, aborts_after=None):
        super().__init__()
        self.fails_after, self.aborts_after = fails_after, aborts_after
        self.num_written = 0

    async def generate(self, prompt, *, num_samples, max_new_tokens, **settings):
        await asyncio.sleep(0)
        assert num_samples == 1
        if self.num_written == self.fails_after:
            self.fails_after = None
            raise EngineError("engine 0 died")
        written = list(range(len(prompt), min(len(prompt) + max_new_tokens, 9)))
        finish = Finish.LENGTH if len(written) == max_new_tokens else Finish.STOP
        if self.num_written == self.aborts_after:
            written, finish = written[:1], Finish.ABORT
        self.num_written += len(written)
        return [
            Completion(
                tokens=np.array(written, dtype=np.int32),
                logprobs=np.array(written, dtype=np.float32),
                versions=(Span(Version(len(prompt) // 4), len(prompt), len(prompt) + len(written)),),
                finish=finish,
            )
        ]


def in_parts(http, *, max_attempts=1, may_be_short=False, **sampling):
    return SingleTurn(
        http=http,
        renderer=FakeRendering(),
        sampling=SamplingConfig(**sampling),
        segment_tokens=2,
        max_attempts=max_attempts,
        may_be_short=may_be_short,
    )


async def test_a_long_answer_is_sampled_in_durable_parts():
    drafts = FakeDrafts()
    [sample] = await in_parts(CountingHttp())(Prompt(index=0, text="xy"), num_samples=1, temperature=0.7, drafts=drafts)
    assert sample.tokens.tolist() == [120, 121, 2, 3, 4, 5, 6, 7, 8]
    assert sample.loss_mask.tolist() == [False] * 2 + [True] * 7
    assert sample.logprobs.tolist() == [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert sample.versions == (Span(Version(0), 2, 4), Span(Version(1), 4, 8), Span(Version(2), 8, 9))
    assert (sample.finish, sample.text, sample.temperature) == (Finish.STOP, "", 0.7)
    assert [(part.start, part.num_tokens, part.finish) for part in drafts.kept] == [
        (0, 4, None), (4, 2, None), (6, 2, None), (8, 1, Finish.STOP),
    ]  # fmt: skip


async def test_an_answer_as_long_as_allowed_ends_by_its_length():
    drafts = FakeDrafts()
    [sample] = await in_parts(CountingHttp(), max_new_tokens=3)(
        Prompt(index=0, text="xy"), num_samples=1, temperature=0.7, drafts=drafts
    )
    assert (sample.tokens.tolist()[2:], sample.finish) == ([2, 3, 4], Finish.LENGTH)
    assert [part.finish for part in drafts.kept] == [None, Finish.LENGTH]


async def test_what_an_engine_leaves_as_it_dies_is_not_sampled_again():
    drafts, prompt = FakeDrafts(), Prompt(index=0, text="xy")
    with pytest.raises(EngineError, match="engine 0 died"):
        await in_parts(CountingHttp(fails_after=4))(prompt, num_samples=1, temperature=0.7, drafts=drafts)
    http = CountingHttp()
    [sample] = await in_parts(http)(prompt, num_samples=1, temperature=0.7, drafts=drafts)
    assert sample.tokens.tolist()[2:] == [2, 3, 4, 5, 6, 7, 8]
    assert http.num_written == 3


async def test_what_an_aborted_request_returned_is_kept():
    drafts, prompt = FakeDrafts(), Prompt(index=0, text="xy")
    with pytest.raises(EngineError, match="engine 0 aborted sample 0 after 4 tokens"):
        await in_parts(CountingHttp(aborts_after=2))(prompt, num_samples=1, temperature=0.7, drafts=drafts)
    http = CountingHttp()
    [sample] = await in_parts(http)(prompt, num_samples=1, temperature=0.7, drafts=drafts)
    assert (sample.tokens.tolist()[2:], http.num_written) == ([2, 3, 4, 5, 6, 7, 8], 4)


async def test_a_finished_sample_is_not_asked_for_again():
    drafts, prompt = FakeDrafts(), Prompt(index=0, text="xy")
    await in_parts(CountingHttp())(prompt, num_samples=1, temperature=0.7, drafts=drafts)
    http = CountingHttp()
    first, second = await in_parts(http)(prompt, num_samples=2, temperature=0.7, drafts=drafts)
    assert (first.tokens.tolist(), first.index, second.index) == (second.tokens.tolist(), 0, 1)
    assert http.num_written == 7


async def test_a_sample_that_fails_lets_the_others_come_to_their_ends():
    drafts = FakeDrafts()
    with pytest.raises(EngineError):
        await in_parts(CountingHttp(fails_after=12))(
            Prompt(index=0, text="xy"), num_samples=2, temperature=0.7, drafts=drafts
        )
    assert [part.index for part in drafts.kept if part.finish is not None] == [1]


@pytest.mark.parametrize("fault", [{"fails_after": 12}, {"aborts_after": 10}])
async def test_a_sample_that_fails_in_its_parts_is_gone_on_with_alone(fault):
    http, drafts = CountingHttp(**fault), FakeDrafts()
    samples = await in_parts(http, max_attempts=2)(
        Prompt(index=0, text="xy"), num_samples=3, temperature=0.7, drafts=drafts
    )
    assert [sample.tokens.tolist()[2:] for sample in samples] == [[2, 3, 4, 5, 6, 7, 8]] * 3
    assert http.num_written == 21


@pytest.mark.parametrize("num_samples", [2, 3])
async def test_a_group_in_parts_may_be_short_of_one_but_is_never_a_single_sample(num_samples):
    program = in_parts(CountingHttp(fails_after=12), may_be_short=True)
    asked = program(Prompt(index=0, text="xy"), num_samples=num_samples, temperature=0.7, drafts=FakeDrafts())
    if num_samples == 3:
        assert len(await asked) == 2
    else:
        with pytest.raises(EngineError, match="engine 0 died"):
            await asked


class LostDrafts(FakeDrafts):
    """Another holder has the group."""

    async def extend(self, segment):
        if segment.index == 0:
            raise FencedError("held by another")
        await super().extend(segment)


async def test_a_group_that_another_holds_is_given_up_however_short_it_may_be():
    program = in_parts(CountingHttp(), max_attempts=3, may_be_short=True)
    with pytest.raises(FencedError):
        await program(Prompt(index=0, text="xy"), num_samples=3, temperature=0.7, drafts=LostDrafts())


def seeded(http):
    sampling, seeds = SamplingConfig(max_new_tokens=9), Seeds(3, "train")
    return SingleTurn(http=http, renderer=FakeRendering(), sampling=sampling, segment_tokens=2, seeds=seeds)


async def test_with_seeds_every_sample_is_one_whole_request_after_the_other_with_the_seed_of_its_group():
    http, drafts = FakeHttp(), FakeDrafts()
    samples = await seeded(http)(Prompt(index=4, text="x"), num_samples=3, temperature=1.0, drafts=drafts)
    assert [(s.index, s.trajectory) for s in samples] == [(0, 0), (1, 1), (2, 2)]
    assert [(n, s["seed"], s["max_new_tokens"]) for _, n, s in http.asked] == [
        (1, Seeds(3, "train").of(group=17, prompt=4, sample=i), 9) for i in range(3)
    ]
    assert (http.most_in_flight, drafts.kept) == (1, [])


async def test_one_aborted_sample_with_a_seed_fails_its_group():
    with pytest.raises(EngineError, match="engine 0 aborted 2 of 2 samples of prompt 4"):
        await seeded(FakeHttp(finishes=(Finish.ABORT,)))(Prompt(index=4, text="x"), num_samples=2, temperature=1.0)


def test_a_seed_changes_with_each_of_its_parts_and_stays_the_same_for_good():
    one = {"group": 1, "prompt": 2, "sample": 3, "turn": 4}
    found = [Seeds(0, "train").of(**one), Seeds(1, "train").of(**one), Seeds(0, "evaluate").of(**one)]
    found += [Seeds(0, "train").of(**one | {name: 9}) for name in one]
    found.append(Seeds(0, "train").of(group=12, prompt=3, sample=4, turn=0))
    found.append(Seeds(0, "train").of(group=1, prompt=23, sample=4, turn=0))
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**31 for seed in found)
    assert found[0] == 584307033


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

    async def program(prompt, *, num_samples, temperature, drafts=None):
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
