"""Samples of 64 MB, most of it one extra array: as a blob beside the server, and through it."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

from bench.buffer.setting import BYTES_PER_TOKEN, Server, pacing_for, raw_bytes, sampled_by, samples_of, show
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.config import BufferConfig
from slime_rl.types import Sample, Version

NUM_TOKENS = 65_536
LAYERS, TOP_K = 120, 8
NUM_SAMPLES = 2
ROUNDS, WARM_UP = 6, 1
CROSSOVER_KB = 64, 256, 1024, 4096, 16_384
"""Sizes of the extra array at which both ways are compared."""


def compare(server: Server) -> dict[str, Any]:
    """Seconds of fill, read and commit of a group of two such samples, and where a blob begins to pay."""
    columns = "array", "way", "fill ms", "read ms", "commit ms", "MB/s", "bytes on the server"
    rows = []
    for kilobytes in (*CROSSOVER_KB, NUM_TOKENS * LAYERS * TOP_K // 1024):
        samples = _samples(kilobytes * 1024)
        for way, limit in (("blob", 0), ("inline", 2**40)):
            rows.append(asyncio.run(_measure(server, f"{kilobytes} KB", way, limit, samples)))
    show(f"Groups of {NUM_SAMPLES} samples with one extra array each", columns, [list(row.values()) for row in rows])
    return {"rows": rows}


def _samples(num_bytes: int) -> list[Sample]:
    """Samples with an extra array of bytes in which some values are frequent, as experts are."""
    draw = np.random.default_rng(0)
    tokens = max(1, num_bytes // (LAYERS * TOP_K))
    experts = np.minimum(draw.geometric(0.05, (tokens, LAYERS, TOP_K)), 160).astype(np.uint8)
    plain = samples_of(BYTES_PER_TOKEN * tokens, NUM_SAMPLES, Version(0))
    return [replace(sample, arrays={"routed_experts": experts}) for sample in plain]


async def _measure(server: Server, size: str, way: str, limit: int, samples: list[Sample]) -> dict[str, str]:
    config = BufferConfig(blobs=str(server.folder / "blobs"), inline_limit=limit)
    endpoint = Endpoint(server.url, config)
    pacing = pacing_for(f"large-{way}-{size.replace(' ', '')}", groups_per_step=1, max_lag=0)
    buffer = await RedisBuffer.open(endpoint, pacing, create=True)
    reader = GroupReader(endpoint, pacing.run_id)
    seconds: list[tuple[float, float, float]] = []
    num_bytes = 0
    for step in range(WARM_UP + ROUNDS):
        samples = sampled_by(Version(step), samples)
        reservation = await buffer.reserve("bench")
        assert reservation is not None
        begin = time.perf_counter()
        await buffer.fill(reservation, samples)
        filled = time.perf_counter()
        num_bytes = (await buffer.status()).num_bytes
        await buffer.assign(step)
        start = time.perf_counter()
        reader.read([reservation.id])
        read = time.perf_counter()
        await buffer.publish(Version(step + 1))
        published = time.perf_counter()
        await buffer.commit(step)
        seconds.append((filled - begin, read - start, time.perf_counter() - published))
    reader.close()
    await buffer.close()
    fill, read, commit = (statistics.median(column) for column in zip(*seconds[WARM_UP:], strict=True))
    return {
        "array": size,
        "way": way,
        "fill ms": f"{fill * 1e3:.1f}",
        "read ms": f"{read * 1e3:.1f}",
        "commit ms": f"{commit * 1e3:.1f}",
        "MB/s": f"{raw_bytes(samples) / 1e6 / (fill + read + commit):.0f}",
        "bytes on the server": f"{num_bytes:,}",
    }
