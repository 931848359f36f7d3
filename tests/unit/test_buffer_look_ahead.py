"""The deadline rule, held against a brute force of schedules in which holders die and groups are dropped."""

import random

import pytest

from slime_rl.buffer.look_ahead import Candidate, Choice, choose
from slime_rl.errors import StaleError


def group(id, deadline, finished=None):
    return Candidate(id, deadline, finished)


def test_the_first_finished_are_taken_while_no_deadline_presses():
    groups = [group(0, 2), group(1, 2, finished=3), group(2, 2, finished=1), group(3, 2, finished=2)]
    assert choose(groups, step=0, groups_per_step=2) == Choice((2, 3))


def test_a_pressing_deadline_goes_before_an_earlier_finish():
    groups = [group(0, 0, finished=9), group(1, 2, finished=1), group(2, 2, finished=2)]
    assert choose(groups, step=0, groups_per_step=2) == Choice((0, 1))


def test_the_step_waits_for_what_is_due_although_enough_have_finished():
    groups = [group(0, 0), group(1, 2, finished=1), group(2, 2, finished=2)]
    assert choose(groups, step=0, groups_per_step=2) == Choice(None, missing=1, waits_for=(0,))


def test_it_looks_two_steps_ahead():
    """Design, section 4: two steps of newer groups would leave four old ones due at once."""
    old = [group(i, 2) for i in range(4)]
    newer = [group(i, 3, finished=i) for i in (4, 5)]
    assert choose(old + newer, step=0, groups_per_step=2).ids == (4, 5)
    assert choose(old + newer, step=1, groups_per_step=2) == Choice(None, missing=2, waits_for=(0, 1, 2, 3))


def test_a_short_step_names_whom_it_waits_for_by_deadline():
    groups = [group(1, 4), group(2, 3), group(3, 3, finished=0)]
    assert choose(groups, step=0, groups_per_step=3) == Choice(None, missing=2, waits_for=(2, 1))


def test_what_is_missing_counts_groups_that_are_not_yet_outstanding():
    assert choose([group(0, 0)], step=0, groups_per_step=3) == Choice(None, missing=3, waits_for=(0,))


def test_more_due_groups_than_a_step_can_take_are_an_error():
    with pytest.raises(StaleError, match="step 5: 3 groups are due by version 5"):
        choose([group(i, 5) for i in range(3)], step=5, groups_per_step=2)


class Schedule:
    """Groups with heavy-tailed times: finished ones may be dropped, holders may die and start again.

    A step's slots stay taken until it is published, up to `max_lag` steps later.
    """

    def __init__(self, seed, take=choose):
        self.random = random.Random(seed)
        self.groups_per_step, self.max_lag = self.random.randint(1, 6), self.random.randint(0, 5)
        self.take, self.time, self.step, self.published, self.issued = take, 0, 0, 0, 0
        self.outstanding, self.lags = {}, []

    def run(self, num_steps):
        while self.step < num_steps:
            self.time += 1
            assert self.time < 200_000, "stuck"
            self.live()
            self.admit()
            self.train()
        return self.lags

    def start(self, id):
        self.outstanding[id] = {
            "version": self.published,
            "due": self.time + int(self.random.paretovariate(1.1)),
            "at": None,
        }

    def admit(self):
        held = (self.step - self.published) * self.groups_per_step
        while len(self.outstanding) + held < (self.max_lag + 1) * self.groups_per_step:
            self.start(self.issued)
            self.issued += 1

    def live(self):
        if self.published < self.step and (self.random.random() < 0.5 or self.step - self.published > self.max_lag):
            self.published += 1
        for id, state in list(self.outstanding.items()):
            if state["at"] is None and state["due"] <= self.time:
                state["at"] = self.time
                if self.random.random() < 0.1:
                    del self.outstanding[id]
            elif state["at"] is None and self.random.random() < 0.02:
                self.start(id)

    def train(self):
        table = [Candidate(i, s["version"] + self.max_lag, s["at"]) for i, s in self.outstanding.items()]
        choice = self.take(table, step=self.step, groups_per_step=self.groups_per_step)
        if choice.ids is None:
            assert choice.missing > 0
            return
        assert len(choice.ids) == self.groups_per_step
        for id in choice.ids:
            state = self.outstanding.pop(id)
            assert state["at"] is not None
            self.lags.append(self.step - state["version"])
            assert 0 <= self.lags[-1] <= self.max_lag
        self.step += 1


@pytest.mark.slow
def test_the_bound_holds_and_nothing_stalls_on_random_schedules():
    lags = [lag for seed in range(1500) for lag in Schedule(seed).run(15)]
    assert max(lags) == 5


def first_finished(groups, *, step, groups_per_step):
    """The rule without its look-ahead."""
    ready = sorted((g for g in groups if g.finished is not None), key=lambda g: g.finished)
    enough = len(ready) >= groups_per_step
    return Choice(tuple(g.id for g in ready[:groups_per_step])) if enough else Choice(None, missing=1)


def test_taking_the_first_finished_breaks_the_bound():
    def broken(seed):
        try:
            Schedule(seed, take=first_finished).run(25)
        except AssertionError:
            return True
        return False

    assert sum(map(broken, range(50))) > 10
