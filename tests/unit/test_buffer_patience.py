import asyncio

import pytest

from slime_rl.buffer.patience import Waiting, until_answered
from slime_rl.errors import WaitTimeout


class Question:
    """Has its answer at the `num_asks`-th time; every time before, `change` says how far the buffer is."""

    def __init__(self, num_asks, change, lease_ends_s=None):
        self.num_asks, self.change, self.lease_ends_s = num_asks, change, lease_ends_s
        self.asked, self.pauses = 0, []

    async def ask(self):
        await asyncio.sleep(0)
        self.asked += 1
        return "yes" if self.asked == self.num_asks else Waiting(self.change(self.asked), "for it", self.lease_ends_s)

    async def changed(self, change, timeout_s):
        assert change == self.change(self.asked)
        self.pauses.append(timeout_s)
        await asyncio.sleep(min(timeout_s, 0.01))


async def test_it_asks_until_there_is_an_answer():
    question = Question(4, change=lambda asked: 7)
    assert await until_answered(question.ask, question.changed, timeout_s=60.0) == "yes"
    assert question.asked == 4


async def test_it_gives_up_when_nothing_has_changed():
    question = Question(10_000, change=lambda asked: 7)
    with pytest.raises(WaitTimeout, match=r"^waiting 0 s for it$"):
        await until_answered(question.ask, question.changed, timeout_s=0.02)


async def test_a_change_starts_the_time_limit_anew():
    question = Question(6, change=lambda asked: asked)
    assert await until_answered(question.ask, question.changed, timeout_s=0.005) == "yes"


async def test_it_looks_again_when_a_lease_ends():
    question = Question(3, change=lambda asked: 7, lease_ends_s=0.001)
    await until_answered(question.ask, question.changed, timeout_s=60.0)
    assert question.pauses == [0.001, 0.001]
