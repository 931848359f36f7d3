"""Worked examples as groups: what the trainer reads in a supervised run, in place of the buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slime_rl.buffer.order import Order, Source
from slime_rl.config import Config
from slime_rl.rollout.rendering import Renderer
from slime_rl.types import Finish, Group, Prompt, Sample, Span, Version


class WorkedExamples:
    """Each of `prompts` as a group of one sample: the prompt rendered, masked out, and its answer, masked in."""

    def __init__(self, config: Config, prompts: Sequence[Prompt], sources: tuple[Source, ...] = ()) -> None:
        self._prompts = prompts
        self._order = Order(sources or (Source(len(prompts)),), config.run.seed, config.data.shuffle)
        self._renderer = Renderer(config.model, config.data)
        self._samples: dict[int, Sample] = {}

    def __call__(self, ids: Sequence[int]) -> list[Group]:
        """The groups of `ids`, which count rows over all epochs in their seeded order."""
        return [self._group(id, self._order.row(id)) for id in ids]

    def share(self, rank: int, num_ranks: int, max_prompts: int | None) -> list[Group]:
        """This rank's part of the first `max_prompts` rows, in the order of the file."""
        return [self._group(index, index) for index in range(len(self._prompts))[:max_prompts][rank::num_ranks]]

    def _group(self, id: int, index: int) -> Group:
        if index not in self._samples:
            self._samples[index] = self._sample(index)
        return Group(id=id, prompt_index=index, attempt=1, samples=(self._samples[index],))

    def _sample(self, index: int) -> Sample:
        prompt = self._prompts[index]
        question = self._renderer.encode_prompt(prompt)
        tokens = np.array([*question, *self._renderer.encode_answer(prompt.answer)], np.int32)
        return Sample(
            index=0,
            trajectory=0,
            tokens=tokens,
            loss_mask=np.arange(len(tokens)) >= len(question),
            logprobs=np.zeros(len(tokens), np.float32),
            versions=(Span(Version(0), len(question), len(tokens)),),
            temperature=1.0,
            finish=Finish.STOP,
            text=prompt.answer,
        )
