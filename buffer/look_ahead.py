"""Which groups a training step takes, so that no group ever misses its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime_rl.errors import StaleError


@dataclass(frozen=True, slots=True)
class Due:
    """How many outstanding groups a step up to `deadline` must train, and how many of these are filled."""

    deadline: int
    outstanding: int
    ready: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a step does: it takes the `pressing` filled groups with the earliest deadlines and fills up with those that
    finished first; or, while `missing` is above 0, it waits for so many groups to finish.

    `late` is how many unfinished groups, those with the earliest deadlines, a step must wait for that has enough filled
    groups otherwise: the stragglers.
    """

    pressing: int = 0
    missing: int = 0
    late: int = 0


def choose(due: Sequence[Due], *, step: int, groups_per_step: int, surplus: int = 0) -> Choice:
    """What `step` does, given how many groups are due by each deadline, cumulated and ascending.

    Let B be `groups_per_step`, L `max_lag`, E `surplus` (slots beyond (L + 1) B, whose groups may be shed), D(k) the
    number of outstanding groups with a deadline of `step + k` or before, and R(k) how many of those are filled.

    Rule. After the step at most k B + E of the D(k) may be left, for every k >= 0, and the at most E of them that are
    overdue then are shed: their prompts are tried again. So with n(k) = max(0, D(k) - k B - E) the step takes at least
    n(k) groups out of D(k), for every k.

    Why that keeps the bound. Call a step *safe* if D(k) <= (k + 1) B + E for every k >= 0 before it.

    1. A safe step has a choice. n(k) <= B, and the sets are nested: whoever takes the first p = max n(k) groups by
       deadline takes min(p, D(k)) >= n(k) out of each D(k). Of the filled groups it takes min(p, R(k)), which is enough
       once R(k) >= n(k) for every k; until then it waits, at most for those p groups.
    2. A step that obeys the rule leaves the next one safe: D'(k) counts deadlines up to `step + 1 + k`, of which at
       most (k + 1) B + E are left.
    3. Groups that join keep a step safe. A group reserved at published version v gets the deadline v + L. Outstanding
       groups and those of unpublished steps share (L + 1) B + E slots, and before `step` the steps v ... step - 1 hold
       (step - v) B of them. So at most (L + 1 - step + v) B + E groups are outstanding, and that is (k + 1) B + E for
       k = v + L - step: the only k, and those above it, for which the new group counts. The same holds for a group
       that starts again, and for one whose deadline is put off to v + L. A group that is kept, to be continued later,
       stays in D with its deadline and its slot. A group that is dropped only lowers D. One that is reserved for a pool
       of engines that serves an older version is admitted only if D(k) stays within (k + 1) B + E for every k. So a
       choice made from counts that have changed since is as good.
    4. Nothing is reserved while a run that was resumed takes the steps again that had their groups before: when it has
       reached the last of them, the slots stand as 3 supposes.
    5. The first step is safe by 3, hence all are; a group with deadline `step` is in D(0), of which the rule leaves
       only what is shed; so every group is trained at a step <= v + L, and its lag is at most L.

    Raises StaleError if the step is not safe, which only a fault outside of this function can bring about.
    """
    pressing = short = 0
    for row in due:
        needed = row.outstanding - max(0, row.deadline - step) * groups_per_step - surplus
        if needed > groups_per_step:
            raise StaleError(
                f"step {step}: {row.outstanding} groups are due by version {row.deadline}, more than its steps can take"
            )
        pressing = max(pressing, needed)
        short = max(short, needed - row.ready)
    ready = due[-1].ready if due else 0
    lacking = groups_per_step - ready
    return Choice(pressing, missing=max(short, lacking, 0), late=short if lacking <= 0 else 0)
