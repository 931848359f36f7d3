"""Which scored groups teach nothing and are not trained on: built-in filters, and how they are told from a user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slime_rl.config import nearest
from slime_rl.errors import ConfigError
from slime_rl.rewards.functions import FILTER, check_function
from slime_rl.types import ALL_ALIKE, NOTHING_RIGHT, TRUNCATED, Finish, Prompt, Sample


def equal_rewards(samples: Sequence[Sample]) -> str | None:
    """Advantages compare the samples of a group: where all rewards are equal they are 0."""
    rewards = {sample.reward for sample in samples}
    if len(rewards) > 1:
        return None
    return ALL_ALIKE if (rewards.pop() or 0.0) > 0 else NOTHING_RIGHT


def all_truncated(samples: Sequence[Sample]) -> str | None:
    """No sample came to its end."""
    return TRUNCATED if all(sample.finish == Finish.LENGTH for sample in samples) else None


BUILT_IN: dict[str, Callable[[Sequence[Sample]], str | None]] = {
    function.__name__: function for function in (equal_rewards, all_truncated)
}


class BuiltIn:
    """A filter of this module; implements interfaces.Filter."""

    def __init__(self, name: str) -> None:
        self._drops = BUILT_IN[name]

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> str | None:
        """Why the group is dropped, or None."""
        return self._drops(samples)


def check_filter(name: str) -> None:
    """Refuse a name that stands for no filter; raises ConfigError for `loop.filters`."""
    if ".py:" in name:
        check_function(FILTER, name)
    elif name not in BUILT_IN:
        expected = f"must be path/to/file.py:function or one of {sorted(BUILT_IN)}{nearest(name, BUILT_IN)}"
        raise ConfigError(FILTER.path, expected, name)
