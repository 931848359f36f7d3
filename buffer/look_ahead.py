"""Which groups a training step takes, so that no group ever misses its deadline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from slime_rl.errors import StaleError


@dataclass(frozen=True, slots=True)
class Candidate:
    """An outstanding group: the last step that may train it, and its place in the order of finishing, None before."""

    id: int
    deadline: int
    finished: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The ids a step takes, ascending; or None, how many groups must still finish, and which of them it needs first."""

    ids: tuple[int, ...] | None
    missing: int = 0
    waits_for: tuple[int, ...] = ()


def choose(outstanding: Iterable[Candidate], *, step: int, groups_per_step: int) -> Choice:
    """The groups that `step` takes: the first that finished, and the earliest deadlines where those press.

    Let B be `groups_per_step` and D(k) the number of outstanding groups with a deadline of `step + k` or before.

    Rule. After the step at most k B of them may be left, for every k >= 0: none is overdue, one step's worth is due at
    the next step, and so on. So the step takes at least D(k) - k B groups out of D(k), for every k.

    Why that keeps the bound. Call a step *safe* if D(k) <= (k + 1) B for every k >= 0 before it.

    1. A safe step has a choice: the rule asks for D(k) - k B <= B groups out of nested sets, so the B earliest
       deadlines obey it, and it waits at most for those to finish.
    2. A step that obeys the rule leaves the next one safe: D'(k) counts deadlines up to `step + 1 + k`, of which at
       most (k + 1) B are left.
    3. Groups that join keep a step safe. A group reserved at published version v gets the deadline v + L (L is
       `max_lag`). Outstanding groups and those of unpublished steps share (L + 1) B slots, and before `step` the
       steps v ... step - 1 hold (step - v) B of them. So at most (L + 1 - step + v) B groups are outstanding, and that
       is (k + 1) B for k = v + L - step: the only k, and those above it, for which the new group counts. The same
       holds for a group that starts again, and a group that is dropped only lowers D. So a choice made from a table
       that has grown since is as good.
    4. The first step is safe by 3, hence all are; a group with deadline `step` is in D(0), of which the rule leaves
       none; so every group is trained at a step <= v + L, and its lag is at most L.

    Within the rule the groups that finished first are taken: the nested sets are met from the smallest up, each by its
    first finished, and the rest of the step by the first finished of all.

    Raises StaleError if the step is not safe, which only a fault outside of this function can bring about.
    """
    groups = tuple(outstanding)
    ready = sorted((g for g in groups if g.finished is not None), key=lambda g: (g.finished, g.id))
    taken: set[int] = set()
    for deadline in sorted({g.deadline for g in groups}):
        due = [g for g in groups if g.deadline <= deadline]
        needed = len(due) - max(0, deadline - step) * groups_per_step
        if needed > groups_per_step:
            raise StaleError(
                f"step {step}: {len(due)} groups are due by version {deadline}, more than its steps can take"
            )
        taken.update(_first([g for g in ready if g.deadline <= deadline], taken, needed - len(taken)))
        if len(taken) < needed:
            return _wait(due, missing=max(needed - len(taken), groups_per_step - len(ready)))
    taken.update(_first(ready, taken, groups_per_step - len(taken)))
    if len(taken) < groups_per_step:
        return _wait(groups, missing=groups_per_step - len(taken))
    return Choice(tuple(sorted(taken)))


def _first(ready: Iterable[Candidate], taken: Collection[int], num: int) -> list[int]:
    """The ids of the first `num` of `ready` that are not taken."""
    return [g.id for g in ready if g.id not in taken][: max(0, num)]


def _wait(groups: Sequence[Candidate], *, missing: int) -> Choice:
    unfinished = sorted((g for g in groups if g.finished is None), key=lambda g: (g.deadline, g.id))
    return Choice(None, missing, tuple(g.id for g in unfinished))
