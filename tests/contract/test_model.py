"""Random schedules of workers, trainers, crashes, expiries and updates, held against a plain-Python oracle.

The number of schedules is SLIME_RL_SCHEDULES (each of up to 50 transitions, and a run to the end after them); the few
that are the default are the same ones each time.
"""

import asyncio
import os
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slime_rl.errors import FencedError, WaitTimeout

FEW = 40
NUM_SCHEDULES = int(os.environ.get("SLIME_RL_SCHEDULES", FEW))
TALLY = os.environ.get("SLIME_RL_TRANSITIONS")
"""A file that gets a line for each schedule: how many transitions it had."""
HOLDERS = ("worker-1", "worker-2", "worker-3")


class Checkpoint:
    """What the oracle knows of a checkpoint: its snapshot, and what had become of every group by then."""

    def __init__(self, version, snapshot, issued, dropped):
        self.version, self.snapshot, self.issued, self.dropped = version, snapshot, issued, dropped


class BufferMachine(RuleBasedStateMachine):
    """`steps` are the groups behind the weights that stand now; `live` and `filled` the reservations behind groups."""

    def __init__(self, make_harness, segment, sample):
        super().__init__()
        self.harness, self.segment, self.sample = make_harness(), segment, sample
        self.loop = asyncio.new_event_loop()
        self.live, self.filled, self.ended, self.progress = {}, {}, [], {}
        self.steps, self.issued, self.dropped = [], 0, 0
        self.published = self.committed = self.replay_until = 0
        self.num_transitions = 0

    def do(self, call):
        return self.loop.run_until_complete(call)

    def teardown(self):
        try:
            if hasattr(self, "buffer"):
                self.finish()
        finally:
            self.do(self.harness.close())
            self.loop.close()
            if TALLY is not None:
                with open(TALLY, "a") as tally:
                    tally.write(f"{self.num_transitions}\n")

    @initialize(
        groups_per_step=st.integers(1, 3),
        max_lag=st.integers(0, 3),
        surplus=st.sampled_from([0, 0, 0, 1, 2]),
        on_straggler=st.sampled_from(["wait", "wait", "requeue", "mask"]),
        num_prompts=st.integers(3, 9),
        max_epochs=st.sampled_from([None, 9]),
    )
    def begin(self, **changes):
        if changes["on_straggler"] == "mask":
            changes["surplus"] = 0  # which of the groups that were put off are shed is nothing the oracle could know
        self.buffer = self.do(self.harness.open(num_steps=20, max_attempts=3, **changes))
        self.pacing = self.buffer.pacing
        self.checkpoints = [Checkpoint(0, self.do(self.buffer.snapshot(0)), 0, 0)]

    @rule(holder=st.sampled_from(HOLDERS), behind=st.sampled_from([None, None, None, 0, 1, 2]))
    def reserve(self, holder, behind):
        serves = None if behind is None else max(0, self.published - behind)
        try:
            held = self.do(self.buffer.reserve(holder, serves=serves))
        except WaitTimeout:
            return
        if held is None:
            return
        self.issued = max(self.issued, held.id + 1)
        assert self.published >= self.replay_until, "sampled while steps are taken again"
        assert held.id not in self.live
        assert held.id not in self.filled
        assert held.id not in self.trained
        assert held.continued == (held.id in self.progress)
        assert held.deadline >= len(self.steps)
        served = self.published if serves is None else min(serves, self.published)
        assert held.deadline <= served + self.pacing.max_lag, "what these engines sample now would be too old for it"
        self.live[held.id] = held
        if not held.continued:  # one that is has kept its slot, though steps that were rolled back need theirs again
            assert len(self.live) + len(self.filled) + self.unpublished <= self.pacing.slots

    def reserve_all(self, holder):
        before = -1
        while len(self.live) > before:
            before = len(self.live)
            self.reserve(holder, None)

    @rule(holder=st.sampled_from(HOLDERS), data=st.data())
    def work(self, holder, data):
        """Take every slot there is, and finish some of the groups: what is left may become a straggler."""
        self.reserve_all(holder)
        for id in sorted(self.live, reverse=True):
            if data.draw(st.booleans()):
                self.fill_one(self.live[id])

    @rule(holder=st.sampled_from(HOLDERS), num_steps=st.integers(1, 5), slow=st.integers(0, 2))
    def go_on(self, holder, num_steps, slow):
        """Take some steps while so many groups, the ones held longest, do not come to their ends."""
        for _ in range(num_steps):
            self.reserve_all(holder)
            for id in sorted(self.live)[slow:]:
                self.fill_one(self.live[id])
            self.assign()
            if self.published < len(self.steps):
                self.publish()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=st.integers(1, 3))
    def extend(self, data, num_tokens):
        held = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        start = self.progress.get(held.id, 0)
        self.do(self.buffer.extend(held, self.segment(start, num_tokens, version=held.version)))
        self.progress[held.id] = start + num_tokens
        assert sum(part.num_tokens for part in self.do(self.buffer.segments(held))) == start + num_tokens

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fill(self, data):
        held = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.fill_one(held)

    def fill_one(self, held):
        for _ in range(2):
            self.do(self.buffer.fill(held, [self.sample(held.version, index=i) for i in range(2)]))
        self.filled[held.id] = self.live.pop(held.id)
        self.progress.pop(held.id, None)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def act_without_a_lease(self, data):
        buffer, held = data.draw(st.sampled_from(self.ended))
        with pytest.raises(FencedError):
            self.do(buffer.fill(held, [self.sample(held.version)]))
        with pytest.raises(FencedError):
            self.do(buffer.extend(held, self.segment(0, 1)))
        if buffer is self.buffer:
            self.do(buffer.release(held, reason="late", retry=True))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), retry=st.booleans())
    def release(self, data, retry):
        held = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.do(self.buffer.release(held, reason="released", retry=retry))
        self.end(held)

    @rule(holder=st.sampled_from(HOLDERS))
    def holder_dies(self, holder):
        self.do(self.harness.end_leases(holder))
        for held in [held for held in self.live.values() if held.holder == holder]:
            self.end(held)
        assert self.do(self.buffer.heartbeat(holder)) == frozenset()

    def end(self, held):
        self.ended.append((self.buffer, self.live.pop(held.id)))
        self.learn_what_was_dropped()

    def learn_what_was_dropped(self):
        """The counters say how many were; a partial is only left behind by a group that is kept."""
        status = self.do(self.buffer.status())
        self.dropped = sum(status.dropped.values())
        if not status.states["kept"]:
            self.progress = {id: done for id, done in self.progress.items() if id in self.live}

    @rule()
    def assign(self):
        step = len(self.steps)
        try:
            assignment = self.do(self.buffer.assign(step))
        except WaitTimeout:
            self.reconcile()
            return
        ids = [group.id for group in assignment.groups]
        if ids:
            assert ids == sorted(set(ids))
            assert not set(ids) & set(self.trained)
            for group in assignment.groups:
                held = self.filled.pop(group.id)
                assert group.oldest == held.version
                assert self.pacing.on_straggler == "mask" or step - held.version <= self.pacing.max_lag
            self.steps.append(ids)
        self.reconcile()

    def reconcile(self):
        """A step may have let stragglers go or shed a surplus: their holders find out by their heartbeats."""
        held = set().union(*(self.do(self.buffer.heartbeat(holder)) for holder in HOLDERS))
        for id in set(self.live) - held:
            self.ended.append((self.buffer, self.live.pop(id)))
            self.progress.pop(id, None)
        if self.pacing.surplus and self.steps:
            due = len(self.steps) - 1
            self.filled = {id: held for id, held in self.filled.items() if held.deadline > due}
        self.learn_what_was_dropped()

    @precondition(lambda self: self.published < len(self.steps))
    @rule()
    def publish(self):
        step = self.published
        assert [group.id for group in self.do(self.buffer.assign(step)).groups] == self.steps[step]
        assert len(self.harness.read(self.steps[step])) == len(self.steps[step])
        self.published += 1
        self.do(self.buffer.publish(self.published))

    @rule(commit=st.booleans())
    def save(self, commit):
        version = self.published
        self.checkpoints.append(Checkpoint(version, self.do(self.buffer.snapshot(version)), self.issued, self.dropped))
        if commit and version > self.committed:
            self.do(self.buffer.commit(version - 1))
            self.committed = version

    @rule(data=st.data(), lost=st.booleans())
    def crash(self, data, lost):
        """Everything but the server dies, or the server's data too; the run goes on from a checkpoint."""
        checkpoint = data.draw(st.sampled_from(self.checkpoints[-2:]))
        old, before = self.buffer, [*self.steps]
        self.ended += [(old, held) for held in self.live.values()]
        self.buffer = self.do(self.harness.resume(checkpoint.snapshot, lost=lost))
        self.live = {}
        self.published = version = checkpoint.version
        self.checkpoints = [c for c in self.checkpoints if c.version <= version]
        if lost or self.committed > version:
            self.steps, self.filled, self.progress = before[:version], {}, {}
            self.dropped, self.committed, self.replay_until = checkpoint.dropped, version, version
            self.checkpoints = [checkpoint]
        else:
            self.committed = max(self.committed, version)
            self.replay_until = max(version, len(before) - 1)
            self.learn_what_was_dropped()
        with pytest.raises(FencedError, match="was resumed"):
            self.do(old.assign(version))

    @property
    def trained(self):
        return [id for step in self.steps for id in step]

    @property
    def unpublished(self):
        return sum(map(len, self.steps[self.published :]))

    @invariant()
    def nothing_is_lost(self):
        """Every prompt that was issued is trained, dropped, or somewhere on its way."""
        if not hasattr(self, "buffer"):
            return
        self.num_transitions += 1
        status = self.do(self.buffer.status())
        states = status.states
        assert len(self.trained) == len(set(self.trained))
        assert states["reserved"] == len(self.live)
        assert states["filled"] == len(self.filled)
        on_their_way = states["reserved"] + states["kept"] + states["filled"] + states["requeued"]
        survey = self.do(self.buffer._survey())
        assert survey.issued == len(self.trained) + sum(status.dropped.values()) + on_their_way
        assert survey.taken == len(self.trained)
        assert status.version == self.published

    def finish(self):
        """Whatever the state is, a run whose workers and trainer go on comes to its end, and nothing is missing."""
        for _ in range(300):
            if self.published < len(self.steps):
                self.publish()
                continue
            before = len(self.steps)
            self.reserve_all(HOLDERS[0])
            for held in list(self.live.values()):
                self.fill_one(held)
            self.assign()
            if len(self.steps) == before and not self.live and not self.filled:
                break
        else:
            pytest.fail("stuck")
        self.nothing_is_lost()
        states = self.do(self.buffer.status()).states
        assert states["requeued"] == states["kept"] == states["reserved"] == states["filled"] == 0
        full = len(self.trained) == self.pacing.num_groups
        assert full or len(self.trained) + self.dropped == self.pacing.num_issues


@pytest.mark.slow
def test_random_schedules_keep_every_guarantee(make_harness, segment, sample):
    run_state_machine_as_test(
        cast(Any, lambda: BufferMachine(make_harness, segment, sample)),
        settings=settings(
            max_examples=NUM_SCHEDULES,
            stateful_step_count=50,
            deadline=None,
            derandomize=NUM_SCHEDULES == FEW,  # a longer search looks elsewhere each time
            suppress_health_check=[*cast(Any, HealthCheck)],
            phases=[Phase.generate],  # a schedule on a real server takes too long to shrink
        ),
    )
