"""A run that goes on from a checkpoint: the same groups in the same steps, or the same prompts again."""

from dataclasses import replace

import pytest

from slime_rl.buffer.order import Source
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.errors import CodecError, ConfigError, FencedError, StoreError, WaitTimeout


async def take(buffer, fill, step, *, num_groups=2):
    """Fill so many groups, take a step and publish it; the ids it took."""
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(num_groups)])
    ids = [group.id for group in (await buffer.assign(step)).groups]
    await buffer.publish(step + 1)
    return ids


async def test_the_steps_after_the_checkpoint_get_the_same_groups(harness, fill):
    buffer = await harness.open(max_lag=1)
    await take(buffer, fill, 0)
    snapshot = await buffer.snapshot(1)
    await buffer.commit(0)
    taken = [await take(buffer, fill, step) for step in (1, 2, 3)]
    buffer = await harness.resume(snapshot)
    assert (await buffer.status()).version == 1
    for step, ids in zip((1, 2, 3), taken, strict=True):
        assert [group.id for group in (await buffer.assign(step)).groups] == ids
        assert [group.id for group in harness.read(ids)] == ids
        await buffer.publish(step + 1)
    assert (await buffer.reserve("worker-1")).id == 8


async def test_nothing_is_sampled_before_the_last_step_is_reached_that_had_its_groups(harness, fill):
    buffer = await harness.open(max_lag=2)
    snapshot = await buffer.snapshot(0)
    for step in range(3):
        await take(buffer, fill, step)
    await buffer.reserve("worker-1")
    buffer = await harness.resume(snapshot)
    for version in (0, 1):
        with pytest.raises(
            WaitTimeout, match=f"until the trainer has taken the steps again .* at version {version}; 0 re"
        ):
            await buffer.reserve("worker-1")
        await buffer.assign(version)
        await buffer.publish(version + 1)
    again = await buffer.reserve("worker-1")
    assert (again.id, again.attempt, again.version, again.deadline) == (6, 2, 2, 4)


async def test_a_group_that_was_reserved_starts_again_and_no_attempt_is_counted(harness):
    buffer = await harness.open(max_attempts=2)
    snapshot = await buffer.snapshot(0)
    for _ in range(5):
        held = await buffer.reserve("worker-1")
        assert held.id == 0
        buffer = await harness.resume(snapshot)
    status = await buffer.status()
    assert (status.requeued, status.dropped) == ({"resumed": 5}, {})


async def test_a_group_with_durable_parts_is_continued(harness, segment):
    buffer = await harness.open(max_lag=1)
    snapshot = await buffer.snapshot(0)
    held = await buffer.reserve("worker-1")
    await buffer.extend(held, segment(0, 4))
    buffer = await harness.resume(snapshot)
    again = await buffer.reserve("worker-2")
    assert (again.id, again.continued, again.deadline) == (held.id, True, held.deadline)


async def test_a_group_is_continued_only_once_the_engines_serve_what_keeps_its_deadline(harness, fill, segment):
    buffer = await harness.open(max_lag=0)
    snapshot = await buffer.snapshot(0)
    taken = await take(buffer, fill, 0)
    held = await buffer.reserve("worker-1")
    await buffer.extend(held, segment(0, 4, version=held.version))
    buffer = await harness.resume(snapshot)
    with pytest.raises(WaitTimeout):
        await buffer.reserve("worker-2")
    assert [group.id for group in (await buffer.assign(0)).groups] == taken
    await buffer.publish(1)
    with pytest.raises(WaitTimeout):
        await buffer.reserve("worker-2", serves=0)
    again = await buffer.reserve("worker-2", serves=1)
    assert (again.id, again.version, again.deadline, again.continued) == (held.id, 1, 1, True)


async def test_filled_groups_stay_filled(harness, fill):
    buffer = await harness.open(max_lag=1)
    snapshot = await buffer.snapshot(0)
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(3)])
    buffer = await harness.resume(snapshot)
    assert (await buffer.status()).states["filled"] == 3
    assert [group.id for group in (await buffer.assign(0)).groups] == [0, 1]


async def test_the_earlier_incarnation_can_do_nothing_any_more(harness, fill, segment, sample):
    old = await harness.open(max_lag=1)
    await take(old, fill, 0)
    snapshot = await old.snapshot(1)
    held = await old.reserve("worker-1")
    new = await harness.resume(snapshot)
    before = await new.status()
    calls = [
        lambda: old.reserve("worker-1"),
        lambda: old.heartbeat("worker-1"),
        lambda: old.extend(held, segment(0, 4)),
        lambda: old.fill(held, [sample(1), sample(1)]),
        lambda: old.release(held, reason="late", retry=True),
        lambda: old.assign(1),
        lambda: old.publish(1),
        lambda: old.commit(0),
        lambda: old.snapshot(1),
        lambda: old.close_admission(),
    ]
    for call in calls:
        with pytest.raises(FencedError, match="was resumed since this process joined it"):
            await call()
    assert await new.status() == before


async def test_a_checkpoint_whose_commit_was_missed_is_committed_as_it_is_resumed(harness, fill):
    buffer = await harness.open()
    ids = await take(buffer, fill, 0)
    buffer = await harness.resume(await buffer.snapshot(1))
    assert (await buffer.status()).states["committed"] == 2
    with pytest.raises(StoreError, match="no payload"):
        harness.read(ids)


async def run_through(buffer, fill, *, first_step):
    """Take steps to the end of the data; the prompts trained, in order."""
    trained, step = [], first_step
    while True:
        while True:
            try:
                held = await buffer.reserve("worker-1")
            except WaitTimeout:
                break
            if held is None:
                break
            await fill(buffer, held)
        assignment = await buffer.assign(step)
        if not assignment.groups:
            return trained
        trained += [buffer.pacing.prompt_index(group.id) for group in assignment.groups]
        step += 1
        await buffer.publish(step)


@pytest.mark.parametrize("lost", [False, True])
async def test_every_prompt_is_trained_once_on_what_is_left_or_on_an_empty_server(harness, fill, lost):
    buffer = await harness.open(max_lag=2, num_prompts=17, max_epochs=1)
    trained = await take(buffer, fill, 0) + await take(buffer, fill, 1)
    dropped = await buffer.reserve("worker-1")
    await buffer.release(dropped, reason="equal rewards", retry=False)
    snapshot = await buffer.snapshot(2)
    await buffer.commit(1)
    await take(buffer, fill, 2)
    await fill(buffer, await buffer.reserve("worker-1"))
    await buffer.reserve("worker-2")
    buffer = await harness.resume(snapshot, lost=lost)
    prompts = [buffer.pacing.prompt_index(id) for id in [*trained, dropped.id]]
    prompts += await run_through(buffer, fill, first_step=2)
    assert sorted(prompts) == list(range(17))
    assert (await buffer.status()).dropped == {"equal rewards": 1}


async def test_an_older_checkpoint_whose_payloads_are_gone_issues_its_prompts_again(harness, fill):
    buffer = await harness.open()
    first = await take(buffer, fill, 0)
    old = await buffer.snapshot(1)
    second = await take(buffer, fill, 1)
    await buffer.commit(1)
    buffer = await harness.resume(old)
    status = await buffer.status()
    assert (status.version, status.states["requeued"], status.states["committed"]) == (1, 0, len(first))
    assert await take(buffer, fill, 1) == second


async def test_a_server_that_is_behind_the_snapshot_loses_against_it(harness, fill):
    buffer = await harness.open()
    await take(buffer, fill, 0)
    snapshot = decode_snapshot(await buffer.snapshot(1), name="snapshot")
    newer = replace(snapshot, sequence=snapshot.sequence + 1, open=(7, 5), issued=8).encode()
    buffer = await harness.resume(newer)
    assert [(await buffer.reserve("worker-1")).id for _ in range(2)] == [5, 7]


async def test_a_version_is_saved_only_between_the_last_commit_and_what_is_published(harness, fill):
    buffer = await harness.open()
    await take(buffer, fill, 0)
    with pytest.raises(StoreError, match="version 2 cannot be saved: version 2 has not been published"):
        await buffer.snapshot(2)


async def test_what_a_resumed_run_must_keep_is_checked(on_server, pacing):
    buffer = await on_server.open(max_lag=1)
    snapshot = decode_snapshot(await buffer.snapshot(0), name="snapshot")
    with pytest.raises(ConfigError, match=r"^loop\.max_lag must stay as the run began, with max_lag 1, got 2$"):
        await RedisBuffer.resume(on_server.url, replace(buffer.pacing, max_lag=2), snapshot)
    fewer = replace(buffer.pacing, samples_per_prompt=1)
    with pytest.raises(ConfigError, match=r"^loop\.samples_per_prompt must stay as .*_prompt 2, got 1$"):
        await RedisBuffer.resume(on_server.url, fewer, snapshot)
    other = replace(buffer.pacing, sources=(Source(10, 1.0, "other"),))
    with pytest.raises(ConfigError, match=r"^data must stay as the run began, with sources \[\], got \[{'size': 10,"):
        await RedisBuffer.resume(on_server.url, other, snapshot)
    more = replace(buffer.pacing, num_steps=200, temperature=0.5)
    again = await RedisBuffer.resume(on_server.url, more, snapshot)
    held = await again.reserve("worker-1")
    assert held is not None
    assert held.temperature == 0.5
    await again.close()


async def test_a_run_on_several_sources_is_resumed_with_their_order(on_server):
    buffer = await on_server.open(max_lag=1, sources=(Source(7, 0.7, "a"), Source(3, 0.3, "b")))
    snapshot = decode_snapshot(await buffer.snapshot(0), name="snapshot")
    again = await RedisBuffer.resume(on_server.url, buffer.pacing, snapshot)
    held = [await again.reserve("worker-1") for _ in range(4)]
    prompts = [reservation.prompt_index for reservation in held if reservation is not None]
    assert prompts == [buffer.pacing.prompt_index(id) for id in range(4)]
    assert min(prompts) < 7 <= max(prompts)
    await again.close()


async def test_a_server_that_lost_acknowledged_writes_is_told(on_server, fill):
    """As if it had come back with an older end of its log."""
    buffer = await on_server.open(max_lag=1)
    before = {key: on_server.server.dump(key) for key in on_server.server.keys("*" + buffer.pacing.run_id + "*")}
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
    for key in on_server.server.keys("*" + buffer.pacing.run_id + "*"):
        on_server.server.delete(key)
    for key, value in before.items():
        on_server.server.restore(key, 0, value)
    with pytest.raises(StoreError, match=r"the server has lost writes of run .*: its last one is number 1, it had ack"):
        await buffer.assign(0)


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: b"x" + d, lambda d: d[:20] + b"!" + d[21:], lambda d: b""]
)
async def test_a_damaged_snapshot_is_an_error_that_names_it(harness, damage):
    buffer = await harness.open()
    with pytest.raises(CodecError, match=r"^checkpoint 1: "):
        decode_snapshot(damage(await buffer.snapshot(0)), name="checkpoint 1")
