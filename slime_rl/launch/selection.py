"""Which rows of the training data a run uses: all, or those whose prompts are short enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slime_rl.buffer.dataset import Selection, select
from slime_rl.config import Config, DataConfig
from slime_rl.errors import DataError
from slime_rl.launch.progress import console
from slime_rl.types import Prompt

NUM_RENDERED = 1000
"""How many prompts of each data set are rendered to see that they can be."""


class TokenCounter(Protocol):
    """What renders a prompt to count its tokens: a Renderer."""

    def count_tokens(self, prompt: Prompt, *, field: str) -> int:
        """How many tokens the model continues; raises DataError that names `field` for one that cannot be rendered."""
        ...


def select_rows(
    data: DataConfig, read: Mapping[str, tuple[Prompt, ...]], counter: TokenCounter
) -> tuple[tuple[Prompt, ...], Selection]:
    """Of all prompts `read`, leave out what is longer than `data.max_prompt_tokens` where that is asked for.

    Raises DataError for a prompt that cannot be rendered, for one that is longer and may not be left out, and for a
    source of which nothing remains.
    """
    left_out: dict[str, list[int]] = {}
    for name, prompts in read.items():
        if data.max_prompt_tokens is None:
            for prompt in prompts[:NUM_RENDERED]:
                counter.count_tokens(prompt, field=f"{name}.path")
        else:
            left_out[name] = _over_long(data, counter, prompts, field=f"{name}.path")
    return select(data, read, left_out)


def tell(config: Config, selection: Selection) -> None:
    """Say how many rows are left out, if any."""
    if selection.num_left_out:
        total = selection.num_left_out + sum(source.size for source in selection.sources)
        limit = config.data.max_prompt_tokens
        console.print(f"left out {selection.num_left_out} of {total} prompts, longer than {limit} tokens")


def _over_long(data: DataConfig, counter: TokenCounter, prompts: Sequence[Prompt], *, field: str) -> list[int]:
    """The indices of the prompts that are longer than the limit."""
    limit = data.max_prompt_tokens
    assert limit is not None, "without a limit nothing is over-long"
    found: list[int] = []
    longest = 0
    for prompt in prompts:
        num_tokens = counter.count_tokens(prompt, field=field)
        longest = max(longest, num_tokens)
        if num_tokens > limit:
            found.append(prompt.index)
    if found and data.over_long == "error":
        of = f"{len(found)} of {len(prompts)} prompts of {field}, the first of them prompt {found[0]}"
        raise DataError(
            f"data.max_prompt_tokens must be at least {longest}, the longest prompt, got {limit}: "
            f"{of}, are longer (data.over_long=drop leaves them out)"
        )
    if len(found) == len(prompts):
        raise DataError(f"data.max_prompt_tokens must leave a prompt of {field}, got {limit}: all are longer")
    return found
