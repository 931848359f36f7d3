"""How a call is repeated while its server is out of reach: with growing pauses, for a bounded time.

Every call of the buffer does no harm when it is repeated, so none needs to know whether the first one arrived.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import redis
import redis.exceptions

from slime_rl.buffer.route import ASTRAY, Route

T = TypeVar("T")
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
FIRST_CONTACT_S = 2.0
"""For how long a client looks for a server that has never answered it: its address may be wrong."""
OUT_OF_REACH = redis.ConnectionError, redis.TimeoutError, redis.exceptions.NoScriptError, *ASTRAY
"""A server that is loading its data is among these, and one that has taken over from another and knows no function."""
FINAL = redis.AuthenticationError, redis.exceptions.AuthorizationError
"""Which the library counts among the faults of a connection, though no repetition mends them; it may wrap them."""


@dataclass(slots=True)
class Patience:
    """For how long a client repeats a call: `timeout_s` once its server has answered anything at all; and to whom."""

    timeout_s: float
    is_acquainted: bool = False
    route: Route = field(default_factory=Route)

    @property
    def limit_s(self) -> float:
        """Seconds since the first fault of a call."""
        return self.timeout_s if self.is_acquainted else min(self.timeout_s, FIRST_CONTACT_S)

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each repetition, none once the limit has passed since the first was asked for."""
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        while (left_s := began + self.limit_s - time.monotonic()) > 0:
            yield min(left_s, pause_s * random.uniform(0.5, 1.0))  # many clients lose a server at the same moment
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def next_pause(self, left: Iterator[float], fault: redis.RedisError) -> float:
        """The next of `left`; raises the fault where no repetition mends it or none is left."""
        if isinstance(fault, redis.BusyLoadingError | redis.ResponseError):
            self.is_acquainted = True
        pause_s = None if isinstance(fault, FINAL) or isinstance(fault.__cause__, FINAL) else next(left, None)
        if pause_s is None:
            raise fault
        return pause_s


async def repeat(call: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """The answer of `call`, made again while the server is out of reach; raises its last fault."""
    left = patience.pauses()
    while True:
        asked = patience.route.node
        try:
            answer = await call()
        except OUT_OF_REACH as fault:
            patience.route.follow(fault, asked)
            await asyncio.sleep(patience.next_pause(left, fault))
        else:
            patience.is_acquainted = True
            return answer


def repeat_blocking(call: Callable[[], T], patience: Patience) -> T:
    """What `repeat` does, for a client that blocks."""
    left = patience.pauses()
    while True:
        asked = patience.route.node
        try:
            answer = call()
        except OUT_OF_REACH as fault:
            patience.route.follow(fault, asked)
            time.sleep(patience.next_pause(left, fault))
        else:
            patience.is_acquainted = True
            return answer
