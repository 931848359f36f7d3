"""The training loop: workers fill the buffer, the trainer empties it.

`produce` runs in every rollout worker and waits for a free slot; publishing frees slots. `consume` runs in the driver
and waits for a step's groups; a filled group wakes it. With `max_lag` 0 the two take turns by that alone.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from slime_rl.config import LoopConfig
from slime_rl.errors import EngineError, FencedError, FilterError, RewardError
from slime_rl.interfaces import Filter, Partials, Program, Reward, Slots, Steps, Trainer
from slime_rl.types import SMALLEST_GROUP, Assignment, Prompt, Reservation, Sample, Segment, StepReport, Version

NUM_RESERVERS = 16  # calls that wait for the store's disk at the same time
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What generates and scores groups, in one rollout worker; `running` are those under way, by id."""

    name: str
    config: LoopConfig
    prompts: Sequence[Prompt]
    slots: Slots
    partials: Partials
    program: Program
    reward: Reward
    filters: Sequence[Filter]
    episodes: asyncio.Semaphore
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDrafts:
    """The durable parts of the group of one reservation; implements interfaces.Drafts."""

    partials: Partials
    reservation: Reservation

    @property
    def group(self) -> int:
        return self.reservation.id

    async def segments(self) -> list[Segment]:
        return await self.partials.segments(self.reservation) if self.reservation.continued else []

    async def extend(self, segment: Segment) -> None:
        await self.partials.extend(self.reservation, segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What trains and publishes. `observe` sees every step and may evaluate; True from it ends the run early."""

    config: LoopConfig
    steps: Steps
    trainer: Trainer
    observe: Callable[[Assignment, StepReport], Awaitable[bool]]
    save_every: int


async def produce(worker: Worker) -> None:
    """Start a group whenever the buffer has a slot for one, until no prompt remains."""
    async with TaskGroup() as tasks:
        beat = tasks.create_task(keep_leases(worker))
        async with TaskGroup() as groups:
            for _ in range(NUM_RESERVERS):
                groups.create_task(admit(worker, groups))
        beat.cancel()


async def admit(worker: Worker, groups: TaskGroup) -> None:
    """Start one group after another in `groups` until no prompt remains; an episode is free before a slot is taken."""
    await worker.episodes.acquire()
    while (reservation := await worker.slots.reserve(worker.name)) is not None:
        worker.running[reservation.id] = groups.create_task(generate(worker, reservation))
        await worker.episodes.acquire()
    worker.episodes.release()


async def generate(worker: Worker, reservation: Reservation) -> None:
    """Sample one group, score it, and put it in its slot; a fault gives the slot back and is counted."""
    try:
        prompt = worker.prompts[reservation.prompt_index]
        num_samples = worker.config.samples_per_prompt
        samples = await worker.program(
            prompt,
            num_samples=num_samples,
            temperature=reservation.temperature,
            drafts=GroupDrafts(worker.partials, reservation),
        )
        await hand_in(worker, reservation, prompt, await score(worker, prompt, samples))
    except (EngineError, RewardError, FilterError) as fault:
        log.warning("group %d, attempt %d: %s", reservation.id, reservation.attempt, fault)
        await worker.slots.release(reservation, reason=type(fault).__name__, retry=True)
    except FencedError as lost:
        log.warning("group %d went to another holder: %s", reservation.id, lost)
    finally:
        if worker.running.get(reservation.id) is asyncio.current_task():
            del worker.running[reservation.id]
        worker.episodes.release()


async def score(worker: Worker, prompt: Prompt, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with their rewards. Those whose reward fails are asked for once more, since sampling costs more.

    Where it fails again the group goes without them, if it may be smaller and enough is left.
    """
    try:
        return await worker.reward(prompt, samples)
    except RewardError as fault:
        log.warning("prompt %d is scored again: %s", prompt.index, fault)
        scored = {sample.index: sample for sample in fault.scored}
    left = [sample for sample in samples if sample.index not in scored]
    try:
        again = await worker.reward(prompt, left)
    except RewardError as fault:
        again = fault.scored
        trajectories = {sample.trajectory for sample in (*scored.values(), *again)}
        if not worker.config.allow_smaller_groups or len(trajectories) < SMALLEST_GROUP:
            raise
        log.warning("prompt %d goes without a sample: %s", prompt.index, fault)
    return sorted((*scored.values(), *again), key=lambda sample: sample.index)


async def hand_in(worker: Worker, reservation: Reservation, prompt: Prompt, samples: Sequence[Sample]) -> None:
    """Fill the slot, or give it back for the first filter that drops the group."""
    for drops in worker.filters:
        if (reason := await drops(prompt, samples)) is not None:
            await worker.slots.release(reservation, reason=reason, retry=False)
            return
    await worker.slots.fill(reservation, samples)


async def keep_leases(worker: Worker) -> None:
    """Renew the worker's leases three times in their length, and end the work on groups that it has lost."""
    while True:
        await asyncio.sleep(worker.config.lease_s / 3)
        running = dict(worker.running)
        held = await worker.slots.heartbeat(worker.name)
        for id in running.keys() - held:
            if running[id].cancel():
                log.warning("group %d is no longer held: its generation is cancelled", id)


async def begin(driver: Driver) -> Version:
    """Load the weights and bring them to the engines: before that, no worker may sample."""
    version = await driver.trainer.load()
    await publish(driver, version)
    return version


async def consume(driver: Driver, version: Version) -> Version:
    """Take one training step after another and hand each new version to the engines; return the last."""
    done = False
    while version < driver.config.steps and not done:
        assignment = await driver.steps.assign(version)
        if not assignment.groups:
            break
        report = await driver.trainer.step(assignment)
        version = report.version
        await publish(driver, version)
        done = await driver.observe(assignment, report)  # before the commit, which deletes the payloads
        if version % driver.save_every == 0:
            await save(driver, version)
    await save(driver, version)
    return version


async def publish(driver: Driver, version: Version) -> None:
    """Bring `version` to the engines, and only then free the slots that it makes room for."""
    await driver.trainer.publish(version)
    await driver.steps.publish(version)


async def save(driver: Driver, version: Version) -> None:
    """Make `version` durable, and only then let go of what it was trained on; a repeat changes nothing."""
    await driver.trainer.save(version, await driver.steps.snapshot(version))
    if version > 0:
        await driver.steps.commit(version - 1)
