"""Groups with large extra arrays, whose blobs live and end with them."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from slime_rl.buffer.blobs import FolderBlobs
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.intake import group_of
from slime_rl.buffer.memory import MemoryBuffer
from slime_rl.buffer.packing import packing_of
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.config import BufferConfig
from slime_rl.errors import CodecError, FencedError
from slime_rl.types import Version

EXPERTS = np.arange(5 * 4 * 2, dtype=np.uint8).reshape(5, 4, 2)


class Bench:
    """A buffer of one kind with its blobs under `folder`."""

    def __init__(self, folder, pacing, url):
        self.config = BufferConfig(blobs=str(folder), inline_limit=EXPERTS.nbytes - 1)
        self.pacing = pacing
        self.url = url
        self.opened = []

    @property
    def names(self):
        """The groups and attempts that have a blob."""
        blobs = packing_of(self.config, self.pacing.run_id).blobs
        assert blobs is not None
        return sorted(name.rpartition("-")[0] for name in blobs.names())

    async def open(self, *, create=True):
        if self.url is not None:
            buffer = await RedisBuffer.open(self.endpoint, self.pacing, create=create)
        elif create:
            buffer = MemoryBuffer(self.pacing, packing=packing_of(self.config, self.pacing.run_id))
        else:
            buffer = MemoryBuffer.attach(self.opened[0])
        self.opened.append(buffer)
        return buffer

    @property
    def endpoint(self):
        return Endpoint(self.url, self.config)

    def read(self, ids):
        if self.url is None:
            return self.opened[0].read(ids)
        reader = GroupReader(self.endpoint, self.pacing.run_id)
        try:
            return reader.read(ids)
        finally:
            reader.close()

    async def close(self):
        for buffer in self.opened:
            if isinstance(buffer, RedisBuffer):
                await buffer.close()


@pytest.fixture(params=["memory", "server"])
async def bench(request, tmp_path, pacing):
    url = None if request.param == "memory" else request.getfixturevalue("server_url")
    bench = Bench(tmp_path / "blobs", pacing(max_lag=1, max_attempts=3, slot_timeout_s=30.0), url)
    yield bench
    await bench.close()


@pytest.fixture
def samples(sample):
    def samples(reservation, num_samples=2):
        return [
            replace(sample(reservation.version, index=i), arrays={"experts": EXPERTS + i}) for i in range(num_samples)
        ]

    return samples


async def test_large_arrays_come_back_and_end_with_their_step(bench, samples):
    buffer = await bench.open()
    for _ in range(2):
        reservation = await buffer.reserve("w")
        await buffer.fill(reservation, samples(reservation))
    later = await buffer.reserve("w")
    await buffer.fill(later, samples(later))
    assignment = await buffer.assign(0)
    groups = bench.read([group.id for group in assignment.groups])
    assert [np.array_equal(s.arrays["experts"], EXPERTS + s.index) for g in groups for s in g.samples] == [True] * 4
    assert bench.names == ["0-1", "1-1", "2-1"]
    await buffer.publish(Version(1))
    await buffer.commit(0)
    assert bench.names == ["2-1"]


async def test_a_fenced_fill_harms_nobody_and_takes_its_blob_away(bench, samples):
    buffer = await bench.open()
    slow = await buffer.reserve("slow")
    await buffer.release(slow, reason="timeout", retry=True)
    reservation = await buffer.reserve("w")
    assert (reservation.id, reservation.attempt) == (0, 2)
    await buffer.fill(reservation, samples(reservation))
    with pytest.raises(FencedError):
        await buffer.fill(slow, samples(slow, num_samples=1))
    assert bench.names == ["0-2"]
    second = await buffer.reserve("w")
    await buffer.fill(second, samples(second))
    assert len((await buffer.assign(0)).groups) == 2
    assert len(bench.read([0])[0].samples) == 2
    await buffer.publish(Version(1))
    await buffer.commit(0)
    assert bench.names == []


async def test_a_fill_that_is_cancelled_leaves_no_blob(bench, samples, monkeypatch):
    buffer = await bench.open()
    reservation = await buffer.reserve("w")
    began, goes_on = threading.Event(), threading.Event()
    put = FolderBlobs.put

    def slow_put(self, name, parts):
        began.set()
        assert goes_on.wait(10)
        put(self, name, parts)

    monkeypatch.setattr(FolderBlobs, "put", slow_put)
    filling = asyncio.create_task(buffer.fill(reservation, samples(reservation)))
    assert await asyncio.to_thread(began.wait, 10)
    filling.cancel()
    await asyncio.sleep(0.01)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert bench.names == []
    assert (await buffer.status()).states["reserved"] == 1


async def test_a_repeated_fill_with_other_samples_changes_nothing(bench, samples):
    buffer = await bench.open()
    reservation = await buffer.reserve("w")
    await buffer.fill(reservation, samples(reservation))
    await buffer.fill(reservation, samples(reservation, num_samples=3))
    second = await buffer.reserve("w")
    await buffer.fill(second, samples(second))
    await buffer.assign(0)
    assert len(bench.read([0])[0].samples) == 2


async def test_a_blob_of_a_dropped_group_is_swept_with_the_next_commit(bench, samples):
    buffer = await bench.open()
    reservation = await buffer.reserve("w")
    packed = await buffer.packing.encode(group_of(reservation, samples(reservation)))
    assert packed
    await buffer.release(reservation, reason="crashed", retry=False)  # after its blob, before its fill
    for _ in range(2):
        reservation = await buffer.reserve("w")
        await buffer.fill(reservation, samples(reservation))
    await buffer.assign(0)
    assert bench.names == ["0-1", "1-1", "2-1"]
    await buffer.publish(Version(1))
    await buffer.commit(0)
    assert bench.names == []


async def test_a_lost_blob_is_an_error_that_names_the_group(bench, samples, tmp_path):
    buffer = await bench.open()
    for _ in range(2):
        reservation = await buffer.reserve("w")
        await buffer.fill(reservation, samples(reservation))
    await buffer.assign(0)
    for path in tmp_path.rglob("0-1-*"):
        path.unlink()
    with pytest.raises(CodecError, match=r"payload:0: its blob 0-1-\w+ is missing"):
        bench.read([0])


async def test_resuming_sweeps_what_a_crash_left(server_url, tmp_path, pacing, samples):
    bench = Bench(tmp_path / "blobs", pacing(max_lag=1, slot_timeout_s=30.0), server_url)
    buffer = await bench.open()
    snapshot = decode_snapshot(await buffer.snapshot(Version(0)), name="snapshot")
    kept, crashed = await buffer.reserve("w"), await buffer.reserve("crashed")
    assert kept is not None
    assert crashed is not None
    await buffer.fill(kept, samples(kept))
    await buffer.packing.encode(group_of(crashed, samples(crashed)))
    await buffer.release(crashed, reason="crashed", retry=False)
    assert bench.names == ["0-1", "1-1"]
    bench.opened.append(await RedisBuffer.resume(bench.endpoint, bench.pacing, snapshot))
    assert bench.names == ["0-1"]
    await bench.close()
