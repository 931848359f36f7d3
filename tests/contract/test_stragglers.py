"""Groups that a step cannot wait for, groups that it may shed, and pools of engines that serve an older version."""

import pytest

from slime_rl.errors import FencedError, WaitTimeout


async def open_with_straggler(harness, fill, **changes):
    """Step 1 is due, two newer groups are filled, and group 0 still holds it up."""
    buffer = await harness.open(max_lag=1, **changes)
    slow, *quick = [await buffer.reserve(f"worker-{i}") for i in range(4)]
    await fill(buffer, *quick)
    await buffer.assign(0)
    await buffer.publish(1)
    newer = [await buffer.reserve("worker-5") for _ in range(2)]
    await fill(buffer, *newer)
    return buffer, slow


async def test_a_step_waits_for_a_straggler(harness, fill):
    buffer, slow = await open_with_straggler(harness, fill, on_straggler="wait")
    with pytest.raises(WaitTimeout, match="for 1 of 2 groups of step 1; oldest: group 0 held by worker-0"):
        await buffer.assign(1)
    await fill(buffer, slow)
    assert slow.id in [group.id for group in (await buffer.assign(1)).groups]


async def test_or_lets_it_start_again(harness, fill):
    buffer, slow = await open_with_straggler(harness, fill, on_straggler="requeue")
    assert [group.id for group in (await buffer.assign(1)).groups] == [3, 4]
    assert (await buffer.status()).requeued == {"straggler": 1}
    with pytest.raises(FencedError, match="its attempt 1 is requeued"):
        await fill(buffer, slow)
    again = await buffer.reserve("worker-6")
    assert (again.id, again.attempt, again.deadline) == (slow.id, 2, 2)


async def test_or_drops_it_after_its_last_attempt(harness, fill):
    buffer, _ = await open_with_straggler(harness, fill, on_straggler="requeue", max_attempts=1)
    await buffer.assign(1)
    assert (await buffer.status()).dropped == {"straggler": 1}


async def test_or_puts_it_off_to_be_masked(harness, fill):
    buffer, slow = await open_with_straggler(harness, fill, on_straggler="mask")
    assert [group.id for group in (await buffer.assign(1)).groups] == [3, 4]
    await buffer.publish(2)
    await fill(buffer, slow, await buffer.reserve("worker-6"))
    [first, _] = (await buffer.assign(2)).groups
    assert (first.id, first.oldest) == (slow.id, 0)
    assert (await buffer.status()).lags == {0: 3, 1: 2, 2: 1}


async def test_nobody_is_let_go_while_the_step_has_not_enough_anyhow(harness, fill):
    buffer = await harness.open(on_straggler="requeue")
    held = [await buffer.reserve("worker-1") for _ in range(2)]
    await fill(buffer, held[0])
    with pytest.raises(WaitTimeout):
        await buffer.assign(0)
    assert (await buffer.status()).states["reserved"] == 1


async def test_what_is_left_of_a_surplus_is_shed_and_tried_again(harness, fill):
    buffer = await harness.open(surplus=2)
    held = [await buffer.reserve("worker-1") for _ in range(4)]
    with pytest.raises(WaitTimeout, match="for one of 4 slots"):
        await buffer.reserve("worker-1")
    await fill(buffer, held[3], held[1], held[0])
    assert [group.id for group in (await buffer.assign(0)).groups] == [1, 3]
    status = await buffer.status()
    assert status.requeued == {"surplus": 2}
    assert (status.states["requeued"], status.states["free"]) == (2, 2)
    with pytest.raises(FencedError):
        await fill(buffer, held[2])
    await buffer.publish(1)
    assert [(r.id, r.attempt) for r in [await buffer.reserve("worker-1") for _ in range(3)]] == [(0, 2), (2, 2), (4, 1)]


async def test_a_step_tells_what_finished_groups_it_gave_back_and_may_have_smaller_ones(harness, sample):
    buffer = await harness.open(surplus=2)
    held = [await buffer.reserve("worker-1") for _ in range(4)]
    for place, num_samples, num_tokens in ((1, 2, 5), (2, 1, 6), (0, 2, 40)):
        samples = [sample(0, index=i, num_tokens=num_tokens) for i in range(num_samples)]
        await buffer.fill(held[place], samples)
    taken = await buffer.assign(0)
    assert [(group.id, group.num_samples, group.num_tokens) for group in taken.groups] == [(1, 2, 10), (2, 1, 6)]
    assert [(group.id, group.num_samples, group.num_tokens) for group in taken.returned] == [(0, 2, 80)]
    again = await buffer.assign(0)
    assert (again.groups, again.returned) == (taken.groups, ())
    assert [len(group.samples) for group in harness.read([1, 2])] == [2, 1]


async def test_a_kept_group_is_shed_like_any_other(harness, fill, segment):
    buffer = await harness.open(surplus=1)
    held = [await buffer.reserve("worker-1") for _ in range(3)]
    await buffer.extend(held[0], segment(0, 4))
    await buffer.release(held[0], reason="engine died", retry=True)
    await fill(buffer, *held[1:])
    await buffer.assign(0)
    await buffer.publish(1)
    states = (await buffer.status()).states
    assert (states["kept"], states["requeued"]) == (0, 1)
    again = await buffer.reserve("worker-1")
    assert (again.id, again.continued, again.deadline) == (0, False, 1)
    assert (await buffer.reserve("worker-1")).id == 3


async def test_workers_stay_while_a_surplus_may_come_back(harness, fill):
    buffer = await harness.open(surplus=1, num_prompts=3, max_epochs=1)
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(3)])
    with pytest.raises(WaitTimeout):
        await buffer.reserve("worker-1")
    await buffer.assign(0)
    await buffer.publish(1)
    again = await buffer.reserve("worker-1")
    assert (again.id, again.attempt) == (2, 2)
    await fill(buffer, again)
    assert [group.id for group in (await buffer.assign(1)).groups] == [2]
    assert await buffer.reserve("worker-1") is None


async def test_a_pool_that_serves_an_older_version_gets_a_slot_if_its_deadline_can_be_kept(harness, fill):
    buffer = await harness.open(max_lag=2)
    for step in range(2):
        await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
        await buffer.assign(step)
        await buffer.publish(step + 1)
    late = [await buffer.reserve("far", serves=0) for _ in range(2)]
    assert [(r.version, r.deadline) for r in late] == [(0, 2)] * 2
    with pytest.raises(WaitTimeout, match="for engines that serve a later version, the published one is 2"):
        await buffer.reserve("far", serves=0)
    assert (await buffer.reserve("far", serves=1)).deadline == 3
    assert (await buffer.reserve("near")).deadline == 4
    await fill(buffer, *late)
    assert [group.id for group in (await buffer.assign(2)).groups] == [r.id for r in late]


async def test_a_pool_behind_the_bound_gets_no_slot(harness, fill):
    buffer = await harness.open(max_lag=1)
    for step in range(2):
        await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
        await buffer.assign(step)
        await buffer.publish(step + 1)
    with pytest.raises(WaitTimeout, match="for engines that serve a later version"):
        await buffer.reserve("far", serves=0)
