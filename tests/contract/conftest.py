"""One contract, two buffers: the one in memory and the one on a real server, which is started once a session."""

import asyncio
import functools
import itertools
import time
from typing import cast

import numpy as np
import pytest
import redis
from contract.server_process import find_binaries

from slime_rl.buffer.memory import MemoryBuffer
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.buffer.snapshot import decode_snapshot
from slime_rl.types import Finish, Sample, Segment, Span, Version

RUN_IDS = map("run-{}".format, itertools.count())


def make_pacing(**changes):
    """Two groups a step, no lag allowed, and waits that give up at once where a test does not ask for others."""
    values = {
        "run_id": next(RUN_IDS),
        "groups_per_step": 2,
        "samples_per_prompt": 2,
        "max_lag": 0,
        "num_steps": 100,
        "num_prompts": 10,
        "max_epochs": None,
        "seed": 0,
        "shuffle": True,
        "temperature": 0.7,
        "max_attempts": 3,
        "max_dropped_per_step": 1000,
        "lease_s": 1000.0,
        "wait_timeout_s": 0.001,
        "slot_timeout_s": 0.001,
    }
    return Pacing(**values | changes)


def make_sample(version, *, index=0, num_tokens=5, finish=Finish.STOP):
    tokens = np.arange(num_tokens, dtype=np.int32)
    return Sample(
        index=index,
        trajectory=index,
        tokens=tokens,
        loss_mask=tokens >= 2,
        logprobs=np.where(tokens >= 2, -0.5, 0).astype(np.float32),
        versions=(Span(version, 2, num_tokens),),
        temperature=0.7,
        finish=finish,
        reward=1.0,
    )


class MemoryHarness:
    def __init__(self):
        self.time_s = 0.0

    async def open(self, *, real_clock=False, **changes):
        clock = time.monotonic if real_clock else lambda: self.time_s
        self.buffer = MemoryBuffer(make_pacing(**changes), clock=clock)
        return self.buffer

    async def open_again(self):
        return MemoryBuffer.attach(self.buffer)

    async def resume(self, snapshot, *, lost=False):
        """Begin a new incarnation from the bytes of a snapshot; `lost` on a server that holds nothing of the run."""
        self.buffer = MemoryBuffer.resume(self.buffer, decode_snapshot(snapshot, name="snapshot"), lost=lost)
        return self.buffer

    async def end_leases(self, holder):
        """End the leases of one holder: the time they last passes, while every other holder's heart beats."""
        others = {group.holder for group in self.buffer.state.groups.values()} - {holder}
        for _ in range(2):
            for other in others:
                await self.buffer.heartbeat(other)
            self.time_s += self.buffer.pacing.lease_s / 2

    async def until_blocked(self):
        """Let the tasks that were started come to where they wait."""
        for _ in range(10):
            await asyncio.sleep(0)

    def read(self, ids):
        return self.buffer.read(ids)

    async def close(self):
        pass


class RedisHarness:
    def __init__(self, url):
        self.url = url
        self.opened = []
        self.server = redis.Redis.from_url(url)

    async def open(self, *, real_clock=True, **changes):
        self.pacing = make_pacing(**changes)
        return await self._open(create=True)

    async def open_again(self):
        return await self._open(create=False)

    async def resume(self, snapshot, *, lost=False):
        if lost:
            self.server.delete(*self.server.keys(glob_of(self.key("*"))))
        found = decode_snapshot(snapshot, name="snapshot")
        self.opened.append(await RedisBuffer.resume(self.url, self.pacing, found))
        return self.opened[-1]

    async def _open(self, *, create):
        self.opened.append(await RedisBuffer.open(self.url, self.pacing, create=create))
        return self.opened[-1]

    def key(self, name):
        return f"{{slime_rl:{self.pacing.run_id}}}:{name}"

    async def end_leases(self, holder):
        """End the leases of one holder by moving their ends into the past of the server's clock."""
        for id in cast(set[bytes], self.server.smembers(self.key(f"held:{holder}"))):
            self.server.zadd(self.key("reserved"), {id: 1}, xx=True)

    async def until_blocked(self):
        """Let the task that was started come to where it waits."""
        async with asyncio.timeout(5):
            while cast(dict[str, int], self.server.info("clients"))["blocked_clients"] == 0:  # noqa: ASYNC110 (the server has no event for it)
                await asyncio.sleep(0)

    def read(self, ids):
        reader = GroupReader(self.url, self.pacing.run_id)
        try:
            return reader.read(ids)
        finally:
            reader.close()

    async def close(self):
        for buffer in self.opened:
            await buffer.close()
        self.server.close()


def glob_of(key):
    """A pattern that matches a key of a run literally but for its star."""
    return key.replace("{", "[{]").replace("}", "[}]")


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """The URLs of servers by name and version; one is started when it is first asked for."""
    started = []

    @functools.cache
    def url_of(name):
        started.append(EmbeddedServer(tmp_path_factory.mktemp("server"), binary=find_binaries()[name]))
        url = started[-1].start()
        with redis.Redis.from_url(url) as client:
            client.config_set("hz", 500)  # how often the server looks for waits that ran out
        return url

    yield url_of
    for server in started:
        server.stop()


@pytest.fixture
def server_url(servers):
    """Of the server that a run would start."""
    return servers(next(iter(find_binaries())))


@pytest.fixture(params=find_binaries())
async def on_server(request, servers):
    harness = RedisHarness(servers(request.param))
    yield harness
    await harness.close()


@pytest.fixture(params=["memory", *find_binaries()])
def make_harness(request):
    """Makes harnesses of one kind."""
    if request.param == "memory":
        return MemoryHarness
    return functools.partial(RedisHarness, request.getfixturevalue("servers")(request.param))


@pytest.fixture
async def harness(make_harness):
    harness = make_harness()
    yield harness
    await harness.close()


@pytest.fixture
def pacing():
    return make_pacing


@pytest.fixture
def sample():
    return make_sample


@pytest.fixture
def segment():
    """A part of a sample, all of it sampled by one version."""

    def make(start, num_tokens, *, index=0, version=0, finish=None):
        return Segment(
            index=index,
            start=start,
            tokens=np.arange(start, start + num_tokens, dtype=np.int32),
            loss_mask=np.ones(num_tokens, dtype=np.bool_),
            logprobs=np.full(num_tokens, -0.5, dtype=np.float32),
            versions=(Span(Version(version), 0, num_tokens),),
            temperature=0.7,
            finish=finish,
        )

    return make


@pytest.fixture
def fill():
    """Fill reservations with two samples each, sampled by the version of the reservation."""

    async def fill(buffer, *reservations):
        for reservation in reservations:
            await buffer.fill(reservation, [make_sample(reservation.version, index=i) for i in range(2)])

    return fill
