"""Durable parts of samples: what another holder continues from, with the deadline and the slot of the first."""

import pytest

from slime_rl.errors import FencedError, StoreError, WaitTimeout
from slime_rl.types import Finish


def shape(segments):
    return [(s.index, s.start, s.tokens.tolist(), s.versions[0].version, s.finish) for s in segments]


async def test_another_holder_continues_from_what_is_durable(harness, segment):
    buffer = await harness.open()
    held = await buffer.reserve("worker-1")
    parts = [segment(0, 4), segment(0, 3, index=1), segment(4, 2, finish=Finish.STOP)]
    for part in parts:
        await buffer.extend(held, part)
    await harness.end_leases("worker-1")
    again = await (await harness.open_again()).reserve("worker-2")
    assert (again.id, again.attempt, again.continued, held.continued) == (held.id, 2, True, False)
    assert shape(await buffer.segments(again)) == shape(parts)


async def test_a_repeated_part_changes_nothing_and_a_gap_is_refused(harness, segment):
    buffer = await harness.open()
    held = await buffer.reserve("worker-1")
    for part in (segment(0, 4), segment(0, 4), segment(4, 4), segment(0, 4)):
        await buffer.extend(held, part)
    for start in (9, 7):
        with pytest.raises(StoreError, match=f"sample 0: expected a segment that begins at token 8, got {start}"):
            await buffer.extend(held, segment(start, 4))
    assert [s.start for s in await buffer.segments(held)] == [0, 4]


async def test_a_holder_that_lost_its_lease_adds_nothing(harness, segment):
    buffer = await harness.open()
    held = await buffer.reserve("worker-1")
    await buffer.extend(held, segment(0, 4))
    await harness.end_leases("worker-1")
    with pytest.raises(FencedError, match="nobody has taken it yet"):
        await buffer.extend(held, segment(4, 4))
    again = await buffer.reserve("worker-2")
    with pytest.raises(FencedError, match="its attempt 2 is reserved"):
        await buffer.extend(held, segment(4, 4))
    await buffer.extend(again, segment(4, 4))


async def test_a_continued_group_keeps_version_deadline_and_slot(harness, fill, segment):
    buffer = await harness.open(max_lag=1)
    slow, *quick = [await buffer.reserve(f"worker-{i}") for i in range(4)]
    await buffer.extend(slow, segment(0, 4))
    await fill(buffer, *quick)
    await buffer.assign(0)
    await buffer.publish(1)
    await harness.end_leases("worker-0")
    states = (await buffer.status()).states
    assert (states["kept"], states["requeued"], states["free"]) == (1, 0, 2)
    again = await buffer.reserve("worker-9")
    assert (again.id, again.version, again.deadline) == (slow.id, 0, 1)
    await fill(buffer, again)
    assert slow.id in [group.id for group in (await buffer.assign(1)).groups]


async def test_a_kept_group_goes_first_though_no_slot_is_free(harness, segment):
    buffer = await harness.open()
    held = [await buffer.reserve(f"worker-{i}") for i in range(2)]
    await buffer.extend(held[1], segment(0, 4))
    with pytest.raises(WaitTimeout, match="for one of 2 slots"):
        await buffer.reserve("worker-2")
    await buffer.release(held[1], reason="engine died", retry=True)
    assert (await buffer.reserve("worker-2")).id == held[1].id


async def test_a_step_that_is_due_waits_for_a_kept_group_and_says_so(harness, fill, segment):
    buffer = await harness.open(max_lag=1)
    slow, *quick = [await buffer.reserve("worker-1") for _ in range(4)]
    await buffer.extend(slow, segment(0, 4))
    await buffer.release(slow, reason="engine died", retry=True)
    await fill(buffer, *quick)
    await buffer.assign(0)
    await buffer.publish(1)
    with pytest.raises(WaitTimeout, match="oldest: group 0 left by worker-1, to be continued, since"):
        await buffer.assign(1)


async def test_a_continued_group_is_dropped_after_its_last_attempt(harness, segment):
    buffer = await harness.open(max_attempts=2, groups_per_step=1)
    for _ in range(2):
        held = await buffer.reserve("worker-1")
        await buffer.extend(held, segment(4 * (held.attempt - 1), 4))
        await buffer.release(held, reason="engine died", retry=True)
    status = await buffer.status()
    assert (status.dropped, status.requeued, status.num_bytes) == ({"engine died": 1}, {"engine died": 1}, 0)
    assert (await buffer.reserve("worker-1")).id == 1


async def test_a_fill_takes_the_place_of_the_parts(harness, fill, segment):
    buffer = await harness.open()
    held = await buffer.reserve("worker-1")
    await buffer.extend(held, segment(0, 1000))
    weight = (await buffer.status()).num_bytes
    await fill(buffer, held)
    assert 0 < (await buffer.status()).num_bytes < weight
    assert await buffer.segments(held) == []


async def test_a_heartbeat_says_what_the_holder_still_holds(harness):
    buffer = await harness.open(max_lag=1)
    held = [await buffer.reserve(holder) for holder in ("worker-1", "worker-1", "worker-2")]
    await buffer.release(held[0], reason="engine died", retry=True)
    assert await buffer.heartbeat("worker-1") == {held[1].id}
    await harness.end_leases("worker-1")
    assert await buffer.heartbeat("worker-1") == frozenset()
    assert await buffer.heartbeat("worker-2") == {held[2].id}
