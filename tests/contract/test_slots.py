"""The worker's side: slots, leases, attempts, and where the prompts end."""

import asyncio
import re
from dataclasses import replace

import pytest

from slime_rl.errors import FencedError, StoreError, WaitTimeout
from slime_rl.types import Finish


async def reserve(buffer, num, holder="worker-1"):
    return [await buffer.reserve(holder) for _ in range(num)]


async def test_a_reservation_carries_version_deadline_prompt_and_temperature(harness):
    buffer = await harness.open(max_lag=2)
    first, second = await reserve(buffer, 2)
    assert (first.id, first.attempt, first.version, first.deadline, first.temperature) == (0, 1, 0, 2, 0.7)
    assert (second.id, second.prompt_index) == (1, buffer.pacing.prompt_index(1))


async def test_no_more_groups_are_outstanding_than_there_are_slots(harness, fill):
    buffer = await harness.open(max_lag=1)
    held = await reserve(buffer, 4)
    await fill(buffer, *held[:1])
    message = r"waiting \d+ s for one of 4 slots; 3 reserved, 1 filled, 0 assigned and not published"
    with pytest.raises(WaitTimeout, match=message):
        await buffer.reserve("worker-1")


async def test_a_step_that_is_not_published_holds_its_slots(harness, fill):
    buffer = await harness.open()
    await fill(buffer, *await reserve(buffer, 2))
    await buffer.assign(0)
    with pytest.raises(WaitTimeout, match="2 assigned and not published"):
        await buffer.reserve("worker-1")
    await buffer.publish(1)
    assert (await buffer.reserve("worker-1")).version == 1


async def test_publishing_wakes_who_waits_for_a_slot(harness, fill):
    buffer = await harness.open(slot_timeout_s=30.0)
    await fill(buffer, *await reserve(buffer, 2))
    await buffer.assign(0)
    waiting = asyncio.create_task(buffer.reserve("worker-1"))
    await harness.until_blocked()
    await buffer.publish(1)
    async with asyncio.timeout(5):
        assert (await waiting).id == 2


async def test_a_repeated_fill_changes_nothing(harness, fill):
    buffer = await harness.open()
    first, second = await reserve(buffer, 2)
    await fill(buffer, first, first, second, first)
    assert (await buffer.status()).states["filled"] == 2
    assignment = await buffer.assign(0)
    await fill(buffer, first)
    assert (await buffer.status()).states["filled"] == 0
    assert await buffer.assign(0) == assignment


async def test_a_group_is_read_as_it_was_filled(harness, sample):
    buffer = await harness.open(groups_per_step=1)
    [held] = await reserve(buffer, 1)
    await buffer.fill(held, [sample(0, num_tokens=5), sample(0, index=1, num_tokens=7)])
    [assigned] = (await buffer.assign(0)).groups
    assert (assigned.id, assigned.num_samples, assigned.num_tokens, assigned.oldest) == (0, 2, 12, 0)
    [group] = harness.read([0])
    assert (group.id, group.attempt, group.prompt_index) == (0, 1, held.prompt_index)
    assert group.samples[1].tokens.tolist() == list(range(7))


@pytest.mark.parametrize("finishes", [(), (Finish.STOP, Finish.ABORT)])
async def test_a_group_without_samples_or_with_an_aborted_one_is_refused(harness, sample, finishes):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    with pytest.raises(StoreError, match="group 0: expected complete samples"):
        await buffer.fill(held, [sample(0, index=i, finish=finish) for i, finish in enumerate(finishes)])
    assert (await buffer.status()).states["reserved"] == 1


async def test_a_holder_whose_lease_has_ended_cannot_fill(harness, fill):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    await harness.end_leases("worker-1")
    with pytest.raises(FencedError, match="worker-1 cannot fill group 0: its attempt 1 ended"):
        await fill(buffer, held)


async def test_a_holder_whose_group_was_given_to_another_cannot_fill(harness, fill):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    await harness.end_leases("worker-1")
    again = await buffer.reserve("worker-2")
    assert again == replace(held, attempt=2, holder="worker-2")
    with pytest.raises(FencedError, match="and its attempt 2 is reserved"):
        await fill(buffer, held)
    await fill(buffer, again)
    with pytest.raises(FencedError, match="and its attempt 2 is filled"):
        await fill(buffer, held)


async def test_a_heartbeat_keeps_every_lease_of_its_holder_alone(harness, fill):
    buffer = await harness.open()
    kept, lost = await buffer.reserve("worker-1"), await buffer.reserve("worker-2")
    await harness.end_leases("worker-2")
    await buffer.heartbeat("worker-1")
    await fill(buffer, kept)
    with pytest.raises(FencedError):
        await fill(buffer, lost)


async def test_a_heartbeat_does_not_revive_a_lease_that_has_ended(harness, fill):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    await harness.end_leases("worker-1")
    await buffer.heartbeat("worker-1")
    with pytest.raises(FencedError):
        await fill(buffer, held)


async def test_an_expired_group_starts_again_with_a_new_deadline(harness, fill):
    buffer = await harness.open(max_lag=1)
    slow, *quick = await reserve(buffer, 4)
    await fill(buffer, *quick)
    await buffer.assign(0)
    await buffer.publish(1)
    await harness.end_leases("worker-1")
    again = await buffer.reserve("worker-2")
    assert (again.id, again.attempt, again.version, again.deadline) == (slow.id, 2, 1, 2)
    assert (await buffer.status()).requeued == {"lease expired": 1}


async def test_the_end_of_a_lease_wakes_who_waits_for_the_group(harness):
    """Nothing else happens that could wake the second worker."""
    buffer = await harness.open(real_clock=True, groups_per_step=1, lease_s=0.05, slot_timeout_s=30.0)
    await buffer.reserve("worker-1")
    async with asyncio.timeout(5):
        assert (await buffer.reserve("worker-2")).attempt == 2


async def test_a_group_is_dropped_after_its_last_attempt(harness):
    buffer = await harness.open(groups_per_step=1, max_attempts=2)
    for attempt in (1, 2):
        assert (await buffer.reserve("worker-1")).attempt == attempt
        await harness.end_leases("worker-1")
    assert (await buffer.reserve("worker-1")).id == 1
    status = await buffer.status()
    assert (status.requeued, status.dropped) == ({"lease expired": 1}, {"lease expired": 1})


async def test_a_released_group_goes_first_or_is_dropped_by_its_reason(harness):
    buffer = await harness.open(max_lag=1)
    held = await reserve(buffer, 3)
    await buffer.release(held[1], reason="engine died", retry=True)
    await buffer.release(held[2], reason="equal rewards", retry=False)
    assert [(r.id, r.attempt) for r in await reserve(buffer, 3)] == [(1, 2), (3, 1), (4, 1)]
    status = await buffer.status()
    assert (status.requeued, status.dropped) == ({"engine died": 1}, {"equal rewards": 1})


async def test_the_first_issued_of_the_requeued_goes_first(harness):
    buffer = await harness.open(max_lag=7)
    held = await reserve(buffer, 12)
    for reservation in (held[10], held[9], held[2]):
        await buffer.release(reservation, reason="engine died", retry=True)
    assert [r.id for r in await reserve(buffer, 4)] == [2, 9, 10, 12]


async def test_a_repeated_release_changes_nothing(harness):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    for _ in range(2):
        await buffer.release(held, reason="engine died", retry=True)
    again = await buffer.reserve("worker-2")
    await buffer.release(held, reason="engine died", retry=True)
    assert (await buffer.status()).requeued == {"engine died": 1}
    [waiting_for] = (await buffer.status()).waiting_for
    assert re.fullmatch(rf"group {again.id} held by worker-2 since \d+ s, attempt 2", waiting_for)


async def test_a_filled_group_is_not_released(harness, fill):
    buffer = await harness.open()
    [held] = await reserve(buffer, 1)
    await fill(buffer, held)
    await buffer.release(held, reason="late", retry=True)
    assert (await buffer.status()).states["filled"] == 1


async def test_prompts_end_with_the_epochs(harness, fill):
    buffer = await harness.open(num_prompts=2, max_epochs=1)
    held = await reserve(buffer, 2)
    await fill(buffer, *held)
    assert await buffer.reserve("worker-1") is None
    assert sorted(r.prompt_index for r in held) == [0, 1]


async def test_prompts_end_with_the_steps(harness, fill):
    buffer = await harness.open(max_lag=3, num_steps=2)
    held = await reserve(buffer, 4)
    with pytest.raises(WaitTimeout, match="for reserved groups that may come back"):
        await buffer.reserve("worker-1")
    await fill(buffer, *held)
    assert await buffer.reserve("worker-1") is None


async def test_the_end_waits_until_the_last_reserved_group_is_decided(harness, fill):
    buffer = await harness.open(num_prompts=2, max_epochs=1, slot_timeout_s=30.0)
    first, second = await reserve(buffer, 2)
    waiting = asyncio.create_task(buffer.reserve("worker-2"))
    await harness.until_blocked()
    await fill(buffer, first)
    await buffer.release(second, reason="engine died", retry=True)
    async with asyncio.timeout(5):
        again = await waiting
        assert (again.id, again.attempt) == (second.id, 2)
        waiting = asyncio.create_task(buffer.reserve("worker-3"))
        await harness.until_blocked()
        await fill(buffer, again)
        assert await waiting is None


async def test_a_dropped_group_is_made_good_by_another_prompt(harness):
    buffer = await harness.open(num_steps=1)
    held = await reserve(buffer, 2)
    await buffer.release(held[0], reason="equal rewards", retry=False)
    assert (await buffer.reserve("worker-1")).id == 2


async def test_closing_admission_ends_who_waits_and_who_comes_later(harness):
    buffer = await harness.open(slot_timeout_s=30.0)
    held = await reserve(buffer, 2)
    waiting = asyncio.create_task(buffer.reserve("worker-2"))
    await harness.until_blocked()
    await buffer.close_admission()
    async with asyncio.timeout(5):
        assert await waiting is None
        await buffer.release(held[0], reason="engine died", retry=True)
        assert await buffer.reserve("worker-1") is None
