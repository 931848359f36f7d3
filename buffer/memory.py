"""The buffer inside one process: the same contract as the one on a server, for tests and small experiments."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from slime_rl.buffer.codec import decode_segment
from slime_rl.buffer.group_buffer import GroupBuffer
from slime_rl.buffer.memory_state import MemoryState
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.packing import Packing
from slime_rl.buffer.refusals import no_payload
from slime_rl.buffer.snapshot import Snapshot
from slime_rl.types import Group, Reservation, Segment


class MemoryBuffer(GroupBuffer):
    """Slots and steps in plain dictionaries. Payloads pass through the codec, as they would on their way to a server.

    `clock` returns seconds.
    """

    def __init__(
        self, pacing: Pacing, *, packing: Packing | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(pacing, packing or Packing())
        self.state = MemoryState(pacing.limits, clock)
        self._incarnation = self.state.incarnation
        self._bells = {"changes": asyncio.Event(), "openings": asyncio.Event()}

    @classmethod
    def attach(cls, other: MemoryBuffer) -> MemoryBuffer:
        """Another process's view of the buffer of `other`."""
        buffer = cls(other.pacing, packing=other.packing)
        buffer.state, buffer._bells, buffer._incarnation = other.state, other._bells, other.state.incarnation
        return buffer

    @classmethod
    def resume(cls, other: MemoryBuffer, snapshot: Snapshot, *, lost: bool = False) -> MemoryBuffer:
        """The buffer of `other` in a new incarnation; `lost` as if nothing but the snapshot were left."""
        if lost or not other.state.rollback(snapshot.version, snapshot.sequence):
            other.state.restore(snapshot)
        other._ring()
        return cls.attach(other)

    async def segments(self, reservation: Reservation) -> list[Segment]:
        """What earlier attempts made durable of a group; see `Partials.segments`."""
        await asyncio.sleep(0)
        group = self.state.groups.get(reservation.id)
        return [decode_segment(part, key=f"segments:{reservation.id}") for part in group.segments] if group else []

    def read(self, ids: Sequence[int]) -> list[Group]:
        """The groups of `ids`, in that order, as a trainer rank reads them; StoreError for one that is not there."""
        payloads = {id: group.payload for id, group in self.state.groups.items() if group.payload}
        if missing := [f"payload:{id}" for id in ids if id not in payloads]:
            raise no_payload(missing)
        return [self.packing.decode(payloads[id], key=f"payload:{id}") for id in ids]

    async def _known(self, ids: Sequence[int]) -> list[int]:
        return [id for id in ids if id in self.state.groups]

    async def _run(self, name: str, *args: Any) -> dict[str, Any]:
        """Run a function as a server does: at once, between two awaits."""
        await asyncio.sleep(0)
        before = self.state.changes
        reply = self.state.run(name, *args)
        if self.state.changes != before:
            self._ring()
        return reply

    def _ring(self) -> None:
        """Wake whoever waits for a change."""
        for stream, bell in self._bells.items():
            bell.set()
            self._bells[stream] = asyncio.Event()

    async def _changed(self, stream: str, change: int, timeout_s: float) -> None:
        if change == self.state.changes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._bells[stream].wait()
