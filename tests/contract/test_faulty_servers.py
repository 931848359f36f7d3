"""Servers that are full, slow, busy, unable to write, or have lost what they wrote: each by a real one."""

import asyncio
import contextlib
from typing import cast

import pytest
import redis
from contract.server_process import ServerProcess, find_binaries

from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.config import BufferConfig
from slime_rl.errors import StoreError

LOADS_SLOWLY = {"key_load_delay": 50}  # us for each entry of its log; it looks up after each thousand


@pytest.fixture(params=find_binaries())
def make_server(request, tmp_path):
    """Starts servers of one kind that a test may spoil."""
    servers = []

    def make(**settings):
        server = ServerProcess(tmp_path / str(len(servers)), find_binaries()[request.param], **settings)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
async def open_run(pacing):
    """Opens new runs, whose client takes the limits that a test chooses."""
    buffers = []

    async def open_run(url, *, limits=None, **changes):
        where = Endpoint(url, BufferConfig().model_copy(update=limits or {}))
        buffers.append(await RedisBuffer.open(where, pacing(**changes), create=True))
        return buffers[-1]

    yield open_run
    for buffer in buffers:
        await buffer.close()


def contents(server):
    """Everything that a server holds."""
    return {key: server.dump(key) for key in cast(list[bytes], server.keys())}


@contextlib.contextmanager
def full(server):
    server.config_set("maxmemory", 1)
    try:
        yield
    finally:
        server.config_set("maxmemory", 0)


async def test_a_full_server_takes_nothing_new_whole_or_in_part(on_server, fill, segment, pacing):
    buffer = await on_server.open(max_lag=1)
    first, second = [await buffer.reserve("worker-1") for _ in range(2)]
    await fill(buffer, first)
    before = contents(on_server.server)
    cause = (
        r"^the buffer at unix:///\S* is full: OOM command not allowed [^\n]*: \d+ of 1 bytes are used, \d\d+ by groups "
        r"of this run; it needs room for 4 groups of up to about \d\d+ bytes and for 2 more for each step between two "
        r"checkpoints: raise maxmemory or lower checkpoint.every$"
    )
    with full(on_server.server):
        for call in (
            fill(buffer, second),
            buffer.extend(second, segment(0, 3)),
            buffer.reserve("worker-1"),
        ):
            with pytest.raises(StoreError, match=cause):
                await call
            assert contents(on_server.server) == before
        with pytest.raises(StoreError, match=r" is full: .* 0 by groups of this run"):
            await RedisBuffer.open(on_server.url, pacing(), create=True)
        assert contents(on_server.server) == before
    await fill(buffer, second)
    assert [group.id for group in (await buffer.assign(0)).groups] == [0, 1]


async def test_what_makes_room_is_done_on_a_full_server(on_server, fill):
    buffer = await on_server.open(max_lag=2)
    held = [await buffer.reserve("worker-1") for _ in range(6)]
    await fill(buffer, *held[:4])
    on_server.server.hincrby(on_server.key("run"), "wall", -1000)  # the lease clock must be written on
    with full(on_server.server):
        assert (await buffer.status()).states["filled"] == 4
        assert await buffer.heartbeat("worker-1") == {4, 5}
        await buffer.release(held[4], reason="engine died", retry=True)
        for step in range(2):
            assert [group.id for group in (await buffer.assign(step)).groups] == [2 * step, 2 * step + 1]
            await buffer.publish(step + 1)
        snapshot = await buffer.snapshot(1)
        await buffer.commit(0)
        assert (await buffer.status()).states["committed"] == 2
        buffer = await on_server.resume(snapshot)
        assert [group.id for group in (await buffer.assign(1)).groups] == [2, 3]
        await buffer.publish(2)
        await buffer.commit(1)
        buffer = await on_server.resume(snapshot)
        await buffer.close_admission()
    assert await buffer.reserve("worker-1") is None


async def test_a_step_does_without_a_straggler_on_a_full_server(on_server, fill):
    buffer = await on_server.open(groups_per_step=1, max_lag=1, on_straggler="mask")
    await buffer.reserve("worker-1")
    await fill(buffer, await buffer.reserve("worker-2"))
    await buffer.assign(0)
    await buffer.publish(1)
    await fill(buffer, await buffer.reserve("worker-2"))
    with full(on_server.server):
        assert [group.id for group in (await buffer.assign(1)).groups] == [2]


async def test_a_server_that_cannot_save_is_told_and_goes_on_once_it_can(make_server, open_run, fill):
    server = make_server()
    server.admin.config_set("save", "3600 1")
    buffer = await open_run(server.url)
    held = await buffer.reserve("worker-1")

    def save(status):
        server.admin.bgsave()
        server.until(lambda: not server.info("persistence")["rdb_bgsave_in_progress"])
        assert server.info("persistence")["rdb_last_bgsave_status"] == status

    (server.folder / "dump.rdb").mkdir()
    save("err")
    before = contents(server.admin)
    with pytest.raises(StoreError, match=r"it cannot write its data to disk, and refuses all writes until it can\)$"):
        await fill(buffer, held)
    assert contents(server.admin) == before
    (server.folder / "dump.rdb").rmdir()
    save("ok")
    await fill(buffer, held)
    assert (await buffer.status()).states["filled"] == 1


@pytest.mark.slow
async def test_a_server_that_loads_its_log_is_waited_for_and_told(make_server, open_run, fill):
    server = make_server(**LOADS_SLOWLY)
    impatient = await open_run(server.url, limits={"reconnect_timeout_s": 0.05})
    buffer = await open_run(server.url, max_lag=1)
    held = await buffer.reserve("worker-1")
    with server.admin.pipeline(transaction=False) as many:
        for i in range(40_000):
            many.set("many", i)
        many.execute()
    server.kill()
    server.start(ready=False)
    filling = asyncio.create_task(fill(buffer, held))
    await asyncio.to_thread(server.until, lambda: is_loading(server))
    with pytest.raises(StoreError, match=r"it is still loading its data\)$"):
        await impatient.status()
    await filling
    assert (await buffer.status()).states["filled"] == 1


def is_loading(server):
    try:
        return bool(server.info("persistence")["loading"])
    except redis.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False


@contextlib.asynccontextmanager
async def slow_road(port):
    """The port of a road to a server, and the seconds that its next answers take, one after another."""
    delays, ends = [], []

    async def pass_on(reader, writer, *, is_answer):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                if is_answer and delays:
                    await asyncio.sleep(delays.pop(0))
                writer.write(chunk)
        writer.close()

    async def enter(reader, writer):
        inside, outside = await asyncio.open_connection("127.0.0.1", port)
        ends.extend([writer, outside])
        roads.create_task(pass_on(reader, outside, is_answer=False))
        roads.create_task(pass_on(inside, writer, is_answer=True))

    async with asyncio.TaskGroup() as roads, await asyncio.start_server(enter, "127.0.0.1", 0) as door:
        yield door.sockets[0].getsockname()[1], delays
        for end in ends:
            end.close()
        for end in ends:
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()


async def test_a_server_that_answers_too_late_is_told_by_the_name_of_the_limit(make_server, open_run):
    server = make_server()
    buffer = await open_run(server.url, limits=HURRIED)
    server.admin.client_pause(3000)
    with pytest.raises(StoreError, match=r"no answer within 0\.2 s of buffer\.call_timeout_s, again and again for 0"):
        await buffer.reserve("worker-1")


HURRIED = {"call_timeout_s": 0.2, "reconnect_timeout_s": 0.3}


async def test_what_was_done_while_its_answer_was_late_is_not_done_again(make_server, pacing, open_run, fill):
    server = make_server()
    async with slow_road(server.port) as (port, delays):
        limits = {"call_timeout_s": 0.2, "reconnect_timeout_s": 30.0}
        buffer = await open_run(f"redis://127.0.0.1:{port}", limits=limits, groups_per_step=1)
        held = await buffer.reserve("worker-1")
        sequence = buffer._seen
        delays.append(0.5)
        await fill(buffer, held)
        assert not delays
        assert buffer._seen == sequence + 1
        assert [group.id for group in (await buffer.assign(0)).groups] == [held.id]
        await buffer.close()


async def cut_short(server, call):
    """Let a server forget the end of its log: what `call` wrote, as if it had never reached the disk."""
    (log,) = [path for path in server.folder.rglob("*.aof") if "base" not in path.name]
    kept = log.stat().st_size
    answer = await call()
    server.kill()
    assert log.stat().st_size > kept
    with log.open("r+b") as file:
        file.truncate(kept + 9)  # in the middle of a command
    server.start()
    return answer


async def test_a_trainer_whose_step_the_server_has_forgotten_is_told_and_the_snapshot_wins(make_server, open_run, fill):
    server = make_server()
    buffer = await open_run(server.url, max_lag=1, num_prompts=6, max_epochs=1)
    await fill(buffer, *[await buffer.reserve("worker-1") for _ in range(2)])
    trained = [group.id for group in (await buffer.assign(0)).groups]
    await buffer.publish(1)
    late = await buffer.reserve("worker-2")

    async def go_on():
        await fill(buffer, late, await buffer.reserve("worker-2"))
        await buffer.assign(1)
        await buffer.publish(2)
        return await buffer.snapshot(2)

    snapshot = await cut_short(server, go_on)
    for call in (buffer.assign(2), buffer.heartbeat("worker-2"), fill(buffer, late), buffer.commit(1)):
        with pytest.raises(StoreError, match=r"the server has lost writes of run .*; resume the run from its last"):
            await call
    found = decode_snapshot(snapshot, name="snapshot")
    again = await RedisBuffer.resume(server.url, buffer.pacing, found)
    held = [await again.reserve("worker-1") for _ in range(2)]
    await fill(again, *held)
    last = [group.id for group in (await again.assign(2)).groups]
    prompts = [buffer.pacing.prompt_index(id) for id in [*trained, 2, 3, *last]]
    assert sorted(prompts) == list(range(6))
    await again.close()


async def test_a_holder_whose_group_the_server_has_forgotten_is_told(make_server, open_run, fill):
    server = make_server()
    buffer = await open_run(server.url)
    held = await cut_short(server, lambda: buffer.reserve("worker-1"))
    for call in (buffer.heartbeat("worker-1"), fill(buffer, held), buffer.reserve("worker-1")):
        with pytest.raises(StoreError, match="the server has lost writes of run"):
            await call
