"""A group's whole way through the buffer, against plain SET, GET and DEL of the same bytes on the same server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio
import uvloop

from bench.buffer.setting import Server, pacing_for, raw_bytes, sampled_by, samples_of, show
from slime_rl.buffer.codec import encode
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.types import Group, Sample, Version

NUM_SAMPLES = 8
STEPS = {1024: 32, 65536: 16, 2**20: 4}
"""Bytes of a sample -> groups of a step."""
ROUNDS = 30
WARM_UP = 3


@dataclass(slots=True)
class _Bench:
    """One size of sample: `seconds` per side and mode, one figure a round."""

    server: Server
    num_bytes: int
    samples: Sequence[Sample]
    payload: bytes
    buffer: RedisBuffer
    reader: GroupReader
    bare: redis.asyncio.Redis
    step: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def num_groups(self) -> int:
        return STEPS[self.num_bytes]


def compare(server: Server) -> dict[str, Any]:
    """The medians of rounds in which each side moves one step's groups, each first in every second round.

    `alone` is one caller that does one thing after another, `together` as many callers as groups. The bare side stores
    bytes that were made before; ours makes them, and makes groups of them again. Both run on the event loop that Ray
    gives its actors.
    """
    benches = [uvloop.run(_measure(server, num_bytes)) for num_bytes in STEPS]
    rows = [_row(bench, mode) for mode in ("alone", "together") for bench in benches]
    columns = "callers", "sample", "groups/s", "MB/s", "bare groups/s", "bare MB/s", "ratio", "payload/raw"
    show(
        "The whole way of a group (8 samples), against SET, GET and DEL", columns, [list(row.values()) for row in rows]
    )
    return {
        "rows": rows,
        "vs_raw_redis": {
            mode: min(float(row["ratio"]) for row in rows if row["callers"] == mode) for mode in ("alone", "together")
        },
        "payload_ratio": max(float(row["payload/raw"]) for row in rows),
    }


async def _measure(server: Server, num_bytes: int) -> _Bench:
    pacing = pacing_for(f"path-{num_bytes}", groups_per_step=STEPS[num_bytes], max_lag=0)
    samples = samples_of(num_bytes, NUM_SAMPLES, Version(0))
    bench = _Bench(
        server=server,
        num_bytes=num_bytes,
        samples=samples,
        payload=encode(Group(id=10**6, prompt_index=999, attempt=1, samples=tuple(samples))),
        buffer=await RedisBuffer.open(server.url, pacing, create=True),
        reader=GroupReader(server.url, pacing.run_id),
        bare=redis.asyncio.Redis.from_url(server.url),
    )
    sides = {"alone": _alone, "bare alone": _bare_alone, "together": _together, "bare together": _bare_together}
    for number in range(WARM_UP + ROUNDS):
        for name in sides if number % 2 else reversed(sides):
            bench.samples = sampled_by(Version(bench.step), bench.samples)
            seconds = await sides[name](bench)
            if number >= WARM_UP:
                bench.seconds.setdefault(name, []).append(seconds)
    await bench.bare.aclose()
    bench.reader.close()
    await bench.buffer.close()
    return bench


async def _alone(bench: _Bench) -> float:
    start = time.perf_counter()
    for _ in range(bench.num_groups):
        await _produce(bench)
    await _consume(bench)
    return time.perf_counter() - start


async def _together(bench: _Bench) -> float:
    start = time.perf_counter()
    await asyncio.gather(*[_produce(bench) for _ in range(bench.num_groups)])
    await _consume(bench)
    return time.perf_counter() - start


async def _produce(bench: _Bench) -> None:
    reservation = await bench.buffer.reserve("bench")
    assert reservation is not None
    await bench.buffer.fill(reservation, bench.samples)


async def _consume(bench: _Bench) -> None:
    assignment = await bench.buffer.assign(bench.step)
    groups = bench.reader.read([group.id for group in assignment.groups])
    assert len(groups) == bench.num_groups
    await bench.buffer.publish(Version(bench.step + 1))
    await bench.buffer.commit(bench.step)
    bench.step += 1


async def _bare_alone(bench: _Bench) -> float:
    keys = [f"bare:{i}" for i in range(bench.num_groups)]
    start = time.perf_counter()
    for key in keys:
        bench.server.admin.set(key, bench.payload)
    for key in keys:
        bench.server.admin.get(key)
    bench.server.admin.delete(*keys)
    return time.perf_counter() - start


async def _bare_together(bench: _Bench) -> float:
    keys = [f"bare:{i}" for i in range(bench.num_groups)]
    start = time.perf_counter()
    await asyncio.gather(*[bench.bare.set(key, bench.payload) for key in keys])
    await asyncio.gather(*[bench.bare.get(key) for key in keys])
    await bench.bare.delete(*keys)
    return time.perf_counter() - start


def _row(bench: _Bench, mode: str) -> dict[str, str]:
    ours, bare = bench.seconds[mode], bench.seconds[f"bare {mode}"]
    megabytes = bench.num_groups * raw_bytes(bench.samples) / 1e6
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, bare, strict=True))
    return {
        "callers": mode,
        "sample": f"{bench.num_bytes // 1024} KB",
        "groups/s": f"{bench.num_groups / statistics.median(ours):.0f}",
        "MB/s": f"{megabytes / statistics.median(ours):.1f}",
        "bare groups/s": f"{bench.num_groups / statistics.median(bare):.0f}",
        "bare MB/s": f"{megabytes / statistics.median(bare):.1f}",
        "ratio": f"{ratio:.3f}",
        "payload/raw": f"{len(bench.payload) / raw_bytes(bench.samples):.4f}",
    }
