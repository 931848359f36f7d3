"""The buffer on a Redis-protocol server: every change of its state is one atomic function of `lua/`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, cast

import msgpack
import redis
import redis.asyncio

from slime_rl.buffer.calls import Calls
from slime_rl.buffer.codec import decode_segment
from slime_rl.buffer.connection import connect, named_faults
from slime_rl.buffer.endpoint import Endpoint, endpoint_at
from slime_rl.buffer.fullness import describe, is_full
from slime_rl.buffer.group_buffer import GroupBuffer, draw_incarnation
from slime_rl.buffer.keys import group_key, run_key, segments_key, stream_key
from slime_rl.buffer.pacing import FROZEN, Pacing
from slime_rl.buffer.packing import packing_of
from slime_rl.buffer.reconnection import repeat
from slime_rl.buffer.requirements import check_server
from slime_rl.buffer.snapshot import Snapshot
from slime_rl.errors import ConfigError, RunFolderError, StoreError
from slime_rl.types import Reservation, Segment

BLOCK_S = 10.0  # below the socket's time limit: a quiet server is no dead one
NO_INCARNATION = -1, 0
"""What a caller says that belongs to no incarnation yet and has seen no write."""

log = logging.getLogger(__name__)


class RedisBuffer(GroupBuffer):
    """Slots and steps on a server; any number of processes open the same run. `open` makes one, `close` ends it.

    Methods raise StoreError, without credentials, when the server or the way to it fails. A call that got no answer
    is safe to repeat, and the client does so a few times by itself.
    """

    def __init__(self, endpoint: Endpoint, pacing: Pacing) -> None:
        super().__init__(pacing, packing_of(endpoint.config, pacing.run_id))
        self._endpoint = endpoint
        self._client = connect(redis.asyncio.Redis, endpoint)
        self._key = run_key(pacing.run_id, prefix=endpoint.config.prefix)
        self._calls = Calls(self._client)

    @classmethod
    async def open(cls, where: str | Endpoint, pacing: Pacing, *, create: bool) -> RedisBuffer:
        """The buffer of a run that is new (`create`) or exists.

        Raises RunFolderError if a new run's id is in use, StoreError if an existing one is missing or was created with
        another pacing, ConfigError for a URL or a server of another kind.
        """
        buffer = cls(endpoint_at(where), pacing)
        try:
            await (buffer._create() if create else buffer._attach())
        except BaseException:
            await buffer.close()
            raise
        return buffer

    @classmethod
    async def join(cls, where: str | Endpoint, run_id: str) -> RedisBuffer:
        """The buffer of a run that exists, by the pacing it was created with; StoreError if it is missing."""
        endpoint = endpoint_at(where)
        client = connect(redis.asyncio.Redis, endpoint)
        try:
            with named_faults(endpoint):
                stored = await cast(Any, client.hget(run_key(run_id, prefix=endpoint.config.prefix), "pacing"))
        finally:
            await client.aclose()
        if stored is None:
            raise StoreError(f"there is no run {run_id!r} at {endpoint}")
        return await cls.open(endpoint, Pacing(**json.loads(stored)), create=False)

    @classmethod
    async def resume(cls, where: str | Endpoint, pacing: Pacing, snapshot: Snapshot) -> RedisBuffer:
        """The buffer of a run that goes on from a checkpoint, in a new incarnation.

        If the server still holds what the steps after the checkpoint were trained on, they get the same groups again;
        else the prompts that the snapshot knows as not trained are issued again. Raises ConfigError if the pacing
        differs in what a resumed run must keep.
        """
        buffer = cls(endpoint_at(where), pacing)
        try:
            await buffer._resume(snapshot)
        except BaseException:
            await buffer.close()
            raise
        return buffer

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def segments(self, reservation: Reservation) -> list[Segment]:
        """What earlier attempts made durable of a group; see `Partials.segments`."""
        key = segments_key(self.pacing.run_id, reservation.id, prefix=self._endpoint.config.prefix)
        with named_faults(self._endpoint):
            found = await cast(Any, self._client.lrange(key, 0, -1))
        return [decode_segment(part, key=key) for part in found]

    async def _known(self, ids: Sequence[int]) -> list[int]:
        keys = [group_key(self.pacing.run_id, id, prefix=self._endpoint.config.prefix) for id in ids]

        async def ask() -> list[int]:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(key)
            return await pipeline.execute()

        with named_faults(self._endpoint):
            return list(itertools.compress(ids, await repeat(ask, self._calls.patience)))

    async def _create(self) -> None:
        await check_server(self._client, self._endpoint, key=self._key)
        reply = await self._run("create", *NO_INCARNATION, *self._claim())
        if reply["verdict"] == "exists":
            raise RunFolderError(f"run {self.pacing.run_id!r} is in use at {self._endpoint}: resume it or name another")

    async def _attach(self) -> None:
        reply = await self._run("attach", *NO_INCARNATION)
        if reply["verdict"] == "missing":
            raise StoreError(f"there is no run {self.pacing.run_id!r} at {self._endpoint}")
        theirs, ours = json.loads(reply["pacing"]), self.pacing.stored
        for name in ours:
            if theirs.get(name) != ours[name]:
                raise StoreError(
                    f"run {self.pacing.run_id!r} was created with {name} {theirs.get(name)!r}, got {ours[name]!r}"
                )
        self._incarnation = reply["incarnation"]

    async def _resume(self, snapshot: Snapshot) -> None:
        self._check_kept(snapshot.kept)
        await check_server(self._client, self._endpoint, key=self._key)
        reply = await self._run("attach", *NO_INCARNATION)
        if reply["verdict"] == "attached":
            self._check_kept(json.loads(reply["pacing"]))
        claims = self._claim()
        reply = await self._run("rollback", *NO_INCARNATION, snapshot.version, snapshot.sequence, *claims)
        why = {
            "missing": "the server knows nothing of the run",
            "lost": "the server has lost writes that the checkpoint knows of",
            "gone": "the server has deleted the groups of steps after the checkpoint",
        }
        if reply["verdict"] in why:
            log.warning(
                "%s: %d prompts that version %d had not trained are issued again",
                why[reply["verdict"]],
                len(snapshot.open),
                snapshot.version,
            )
            packed = msgpack.packb(dataclasses.asdict(snapshot))
            await self._run("restore", *NO_INCARNATION, snapshot.version, packed, *claims)
        await self.sweep()

    def _check_kept(self, stored: Mapping[str, Any]) -> None:
        for name, ours in self.pacing.kept.items():
            if stored.get(name) != ours:
                raise ConfigError(FROZEN[name], f"must stay as the run began, with {name} {stored.get(name)!r}", ours)

    def _claim(self) -> list[Any]:
        """A new incarnation, the pacing and the limits, as `create`, `rollback` and `restore` take them."""
        self._incarnation = draw_incarnation()
        limits = [part for pair in self.pacing.limits.items() for part in pair]
        return [self._incarnation, json.dumps(self.pacing.stored), *limits]

    async def _run(self, name: str, *args: Any) -> dict[str, Any]:
        with named_faults(self._endpoint):
            try:
                return msgpack.unpackb(await self._calls.run(_source(name), self._key, *args))
            except redis.ResponseError as fault:
                if not is_full(fault):
                    raise
                refused = sum(len(part) for part in args if isinstance(part, bytes))
                why = await describe(self._client, self._key, self.pacing, refused=refused)
                raise StoreError(f"the buffer at {self._endpoint} is full: {why}") from fault

    async def _changed(self, stream: str, change: int, timeout_s: float) -> None:
        """Return once `stream` is past `change`; its entries outlive their moment, so none is missed."""
        block_ms = math.ceil(min(timeout_s, BLOCK_S) * 1000)
        key = stream_key(self.pacing.run_id, stream, prefix=self._endpoint.config.prefix)
        with named_faults(self._endpoint):
            await self._client.xread({key: f"{change}-0"}, block=max(1, block_ms))


@functools.cache
def _source(name: str) -> str:
    folder = resources.files("slime_rl.buffer") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("state", name))
