"""Random schedules against an oracle: no group lost or trained twice, no lag above the bound, no slot too many."""

import asyncio
import random
from collections import Counter

import pytest

from slime_rl.errors import FencedError, WaitTimeout

HOLDERS = ("worker-1", "worker-2", "worker-3")


class Oracle:
    """Drives a buffer at random, remembers what every answer was, and checks each against the guarantees."""

    def __init__(self, harness, fill, seed):
        self.harness, self.fill_groups, self.random = harness, fill, random.Random(seed)
        self.live, self.ended, self.filled = {}, [], {}
        self.attempts, self.steps, self.dropped = Counter(), [], 0
        self.published = self.committed = 0
        self.done = False

    async def run(self, num_operations):
        self.buffer = await self.harness.open(
            groups_per_step=self.random.randint(1, 4),
            max_lag=self.random.randint(0, 3),
            num_prompts=self.random.randint(3, 9),
            max_epochs=self.random.choice([None, 9]),
            num_steps=self.random.randint(8, 20),
            max_attempts=2,
            max_dropped_per_step=1000,
        )
        self.pacing = self.buffer.pacing
        operations = [self.reserve] * 6 + [self.fill] * 4 + [self.assign] * 3 + [self.publish] * 2
        operations += [self.repeat, self.release, self.holder_dies, self.beat, self.commit, self.ask_again]
        for _ in range(num_operations):
            await self.random.choice(operations)()
            await self.check()
        await self.finish()

    async def reserve(self):
        try:
            reservation = await self.buffer.reserve(self.random.choice(HOLDERS))
        except WaitTimeout:
            return
        if reservation is None:
            self.done = True
            return
        self.attempts[reservation.id] += 1
        assert reservation.attempt == self.attempts[reservation.id] <= self.pacing.max_attempts
        assert reservation.id not in self.live
        assert reservation.version == self.published
        self.live[reservation.id] = reservation

    async def fill(self):
        if self.live:
            id = self.random.choice(sorted(self.live))
            self.filled[id] = self.live.pop(id)
            await self.fill_groups(self.buffer, self.filled[id])

    async def repeat(self):
        """Say again what was said before, as after a lost answer; a holder whose attempt ended is fenced."""
        uncommitted = [r for id, r in self.filled.items() if id not in self.trained(self.steps[: self.committed])]
        if uncommitted:
            again = self.random.choice(uncommitted)
            await self.fill_groups(self.buffer, again)
            await self.buffer.release(again, reason="late", retry=True)
        if self.ended:
            with pytest.raises(FencedError):
                await self.fill_groups(self.buffer, self.random.choice(self.ended))

    async def release(self):
        if self.live:
            reservation = self.live[self.random.choice(sorted(self.live))]
            retry = self.random.random() < 0.6
            await self.buffer.release(reservation, reason="released", retry=retry)
            self.end(reservation, retry=retry)

    async def holder_dies(self):
        holder = self.random.choice(HOLDERS)
        await self.harness.end_leases(holder)
        for reservation in [r for r in self.live.values() if r.holder == holder]:
            self.end(reservation, retry=True)

    def end(self, reservation, *, retry):
        self.ended.append(self.live.pop(reservation.id))
        self.dropped += not retry or reservation.attempt == self.pacing.max_attempts

    async def beat(self):
        await self.buffer.heartbeat(self.random.choice(HOLDERS))

    async def assign(self):
        step = len(self.steps)
        try:
            assignment = await self.buffer.assign(step)
        except WaitTimeout:
            return
        if not assignment.groups:
            self.done = True
            return
        assert max(step - g.oldest for g in assignment.groups) <= self.pacing.max_lag
        assert all(g.id in self.filled and g.oldest == self.filled[g.id].version for g in assignment.groups)
        assert len(assignment.groups) == self.pacing.groups_per_step or not self.live
        self.steps.append(assignment)

    async def ask_again(self):
        if len(self.steps) > self.committed:
            step = self.random.randrange(self.committed, len(self.steps))
            assert await (await self.harness.open_again()).assign(step) == self.steps[step]

    async def publish(self):
        if self.published < len(self.steps):
            self.published += 1
            await self.buffer.publish(self.published)

    async def commit(self):
        if self.committed < self.published:
            self.committed = self.random.randint(self.committed + 1, self.published)
            await self.buffer.commit(self.committed - 1)

    def trained(self, steps):
        return [group.id for step in steps for group in step.groups]

    async def check(self):
        status = await self.buffer.status()
        trained = self.trained(self.steps)
        assert len(trained) == len(set(trained))
        assert status.states["free"] >= 0
        assert status.states["reserved"] == len(self.live)
        assert status.states["filled"] == len(self.filled) - len(trained)
        assert status.states["committed"] == len(self.trained(self.steps[: self.committed]))
        assert sum(status.dropped.values()) == self.dropped
        assert len(self.attempts) == len(trained) + self.dropped + sum(
            status.states[state] for state in ("reserved", "filled", "requeued")
        )

    async def finish(self):
        """Whatever the state is, a run whose workers and trainer go on comes to its end."""
        for _ in range(1000):
            if self.done and not self.live and len(self.trained(self.steps)) == len(self.filled):
                break
            for operation in (self.publish, self.reserve, self.fill, self.assign):
                await operation()
        else:
            pytest.fail("stuck")
        await self.check()
        trained = self.trained(self.steps)
        assert (await self.buffer.status()).states["requeued"] == 0
        assert self.pacing.num_issues is not None or len(trained) == self.pacing.num_groups
        assert len(trained) == self.pacing.num_groups or len(self.attempts) == self.pacing.num_issues


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_a_random_schedule_keeps_every_guarantee(harness, fill, seed):
    await Oracle(harness, fill, seed).run(num_operations=300)


async def test_workers_and_a_trainer_at_the_same_time_train_every_prompt_once(harness, fill):
    first = await harness.open(
        groups_per_step=3, max_lag=1, num_prompts=50, max_epochs=1, wait_timeout_s=30.0, slot_timeout_s=30.0
    )
    second = await harness.open_again()
    trained = []

    async def work(buffer, name):
        while (reservation := await buffer.reserve(name)) is not None:
            if reservation.id % 5 == 0 and reservation.attempt == 1:
                await buffer.release(reservation, reason="engine died", retry=True)
            else:
                await fill(buffer, reservation)

    async def train(buffer):
        while (assignment := await buffer.assign(len(trained))).groups:
            trained.append([g.id for g in assignment.groups])
            await buffer.publish(len(trained))
            await buffer.commit(len(trained) - 1)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(train(second))
        for number in range(6):
            tasks.create_task(work((first, second)[number % 2], f"worker-{number}"))
    assert sorted(id for step in trained for id in step) == list(range(50))
    assert [len(step) for step in trained] == [3] * 16 + [2]
    assert (await first.status()).requeued == {"engine died": 10}
