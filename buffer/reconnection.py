"""How a call is repeated while its server is out of reach: with growing pauses, for a bounded time.

Every call of the buffer does no harm when it is repeated, so none needs to know whether the first one arrived.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import redis
import redis.exceptions

T = TypeVar("T")
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
OUT_OF_REACH = redis.ConnectionError, redis.TimeoutError
"""A server that is loading its data is among these."""
FINAL = redis.AuthenticationError, redis.exceptions.AuthorizationError
"""Which the library counts among the faults of a connection, though no repetition mends them."""


async def repeat(call: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """The answer of `call`, which is made again until `timeout_s` after its first fault; then that fault is raised."""
    left = pauses(timeout_s)
    while True:
        try:
            return await call()
        except FINAL:
            raise
        except OUT_OF_REACH:
            if (pause_s := next(left, None)) is None:
                raise
        await asyncio.sleep(pause_s)


def repeat_blocking(call: Callable[[], T], *, timeout_s: float) -> T:
    """What `repeat` does, for a client that blocks."""
    left = pauses(timeout_s)
    while True:
        try:
            return call()
        except FINAL:
            raise
        except OUT_OF_REACH:
            if (pause_s := next(left, None)) is None:
                raise
        time.sleep(pause_s)


def pauses(timeout_s: float) -> Iterator[float]:
    """Seconds to wait before each repetition, none once `timeout_s` has passed since the first was asked for."""
    give_up_at, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
    while (left_s := give_up_at - time.monotonic()) > 0:
        yield min(left_s, pause_s * random.uniform(0.5, 1.0))  # many clients lose a server at the same moment
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
