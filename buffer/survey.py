"""The buffer at one moment, as the trainer's side needs it to choose, to wait and to report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_rl.buffer.look_ahead import Choice, Due, choose
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.patience import Waiting
from slime_rl.types import BufferStatus, Version

NUM_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A group that is being generated (`state` is reserved) or waits to be continued (kept)."""

    id: int
    attempt: int
    holder: str
    deadline: Version
    age_s: float
    state: str

    def __str__(self) -> str:
        where = f"held by {self.holder}" if self.state == "reserved" else f"left by {self.holder}, to be continued,"
        return f"group {self.id} {where} since {self.age_s:.0f} s, attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`issued` counts prompts, `taken` and `committed` groups of steps so far, `unpublished` those that hold slots.

    `change` numbers the last change of the buffer; `lease_ends_s` is the time to the end of the next lease; `due`
    counts outstanding groups by deadline, cumulated; `named` are the unfinished ones with the earliest deadlines.
    """

    change: int
    version: Version
    next_step: int
    replay_until: int
    issued: int
    taken: int
    committed: int
    unpublished: int
    num_bytes: int
    closed: bool
    reserved: int
    kept: int
    filled: int
    requeued: int
    lease_ends_s: float | None
    due: tuple[Due, ...]
    named: tuple[Unfinished, ...]
    dropped_by: Mapping[str, int]
    requeued_by: Mapping[str, int]
    lags: Mapping[int, int]

    @property
    def outstanding(self) -> int:
        return self.reserved + self.kept + self.filled

    def may_grow(self, pacing: Pacing) -> bool:
        """Whether a group can still become filled: one is being generated, or a prompt may be reserved."""
        return self.reserved > 0 or (not self.closed and (self.kept > 0 or self._has_prompt(pacing)))

    def choose(self, step: int, pacing: Pacing) -> Choice:
        """What `step` does; at the end of the data it takes what is left: fewer groups than a step, or none.

        Raises StaleError if the groups cannot all keep their deadlines.
        """
        if not self.may_grow(pacing) and self.filled < pacing.groups_per_step:
            return Choice(pressing=self.filled)
        return choose(self.due, step=step, groups_per_step=pacing.groups_per_step, surplus=pacing.surplus)

    def waiting(self, choice: Choice, step: int, pacing: Pacing) -> Waiting:
        """Whom `step` waits for, as long as `choice` has nothing to take."""
        who = f"oldest: {self.named[0]}" if self.named else f"no worker holds one ({self.requeued} requeued)"
        reason = f"for {choice.missing} of {pacing.groups_per_step} groups of step {step}; {who}"
        return Waiting(self.change, reason, self.lease_ends_s)

    def status(self, pacing: Pacing) -> BufferStatus:
        states = {
            "free": max(0, pacing.slots - self.outstanding - self.unpublished),  # below 0 after a rollback
            "requeued": self.requeued,
            "reserved": self.reserved,
            "kept": self.kept,
            "filled": self.filled,
            "assigned": self.taken - self.committed,
            "committed": self.committed,
        }
        return BufferStatus(
            version=self.version,
            slots=pacing.slots,
            states=states,
            dropped=self.dropped_by,
            requeued=self.requeued_by,
            lags=self.lags,
            num_bytes=self.num_bytes,
            waiting_for=tuple(map(str, self.named)),
        )

    def _has_prompt(self, pacing: Pacing) -> bool:
        """Whether there is a prompt to reserve that the run's steps have use for."""
        unissued = pacing.num_issues is None or self.issued < pacing.num_issues
        return pacing.num_groups > self.taken + self.outstanding and (unissued or self.requeued > 0)


def survey_of(reply: Mapping[str, Any]) -> Survey:
    """The reply of lua/survey.lua."""
    counters, now_ms = reply["counters"], reply["now_ms"]
    return Survey(
        change=counters["changes"],
        version=Version(counters["version"]),
        next_step=counters["next_step"],
        replay_until=counters["replay_until"],
        issued=counters["issued"],
        taken=counters["taken"],
        committed=counters["committed"],
        unpublished=counters["unpublished"],
        num_bytes=counters["bytes"],
        closed=bool(counters["closed"]),
        reserved=reply["reserved"],
        kept=reply["kept"],
        filled=reply["filled"],
        requeued=reply["requeued"],
        lease_ends_s=seconds(reply["lease_ends_ms"]),
        due=tuple(Due(*row) for row in reply["due"]),
        named=tuple(_unfinished(row, now_ms) for row in reply["named"]),
        dropped_by=counts(reply["dropped"]),
        requeued_by=counts(reply["requeued_by"]),
        lags={int(lag): count for lag, count in sorted(counts(reply["lags"]).items())},
    )


def seconds(ms: float) -> float | None:
    """A time of the server's in seconds; it says -1 where there is none."""
    return None if ms < 0 else ms / 1000


def counts(pairs: Sequence[str]) -> dict[str, int]:
    """A hash of counts, as a server flattens it."""
    return {name: int(count) for name, count in zip(pairs[::2], pairs[1::2], strict=True)}


def _unfinished(row: Sequence[Any], now_ms: float) -> Unfinished:
    id, attempt, holder, deadline, since, state = row
    return Unfinished(
        id=int(id),
        attempt=int(attempt),
        holder=holder,
        deadline=Version(int(deadline)),
        age_s=(now_ms - int(since)) / 1000,
        state=state,
    )


def slot_reason(reply: Mapping[str, Any], pacing: Pacing) -> str:
    """What a worker waits for that has asked for a slot; reads on from "waiting 34 s "."""
    kept = f"{reply['kept']} kept, " if reply["kept"] else ""
    counted = (
        f"{reply['reserved']} reserved, {kept}{reply['filled']} filled, "
        f"{reply['unpublished']} assigned and not published"
    )
    whys = {
        "slots": f"for one of {pacing.slots} slots",
        "prompts": "for reserved groups that may come back, no other prompt is wanted",
        "replay": f"until the trainer has taken the steps again that had their groups, at version {reply['version']}",
        "pool": f"for engines that serve a later version, the published one is {reply['version']}",
    }
    return f"{whys[reply['why']]}; {counted}"
