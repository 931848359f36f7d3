"""What only a buffer on a server can do wrong: keys, payloads, lost answers, credentials, strangers."""

import asyncio
import re

import pytest

from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.config import without_credentials
from slime_rl.errors import CodecError, ConfigError, RunFolderError, StoreError


async def assigned(on_server, fill, **changes):
    """A buffer whose first step, of one group, is assigned."""
    buffer = await on_server.open(groups_per_step=1, **changes)
    await fill(buffer, await buffer.reserve("worker-1"))
    await buffer.assign(0)
    return buffer


async def test_a_used_run_id_is_refused_unless_it_is_resumed(on_server):
    buffer = await on_server.open()
    await buffer.reserve("worker-1")
    with pytest.raises(RunFolderError, match=rf"run '{buffer.pacing.run_id}' is in use at unix:///.*: resume it"):
        await RedisBuffer.open(on_server.url, buffer.pacing, create=True)
    again = await on_server.open_again()
    assert (await again.status()).states["reserved"] == 1


async def test_a_run_that_does_not_exist_cannot_be_resumed(on_server, pacing):
    with pytest.raises(StoreError, match=r"there is no run 'nobody' at unix:///"):
        await RedisBuffer.open(on_server.url, pacing(run_id="nobody"), create=False)


async def test_a_run_is_not_opened_with_another_pacing(on_server, pacing):
    buffer = await on_server.open(max_lag=1)
    with pytest.raises(StoreError, match="was created with max_lag 1, got 2"):
        await RedisBuffer.open(on_server.url, pacing(run_id=buffer.pacing.run_id, max_lag=2), create=False)


async def test_every_key_carries_the_run_in_its_hash_tag(on_server, fill):
    before = set(on_server.server.keys())
    buffer = await assigned(on_server, fill, max_lag=7)
    held = [await buffer.reserve("worker-1") for _ in range(5)]
    await fill(buffer, held[0])
    await buffer.release(held[1], reason="engine died", retry=True)
    await buffer.release(held[2], reason="engine died", retry=False)
    keys = set(on_server.server.keys()) - before
    assert {key.decode().removeprefix(on_server.key("")) for key in keys} == {
        "run", "changes", "openings", "reserved", "unfinished", "filled", "ready", "requeued", "requests", "dropped",
        "requeued_by", "lags", "held:worker-1", "step:0", "payload:0", "payload:1",
        *(f"group:{id}" for id in (0, 1, 2, 4, 5)),
    }  # fmt: skip


async def test_a_finished_run_leaves_a_handful_of_keys(on_server, fill):
    before = set(on_server.server.keys())
    buffer = await on_server.open(num_steps=20)
    for step in range(20):
        await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
        await buffer.assign(step)
        await buffer.publish(step + 1)
        await buffer.commit(step)
    assert set(on_server.server.keys()) - before == {
        on_server.key(name).encode() for name in ("run", "changes", "openings", "lags")
    }


async def test_who_waits_for_a_slot_is_woken_where_the_answer_may_be_another(on_server, fill):
    buffer = await on_server.open(groups_per_step=3)
    held = [await buffer.reserve("worker-1") for _ in range(3)]
    openings = on_server.key("openings")

    async def opens(call):
        before = on_server.server.xrange(openings)
        await call
        return on_server.server.xrange(openings) != before

    assert not await opens(fill(buffer, held[0]))
    assert await opens(buffer.release(held[1], reason="engine died", retry=True))
    held[1] = await buffer.reserve("worker-1")
    assert not await opens(fill(buffer, held[1]))
    assert await opens(fill(buffer, held[2]))
    assert not await opens(buffer.assign(0))
    assert await opens(buffer.publish(1))
    assert await opens(buffer.close_admission())


async def test_a_reservation_whose_answer_was_lost_is_answered_again(on_server, fill):
    buffer = await on_server.open()
    first = await buffer._try_reserve("worker-1", "request-1", None)
    assert await buffer._try_reserve("worker-1", "request-1", None) == first
    assert (await buffer._try_reserve("worker-1", "request-2", None)).id == 1
    await fill(buffer, first)
    assert on_server.server.hlen(on_server.key("requests")) == 1


@pytest.mark.parametrize("damage", [lambda p: p[:-1], lambda p: b"\x80\x04" + p, lambda p: p[:40] + b"!" + p[41:]])
async def test_a_damaged_payload_is_an_error_that_names_its_key(on_server, fill, damage):
    await assigned(on_server, fill)
    key = on_server.key("payload:0")
    on_server.server.set(key, damage(on_server.server.get(key)))
    with pytest.raises(CodecError, match=f"^{re.escape(key)}: "):
        on_server.read([0])


async def test_a_missing_payload_is_an_error_that_names_its_key(on_server, fill):
    buffer = await assigned(on_server, fill)
    await buffer.publish(1)
    await buffer.commit(0)
    with pytest.raises(StoreError, match=f"no payload under {re.escape(on_server.key('payload:0'))}"):
        on_server.read([0])
    assert on_server.read([]) == []


async def test_no_credential_is_in_any_error(on_server, pacing):
    secret = "the-secret"
    for url in (f"unix://:{secret}@/tmp/no.sock", f"redis://user:{secret}@127.0.0.1:1", f"http://u:{secret}@host/x"):
        with pytest.raises((StoreError, ConfigError)) as caught:
            await RedisBuffer.open(url, pacing(), create=True)
        chain = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert secret not in "".join(map(repr, chain))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@host:1/0", "redis://host:1/0"),
        ("unix://:p@/tmp/x.sock?db=1&password=p", "unix:///tmp/x.sock"),
        ("u:p@host", "host"),
        ("redis://u:p@q@host", "redis://host"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url, shown):
    assert without_credentials(url) == shown


async def test_a_wrong_password_is_an_error_with_its_cause(on_server, pacing):
    wrong = re.sub(r":[0-9a-f]+@", ":wrong@", on_server.url)
    with pytest.raises(StoreError, match=r"the buffer at unix:///.* failed: .*(password|WRONGPASS)"):
        await RedisBuffer.open(wrong, pacing(), create=True)


@pytest.mark.parametrize("jump_s", [36_000, -36_000])
async def test_a_clock_that_is_set_ends_no_lease_and_lets_time_go_on(on_server, fill, jump_s):
    buffer = await on_server.open(lease_s=60.0)
    first, second = [await buffer.reserve("worker-1") for _ in range(2)]
    run = on_server.key("run")
    clock = int(on_server.server.hget(run, "clock"))
    on_server.server.hincrby(run, "wall", -1000 * jump_s)
    await buffer.heartbeat("worker-1")
    assert clock <= int(on_server.server.hget(run, "clock")) <= clock + 30_000
    await fill(buffer, first)
    on_server.server.hincrby(run, "wall", -29_000)
    await buffer.status()
    assert int(on_server.server.hget(run, "clock")) >= clock + 29_000
    await fill(buffer, second)


@pytest.mark.parametrize("resumed", [False, True])
async def test_the_lease_of_a_dead_holder_ends_after_the_clock_was_set_back_by_hours(on_server, resumed):
    buffer = await on_server.open(groups_per_step=1, lease_s=0.3, slot_timeout_s=10.0)
    snapshot = await buffer.snapshot(0)
    first = await buffer.reserve("worker-1")
    on_server.server.hincrby(on_server.key("run"), "wall", 36_000_000)
    if resumed:
        buffer = await on_server.resume(snapshot)
        await buffer.reserve("worker-1")
    async with asyncio.timeout(5.0):
        again = await buffer.reserve("worker-2")
    assert (again.id, again.attempt) == (first.id, 3 if resumed else 2)


def test_a_run_id_with_braces_is_refused(pacing):
    with pytest.raises(ValueError, match="a run id has no braces"):
        pacing(run_id="a}b")
