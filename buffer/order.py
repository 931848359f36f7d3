"""Which prompt a group id stands for."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray


def prompt_index(group_id: int, *, num_prompts: int, seed: int, shuffle: bool) -> int:
    """The row of the data set behind the `group_id`-th prompt issued, over all epochs.

    Every epoch visits every row once: in the order of the file, or in a permutation drawn from (seed, epoch) alone, so
    that a resumed run goes on where it was without having stored any order.
    """
    epoch, position = divmod(group_id, num_prompts)
    return int(_permutation(seed, epoch, num_prompts)[position]) if shuffle else position


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """A permutation by numpy's frozen RandomState, whose stream no later release of numpy changes (NEP 19)."""
    generator = np.random.MT19937(np.random.SeedSequence([seed, epoch]))
    return np.random.RandomState(generator).permutation(size)
