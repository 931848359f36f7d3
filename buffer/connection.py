"""Connections to the buffer's server, and its faults as our errors, in which no password of a URL appears."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.exceptions
import redis.retry
from redis.backoff import NoBackoff

from slime_rl.buffer.endpoint import Endpoint, endpoint_at
from slime_rl.buffer.reconnection import Patience, repeat, repeat_blocking
from slime_rl.config import BufferConfig
from slime_rl.errors import StoreError

Client = TypeVar("Client", redis.Redis, redis.asyncio.Redis)
MEANINGS = {
    "WRONGPASS": "the user or the password is missing or wrong",
    "NOAUTH": "the user or the password is missing or wrong",
    "NOPERM": "the user may not do this: docs/buffer.md has the rule that it needs",
    "READONLY": "it is a replica: name the primary",
    "LOADING": "it is still loading its data",
    "MISCONF": "it cannot write its data to disk, and refuses all writes until it can",
    "OOM": "it is out of memory: raise its maxmemory",
    "MOVED": "a cluster is reached by redis:// or rediss://, not by a socket",
    "ASK": "its cluster is moving the run's keys from node to node: let it finish",
    "TRYAGAIN": "its cluster is moving the run's keys from node to node: let it finish",
    "MASTERDOWN": "it is a replica without its primary",
    "CLUSTERDOWN": "its cluster has no node for the run's keys: mend it",
}
"""What the first word of a server's refusal means to the user."""


class PatientRedis(redis.Redis):
    """A client that makes a call again while its server is out of reach."""

    patience: Patience

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """The reply, as the library gives it."""
        command = super().execute_command
        return repeat_blocking(lambda: command(*args, **options), self.patience)

    def close(self) -> None:
        """Give the connections back."""
        super().close()
        for pool in self.patience.route.others():
            pool.close()


class PatientAsyncRedis(redis.asyncio.Redis):
    """A client that makes a call again while its server is out of reach; a pipeline is made again by its user."""

    patience: Patience

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The reply, as the library gives it."""
        command = super().execute_command
        return await repeat(lambda: command(*args, **options), self.patience)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Give the connections back."""
        await super().aclose(close_connection_pool)
        for pool in self.patience.route.others():
            await pool.aclose()


def connect(kind: type[Client], where: str | Endpoint) -> Client:
    """A client, blocking or asynchronous by `kind`; it connects with its first command.

    It repeats a call that found no server for `buffer.reconnect_timeout_s`. Raises ConfigError for another URL.
    """
    endpoint = endpoint_at(where)
    config = endpoint.config
    patience = Patience(config.reconnect_timeout_s)
    options = {
        "socket_timeout": config.call_timeout_s,
        "socket_connect_timeout": config.call_timeout_s,
        **endpoint.tls,
    }
    if kind is redis.Redis:
        once = redis.retry.Retry(NoBackoff(), 0)
        meet = patience.route.meet_blocking
        client = PatientRedis.from_url(endpoint.url, retry=once, redis_connect_func=meet, **options)
    else:
        once = redis.asyncio.retry.Retry(NoBackoff(), 0)
        meet = patience.route.meet
        client = PatientAsyncRedis.from_url(endpoint.url, retry=once, redis_connect_func=meet, **options)
    patient = cast(PatientRedis | PatientAsyncRedis, client)
    patient.patience = patience
    patience.route.lead(patient)
    return cast(Client, patient)


@contextlib.contextmanager
def named_faults(where: str | Endpoint) -> Iterator[None]:
    """Turns what the server or the way to it did wrong into a StoreError of one line that names the server."""
    try:
        yield
    except redis.RedisError as fault:
        endpoint = endpoint_at(where)
        raise StoreError(f"the buffer at {endpoint} failed: {explain(fault, endpoint.config)}") from fault


def explain(fault: redis.RedisError, config: BufferConfig) -> str:
    """What a fault says, in one line, and what is to be done about it where that is known."""
    if isinstance(fault, redis.TimeoutError):
        limit = f"{config.call_timeout_s:g} s of buffer.call_timeout_s"
        return f"no answer within {limit}, again and again for {config.reconnect_timeout_s:g} s"
    text = " ".join(str(fault).split()) or type(fault).__name__
    kinds = [word for word, kind in KINDS.items() if isinstance(fault, kind) or isinstance(fault.__cause__, kind)]
    meanings = [meaning for word, meaning in MEANINGS.items() if word in kinds or re.search(rf"\b{word}\b", text)]
    return f"{text} ({meanings[0]})" if meanings else text


KINDS: dict[str, type[redis.RedisError]] = {
    "WRONGPASS": redis.AuthenticationError,
    "NOPERM": redis.exceptions.NoPermissionError,
    "READONLY": redis.ReadOnlyError,
    "LOADING": redis.BusyLoadingError,
    "OOM": redis.exceptions.OutOfMemoryError,
    "MOVED": redis.exceptions.MovedError,
    "ASK": redis.exceptions.AskError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
    "MASTERDOWN": redis.exceptions.MasterDownError,
    "CLUSTERDOWN": redis.exceptions.ClusterDownError,
}
"""Refusals that the library shows without their first word."""
