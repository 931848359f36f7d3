"""The buffer on a Redis-protocol server: every change of its state is one atomic function of `lua/`."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import uuid
from collections.abc import Sequence
from importlib import resources
from typing import Any

import redis.asyncio

from slime_rl.buffer.calls import Calls
from slime_rl.buffer.codec import encode
from slime_rl.buffer.connection import connect, named_faults
from slime_rl.buffer.drop_budget import DropBudget
from slime_rl.buffer.intake import group_of, measure
from slime_rl.buffer.keys import changes_key, openings_key, run_key
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.patience import Waiting, until_answered
from slime_rl.buffer.refusals import already_committed, fenced, never_assigned
from slime_rl.buffer.table import Row, Table, slot_reason
from slime_rl.config import without_credentials
from slime_rl.errors import RunFolderError, StoreError
from slime_rl.types import AssignedGroup, Assignment, BufferStatus, Reservation, Sample, Version

BLOCK_S = 10.0  # below the socket's time limit: a quiet server is no dead one


class RedisBuffer:
    """Slots and steps on a server; any number of processes open the same run. `open` makes one, `close` ends it.

    Methods raise StoreError, without credentials, when the server or the way to it fails. A call that got no answer
    is safe to repeat, and the client does so a few times by itself.
    """

    def __init__(self, client: redis.asyncio.Redis, url: str, pacing: Pacing) -> None:
        self.pacing = pacing
        self._client = client
        self._url = url
        self._key = run_key(pacing.run_id)
        self._calls = Calls(client)

    @classmethod
    async def open(cls, url: str, pacing: Pacing, *, create: bool) -> RedisBuffer:
        """The buffer of a run that is new (`create`) or exists.

        Raises RunFolderError if a new run's id is in use, StoreError if an existing one is missing or was created with
        another pacing, ConfigError for a URL of another kind.
        """
        buffer = cls(connect(redis.asyncio.Redis, url), url, pacing)
        try:
            await (buffer._create() if create else buffer._attach())
        except BaseException:
            await buffer.close()
            raise
        return buffer

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def reserve(self, holder: str) -> Reservation | None:
        """Take a slot for the next prompt; see `Slots.reserve`."""
        request = uuid.uuid4().hex
        ask = functools.partial(self._try_reserve, holder, request)
        changed = functools.partial(self._changed, openings_key(self.pacing.run_id))
        return await until_answered(ask, changed, timeout_s=self.pacing.slot_timeout_s)

    async def heartbeat(self, holder: str) -> None:
        """Keep the leases of `holder` that have not ended; see `Slots.heartbeat`."""
        await self._call("heartbeat", holder, _ms(self.pacing.lease_s))

    async def fill(self, reservation: Reservation, samples: Sequence[Sample]) -> None:
        """Hand in the samples of a reservation; see `Slots.fill`. A repeat is fenced once the step is committed."""
        group = group_of(reservation, samples)
        size = measure(group, reservation)
        sizes = size.num_samples, size.num_tokens, size.oldest
        verdict, *now = await self._call("fill", reservation.id, reservation.attempt, encode(group), *sizes)
        if verdict == b"fenced":
            raise fenced(reservation, now=now[0].decode())

    async def release(self, reservation: Reservation, *, reason: str, retry: bool) -> None:
        """Give a slot back; see `Slots.release`."""
        attempt = reservation.id, reservation.attempt
        await self._call("release", *attempt, reason, int(retry), self.pacing.max_attempts)

    async def assign(self, step: int) -> Assignment:
        """The groups of `step`; see `Steps.assign`. Empty once the data is used up or the run's steps are done."""
        fixed = await self._fix(step, ())
        budget = DropBudget(self.pacing.max_dropped_per_step, step=step)
        ask = functools.partial(self._try_assign, step, budget)
        changed = functools.partial(self._changed, changes_key(self.pacing.run_id))
        return fixed or await until_answered(ask, changed, timeout_s=self.pacing.wait_timeout_s)

    async def publish(self, version: Version) -> None:
        """Free the slots of the steps before `version`; see `Steps.publish`."""
        [verdict] = await self._call("publish", version)
        if verdict == b"early":
            raise never_assigned(f"version {version} cannot be published", version - 1)

    async def commit(self, step: int) -> None:
        """Delete the groups of the steps up to `step`; see `Steps.commit`."""
        [verdict] = await self._call("commit", step)
        if verdict == b"early":
            raise never_assigned(f"step {step} cannot be committed", step)

    async def status(self) -> BufferStatus:
        """How many groups are in each state, and why groups went missing."""
        return (await self._survey()).status(self.pacing)

    async def close_admission(self) -> None:
        """Issue no prompt any more: every `reserve` that waits, or comes later, returns None."""
        await self._call("close")

    async def _create(self) -> None:
        if await self._call("create", json.dumps(dataclasses.asdict(self.pacing))) is not None:
            raise RunFolderError(
                f"run {self.pacing.run_id!r} is in use at {without_credentials(self._url)}: resume it or name another"
            )

    async def _attach(self) -> None:
        with named_faults(self._url):
            stored = await self._client.hget(self._key, "pacing")
        if stored is None:
            raise StoreError(f"there is no run {self.pacing.run_id!r} at {without_credentials(self._url)}")
        theirs, ours = json.loads(stored), dataclasses.asdict(self.pacing)
        for name in ours:
            if theirs.get(name) != ours[name]:
                raise StoreError(
                    f"run {self.pacing.run_id!r} was created with {name} {theirs.get(name)!r}, got {ours[name]!r}"
                )

    async def _try_reserve(self, holder: str, request: str) -> Reservation | Waiting | None:
        pacing = self.pacing
        verdict, *found = await self._call(
            "reserve",
            holder,
            request,
            pacing.slots,
            pacing.max_lag,
            _ms(pacing.lease_s),
            pacing.max_attempts,
            pacing.num_groups,
            -1 if pacing.num_issues is None else pacing.num_issues,
            pacing.temperature,
        )
        if verdict == b"done":
            return None
        if verdict == b"wait":
            change, reserved, filled, unpublished, ends_ms = found
            reason = slot_reason(reserved=reserved, filled=filled, unpublished=unpublished, pacing=pacing)
            return Waiting(change, reason, _seconds(ends_ms))
        id, attempt, version, deadline = map(int, found[:4])
        return Reservation(
            id=id,
            attempt=attempt,
            prompt_index=pacing.prompt_index(id),
            holder=holder,
            version=Version(version),
            deadline=Version(deadline),
            temperature=float(found[4]),
        )

    async def _try_assign(self, step: int, budget: DropBudget) -> Assignment | Waiting:
        """Choose from a survey, then fix the choice; `choose` says why a table that has grown since does no harm."""
        table = await self._survey()
        budget.check(table.dropped_by)
        choice = table.choose(step, self.pacing)
        if choice.ids is None:
            return table.waiting(choice, step, self.pacing)
        if not choice.ids:
            return Assignment(step=step, groups=())
        return await self._fix(step, choice.ids) or await self._try_assign(step, budget)

    async def _fix(self, step: int, ids: Sequence[int]) -> Assignment | None:
        """The assignment of `step` if it has one, or gets one by `ids`."""
        verdict, *rows = await self._call("assign", step, *ids)
        if verdict == b"committed":
            raise already_committed(step)
        if verdict == b"early":
            raise never_assigned(f"step {step} cannot be assigned", step - 1)
        if verdict == b"open":
            return None
        return Assignment(step=step, groups=tuple(_size(*map(int, row)) for row in rows))

    async def _survey(self) -> Table:
        counts, requeued, unpublished, ends_ms, now_ms, dropped, requeued_by, rows = await self._call(
            "survey", self.pacing.max_attempts
        )
        change, version, next_step, issued, taken, committed, closed = counts
        return Table(
            change=change,
            version=Version(version),
            next_step=next_step,
            issued=issued,
            taken=taken,
            committed=committed,
            unpublished=unpublished,
            requeued=requeued,
            closed=bool(closed),
            lease_ends_s=_seconds(ends_ms),
            dropped_by=_counts(dropped),
            requeued_by=_counts(requeued_by),
            rows=tuple(_row(row, now_ms) for row in rows),
        )

    async def _call(self, name: str, *args: Any) -> Any:
        with named_faults(self._url):
            return await self._calls.run(_source(name), self._key, *args)

    async def _changed(self, stream: str, change: int, timeout_s: float) -> None:
        """Return once `stream` is past `change`; its entries outlive their moment, so none is missed."""
        block_ms = math.ceil(min(timeout_s, BLOCK_S) * 1000)
        with named_faults(self._url):
            await self._client.xread({stream: f"{change}-0"}, block=max(1, block_ms))


@functools.cache
def _source(name: str) -> str:
    folder = resources.files("slime_rl.buffer") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("state", name))


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _seconds(ms: int) -> float | None:
    """A time of the server's in seconds; it says -1 where there is none."""
    return None if ms < 0 else ms / 1000


def _size(id: int, num_samples: int, num_tokens: int, oldest: int) -> AssignedGroup:
    return AssignedGroup(id=id, num_samples=num_samples, num_tokens=num_tokens, oldest=Version(oldest))


def _row(row: Sequence[Any], now_ms: int) -> Row:
    id, attempt, holder, deadline, since, finished, *sizes = row
    return Row(
        id=int(id),
        attempt=int(attempt),
        holder=holder.decode(),
        deadline=Version(int(deadline)),
        age_s=(now_ms - int(since)) / 1000,
        finished=None if finished is None else int(finished),
        size=None if finished is None else _size(int(id), *map(int, sizes)),
    )


def _counts(pairs: Sequence[bytes]) -> dict[str, int]:
    """A hash of counts, as the server flattens it."""
    return {name.decode(): int(count) for name, count in zip(pairs[::2], pairs[1::2], strict=True)}
