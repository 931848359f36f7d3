"""The trainer's side: which groups a step gets, for how long, and what it says while it waits."""

import asyncio
import logging
import re

import pytest

from slime_rl.buffer import patience
from slime_rl.errors import StaleError, StoreError, WaitTimeout


async def train(buffer, fill, num_groups, step):
    """Fill so many groups, then take and publish a step."""
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(num_groups)])
    assignment = await buffer.assign(step)
    await buffer.publish(step + 1)
    return assignment


async def test_a_step_gets_the_first_that_finished_in_the_order_of_their_ids(harness, fill):
    buffer = await harness.open(max_lag=1)
    held = [await buffer.reserve("worker-1") for _ in range(4)]
    await fill(buffer, held[3], held[1], held[0])
    assert [g.id for g in (await buffer.assign(0)).groups] == [1, 3]


async def test_a_step_is_assigned_once(harness, fill):
    buffer = await harness.open(max_lag=1)
    held = [await buffer.reserve("worker-1") for _ in range(4)]
    await fill(buffer, *held)
    first = await buffer.assign(0)
    second = await buffer.assign(1)
    again = await harness.open_again()
    assert await again.assign(0) == first
    assert await again.assign(1) == second
    assert sorted(g.id for a in (first, second) for g in a.groups) == [0, 1, 2, 3]


async def test_filling_wakes_the_step_that_waits(harness, fill):
    buffer = await harness.open(wait_timeout_s=30.0)
    held = [await buffer.reserve("worker-1") for _ in range(2)]
    waiting = asyncio.create_task(buffer.assign(0))
    await harness.until_blocked()
    await fill(buffer, *held)
    async with asyncio.timeout(5):
        assert len((await waiting).groups) == 2


async def test_a_step_waits_for_a_group_that_is_due(harness, fill):
    """Groups 0 and 1 have deadline 1: step 1 cannot do without them however many others have finished."""
    buffer = await harness.open(max_lag=1)
    slow = [await buffer.reserve("slow") for _ in range(2)]
    await train(buffer, fill, 2, 0)
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
    with pytest.raises(WaitTimeout, match=r"for 2 of 2 groups of step 1; oldest: group 0 held by slow"):
        await buffer.assign(1)
    await fill(buffer, *slow)
    assert (await buffer.assign(1)).groups[0].id == 0


async def test_a_wait_that_ran_out_names_the_oldest_group_and_its_holder(harness, fill):
    buffer = await harness.open(groups_per_step=3)
    held = [await buffer.reserve(f"worker-{i}") for i in range(3)]
    await fill(buffer, held[0])
    await buffer.release(held[1], reason="engine died", retry=True)
    await buffer.reserve("worker-5")
    message = r"^waiting \d+ s for 2 of 3 groups of step 0; oldest: group \d held by worker-\d since \d+ s, attempt \d$"
    with pytest.raises(WaitTimeout, match=message):
        await buffer.assign(0)


async def test_a_wait_without_any_worker_says_so(harness):
    buffer = await harness.open()
    held = await buffer.reserve("worker-1")
    await buffer.release(held, reason="engine died", retry=True)
    with pytest.raises(WaitTimeout, match=r"for 2 of 2 groups of step 0; no worker holds one \(1 requeued\)"):
        await buffer.assign(0)


async def test_a_long_wait_is_logged(harness, caplog, monkeypatch):
    monkeypatch.setattr(patience, "LOG_EVERY_S", 0.0)
    buffer = await harness.open()
    await buffer.reserve("worker-1")
    with caplog.at_level(logging.INFO, logger="slime_rl.buffer.patience"), pytest.raises(WaitTimeout):
        await buffer.assign(0)
    assert re.match(r"waiting \d+ s for 2 of 2 groups of step 0; oldest: group 0 held by worker-1", caplog.messages[0])


async def test_a_group_with_an_older_token_than_the_bound_allows_is_refused(harness, fill, sample):
    buffer = await harness.open()
    await train(buffer, fill, 2, 0)
    for _ in range(2):
        await buffer.fill(await buffer.reserve("worker-1"), [sample(1), sample(0)])
    with pytest.raises(StaleError, match="step 1: group 2 holds tokens of version 0, expected 1 or later"):
        await buffer.assign(1)
    assert (await buffer.status()).states["filled"] == 2


async def test_a_step_cannot_come_before_the_one_in_front_of_it(harness):
    buffer = await harness.open()
    with pytest.raises(StoreError, match="step 1 cannot be assigned: step 0 has not been assigned"):
        await buffer.assign(1)
    with pytest.raises(StoreError, match="step 0 cannot be committed: version 1 has not been published"):
        await buffer.commit(0)
    with pytest.raises(StoreError, match="version 1 cannot be published: step 0 has not been assigned"):
        await buffer.publish(1)


async def test_publishing_frees_the_slots_of_the_steps_behind_it_once(harness, fill):
    buffer = await harness.open(max_lag=1)
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(4)])
    await buffer.assign(0)
    await buffer.assign(1)
    free = []
    for version in (0, 1, 1, 2, 1):
        await buffer.publish(version)
        status = await buffer.status()
        free.append((status.version, status.states["free"]))
    assert free == [(0, 0), (1, 2), (1, 2), (2, 4), (2, 4)]


async def test_committing_deletes_the_payloads_of_the_steps_up_to_it(harness, fill):
    buffer = await harness.open(max_lag=1)
    taken = [await train(buffer, fill, 2, step) for step in range(3)]
    for _ in range(2):
        await buffer.commit(1)
    assert len(harness.read([g.id for g in taken[2].groups])) == 2
    with pytest.raises(StoreError, match=r"no payload under .*payload:\d"):
        harness.read([taken[1].groups[0].id])
    with pytest.raises(StoreError, match="step 1 cannot be assigned: it is committed"):
        await buffer.assign(1)
    status = await buffer.status()
    assert (status.states["committed"], status.states["assigned"]) == (4, 2)


async def test_a_step_is_not_committed_before_it_is_published(harness, fill):
    buffer = await harness.open()
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
    await buffer.assign(0)
    with pytest.raises(StoreError, match="step 0 cannot be committed: version 1 has not been published"):
        await buffer.commit(0)
    assert len(harness.read([0, 1])) == 2


async def test_the_last_step_takes_what_the_data_leaves(harness, fill):
    buffer = await harness.open(num_prompts=3, max_epochs=1)
    await train(buffer, fill, 2, 0)
    assert [g.id for g in (await train(buffer, fill, 1, 1)).groups] == [2]
    for _ in range(2):
        assert (await buffer.assign(2)).groups == ()
    assert await buffer.reserve("worker-1") is None


async def test_the_last_step_waits_for_what_may_still_come(harness, fill):
    buffer = await harness.open(num_prompts=3, max_epochs=1, max_lag=1)
    held = [await buffer.reserve("worker-1") for _ in range(3)]
    await fill(buffer, held[0])
    await buffer.release(held[1], reason="engine died", retry=True)
    with pytest.raises(WaitTimeout):
        await buffer.assign(0)
    await buffer.release(held[2], reason="equal rewards", retry=False)
    with pytest.raises(WaitTimeout):
        await buffer.assign(0)
    again = await buffer.reserve("worker-1")
    await buffer.release(again, reason="equal rewards", retry=False)
    assert [g.id for g in (await buffer.assign(0)).groups] == [0]


async def test_no_step_has_groups_after_the_last_one(harness, fill):
    buffer = await harness.open(num_steps=1)
    await train(buffer, fill, 2, 0)
    assert (await buffer.assign(1)).groups == ()


async def test_a_closed_buffer_lets_the_reserved_groups_finish(harness, fill):
    buffer = await harness.open(max_lag=1)
    held = [await buffer.reserve("worker-1") for _ in range(3)]
    await buffer.close_admission()
    with pytest.raises(WaitTimeout):
        await buffer.assign(0)
    await fill(buffer, *held)
    assert [len((await buffer.assign(step)).groups) for step in range(3)] == [2, 1, 0]


async def test_the_status_counts_every_state(harness, fill):
    buffer = await harness.open(max_lag=2)
    await train(buffer, fill, 2, 0)
    await buffer.commit(0)
    held = [await buffer.reserve("worker-1") for _ in range(5)]
    await fill(buffer, *held[:3])
    await buffer.assign(1)
    await buffer.release(held[3], reason="engine died", retry=True)
    status = await buffer.status()
    states = {"free": 2, "requeued": 1, "reserved": 1, "kept": 0, "filled": 1, "assigned": 2, "committed": 2}
    assert (status.version, status.slots, status.states) == (1, 6, states)
    [waiting_for] = status.waiting_for
    assert re.fullmatch(r"group 6 held by worker-1 since \d+ s, attempt 1", waiting_for)
