"""The loop with the in-memory buffer and fakes that yield to the event loop and fail as engines and trainers do."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from slime_rl.buffer.memory import MemoryBuffer
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.config import LoopConfig
from slime_rl.errors import DropError, EngineError, FilterError, RewardError, TrainerError
from slime_rl.loop import Driver, Worker, begin, consume, produce
from slime_rl.rewards.filters import BuiltIn
from slime_rl.types import Finish, Prompt, Sample, Segment, Span, StepReport, Version

NUM_PROMPTS = 7


class Engines:
    """Answers after a random number of turns of the event loop; each token carries the version that was served then."""

    def __init__(self, seed: int, *, faults: int = 0) -> None:
        self.version = Version(-1)
        self.served: list[Version] = []
        self.faults = faults
        self.random = random.Random(seed)

    async def pass_time(self) -> None:
        for _ in range(self.random.randrange(20)):
            await asyncio.sleep(0)

    async def __call__(self, prompt: Prompt, *, num_samples: int, temperature: float, drafts=None) -> list[Sample]:
        before = self.version
        await self.pass_time()
        if self.faults and self.random.random() < 0.2:
            self.faults -= 1
            raise EngineError("the engine aborted")
        return [
            Sample(
                index=i,
                trajectory=i,
                tokens=np.array([prompt.index, i, i], np.int32),
                loss_mask=np.array([False, True, True]),
                logprobs=np.zeros(3, np.float32),
                versions=(Span(before, 1, 2), Span(self.version, 2, 3)),
                temperature=temperature,
                finish=Finish.STOP,
                text=str(i % 2),
            )
            for i in range(num_samples)
        ]


class Ranks:
    """A trainer that checks the bound itself, from the versions of the tokens it reads."""

    def __init__(self, buffer: MemoryBuffer, engines: Engines, *, fail_at: int | None = None) -> None:
        self.buffer, self.engines, self.fail_at = buffer, engines, fail_at
        self.version = Version(0)
        self.lags: list[int] = []
        self.trained: list[tuple[int, ...]] = []
        self.saved: list[Version] = []

    async def load(self) -> Version:
        return self.version

    async def step(self, assignment):
        await self.engines.pass_time()
        if self.version == self.fail_at:
            raise TrainerError("the loss is not finite")
        groups = self.buffer.read([g.id for g in assignment.groups])
        self.lags += [self.version - s.oldest for g in groups for s in g.samples]
        self.trained.append(tuple(g.id for g in groups))
        self.version = Version(self.version + 1)
        return StepReport(version=self.version, sums={}, counts={})

    async def publish(self, version: Version) -> None:
        await self.engines.pass_time()
        self.engines.version = version
        self.engines.served.append(version)

    async def save(self, version: Version, snapshot: bytes) -> None:
        await self.engines.pass_time()
        assert decode_snapshot(snapshot, name="snapshot").version == version
        if version not in self.saved:
            self.buffer.read(self.trained[-1])  # raises where a step was committed before it was saved
            self.saved.append(version)


async def by_parity(prompt, samples):
    await asyncio.sleep(0)
    return [replace(s, reward=float(s.text)) for s in samples]


async def keep_going(assignment, report) -> bool:
    return False


def make_run(
    *, steps=6, max_lag=1, seed=0, faults=0, fail_at=None, reward=by_parity, observe=keep_going, max_epochs=None, **loop
):
    config = LoopConfig(steps=steps, groups_per_step=2, samples_per_prompt=4, max_lag=max_lag, **loop)
    pacing = Pacing(
        run_id="test",
        groups_per_step=config.groups_per_step,
        samples_per_prompt=config.samples_per_prompt,
        max_lag=max_lag,
        num_steps=steps,
        num_prompts=NUM_PROMPTS,
        max_epochs=max_epochs,
        seed=seed,
        shuffle=True,
        temperature=1.0,
        max_attempts=config.max_attempts,
        max_dropped_per_step=config.max_dropped_per_step,
        lease_s=config.lease_s,
        wait_timeout_s=5.0,
        slot_timeout_s=5.0,
    )
    buffer, engines = MemoryBuffer(pacing), Engines(seed, faults=faults)
    trainer = Ranks(buffer, engines, fail_at=fail_at)
    worker = Worker(
        name="worker 0",
        config=config,
        prompts=[Prompt(index=i, text=str(i)) for i in range(NUM_PROMPTS)],
        slots=buffer,
        partials=buffer,
        program=engines,
        reward=reward,
        filters=[BuiltIn(name) for name in config.filters],
        episodes=asyncio.Semaphore(8),
    )
    driver = Driver(config=config, steps=buffer, trainer=trainer, observe=observe, save_every=2)
    return worker, driver, buffer, engines, trainer


async def run_to_the_end(worker: Worker, driver: Driver, buffer: MemoryBuffer) -> Version:
    version = await begin(driver)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce(worker))
        version = await consume(driver, version)
        await buffer.close_admission()
    return version


async def test_every_step_is_trained_published_in_order_and_saved():
    worker, driver, buffer, engines, trainer = make_run()
    assert await run_to_the_end(worker, driver, buffer) == 6
    assert engines.served == [0, 1, 2, 3, 4, 5, 6]
    assert trainer.saved == [2, 4, 6]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("max_lag", [0, 1, 3])
async def test_no_trained_token_is_older_than_the_bound(max_lag, seed):
    worker, driver, buffer, _, trainer = make_run(max_lag=max_lag, seed=seed, steps=8, faults=5)
    await run_to_the_end(worker, driver, buffer)
    assert len(trainer.lags) == 8 * 2 * 4
    assert max(trainer.lags) <= max_lag


@pytest.mark.parametrize("seed", range(10))
async def test_no_group_is_trained_twice_and_every_prompt_once_an_epoch(seed):
    worker, driver, buffer, _, trainer = make_run(max_lag=2, seed=seed, steps=7, faults=5, max_attempts=50)
    await run_to_the_end(worker, driver, buffer)
    trained = [id for step in trainer.trained for id in step]
    assert sorted(trained) == list(range(14))
    prompts = Counter(buffer.pacing.prompt_index(id) for id in trained)
    assert prompts == {index: 2 for index in range(NUM_PROMPTS)}


async def test_a_step_is_observed_before_its_payloads_are_deleted():
    async def look(assignment, report) -> bool:
        assert buffer.read([group.id for group in assignment.groups])
        return False

    worker, driver, buffer, _, _ = make_run(observe=look)
    await run_to_the_end(worker, driver, buffer)


async def test_leases_are_renewed_while_a_group_is_graded():
    async def slow(prompt, samples):
        await asyncio.sleep(2.0)
        return await by_parity(prompt, samples)

    worker, driver, buffer, _, _ = make_run(reward=slow, steps=1, lease_s=1.0)
    await run_to_the_end(worker, driver, buffer)
    assert (await buffer.status()).requeued == {}


async def test_the_last_step_takes_what_is_left_of_the_data():
    worker, driver, buffer, _, trainer = make_run(steps=100, max_epochs=1)
    assert await run_to_the_end(worker, driver, buffer) == 4
    assert [len(step) for step in trainer.trained] == [2, 2, 2, 1]


async def test_groups_whose_rewards_are_equal_are_dropped_counted_and_replaced():
    async def all_right(prompt, samples):
        scored = await by_parity(prompt, samples)
        return [replace(s, reward=1.0) for s in scored] if prompt.index == 3 else scored

    worker, driver, buffer, _, trainer = make_run(reward=all_right, filters=("equal_rewards",), steps=7)
    await run_to_the_end(worker, driver, buffer)
    prompts = {buffer.pacing.prompt_index(id) for step in trainer.trained for id in step}
    assert 3 not in prompts
    status = await buffer.status()
    assert status.dropped["equal rewards above 0"] >= 2
    assert status.requeued == {}


async def test_the_first_filter_that_drops_a_group_gives_the_reason_and_a_failing_one_costs_an_attempt():
    async def drops_two(prompt, samples):
        return "number two" if prompt.index == 2 else None

    async def fails_on_three(prompt, samples):
        if prompt.index == 3:
            raise FilterError("no verdict")
        return "number two, again" if prompt.index == 2 else None

    worker, driver, buffer, _, trainer = make_run(steps=7, max_epochs=1)
    worker = replace(worker, filters=[drops_two, fails_on_three])
    await run_to_the_end(worker, driver, buffer)
    status = await buffer.status()
    assert status.dropped == {"number two": 1, "FilterError": 1}
    assert status.requeued == {"FilterError": 2}
    assert sum(map(len, trainer.trained)) == NUM_PROMPTS - 2


async def test_a_reward_that_failed_once_is_asked_again_for_the_same_samples():
    asked = []

    async def fails_first(prompt, samples):
        asked.append((prompt.index, *(id(sample) for sample in samples)))
        if asked.count(asked[-1]) == 1 and prompt.index == 3:
            raise RewardError("busy")
        return await by_parity(prompt, samples)

    worker, driver, buffer, _, _ = make_run(reward=fails_first, steps=3, max_epochs=1)
    await run_to_the_end(worker, driver, buffer)
    assert (await buffer.status()).requeued == {}
    assert len(asked) == len(set(asked)) + 1


def fails_for(index, *, times):
    """A reward that looks at each sample by itself and fails for one of prompt 3, so many times."""
    asked = []

    async def reward(prompt, samples):
        asked.append([sample.index for sample in samples if prompt.index == 3])
        bad = {index} if prompt.index == 3 and sum(index in indices for indices in asked) <= times else set()
        scored = await by_parity(prompt, [sample for sample in samples if sample.index not in bad])
        if bad.isdisjoint(sample.index for sample in samples):
            return scored
        raise RewardError("busy", scored=scored)

    return reward, asked


async def test_a_sample_whose_reward_failed_is_asked_for_alone():
    reward, asked = fails_for(1, times=1)
    worker, driver, buffer, _, _ = make_run(reward=reward, steps=3, max_epochs=1)
    await run_to_the_end(worker, driver, buffer)
    assert [indices for indices in asked if indices] == [[0, 1, 2, 3], [1]]
    assert (await buffer.status()).requeued == {}


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_group_goes_without_the_sample_that_cannot_be_scored_if_it_may_be_smaller(allowed):
    reward, _ = fails_for(1, times=99)
    sizes = {}

    async def note_sizes(assignment, report):
        sizes.update((group.id, group.num_samples) for group in assignment.groups)
        return False

    worker, driver, buffer, _, _ = make_run(
        reward=reward, steps=7, max_epochs=1, observe=note_sizes, allow_smaller_groups=allowed
    )
    await run_to_the_end(worker, driver, buffer)
    [short] = [id for id in range(NUM_PROMPTS) if buffer.pacing.prompt_index(id) == 3]
    assert sizes == {id: 3 if id == short else 4 for id in range(NUM_PROMPTS) if allowed or id != short}
    assert (await buffer.status()).dropped == ({} if allowed else {"RewardError": 1})


async def test_a_single_scored_sample_is_no_smaller_group():
    async def one_alone(prompt, samples):
        if prompt.index != 3:
            return await by_parity(prompt, samples)
        raise RewardError("busy", scored=await by_parity(prompt, [s for s in samples if s.index == 0]))

    worker, driver, buffer, _, trainer = make_run(reward=one_alone, steps=7, max_epochs=1, allow_smaller_groups=True)
    await run_to_the_end(worker, driver, buffer)
    assert (await buffer.status()).dropped == {"RewardError": 1}
    assert sum(map(len, trainer.trained)) == NUM_PROMPTS - 1


async def test_a_reward_that_always_fails_costs_its_prompt_after_bounded_attempts():
    async def broken(prompt, samples):
        if prompt.index == 3:
            raise RewardError("no answer")
        return await by_parity(prompt, samples)

    worker, driver, buffer, _, _ = make_run(reward=broken, steps=3)
    await run_to_the_end(worker, driver, buffer)
    status = await buffer.status()
    assert status.dropped == {"RewardError": 1}
    assert status.requeued == {"RewardError": 2}


@pytest.mark.parametrize("loop", [{"filters": ["equal_rewards"]}, {"max_attempts": 1}])
async def test_a_run_in_which_every_group_is_dropped_ends_with_the_reasons(loop):
    async def useless(prompt, samples):
        if "max_attempts" in loop:
            raise RewardError("no answer")
        return [replace(s, reward=1.0) for s in samples]

    worker, driver, buffer, _, _ = make_run(reward=useless, max_dropped_per_step=20, **loop)
    with pytest.raises(ExceptionGroup) as caught:
        await run_to_the_end(worker, driver, buffer)
    reason = "RewardError" if "max_attempts" in loop else "equal rewards above 0"
    assert caught.group_contains(
        DropError, match=rf"step 0 is not full after \d+ groups were dropped \({reason}: \d+\)"
    )


async def test_a_failed_step_ends_both_sides_with_its_cause():
    worker, driver, buffer, _, trainer = make_run(fail_at=2)
    with pytest.raises(ExceptionGroup) as caught:
        await run_to_the_end(worker, driver, buffer)
    assert caught.group_contains(TrainerError, match="not finite")
    assert len(trainer.trained) == 2


async def test_the_observer_ends_a_run_early():
    async def reached(assignment, report) -> bool:
        return report.version == 3

    worker, driver, buffer, _, trainer = make_run(observe=reached, steps=50)
    assert await run_to_the_end(worker, driver, buffer) == 3
    assert trainer.saved == [2, 3]


async def test_a_group_that_was_lost_is_not_generated_to_its_end():
    worker, _, buffer, _, _ = make_run(max_lag=0, lease_s=0.03)
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(prompt, *, num_samples, temperature, drafts=None):
        began.set()
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.set()

    production = asyncio.create_task(produce(replace(worker, program=endless)))
    await began.wait()
    held = next(iter(buffer.state.groups.values()))
    buffer.state.run("release", buffer.state.incarnation, 0, held.id, held.attempt, "lost", 0)
    async with asyncio.timeout(5):
        await ended.wait()
    production.cancel()


async def test_another_attempt_continues_from_the_drafts_of_the_one_that_failed():
    worker, driver, buffer, engines, trainer = make_run(steps=2, max_lag=0)
    continued = []

    async def in_two_parts(prompt, *, num_samples, temperature, drafts):
        parts = await drafts.segments()
        if not parts:
            await drafts.extend(part_of(prompt))
            raise EngineError("the engine died")
        continued.append([part.tokens.tolist() for part in parts])
        return await engines(prompt, num_samples=num_samples, temperature=temperature)

    await run_to_the_end(replace(worker, program=in_two_parts), driver, buffer)
    assert len(trainer.trained) == 2
    assert continued == [[[7, 8]]] * 4
    assert (await buffer.status()).requeued == {"EngineError": 4}


def part_of(prompt: Prompt) -> Segment:
    return Segment(
        index=0,
        start=0,
        tokens=np.array([7, 8], np.int32),
        loss_mask=np.array([False, True]),
        logprobs=np.zeros(2, np.float32),
        versions=(Span(Version(0), 1, 2),),
        temperature=1.0,
    )
