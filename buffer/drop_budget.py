"""Bounds how many groups may be dropped while one step waits: a filter that nothing passes must not spin for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from slime_rl.errors import DropError
from slime_rl.types import ALL_ALIKE, NOTHING_RIGHT, TRUNCATED

MEANINGS = {
    NOTHING_RIGHT: "the prompts are too hard for the model, or the reward finds nothing right: look at samples/",
    ALL_ALIKE: "the prompts are too easy for the model, or the reward tells nothing apart: look at samples/",
    TRUNCATED: "the answers are longer than sampling.max_new_tokens",
    "EngineError": "the engines cannot answer: see logs/worker-*.log",
    "RewardError": "the reward function fails: see logs/worker-*.log",
    "FilterError": "a filter fails: see logs/worker-*.log",
    "lease expired": "workers die or hang: see logs/worker-*.log",
    "straggler": "answers take longer than loop.max_lag steps",
}
"""What it most likely means that a reason is the most frequent one; any other is a user's filter's own."""


class DropBudget:
    """Counts the drops by reason since one wait for `step` began."""

    def __init__(self, limit: int, *, step: int) -> None:
        self._limit = limit
        self._step = step
        self._before: Counter[str] | None = None

    def check(self, dropped: Mapping[str, int]) -> None:
        """`dropped` counts the whole run's drops by reason so far.

        Raises DropError with the reasons once more than `limit` of them came while the step waited.
        """
        if self._before is None:
            self._before = Counter(dropped)
        since = Counter(dropped) - self._before
        if since.total() > self._limit:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in since.most_common())
            first = since.most_common(1)[0][0]
            likely = MEANINGS.get(first, f"a filter of loop.filters is too strict with its {first!r}")
            raise DropError(
                f"step {self._step} is not full after {since.total()} groups were dropped ({reasons}); "
                f"loop.max_dropped_per_step allows {self._limit}; most likely {likely}"
            )
