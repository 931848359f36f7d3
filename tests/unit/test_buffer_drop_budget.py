"""How many groups may be dropped while a step waits, and what the error says they mean."""

import pytest

from slime_rl.buffer.drop_budget import DropBudget
from slime_rl.errors import DropError
from slime_rl.types import ALL_ALIKE, NOTHING_RIGHT


def test_only_what_was_dropped_during_the_wait_counts_and_the_limit_itself_is_allowed():
    budget = DropBudget(3, step=7)
    budget.check({NOTHING_RIGHT: 10})
    budget.check({NOTHING_RIGHT: 12, ALL_ALIKE: 1})
    with pytest.raises(
        DropError, match=r"^step 7 is not full after 4 groups were dropped \(.*: 2, .*: 2\); loop\.max_"
    ):
        budget.check({NOTHING_RIGHT: 12, ALL_ALIKE: 2})


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        (NOTHING_RIGHT, "allows 1; most likely the prompts are too hard"),
        (ALL_ALIKE, "most likely the prompts are too easy"),
        ("RewardError", "most likely the reward function fails"),
        ("lease expired", "most likely workers die or hang"),
        ("too short", "most likely a filter of loop.filters is too strict with its 'too short'$"),
    ],
)
def test_the_most_frequent_reason_is_what_the_error_explains(reason, meaning):
    budget = DropBudget(1, step=0)
    budget.check({})
    with pytest.raises(DropError, match=meaning):
        budget.check({"another": 1, reason: 2})
