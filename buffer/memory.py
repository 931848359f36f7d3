"""The buffer inside one process: the same contract as the one on a server, for tests and small experiments."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slime_rl.buffer.codec import decode, encode
from slime_rl.buffer.drop_budget import DropBudget
from slime_rl.buffer.intake import group_of, measure
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.patience import Waiting, until_answered
from slime_rl.buffer.refusals import already_committed, fenced, never_assigned, no_payload
from slime_rl.buffer.table import LEASE_EXPIRED, Row, State, Table, slot_reason
from slime_rl.types import AssignedGroup, Assignment, BufferStatus, Group, Reservation, Sample, Version


@dataclass(slots=True)
class _Entry:
    """A group from its first reservation to its drop or the commit of its step."""

    reservation: Reservation
    state: State
    since: float
    lease_end: float
    finished: int | None = None
    size: AssignedGroup | None = None
    payload: bytes = b""


@dataclass(slots=True)
class _Counts:
    version: int = 0
    issued: int = 0
    finished: int = 0
    taken: int = 0
    committed: int = 0
    change: int = 0
    closed: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    requeued: Counter[str] = field(default_factory=Counter)


class MemoryBuffer:
    """Slots and steps in plain dictionaries. Payloads pass through the codec, as they would on their way to a server.

    `clock` returns seconds. Methods between two awaits are atomic, so each transition stands in one of those.
    """

    def __init__(self, pacing: Pacing, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.pacing = pacing
        self._clock = clock
        self._entries: dict[int, _Entry] = {}
        self._steps: list[tuple[AssignedGroup, ...]] = []
        self._num_committed_steps = 0
        self._counts = _Counts()
        self._bell = asyncio.Event()

    async def reserve(self, holder: str) -> Reservation | None:
        """Take a slot for the next prompt; see `Slots.reserve`."""

        async def ask() -> Reservation | Waiting | None:
            await asyncio.sleep(0)
            return self._try_reserve(holder)

        return await until_answered(ask, self._changed, timeout_s=self.pacing.slot_timeout_s)

    async def heartbeat(self, holder: str) -> None:
        """Keep the leases of `holder` that have not ended; see `Slots.heartbeat`."""
        await asyncio.sleep(0)
        self._sweep()
        for entry in self._in(State.RESERVED):
            if entry.reservation.holder == holder:
                entry.lease_end = self._clock() + self.pacing.lease_s

    async def fill(self, reservation: Reservation, samples: Sequence[Sample]) -> None:
        """Hand in the samples of a reservation; see `Slots.fill`."""
        group = group_of(reservation, samples)
        payload, size = encode(group), measure(group, reservation)
        await asyncio.sleep(0)
        self._sweep()
        entry = self._current(reservation)
        if entry is None:
            raise fenced(reservation, now=self._fate(reservation.id))
        if entry.state is State.RESERVED:
            self._counts.finished += 1
            entry.state, entry.finished = State.FILLED, self._counts.finished
            entry.payload, entry.size = payload, size
            self._ring()

    async def release(self, reservation: Reservation, *, reason: str, retry: bool) -> None:
        """Give a slot back; see `Slots.release`."""
        await asyncio.sleep(0)
        entry = self._current(reservation)
        if entry is not None and entry.state is State.RESERVED:
            self._give_back(entry, reason, retry=retry)

    async def assign(self, step: int) -> Assignment:
        """The groups of `step`; see `Steps.assign`. Empty once the data is used up or the run's steps are done."""

        budget = DropBudget(self.pacing.max_dropped_per_step, step=step)

        async def ask() -> Assignment | Waiting:
            await asyncio.sleep(0)
            budget.check(self._counts.dropped)
            return self._try_assign(step)

        return await until_answered(ask, self._changed, timeout_s=self.pacing.wait_timeout_s)

    async def publish(self, version: Version) -> None:
        """Free the slots of the steps before `version`; see `Steps.publish`."""
        await asyncio.sleep(0)
        if version > len(self._steps):
            raise never_assigned(f"version {version} cannot be published", version - 1)
        if version > self._counts.version:
            self._counts.version = version
            self._ring()

    async def commit(self, step: int) -> None:
        """Forget the steps up to `step`; see `Steps.commit`."""
        await asyncio.sleep(0)
        if step >= len(self._steps):
            raise never_assigned(f"step {step} cannot be committed", step)
        for groups in self._steps[self._num_committed_steps : step + 1]:
            self._num_committed_steps += 1
            self._counts.committed += len(groups)
            for group in groups:
                del self._entries[group.id]

    async def status(self) -> BufferStatus:
        """How many groups are in each state, and why groups went missing."""
        await asyncio.sleep(0)
        return self._table().status(self.pacing)

    async def close_admission(self) -> None:
        """Issue no prompt any more: every `reserve` that waits, or comes later, returns None."""
        await asyncio.sleep(0)
        self._counts.closed = True
        self._ring()

    def read(self, ids: Sequence[int]) -> list[Group]:
        """The groups of `ids`, in that order, as a trainer rank reads them; StoreError for one that is not there."""
        payloads = {id: entry.payload for id, entry in self._entries.items() if entry.payload}
        if missing := [f"payload:{id}" for id in ids if id not in payloads]:
            raise no_payload(missing)
        return [decode(payloads[id], key=f"payload:{id}") for id in ids]

    def _try_reserve(self, holder: str) -> Reservation | Waiting | None:
        table = self._table()
        reserved, filled = len(table.reserved), len(table.filled)
        if self._counts.closed or not table.may_grow(self.pacing):
            return None
        if not table.has_prompt(self.pacing) or reserved + filled + table.unpublished >= self.pacing.slots:
            reason = slot_reason(reserved=reserved, filled=filled, unpublished=table.unpublished, pacing=self.pacing)
            return Waiting(table.change, reason, table.lease_ends_s)
        return self._reserve(holder)

    def _reserve(self, holder: str) -> Reservation:
        """Start the first requeued group again, or issue the next prompt."""
        again = min(self._in(State.REQUEUED), key=lambda entry: entry.reservation.id, default=None)
        version = Version(self._counts.version)
        reservation = Reservation(
            id=again.reservation.id if again else self._counts.issued,
            attempt=again.reservation.attempt + 1 if again else 1,
            prompt_index=self.pacing.prompt_index(again.reservation.id if again else self._counts.issued),
            holder=holder,
            version=version,
            deadline=Version(version + self.pacing.max_lag),
            temperature=again.reservation.temperature if again else self.pacing.temperature,
        )
        self._counts.issued += again is None
        now = self._clock()
        self._entries[reservation.id] = _Entry(reservation, State.RESERVED, now, now + self.pacing.lease_s)
        return reservation

    def _try_assign(self, step: int) -> Assignment | Waiting:
        if step < self._num_committed_steps:
            raise already_committed(step)
        if step > len(self._steps):
            raise never_assigned(f"step {step} cannot be assigned", step - 1)
        if step == len(self._steps):
            table = self._table()
            choice = table.choose(step, self.pacing)
            if choice.ids is None:
                return table.waiting(choice, step, self.pacing)
            if not choice.ids:
                return Assignment(step=step, groups=())
            self._assign([self._entries[id] for id in choice.ids])
        return Assignment(step=step, groups=self._steps[step])

    def _assign(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            entry.state = State.ASSIGNED
        self._steps.append(tuple(entry.size for entry in entries if entry.size))
        self._counts.taken += len(entries)
        self._ring()

    def _current(self, reservation: Reservation) -> _Entry | None:
        """The entry of a reservation, unless this attempt has ended without being filled."""
        entry = self._entries.get(reservation.id)
        ended = entry is None or entry.state is State.REQUEUED or entry.reservation.attempt != reservation.attempt
        return None if ended else entry

    def _fate(self, id: int) -> str:
        entry = self._entries.get(id)
        if entry is None:
            return "and it is dropped or committed"
        return f"and its attempt {entry.reservation.attempt} is {entry.state.value}"

    def _sweep(self) -> None:
        """Give back the groups whose lease has ended."""
        for entry in self._in(State.RESERVED):
            if entry.lease_end <= self._clock():
                self._give_back(entry, LEASE_EXPIRED, retry=True)

    def _give_back(self, entry: _Entry, reason: str, *, retry: bool) -> None:
        if retry and entry.reservation.attempt < self.pacing.max_attempts:
            entry.state = State.REQUEUED
            self._counts.requeued[reason] += 1
        else:
            del self._entries[entry.reservation.id]
            self._counts.dropped[reason] += 1
        self._ring()

    def _in(self, state: State) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.state is state]

    def _table(self) -> Table:
        self._sweep()
        counts, now = self._counts, self._clock()
        reserved = self._in(State.RESERVED)
        return Table(
            change=counts.change,
            version=Version(counts.version),
            next_step=len(self._steps),
            issued=counts.issued,
            taken=counts.taken,
            committed=counts.committed,
            unpublished=sum(len(groups) for groups in self._steps[counts.version :]),
            requeued=len(self._in(State.REQUEUED)),
            closed=counts.closed,
            lease_ends_s=min((entry.lease_end - now for entry in reserved), default=None),
            dropped_by=dict(counts.dropped),
            requeued_by=dict(counts.requeued),
            rows=tuple(_row(entry, now) for entry in (*reserved, *self._in(State.FILLED))),
        )

    def _ring(self) -> None:
        """Wake whoever waits for a change."""
        self._counts.change += 1
        self._bell.set()
        self._bell = asyncio.Event()

    async def _changed(self, change: int, timeout_s: float) -> None:
        if change == self._counts.change:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._bell.wait()


def _row(entry: _Entry, now: float) -> Row:
    reservation = entry.reservation
    return Row(
        id=reservation.id,
        attempt=reservation.attempt,
        holder=reservation.holder,
        deadline=reservation.deadline,
        age_s=now - entry.since,
        finished=entry.finished,
        size=entry.size,
    )
