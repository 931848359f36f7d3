"""Connections to the buffer's server, and its faults as our errors, in which no password of a URL appears."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import redis
import redis.asyncio

from slime_rl.errors import ConfigError, StoreError

SOCKET_TIMEOUT_S = 30.0
Client = TypeVar("Client", redis.Redis, redis.asyncio.Redis)


def connect(kind: type[Client], url: str) -> Client:
    """A client, blocking or asynchronous by `kind`; it connects with its first command.

    Raises ConfigError for a URL that is none of redis://, rediss:// and unix://.
    """
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("buffer.url", "must be a redis://, rediss:// or unix:// URL", place(url))
    return kind.from_url(url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S)


def place(url: str) -> str:
    """A URL without its credentials."""
    scheme, slashes, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + slashes + rest.rpartition("@")[2].partition("?")[0]


@contextlib.contextmanager
def named_faults(url: str) -> Iterator[None]:
    """Turns what the server or the way to it did wrong into a StoreError that names the server."""
    try:
        yield
    except redis.RedisError as fault:
        raise StoreError(f"the buffer at {place(url)} failed: {fault}") from fault
