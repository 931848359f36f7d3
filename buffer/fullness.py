"""What is said of a server that is full."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError, OutOfMemoryError

from slime_rl.buffer.pacing import Pacing

OOM = "OOM command not allowed"


def is_full(fault: redis.RedisError) -> bool:
    """Whether a server refused a write for want of memory; old ones wrap what they say."""
    return isinstance(fault, OutOfMemoryError) or OOM in str(fault)


async def describe(client: redis.asyncio.Redis, key: str, pacing: Pacing, *, refused: int) -> str:
    """What the limit is, what is used, how much of it by the run whose key is `key`, and what it may come to need.

    `refused` is the number of bytes that were to be written. Raises redis.RedisError.
    """
    try:
        memory = await client.info("memory")
    except NoPermissionError:
        return f"{OOM}: raise its maxmemory"
    found = await cast(Any, client.hmget(key, ("bytes", "taken", "committed")))
    num_bytes, taken, committed = (int(value or 0) for value in found)
    held = taken - committed + await cast(Any, client.zcard(key.removesuffix("run") + "filled"))
    each = max(refused, num_bytes // max(1, held))
    size = f" of up to about {each} bytes" if each else ""
    used = f"{memory['used_memory']} of {memory['maxmemory']} bytes are used, {num_bytes} by groups of this run"
    need = f"it needs room for {pacing.slots} groups{size} and for {pacing.groups_per_step} more for each step"
    return (
        f"{OOM} when used memory > 'maxmemory': {used}; {need} between two checkpoints: "
        f"raise maxmemory or lower checkpoint.every"
    )
