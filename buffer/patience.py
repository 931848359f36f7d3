"""Bounded waiting that says for what."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from slime_rl.errors import WaitTimeout

T = TypeVar("T")
LOG_EVERY_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a question has no answer yet: `reason` reads on from "waiting 34 s ".

    `change` numbers the last change of the buffer behind this; after `lease_ends_s` the answer may differ without one.
    """

    change: int
    reason: str
    lease_ends_s: float | None


async def until_answered(
    ask: Callable[[], Awaitable[T | Waiting]],
    changed: Callable[[int, float], Awaitable[None]],
    *,
    timeout_s: float,
) -> T:
    """The first answer of `ask` that is no Waiting, asking again after each change of the buffer.

    `changed(change, timeout_s)` returns once the buffer is past `change`, or after `timeout_s`. Logs what is waited for
    every half a minute; raises WaitTimeout with the same line once nothing has changed for `timeout_s`.
    """
    started = changed_at = time.monotonic()
    log_at, seen = started + LOG_EVERY_S, None
    while isinstance(answer := await ask(), Waiting):
        now = time.monotonic()
        if answer.change != seen:
            seen, changed_at = answer.change, now
        line = f"waiting {now - started:.0f} s {answer.reason}"
        if now >= changed_at + timeout_s:
            raise WaitTimeout(line)
        if now >= log_at:
            _log.info(line)
            log_at = now + LOG_EVERY_S
        pause_s = min(log_at, changed_at + timeout_s) - now
        await changed(answer.change, pause_s if answer.lease_ends_s is None else min(pause_s, answer.lease_ends_s))
    return answer
