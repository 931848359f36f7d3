"""Runs on a real cluster of three servers: each finds the node that has its keys, whatever becomes of it."""

import asyncio
import contextlib
import functools
import itertools

import pytest
from contract.server_process import Cluster, find_binaries
from contract.tls_door import make_certificate, tls_door

from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.keys import run_key
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.config import BufferConfig
from slime_rl.errors import StoreError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=find_binaries())
def cluster(request, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), find_binaries()[request.param])
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def run_at(cluster, node, name="run"):
    """The id of a run whose keys one node has."""
    ids = map(f"{name}-{{}}".format, itertools.count())
    return next(id for id in ids if cluster.home_of(run_key(id)) is node)


@pytest.fixture
async def open_run(pacing):
    """Opens new runs at a URL or an endpoint."""
    buffers = []

    async def open_run(where, **changes):
        buffers.append(await RedisBuffer.open(where, pacing(**changes), create=True))
        return buffers[-1]

    yield open_run
    for buffer in buffers:
        await buffer.close()


async def take(buffer, fill, step):
    """Generate the groups of a step and assign them."""
    held = [await buffer.reserve("worker-1") for _ in range(2)]
    await fill(buffer, *held)
    return [group.id for group in (await buffer.assign(step)).groups]


@pytest.mark.parametrize("home", range(3))
async def test_a_whole_schedule_runs_from_the_url_of_any_node(cluster, open_run, fill, segment, caplog, home):
    run_id = run_at(cluster, cluster.nodes[home])
    url = cluster.nodes[0].url
    buffer = await open_run(url, run_id=run_id, max_lag=1)
    assert not caplog.records
    held = await buffer.reserve("worker-1")
    await buffer.extend(held, segment(0, 3))
    await buffer.release(held, reason="engine died", retry=True)
    held = await buffer.reserve("worker-2")
    assert [part.num_tokens for part in await buffer.segments(held)] == [3]
    assert await buffer.heartbeat("worker-2") == {held.id}
    await fill(buffer, held)
    waiting = asyncio.create_task(buffer.assign(0))
    await fill(buffer, await buffer.reserve("worker-1"))
    ids = [group.id for group in (await waiting).groups]
    reader = GroupReader(cluster.nodes[2].url, run_id)
    assert [group.id for group in reader.read(ids)] == ids
    await buffer.publish(1)
    snapshot = decode_snapshot(await buffer.snapshot(1), name="snapshot")
    await buffer.commit(0)
    assert await buffer._known([*ids, 7]) == []
    second = await take(buffer, fill, 1)
    again = await RedisBuffer.resume(cluster.nodes[1].url, buffer.pacing, snapshot)
    assert [group.id for group in (await again.assign(1)).groups] == second
    assert (await again.status()).states["committed"] == 2
    await again.close()
    reader.close()


async def test_the_rule_of_the_documentation_suffices_for_a_user_of_a_cluster(cluster, open_run, fill):
    for node in cluster.nodes:
        node.admin.execute_command("ACL", "SETUSER", "trainer", *ACL)
    url = cluster.nodes[0].url.replace("//", "//trainer:secret@")
    buffer = await open_run(url, run_id=run_at(cluster, cluster.nodes[1], "user"))
    assert await take(buffer, fill, 0) == [0, 1]
    assert len(buffer._calls.patience.route._nodes) == 3


ACL = ["on", ">secret", "~{slime_rl:*", "+@all", "-@admin", "-@dangerous", "+info", "+cluster|slots"]


async def test_the_settings_of_the_node_that_has_the_run_are_looked_at(cluster, open_run, caplog):
    home = cluster.nodes[1]
    home.admin.config_set("appendfsync", "everysec")
    try:
        await open_run(cluster.nodes[0].url, run_id=run_at(cluster, home, "lax"))
    finally:
        home.admin.config_set("appendfsync", "always")
    assert "is everysec, not always" in caplog.text


async def test_an_encrypted_cluster_is_followed_from_door_to_door(cluster, open_run, fill, tmp_path):
    """Each node announces a door of its own."""
    cert, key = await asyncio.to_thread(make_certificate, tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        doors = []
        for node in cluster.nodes:
            inside = functools.partial(asyncio.open_connection, "127.0.0.1", node.port)
            doors.append(await stack.enter_async_context(tls_door(inside, cert, key)))
            node.admin.config_set("cluster-announce-port", doors[-1])
            stack.callback(node.admin.config_set, "cluster-announce-port", 0)
        first = cluster.nodes[0]
        first.until(lambda: cluster.ports_at(first) >= set(doors[1:]))
        config = BufferConfig(tls_ca=cert, tls_cert=cert, tls_key=key)
        where = Endpoint(f"rediss://127.0.0.1:{doors[0]}", config)
        run_id = run_at(cluster, cluster.nodes[2], "encrypted")
        buffer = await open_run(where, run_id=run_id)
        ids = await take(buffer, fill, 0)
        reader = GroupReader(where, run_id)
        assert [group.id for group in await asyncio.to_thread(reader.read, ids)] == ids
        assert buffer._calls.patience.route.node == ("127.0.0.1", doors[2])
        reader.close()
        await buffer.close()
    ports = {node.port for node in cluster.nodes}
    for node in cluster.nodes:
        node.until(lambda node=node: cluster.ports_at(node) == ports)


async def test_a_run_goes_on_while_its_keys_move_to_another_node(cluster, open_run, fill):
    source, target = cluster.nodes[0], cluster.nodes[2]
    run_id = run_at(cluster, source, "moved")
    url = cluster.nodes[1].url
    buffer = await open_run(url, run_id=run_id, max_lag=1)
    first = await take(buffer, fill, 0)
    slot = source.admin.execute_command("CLUSTER", "KEYSLOT", run_key(run_id))
    target.admin.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    keys = source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    for key in sorted(keys)[: len(keys) // 2]:
        source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    before = source.admin.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot)
    calls = asyncio.create_task(buffer.publish(1)), asyncio.create_task(buffer.reserve("worker-1"))
    done, _ = await asyncio.wait(calls, timeout=0.3)
    assert not done
    assert source.admin.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == before
    for key in source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    for node in (target, source, cluster.nodes[1]):
        node.admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))
    _, held = await asyncio.gather(*calls)
    reader = GroupReader(url, run_id)
    assert [group.id for group in reader.read(first)] == first
    reader.close()
    await fill(buffer, held, await buffer.reserve("worker-1"))
    assert [group.id for group in (await buffer.assign(1)).groups] == [2, 3]


async def test_a_move_that_does_not_end_is_told(cluster, open_run):
    source, target = cluster.nodes[1], cluster.nodes[2]
    run_id = run_at(cluster, source, "stuck")
    where = Endpoint(cluster.nodes[0].url, BufferConfig(reconnect_timeout_s=0.2))
    buffer = await open_run(where, run_id=run_id)
    slot = source.admin.execute_command("CLUSTER", "KEYSLOT", run_key(run_id))
    source.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    try:
        with pytest.raises(StoreError, match=r"is moving the run's keys from node to node: let it finish\)$"):
            await buffer.reserve("worker-1")
    finally:
        source.admin.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    assert (await buffer.reserve("worker-1")).id == 0


@pytest.mark.parametrize("seed", [0, 1])
async def test_a_replica_takes_over_when_the_node_of_a_run_dies(tmp_path, open_run, fill, seed):
    """Whether the URL named that node or another."""
    cluster = Cluster(tmp_path, replicas=True)
    try:
        cluster.start()
        home = cluster.nodes[0]
        run_id = run_at(cluster, home)
        url = cluster.nodes[seed].url
        buffer = await open_run(url, run_id=run_id, max_lag=1, slot_timeout_s=60.0)
        first = await take(buffer, fill, 0)
        await take(buffer, fill, 1)
        waiting = asyncio.create_task(buffer.reserve("worker-1"))
        reader = GroupReader(url, run_id)
        assert [group.id for group in reader.read(first)] == first
        home.admin.wait(1, 5000)
        home.kill()
        assert [group.id for group in await asyncio.to_thread(reader.read, first)] == first
        await buffer.publish(1)
        assert (await waiting).id == 4
        await buffer.commit(0)
        reader.close()
    finally:
        cluster.stop()
