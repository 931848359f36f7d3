"""The functions of `lua/` in plain Python, on dictionaries: what they do, without how a server stores it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_rl.buffer.group_buffer import draw_incarnation
from slime_rl.buffer.snapshot import Snapshot

LEASE_EXPIRED = "lease expired"
UNFINISHED = "reserved", "kept"


@dataclass(slots=True)
class _Group:
    """A group from its first reservation to its drop or the commit of its step."""

    id: int
    state: str = "requeued"
    attempt: int = 0
    faults: int = 0
    holder: str = ""
    request: str = ""
    version: int = 0
    deadline: int = 0
    temperature: float = 0.0
    since: float = 0.0
    lease_end: float = 0.0
    finished: int = 0
    sizes: tuple[int, int, int] = (0, 0, 0)
    payload: bytes = b""
    segments: list[bytes] = field(default_factory=list)
    progress: dict[int, int] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return len(self.payload) + sum(map(len, self.segments))

    def discard(self) -> None:
        """Forget what was generated."""
        self.payload = b""
        self.segments, self.progress = [], {}


class MemoryState:
    """One run's groups, steps and counters. `limits` are those of Pacing; `clock` returns seconds."""

    def __init__(self, limits: Mapping[str, int | float], clock: Callable[[], float]) -> None:
        self.limits = limits
        self.groups: dict[int, _Group] = {}
        self.incarnation = draw_incarnation()
        self.sequence = 1
        self.changes = 1
        self._clock = clock
        self._steps: dict[int, list[_Group]] = {}
        self._version = self._issued = self._finished = self._taken = self._committed = 0
        self._next_step = self._committed_steps = self._replay_until = 0
        self._closed = False
        self._dropped: Counter[str] = Counter()
        self._requeued_by: Counter[str] = Counter()
        self._lags: Counter[str] = Counter()

    def run(self, name: str, incarnation: int, seen: int, *args: Any) -> dict[str, Any]:
        """The reply of a function, as lua/state.lua begins each of them."""
        if incarnation != self.incarnation:
            return {"verdict": "superseded", "sequence": self.sequence}
        if self.sequence < seen:
            return {"verdict": "behind", "sequence": self.sequence}
        verdict, fields = getattr(self, f"_{name}")(*args)
        return fields | {"verdict": verdict, "sequence": self.sequence}

    def rollback(self, version: int, sequence: int) -> bool:
        """Begin a new incarnation at a checkpoint, unless its snapshot must be used (lua/rollback.lua)."""
        if self.sequence < sequence or self._next_step < version or self._committed_steps > version:
            return False
        self._forget_steps(version)
        self.incarnation = draw_incarnation()
        self._version, self._closed = version, False
        self._replay_until = max(version, self._next_step - 1)
        for group in self._in("reserved"):
            self._requeued_by["resumed"] += 1
            group.state = "kept" if group.progress else "requeued"
        self._note()
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Begin a new incarnation from a snapshot alone (lua/restore.lua)."""
        self.incarnation = draw_incarnation()
        self.sequence = max(self.sequence, snapshot.sequence) + 1
        self.groups = {id: _Group(id) for id in snapshot.open}
        self._steps, self._closed, self._finished = {}, False, 0
        self._version = self._next_step = self._committed_steps = self._replay_until = snapshot.version
        self._issued, self._taken, self._committed = snapshot.issued, snapshot.taken, snapshot.taken
        self._dropped, self._requeued_by = Counter(snapshot.dropped), Counter(snapshot.requeued_by)
        self._lags = Counter(snapshot.lags)
        self._note()

    def _reserve(self, holder: str, request: str, serves: int) -> tuple[str, dict[str, Any]]:
        self._sweep()
        for group in self._in("reserved"):
            if group.request == request:
                return self._reservation(group)
        reserved, kept, filled = (len(self._in(state)) for state in ("reserved", "kept", "filled"))
        outstanding = reserved + kept + filled
        requeued = sorted(self._in("requeued"), key=lambda group: group.id)
        wanted = self.limits["num_groups"] > self._taken + outstanding
        unissued = self.limits["num_issues"] < 0 or self._issued < self.limits["num_issues"]
        has_prompt = wanted and (bool(requeued) or unissued)
        may_return = reserved + kept + (filled if self.limits["surplus"] else 0)
        waits = {
            "change": self.changes,
            "reserved": reserved,
            "kept": kept,
            "filled": filled,
            "unpublished": self._unpublished,
            "version": self._version,
            "lease_ends_ms": self._lease_ends_ms,
        }
        if self._closed or (not may_return and not has_prompt):
            return "done", {}
        if self._version < self._replay_until:
            return "wait", waits | {"why": "replay"}
        version = self._version if serves < 0 else min(serves, self._version)
        deadline = version + int(self.limits["max_lag"])
        first = min(self._in("kept"), key=lambda group: (group.deadline, str(group.id)), default=None)
        if first is not None and first.deadline <= deadline:
            return self._hold(first, holder, request)
        if not has_prompt:
            return "wait", waits | {"why": "prompts"}
        if outstanding + self._unpublished >= self.limits["slots"]:
            return "wait", waits | {"why": "slots"}
        if not self._fits(deadline):
            return "wait", waits | {"why": "pool"}
        group = requeued[0] if requeued else self._issue()
        group.version, group.deadline = version, deadline
        return self._hold(group, holder, request)

    def _issue(self) -> _Group:
        group = self.groups[self._issued] = _Group(self._issued)
        self._issued += 1
        return group

    def _hold(self, group: _Group, holder: str, request: str) -> tuple[str, dict[str, Any]]:
        group.temperature = group.temperature or self.limits["temperature"]
        group.state, group.holder, group.request, group.since = "reserved", holder, request, self._clock()
        group.attempt += 1
        group.lease_end = self._clock() + self.limits["lease_ms"] / 1000
        self.sequence += 1
        return self._reservation(group)

    def _reservation(self, group: _Group) -> tuple[str, dict[str, Any]]:
        names = "id", "attempt", "version", "deadline", "temperature"
        return "reserved", {name: getattr(group, name) for name in names} | {"continued": bool(group.progress)}

    def _heartbeat(self, holder: str) -> tuple[str, dict[str, Any]]:
        self._sweep()
        held = [group for group in self._in("reserved") if group.holder == holder]
        for group in held:
            group.lease_end = self._clock() + self.limits["lease_ms"] / 1000
        return "beat", {"held": [group.id for group in held]}

    def _extend(
        self, id: int, attempt: int, index: int, start: int, num_tokens: int, segment: bytes
    ) -> tuple[str, dict[str, Any]]:
        if (now := self._refusal(id, attempt)) is not None:
            return "fenced", {"now": now}
        group = self.groups[id]
        progress = group.progress.get(index, 0)
        if num_tokens > 0 and start + num_tokens <= progress:
            return "extended", {}
        if start != progress:
            return "gap", {"progress": progress}
        group.segments.append(segment)
        group.progress[index] = start + num_tokens
        self.sequence += 1
        return "extended", {}

    def _fill(self, id: int, attempt: int, payload: bytes, *sizes: int) -> tuple[str, dict[str, Any]]:
        group = self.groups.get(id)
        if group and group.attempt == attempt and group.state in ("filled", "assigned"):
            return "filled", {}
        if (now := self._refusal(id, attempt)) is not None:
            return "fenced", {"now": now}
        assert group is not None
        self._finished += 1
        group.discard()
        num_samples, num_tokens, oldest = sizes
        group.state, group.finished, group.payload = "filled", self._finished, payload
        group.sizes = num_samples, num_tokens, oldest
        self._note()
        return "filled", {}

    def _release(self, id: int, attempt: int, reason: str, retry: int) -> tuple[str, dict[str, Any]]:
        group = self.groups.get(id)
        if group and group.state == "reserved" and group.attempt == attempt:
            self._give_back(group, reason, retry=bool(retry))
        return "released", {}

    def _survey(self, num_named: int) -> tuple[str, dict[str, Any]]:
        self._sweep()
        deadlines = sorted({group.deadline for group in self._in("filled", *UNFINISHED)})
        named = sorted(self._in(*UNFINISHED), key=lambda group: (group.deadline, str(group.id)))[:num_named]
        counters = {
            "changes": self.changes,
            "version": self._version,
            "next_step": self._next_step,
            "replay_until": self._replay_until,
            "issued": self._issued,
            "taken": self._taken,
            "committed": self._committed,
            "unpublished": self._unpublished,
            "closed": self._closed,
            "bytes": sum(group.num_bytes for group in self.groups.values()),
        }
        return "survey", {
            "counters": counters,
            **{state: len(self._in(state)) for state in ("reserved", "kept", "filled", "requeued")},
            "lease_ends_ms": self._lease_ends_ms,
            "now_ms": self._clock() * 1000,
            "due": [(deadline, *self._count_due(deadline)) for deadline in deadlines],
            "named": [(g.id, g.attempt, g.holder, g.deadline, int(g.since * 1000), g.state) for g in named],
            "dropped": _flat(self._dropped),
            "requeued_by": _flat(self._requeued_by),
            "lags": _flat(self._lags),
        }

    def _assign(self, step: int, num_groups: int, pressing: int, bound: int) -> tuple[str, dict[str, Any]]:
        if step < self._committed_steps:
            return "committed", {}
        if step < self._next_step:
            return "assigned", {"groups": _rows(self._steps[step])}
        if step > self._next_step:
            return "early", {}
        groups = self._take(num_groups, pressing)
        if not num_groups or len(groups) < num_groups:
            return "open", {}
        for group in groups:
            if group.sizes[2] < bound:
                return "stale", {"id": group.id, "oldest": group.sizes[2]}
        for group in groups:
            group.state = "assigned"
            self._lags[str(step - group.sizes[2])] += 1
        self._steps[step] = groups
        self._taken += len(groups)
        self._next_step += 1
        shed = self._shed(step) if self.limits["surplus"] else []
        self._note()
        return "assigned", {"groups": _rows(groups), "shed": shed}

    def _take(self, num_groups: int, pressing: int) -> list[_Group]:
        """The first by deadline, then the first that finished; in the order of their ids."""
        by_place = sorted(self._in("filled"), key=lambda group: group.finished)
        by_deadline = sorted(by_place, key=lambda group: group.deadline)
        chosen = {group.id: group for group in [*by_deadline[:pressing], *by_place]}
        return sorted(list(chosen.values())[:num_groups], key=lambda group: group.id)

    def _shed(self, step: int) -> list[tuple[int, ...]]:
        late = [group for group in self._in("filled", *UNFINISHED) if group.deadline <= step]
        rows = _rows(group for group in late if group.state == "filled")
        for group in late:
            self._requeue(group, "surplus")
        return rows

    def _straggle(self, num_groups: int, how: str) -> tuple[str, dict[str, Any]]:
        deadline, changed = self._version + int(self.limits["max_lag"]), 0
        late = sorted(self._in(*UNFINISHED), key=lambda group: (group.deadline, str(group.id)))[:num_groups]
        for group in late:
            if how == "mask":
                changed += group.deadline < deadline
                group.deadline = max(group.deadline, deadline)
                continue
            changed += 1
            group.faults += 1
            if group.faults >= self.limits["max_attempts"]:
                self._drop(group, "straggler")
            else:
                self._requeue(group, "straggler")
        if changed:
            self._note()
        return "let_go", {"num_groups": changed}

    def _publish(self, version: int) -> tuple[str, dict[str, Any]]:
        if version > self._next_step:
            return "early", {}
        if version > self._version:
            self._version = version
            self._note()
        return "published", {}

    def _commit(self, step: int) -> tuple[str, dict[str, Any]]:
        if step >= self._version:
            return "early", {}
        return "committed", {"ids": self._forget_steps(step + 1)}

    def _snapshot(self, version: int) -> tuple[str, dict[str, Any]]:
        if not self._committed_steps <= version <= self._version:
            return "early", {}
        trained = {group.id for step, groups in self._steps.items() if step < version for group in groups}
        return "snapshot", {
            "issued": self._issued,
            "taken": self._committed + len(trained),
            "open": [id for id in self.groups if id not in trained],
            "dropped": _flat(self._dropped),
            "requeued_by": _flat(self._requeued_by),
            "lags": _flat(self._lags),
        }

    def _close(self) -> tuple[str, dict[str, Any]]:
        self._closed = True
        self._note()
        return "closed", {}

    @property
    def _unpublished(self) -> int:
        return sum(len(groups) for step, groups in self._steps.items() if step >= self._version)

    @property
    def _lease_ends_ms(self) -> float:
        ends = [group.lease_end - self._clock() for group in self._in("reserved")]
        return max(0.0, min(ends)) * 1000 if ends else -1

    def _in(self, *states: str) -> list[_Group]:
        return [group for group in self.groups.values() if group.state in states]

    def _count_due(self, deadline: int) -> tuple[int, int]:
        """How many outstanding groups are due by then, and how many of these are filled."""
        due = [group for group in self._in("filled", *UNFINISHED) if group.deadline <= deadline]
        return len(due), sum(group.state == "filled" for group in due)

    def _fits(self, deadline: int) -> bool:
        """Whether a group due at `deadline` leaves every step safe (look_ahead.py)."""
        if deadline < self._next_step:
            return False
        last = self._version + int(self.limits["max_lag"])
        return all(
            self._count_due(bound)[0] + 1
            <= (bound - self._next_step + 1) * self.limits["groups_per_step"] + self.limits["surplus"]
            for bound in range(deadline, last + 1)
        )

    def _refusal(self, id: int, attempt: int) -> str | None:
        group = self.groups.get(id)
        if group is None:
            return "and it is dropped or committed"
        if group.attempt != attempt or group.state != "reserved":
            return f"and its attempt {group.attempt} is {group.state}"
        if group.lease_end <= self._clock():
            return "and nobody has taken it yet"
        return None

    def _sweep(self) -> None:
        """Give back the groups whose lease has ended."""
        for group in self._in("reserved"):
            if group.lease_end <= self._clock():
                self._give_back(group, LEASE_EXPIRED, retry=True)

    def _give_back(self, group: _Group, reason: str, *, retry: bool) -> None:
        group.faults += retry
        if not retry or group.faults >= self.limits["max_attempts"]:
            self._drop(group, reason)
        elif group.progress:
            group.state = "kept"
            self._requeued_by[reason] += 1
        else:
            self._requeue(group, reason)
        self._note()

    def _requeue(self, group: _Group, reason: str) -> None:
        group.discard()
        group.state = "requeued"
        self._requeued_by[reason] += 1

    def _drop(self, group: _Group, reason: str) -> None:
        del self.groups[group.id]
        self._dropped[reason] += 1

    def _forget_steps(self, end: int) -> list[int]:
        """Delete the groups of the steps before `end`; their ids."""
        ids = [group.id for step in range(self._committed_steps, end) for group in self._steps.pop(step)]
        for id in ids:
            del self.groups[id]
        self._committed += len(ids)
        self._committed_steps = max(self._committed_steps, end)
        self.sequence += bool(ids)
        return ids

    def _note(self) -> None:
        """Number a write that somebody may wait for."""
        self.sequence += 1
        self.changes += 1


def _flat(counts: Mapping[str, int]) -> list[Any]:
    return [part for pair in counts.items() for part in pair]


def _rows(groups: Iterable[_Group]) -> list[tuple[int, ...]]:
    return [(group.id, *group.sizes) for group in groups]
