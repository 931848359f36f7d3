"""The buffer as workers and the trainer see it, whatever holds its state."""

from __future__ import annotations

import functools
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from slime_rl.buffer.blobs import sweep
from slime_rl.buffer.drop_budget import DropBudget
from slime_rl.buffer.intake import group_of, measure
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.packing import Packing
from slime_rl.buffer.patience import Waiting, until_answered
from slime_rl.buffer.refusals import (
    already_committed,
    behind,
    fenced,
    gap,
    never_assigned,
    never_published,
    stale,
    superseded,
)
from slime_rl.buffer.snapshot import Snapshot
from slime_rl.buffer.survey import NUM_NAMED, Survey, counts, seconds, slot_reason, survey_of
from slime_rl.types import AssignedGroup, Assignment, BufferStatus, Reservation, Sample, Segment, Version


class GroupBuffer(ABC):
    """Slots, partials and steps, on the functions that lua/ describes; what holds the state runs these.

    An object belongs to the incarnation of the run that it was opened in: once the run has been resumed, every call of
    it raises FencedError.
    """

    def __init__(self, pacing: Pacing, packing: Packing) -> None:
        self.pacing = pacing
        self.packing = packing
        self._incarnation = -1
        self._seen = 0

    @abstractmethod
    async def _run(self, name: str, *args: Any) -> dict[str, Any]:
        """The reply of one atomic function."""

    @abstractmethod
    async def _changed(self, stream: str, change: int, timeout_s: float) -> None:
        """Return once `stream` (changes or openings) is past `change`, or after `timeout_s`."""

    @abstractmethod
    async def segments(self, reservation: Reservation) -> list[Segment]:
        """What earlier attempts made durable of a group; see `Partials.segments`."""

    @abstractmethod
    async def _known(self, ids: Sequence[int]) -> list[int]:
        """Those of `ids` whose groups are not over."""

    async def reserve(self, holder: str, *, serves: Version | None = None) -> Reservation | None:
        """Take a slot for the next prompt; see `Slots.reserve`."""
        request = uuid.uuid4().hex
        ask = functools.partial(self._try_reserve, holder, request, serves)
        changed = functools.partial(self._changed, "openings")
        return await until_answered(ask, changed, timeout_s=self.pacing.slot_timeout_s)

    async def heartbeat(self, holder: str) -> frozenset[int]:
        """Keep the leases of `holder` that have not ended; see `Slots.heartbeat`."""
        return frozenset((await self._ask("heartbeat", holder))["held"])

    async def extend(self, reservation: Reservation, segment: Segment) -> None:
        """Make a part of a sample durable; see `Partials.extend`."""
        part = segment.index, segment.start, segment.num_tokens
        reply = await self._ask(
            "extend", reservation.id, reservation.attempt, *part, self.packing.encode_segment(segment)
        )
        if reply["verdict"] == "fenced":
            raise fenced(reservation, now=reply["now"])
        if reply["verdict"] == "gap":
            raise gap(reservation, segment, progress=reply["progress"])

    async def fill(self, reservation: Reservation, samples: Sequence[Sample]) -> None:
        """Hand in the samples of a reservation; see `Slots.fill`. A repeat is fenced once the step is committed."""
        group = group_of(reservation, samples)
        size = measure(group, reservation)
        sizes = size.num_samples, size.num_tokens, size.oldest
        payload = await self.packing.encode(group)
        reply = await self._ask("fill", reservation.id, reservation.attempt, payload, *sizes)
        if reply["verdict"] == "fenced":
            await self.packing.forget(group)
            raise fenced(reservation, now=reply["now"])

    async def release(self, reservation: Reservation, *, reason: str, retry: bool) -> None:
        """Give a slot back; see `Slots.release`."""
        await self._ask("release", reservation.id, reservation.attempt, reason, int(retry))

    async def assign(self, step: int) -> Assignment:
        """The groups of `step`; see `Steps.assign`. Empty once the data is used up or the run's steps are done."""
        fixed = await self._fix(step)
        budget = DropBudget(self.pacing.max_dropped_per_step, step=step)
        ask = functools.partial(self._try_assign, step, budget)
        changed = functools.partial(self._changed, "changes")
        return fixed or await until_answered(ask, changed, timeout_s=self.pacing.wait_timeout_s)

    async def publish(self, version: Version) -> None:
        """Free the slots of the steps before `version`; see `Steps.publish`."""
        if (await self._ask("publish", version))["verdict"] == "early":
            raise never_assigned(f"version {version} cannot be published", version - 1)

    async def commit(self, step: int) -> None:
        """Delete the groups of the steps up to `step`; see `Steps.commit`."""
        if (await self._ask("commit", step))["verdict"] == "early":
            raise never_published(f"step {step} cannot be committed", step + 1)
        await self.sweep()

    async def snapshot(self, version: Version) -> bytes:
        """What a checkpoint of `version` must hold of the buffer, for `resume` (snapshot.py); StoreError if it is not
        published.
        """
        reply = await self._ask("snapshot", version)
        if reply["verdict"] == "early":
            raise never_published(f"version {version} cannot be saved", version)
        return Snapshot(
            run_id=self.pacing.run_id,
            version=version,
            sequence=reply["sequence"],
            issued=reply["issued"],
            taken=reply["taken"],
            open=tuple(sorted(reply["open"])),
            dropped=counts(reply["dropped"]),
            requeued_by=counts(reply["requeued_by"]),
            lags=counts(reply["lags"]),
            kept=self.pacing.kept,
        ).encode()

    async def status(self) -> BufferStatus:
        """How many groups are in each state, and why groups went missing."""
        return (await self._survey()).status(self.pacing)

    async def close_admission(self) -> None:
        """Issue no prompt any more: every `reserve` that waits, or comes later, returns None."""
        await self._ask("close")

    async def _try_reserve(self, holder: str, request: str, serves: Version | None) -> Reservation | Waiting | None:
        reply = await self._ask("reserve", holder, request, -1 if serves is None else serves)
        if reply["verdict"] == "done":
            return None
        if reply["verdict"] == "wait":
            return Waiting(reply["change"], slot_reason(reply, self.pacing), seconds(reply["lease_ends_ms"]))
        return Reservation(
            id=reply["id"],
            attempt=reply["attempt"],
            prompt_index=self.pacing.prompt_index(reply["id"]),
            holder=holder,
            version=Version(reply["version"]),
            deadline=Version(reply["deadline"]),
            temperature=float(reply["temperature"]),
            continued=reply["continued"],
        )

    async def _try_assign(self, step: int, budget: DropBudget) -> Assignment | Waiting:
        """Choose from a survey, then fix the choice; `choose` says why a table that has grown since does no harm."""
        survey = await self._survey()
        budget.check(survey.dropped_by)
        choice = survey.choose(step, self.pacing)
        if choice.late and await self._let_go(choice.late):
            return await self._try_assign(step, budget)
        if choice.missing:
            return survey.waiting(choice, step, self.pacing)
        num_groups = min(self.pacing.groups_per_step, survey.filled)
        if not num_groups:
            return Assignment(step=step, groups=())
        return await self._fix(step, num_groups, choice.pressing) or await self._try_assign(step, budget)

    async def _let_go(self, num_groups: int) -> bool:
        """Do without so many stragglers, as the configuration says; whether that changed anything."""
        if self.pacing.on_straggler == "wait":
            return False
        return (await self._ask("straggle", num_groups, self.pacing.on_straggler))["num_groups"] > 0

    async def _fix(self, step: int, num_groups: int = 0, pressing: int = 0) -> Assignment | None:
        """The assignment of `step` if it has one, or gets one of so many groups."""
        bound = -1 if self.pacing.on_straggler == "mask" else step - self.pacing.max_lag
        reply = await self._ask("assign", step, num_groups, pressing, bound)
        match reply["verdict"]:
            case "committed":
                raise already_committed(step)
            case "early":
                raise never_assigned(f"step {step} cannot be assigned", step - 1)
            case "stale":
                raise stale(step, reply["id"], oldest=reply["oldest"], bound=bound)
            case "open":
                return None
        returned = tuple(_size(*row) for row in reply.get("shed", ()))
        return Assignment(step=step, groups=tuple(_size(*row) for row in reply["groups"]), returned=returned)

    async def _survey(self) -> Survey:
        return survey_of(await self._ask("survey", NUM_NAMED))

    async def sweep(self) -> None:
        """Delete the blobs of groups that are over, as each commit does; for when no worker is left to come late."""
        if self.packing.blobs is not None:
            await sweep(self.packing.blobs, self._known)

    async def _ask(self, name: str, *args: Any) -> dict[str, Any]:
        """The reply of a function, unless this object's time is over or the server has lost what it knew."""
        reply = await self._run(name, self._incarnation, self._seen, *args)
        if reply["verdict"] == "superseded":
            raise superseded(self.pacing.run_id)
        if reply["verdict"] == "behind":
            raise behind(self.pacing.run_id, seen=self._seen, found=reply["sequence"])
        self._seen = max(self._seen, reply["sequence"])
        return reply


def draw_incarnation() -> int:
    """A number that no other incarnation of the run has."""
    return secrets.randbits(48)


def _size(id: int, num_samples: int, num_tokens: int, oldest: int) -> AssignedGroup:
    return AssignedGroup(id=id, num_samples=num_samples, num_tokens=num_tokens, oldest=Version(oldest))
