"""What the buffer needs of a server, checked before a run relies on it."""

from __future__ import annotations

import logging
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, ResponseError

from slime_rl.buffer.connection import named_faults
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.errors import ConfigError

OLDEST = (6, 2)
log = logging.getLogger(__name__)


async def check_server(client: redis.asyncio.Redis, where: str | Endpoint, *, key: str) -> None:
    """Raises ConfigError for a server that is too old, a replica, or may evict keys; StoreError if it refuses to tell.

    Of a cluster, the node that has `key` is meant.

    A server that can lose what it acknowledged, or does not let this user see its settings, is logged as a warning.
    """
    with named_faults(where):
        await client.exists(key)
        info = await client.info()
        settings = await _settings(client)
    version = info["redis_version"]
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise ConfigError("buffer.url", "must name a server of version 6.2 or later", version)
    if info["role"] != "master":
        raise ConfigError("buffer.url", "must name a primary", f"a {info['role']}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigError("buffer.url", "must name a server whose maxmemory-policy is noeviction", policy)
    if not info["aof_enabled"]:
        log.warning("the buffer's server keeps no log (appendonly no): a crash of it can lose acknowledged groups")
    elif settings is None:
        log.warning("the buffer's user may not read appendfsync: whether a crash can lose groups is not known")
    elif settings["appendfsync"] != "always":
        fsync = settings["appendfsync"]
        log.warning("appendfsync of the buffer's server is %s, not always: a crash can lose acknowledged groups", fsync)


async def _settings(client: redis.asyncio.Redis) -> dict[Any, Any] | None:
    try:
        return dict(await client.config_get("appendfsync"))
    except (NoPermissionError, ResponseError):  # hosted servers know no CONFIG
        return None
