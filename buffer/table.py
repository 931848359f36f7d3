"""The buffer's state at one moment, as the trainer's side needs it to choose, to wait and to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slime_rl.buffer.look_ahead import Candidate, Choice, choose
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.patience import Waiting
from slime_rl.errors import StaleError
from slime_rl.types import AssignedGroup, BufferStatus, Version

NUM_NAMED = 8
LEASE_EXPIRED = "lease expired"


class State(StrEnum):
    """Where a group is between its reservation and the deletion of its payload."""

    RESERVED = "reserved"
    REQUEUED = "requeued"
    FILLED = "filled"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A group that is reserved (`size` and `finished` are None) or filled. `age_s` counts from its reservation."""

    id: int
    attempt: int
    holder: str
    deadline: Version
    age_s: float
    finished: int | None = None
    size: AssignedGroup | None = None

    def __str__(self) -> str:
        return f"group {self.id} held by {self.holder} since {self.age_s:.0f} s, attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`issued` counts prompts, `taken` and `committed` groups of steps so far, `unpublished` those that hold slots.

    `change` numbers the last change of the buffer; `lease_ends_s` is the time to the end of the next lease.
    """

    change: int
    version: Version
    next_step: int
    issued: int
    taken: int
    committed: int
    unpublished: int
    requeued: int
    closed: bool
    lease_ends_s: float | None
    dropped_by: Mapping[str, int]
    requeued_by: Mapping[str, int]
    rows: tuple[Row, ...]

    @property
    def reserved(self) -> list[Row]:
        """The groups that are being generated, the longest held first."""
        return sorted((row for row in self.rows if row.size is None), key=lambda row: (-row.age_s, row.id))

    @property
    def filled(self) -> list[Row]:
        return [row for row in self.rows if row.size is not None]

    def may_grow(self, pacing: Pacing) -> bool:
        """Whether a group can still become filled: one is being generated, or a prompt may be reserved."""
        return bool(self.reserved) or (not self.closed and self.has_prompt(pacing))

    def has_prompt(self, pacing: Pacing) -> bool:
        """Whether there is a prompt to reserve that the run's steps have use for."""
        unissued = pacing.num_issues is None or self.issued < pacing.num_issues
        return pacing.num_groups > self.taken + len(self.rows) and (unissued or self.requeued > 0)

    def choose(self, step: int, pacing: Pacing) -> Choice:
        """The groups `step` takes; at the end of the data what is left, which may be fewer than a step or none.

        Raises StaleError if a group it takes holds a token older than the bound.
        """
        if not self.may_grow(pacing) and len(self.rows) < pacing.groups_per_step:
            choice = Choice(tuple(sorted(row.id for row in self.rows)))
        else:
            candidates = (Candidate(row.id, row.deadline, row.finished) for row in self.rows)
            choice = choose(candidates, step=step, groups_per_step=pacing.groups_per_step)
        self._check_lag(choice, step, pacing.max_lag)
        return choice

    def waiting(self, choice: Choice, step: int, pacing: Pacing) -> Waiting:
        """Whom `step` waits for, as long as `choice` has nothing to take."""
        held = [row for row in self.reserved if row.id in choice.waits_for]
        who = f"oldest: {held[0]}" if held else f"no worker holds one ({self.requeued} requeued)"
        reason = f"for {choice.missing} of {pacing.groups_per_step} groups of step {step}; {who}"
        return Waiting(self.change, reason, self.lease_ends_s)

    def status(self, pacing: Pacing) -> BufferStatus:
        states = {
            "free": pacing.slots - len(self.rows) - self.unpublished,
            State.REQUEUED.value: self.requeued,
            State.RESERVED.value: len(self.reserved),
            State.FILLED.value: len(self.filled),
            State.ASSIGNED.value: self.taken - self.committed,
            "committed": self.committed,
        }
        return BufferStatus(
            version=self.version,
            slots=pacing.slots,
            states=states,
            dropped=self.dropped_by,
            requeued=self.requeued_by,
            waiting_for=tuple(str(row) for row in self.reserved[:NUM_NAMED]),
        )

    def _check_lag(self, choice: Choice, step: int, max_lag: int) -> None:
        for row in self.filled:
            if choice.ids and row.id in choice.ids and row.size and step - row.size.oldest > max_lag:
                raise StaleError(
                    f"step {step}: group {row.id} holds tokens of version {row.size.oldest}, "
                    f"expected {step - max_lag} or later"
                )


def slot_reason(*, reserved: int, filled: int, unpublished: int, pacing: Pacing) -> str:
    """What a worker waits for that has asked for a slot; reads on from "waiting 34 s "."""
    counts = f"{reserved} reserved, {filled} filled, {unpublished} assigned and not published"
    free = pacing.slots - reserved - filled - unpublished
    if free > 0:
        return f"for reserved groups that may come back, no other prompt is wanted; {counts}"
    return f"for one of {pacing.slots} slots; {counts}"
