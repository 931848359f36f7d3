"""Connections to the buffer's server, and its faults as our errors, in which no password of a URL appears."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import redis
import redis.asyncio

from slime_rl.config import REDIS_SCHEMES, without_credentials
from slime_rl.errors import ConfigError, StoreError

SOCKET_TIMEOUT_S = 30.0
Client = TypeVar("Client", redis.Redis, redis.asyncio.Redis)


def connect(kind: type[Client], url: str) -> Client:
    """A client, blocking or asynchronous by `kind`; it connects with its first command.

    Raises ConfigError for a URL that is none of redis://, rediss:// and unix://.
    """
    if not url.startswith(REDIS_SCHEMES):
        raise ConfigError("buffer.url", f"must be one of {', '.join(REDIS_SCHEMES)}", without_credentials(url))
    return kind.from_url(url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S)


@contextlib.contextmanager
def named_faults(url: str) -> Iterator[None]:
    """Turns what the server or the way to it did wrong into a StoreError that names the server."""
    try:
        yield
    except redis.RedisError as fault:
        raise StoreError(f"the buffer at {without_credentials(url)} failed: {fault}") from fault
