"""Actors of one kind: asked together, waited for together, ended together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from slime_rl.errors import RunError, SlimeError, WaitTimeout, first_cause

APPEAR_S = 180.0
"""How long Ray may take to bring up an actor's process, which only imports: about 5 s on an idle core."""
BLAME_S = 5.0
"""How long to listen to the others after a first failure: the peers of a dead rank fail before its death is known."""


@dataclass(frozen=True, slots=True)
class Member:
    """An actor as messages name it: who it is, its log, and the kind of error that its failure is."""

    actor: Any
    name: str
    log: Path
    error: type[RunError]

    async def call(self, method: str, *arguments: Any, doing: str, timeout_s: float | None = None) -> Any:
        """The result of a method of the actor.

        Raises WaitTimeout after `timeout_s`, the actor's own SlimeError, or an error of the member's kind.
        """
        return await self._result(getattr(self.actor, method).remote(*arguments), doing, timeout_s)

    async def appear(self) -> None:
        """Return once Ray has brought up the actor's process."""
        await self._result(self.actor.__ray_ready__.remote(), "as Ray started its process", APPEAR_S)

    async def _result(self, call: Awaitable[Any], doing: str, timeout_s: float | None) -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await call
        except RayTaskError as failure:
            cause = first_cause(failure.cause)
            if isinstance(cause, SlimeError):
                raise cause from None
            raise self.error(f"{self.name} failed {doing}: {cause!r}; see {self.log}") from failure
        except RayActorError as death:
            raise self.error(f"{self.name} died {doing}; see {self.log}") from death
        except RayError as fault:
            raise self.error(f"{self.name} could not be reached {doing}: {fault}; see {self.log}") from fault
        except TimeoutError:
            if not limit.expired():
                raise
            raise WaitTimeout(f"waited {timeout_s:g} s for {self.name} {doing}; see {self.log}") from None


class Crew:
    """All members make the same calls; a failure is blamed on the member that died, if one did."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)

    async def appear(self) -> None:
        """Return once Ray has brought up every member's process; raises WaitTimeout after APPEAR_S."""
        await self._together(member.appear() for member in self.members)

    async def call(self, method: str, *arguments: Any, doing: str, timeout_s: float | None = None) -> list[Any]:
        """Every member's result, with the same arguments for all."""
        shares = [arguments] * len(self.members)
        return await self.share(method, shares, doing=doing, timeout_s=timeout_s)

    async def share(
        self, method: str, shares: Sequence[Sequence[Any]], *, doing: str, timeout_s: float | None = None
    ) -> list[Any]:
        """Every member's result, each with arguments of its own."""
        return await self._together(
            member.call(method, *share, doing=doing, timeout_s=timeout_s)
            for member, share in zip(self.members, shares, strict=True)
        )

    async def _together(self, awaited: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        calls = [asyncio.ensure_future(call) for call in awaited]
        try:
            await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if any(call.done() and call.exception() for call in calls):
                await asyncio.wait(calls, timeout=BLAME_S)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        failures = [error for call in calls if not call.cancelled() and (error := call.exception())]
        if failures:
            raise min(failures, key=lambda error: not isinstance(error.__cause__, RayActorError))
        return [call.result() for call in calls]

    async def end(self, *, timeout_s: float, doing: str = "as it stopped") -> None:
        """Let every member stop in its own way, for a while, then kill it."""
        stops = [member.call("stop", doing=doing, timeout_s=timeout_s) for member in self.members]
        await asyncio.gather(*stops, return_exceptions=True)
        for member in self.members:
            ray.kill(member.actor, no_restart=True)


def write_output_to(log: Path) -> None:
    """Send everything that this actor's process prints to a file of the run."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
