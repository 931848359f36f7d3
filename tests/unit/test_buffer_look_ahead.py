"""The deadline rule, held against a brute force of schedules in which holders die and groups are dropped or put off."""

import random

import pytest

from slime_rl.buffer.look_ahead import Choice, Due, choose
from slime_rl.errors import StaleError


def due(groups):
    """Counts by deadline, cumulated, of (deadline, whether filled)."""
    groups = list(groups)
    rows = []
    for deadline in range(min(d for d, _ in groups), max(d for d, _ in groups) + 1):
        until = [filled for d, filled in groups if d <= deadline]
        rows.append(Due(deadline, len(until), sum(until)))
    return rows


def test_the_first_finished_are_taken_while_no_deadline_presses():
    assert choose(due([(2, False), (2, True), (2, True), (2, True)]), step=0, groups_per_step=2) == Choice()


def test_a_pressing_deadline_goes_before_an_earlier_finish():
    assert choose(due([(0, True), (2, True), (2, True)]), step=0, groups_per_step=2) == Choice(pressing=1)


def test_the_step_waits_for_what_is_due_although_enough_have_finished():
    choice = choose(due([(0, False), (2, True), (2, True)]), step=0, groups_per_step=2)
    assert choice == Choice(pressing=1, missing=1, late=1)


def test_it_looks_two_steps_ahead():
    """Design, section 4: two steps of newer groups would leave four old ones due at once."""
    old, newer = [(2, False)] * 4, [(3, True)] * 2
    assert choose(due(old + newer), step=0, groups_per_step=2) == Choice()
    assert choose(due(old + newer), step=1, groups_per_step=2) == Choice(pressing=2, missing=2, late=2)


def test_nobody_is_late_while_the_step_has_not_enough_anyhow():
    assert choose(due([(0, False), (3, True)]), step=0, groups_per_step=2) == Choice(pressing=1, missing=1)


def test_what_is_missing_counts_groups_that_are_not_yet_outstanding():
    assert choose(due([(0, False)]), step=0, groups_per_step=3) == Choice(pressing=1, missing=3)
    assert choose([], step=0, groups_per_step=3) == Choice(missing=3)


def test_more_due_groups_than_a_step_can_take_are_an_error():
    with pytest.raises(StaleError, match="step 5: 3 groups are due by version 5"):
        choose(due([(5, False)] * 3), step=5, groups_per_step=2)


def test_of_a_surplus_as_many_may_be_left_as_can_be_shed():
    groups = due([(0, True), (0, True), (0, False)])
    assert choose(groups, step=0, groups_per_step=2, surplus=1) == Choice(pressing=2)
    with pytest.raises(StaleError):
        choose(due([(0, False)] * 4), step=0, groups_per_step=2, surplus=1)


class Schedule:
    """Groups with heavy-tailed times: finished ones may be dropped, holders may die, and their groups start again or
    are continued. A step's slots stay taken until it is published, up to `max_lag` steps later.
    """

    def __init__(self, seed, take=choose):
        self.random = random.Random(seed)
        self.groups_per_step, self.max_lag = self.random.randint(1, 6), self.random.randint(0, 5)
        self.surplus = self.random.choice([0, 0, 1, 3])
        self.take, self.time, self.step, self.published, self.issued = take, 0, 0, 0, 0
        self.outstanding, self.lags, self.num_shed = {}, [], 0

    def run(self, num_steps):
        while self.step < num_steps:
            self.time += 1
            assert self.time < 200_000, "stuck"
            self.live()
            self.admit()
            self.train()
        return self.lags

    def start(self, id, *, version=None):
        version = self.published if version is None else version
        done = self.time + int(self.random.paretovariate(1.1))
        self.outstanding[id] = {"version": version, "deadline": version + self.max_lag, "due": done, "at": None}

    def admit(self):
        held = (self.step - self.published) * self.groups_per_step
        while len(self.outstanding) + held < (self.max_lag + 1) * self.groups_per_step + self.surplus:
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
                self.start(id, version=self.random.choice([None, state["version"]]))

    def train(self):
        table = [(s["deadline"], s["at"] is not None) for s in self.outstanding.values()]
        sizes = {"groups_per_step": self.groups_per_step, "surplus": self.surplus}
        choice = self.take(due(table), step=self.step, **sizes)
        if choice.missing:
            return
        for id in self.chosen(choice.pressing):
            self.lags.append(self.step - self.outstanding.pop(id)["version"])
            assert 0 <= self.lags[-1] <= self.max_lag
        overdue = [id for id, state in self.outstanding.items() if state["deadline"] <= self.step]
        assert len(overdue) <= self.surplus
        for id in overdue:
            del self.outstanding[id]
            self.num_shed += 1
        self.step += 1

    def chosen(self, pressing):
        ready = [id for id, state in self.outstanding.items() if state["at"] is not None]
        first = sorted(ready, key=lambda id: self.outstanding[id]["at"])
        by_deadline = sorted(first, key=lambda id: self.outstanding[id]["deadline"])[:pressing]
        ids = list(dict.fromkeys(by_deadline + first))[: self.groups_per_step]
        assert len(ids) == self.groups_per_step
        return ids


@pytest.mark.slow
def test_the_bound_holds_and_nothing_stalls_on_random_schedules():
    schedules = [Schedule(seed) for seed in range(1500)]
    assert max(lag for schedule in schedules for lag in schedule.run(15)) == 5
    assert sum(schedule.num_shed for schedule in schedules) > 100


def first_finished(groups, *, step, groups_per_step, surplus):
    """The rule without its look-ahead."""
    return Choice(missing=max(0, groups_per_step - groups[-1].ready))


def test_taking_the_first_finished_breaks_the_bound():
    def broken(seed):
        try:
            Schedule(seed, take=first_finished).run(25)
        except AssertionError:
            return True
        return False

    assert sum(map(broken, range(50))) > 10
