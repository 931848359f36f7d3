"""The time of each call with a thousand, a hundred thousand and a million groups outstanding."""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.buffer.setting import Server, pacing_for, samples_of, show
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.types import Version

SIZES = 1_000, 100_000, 1_000_000
GROUPS_PER_STEP = 16
STEPS = 100
"""Steps measured with each number of groups."""
FILLERS, CALLERS = 2, 256
SYNCS = "no", "always"
"""How the server syncs its log: not at all, which hides nothing, and as a run's own server does."""
REBUILD_TIMEOUT_S = 120.0
PER_GROUP = "reserve", "fill"
PER_STEP = "assign", "read", "publish", "commit"


def compare(server: Server) -> dict[str, Any]:
    """Medians and 99th percentiles of every call, and how many times dearer it is at the last size than at the first.

    One caller does one thing after another in steps of 16 groups: as many are reserved and filled as are trained. All
    steps of a phase are assigned before the first is published: what a call costs grows with the number of different
    deadlines, at most max_lag + 1, of which there are but a few here.
    """
    found: dict[tuple[int, str, str], list[float]] = {}
    pacing = pacing_for("scale", groups_per_step=GROUPS_PER_STEP, max_lag=math.ceil(1.1 * SIZES[-1] / GROUPS_PER_STEP))
    asyncio.run(_create(server, pacing))
    step, before = 0, 0
    for size in SIZES:
        _fill_up(server, pacing, size - before, step)
        before = size
        for sync in SYNCS:
            server.admin.config_set("appendfsync", sync)
            timed = asyncio.run(_steps(server, pacing, step))
            step += STEPS
            found.update({(size, sync, name): seconds for name, seconds in timed.items()})
    return _report(found)


async def _create(server: Server, pacing: Pacing) -> None:
    await (await RedisBuffer.open(server.url, pacing, create=True)).close()


def _fill_up(server: Server, pacing: Pacing, num_groups: int, step: int) -> None:
    """Reserve and fill so many groups, with no log; `step` is the next one."""
    server.admin.config_set("appendonly", "no")
    with multiprocessing.get_context("spawn").Pool(FILLERS) as pool:
        pool.starmap(_fill, [(server.url, pacing, math.ceil(num_groups / FILLERS), step)] * FILLERS)
    server.admin.config_set("auto-aof-rewrite-percentage", 0)
    server.admin.config_set("appendonly", "yes")
    _await_log(server)


def _await_log(server: Server) -> None:
    """Wait until the server has written all it holds to a new log."""
    give_up_at = time.monotonic() + REBUILD_TIMEOUT_S
    while any(server.admin.info("persistence")[f"aof_rewrite_{name}"] for name in ("in_progress", "scheduled")):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"the server has not rewritten its log in {REBUILD_TIMEOUT_S:g} s")
        time.sleep(0.1)


def _fill(url: str, pacing: Pacing, num_groups: int, version: int) -> None:
    """Reserve and fill groups, many at a time; runs in a process of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_fill_many(url, pacing, num_groups, version))


async def _fill_many(url: str, pacing: Pacing, num_groups: int, version: int) -> None:
    buffer = await RedisBuffer.open(url, pacing, create=False)
    samples = samples_of(1, 1, Version(version))
    rest = iter(range(num_groups))

    async def caller() -> None:
        for _ in rest:
            reservation = await buffer.reserve("filler")
            assert reservation is not None
            await buffer.fill(reservation, samples)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(caller())
    await buffer.close()


async def _steps(server: Server, pacing: Pacing, first: int) -> dict[str, list[float]]:
    """The seconds of every call."""
    buffer = await RedisBuffer.open(server.url, pacing, create=False)
    reader = GroupReader(server.url, pacing.run_id)
    seconds: dict[str, list[float]] = {name: [] for name in (*PER_GROUP, *PER_STEP)}

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[name].append(time.perf_counter() - start)

    samples = samples_of(1, 1, Version(first))
    for step in range(first, first + STEPS):
        for _ in range(GROUPS_PER_STEP):
            with timed("reserve"):
                reservation = await buffer.reserve("bench")
            assert reservation is not None
            with timed("fill"):
                await buffer.fill(reservation, samples)
        with timed("assign"):
            assignment = await buffer.assign(step)
        with timed("read"):
            reader.read([group.id for group in assignment.groups])
    for step in range(first, first + STEPS):
        with timed("publish"):
            await buffer.publish(Version(step + 1))
        with timed("commit"):
            await buffer.commit(step)
    reader.close()
    await buffer.close()
    return seconds


def _report(found: dict[tuple[int, str, str], list[float]]) -> dict[str, Any]:
    names = (*PER_GROUP, *PER_STEP)
    rows, ratios = [], {}
    for sync in SYNCS:
        for name in names:
            medians = [statistics.median(found[size, sync, name]) * 1e6 for size in SIZES]
            tails = [statistics.quantiles(found[size, sync, name], n=100)[98] * 1e6 for size in SIZES]
            ratios[sync, name] = medians[-1] / medians[0]
            cells = [f"{median:.0f} / {tail:.0f}" for median, tail in zip(medians, tails, strict=True)]
            rows.append([sync, name, *cells, f"{ratios[sync, name]:.2f}"])
    columns = ["appendfsync", "call", *[f"{size:,} groups" for size in SIZES], "last / first"]
    show(f"Microseconds of a call, median / 99th percentile ({GROUPS_PER_STEP} groups a step)", columns, rows)
    whole = [sum(_per_group(found, size, name) for name in names) for size in SIZES]
    return {
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "microseconds_of_a_group": [round(seconds * 1e6) for seconds in whole],
        "flat_ratio": whole[-1] / whole[0],
        "flat_ratio_of_calls": {name: ratios[SYNCS[0], name] for name in names},
    }


def _per_group(found: dict[tuple[int, str, str], list[float]], size: int, name: str) -> float:
    """A group's part of the median of a call, where the log is not synced."""
    return statistics.median(found[size, SYNCS[0], name]) / (1 if name in PER_GROUP else GROUPS_PER_STEP)
