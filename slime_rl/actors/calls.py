"""Waits for actors: bounded, named, and with the cause of a failure instead of Ray's wrapping of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from slime_rl.errors import RunError, SlimeError, WaitTimeout


@dataclass(frozen=True, slots=True)
class Callee:
    """An actor as messages name it: who it is, its log, and the kind of error that its failure is."""

    name: str
    log: Path
    error: type[RunError]


async def result(call: Awaitable[Any], *, of: Callee, doing: str, timeout_s: float | None = None) -> Any:
    """The result of an actor's call.

    Raises WaitTimeout after `timeout_s`, the callee's own SlimeError, or an error of the callee's kind.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise WaitTimeout(f"waited {timeout_s:g} s for {of.name} {doing}; see {of.log}") from None
    except RayTaskError as failure:
        cause = failure.cause
        if isinstance(cause, SlimeError):
            raise cause from None
        raise of.error(f"{of.name} failed {doing}: {cause!r}; see {of.log}") from failure
    except RayActorError:
        raise of.error(f"{of.name} died {doing}; see {of.log}") from None


def write_output_to(log: Path) -> None:
    """Send everything that this actor's process prints to a file of the run."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def end(*actors: ActorHandle) -> None:
    """Kill actors whose work is done."""
    for actor in actors:
        ray.kill(actor, no_restart=True)
