"""Calls of Lua functions that share round trips: those that come while others are under way go out together.

A server that syncs its log before it answers does so once for all that it has read, so it is not the number of callers
that costs, but the number of turns.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError

from slime_rl.buffer.connection import PatientAsyncRedis
from slime_rl.buffer.reconnection import OUT_OF_REACH, Patience, repeat

UNANSWERED = object()


@dataclass(slots=True, eq=False)
class _Call:
    source: str
    args: tuple[Any, ...]
    reply: Any = UNANSWERED


class Calls:
    """Runs functions of one key on a server; callers that wait for their turn find their reply fetched by another."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self.patience = client.patience if isinstance(client, PatientAsyncRedis) else Patience(0.0)
        self._turn = asyncio.Lock()
        self._next: list[_Call] = []

    async def run(self, source: str, key: str, *args: Any) -> Any:
        """The reply of the function; raises redis.RedisError."""
        call = _Call(source, (1, key, *args))
        self._next.append(call)
        try:
            async with self._turn:
                if call.reply is UNANSWERED:
                    await self._run_all()
        finally:
            if call in self._next:
                self._next.remove(call)
        if isinstance(call.reply, Exception):
            raise call.reply
        return call.reply

    async def _run_all(self) -> None:
        """Answer every call that waits; if this is cut short they all wait on, and a repeat does no harm."""
        calls = list(self._next)
        replies = await repeat(lambda: self._ask(calls), self.patience)
        for call, reply in zip(calls, replies, strict=True):
            call.reply = reply
        self._next = [call for call in self._next if call.reply is UNANSWERED]

    async def _ask(self, calls: list[_Call]) -> list[Any]:
        """The replies of a server that knows the functions; raises what another attempt may mend."""
        replies = await self._send(calls)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            for source in {call.source for call in calls}:
                await self._client.script_load(source)
            replies = await self._send(calls)
        for reply in replies:
            if isinstance(reply, OUT_OF_REACH):
                raise reply
        return replies

    async def _send(self, calls: list[_Call]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command("EVALSHA", _name(call.source), *call.args)
            return await pipeline.execute(raise_on_error=False)


@functools.cache
def _name(source: str) -> str:
    """What the server calls a function."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
