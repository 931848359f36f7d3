"""The program of one turn: the model answers a prompt once, and that is the trajectory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slime_rl.config import SamplingConfig
from slime_rl.errors import EngineError
from slime_rl.interfaces import Drafts
from slime_rl.rollout.engine_http import Completion, EngineHttp
from slime_rl.rollout.seeds import NO_GROUP, Seeds
from slime_rl.rollout.segments import by_sample, join
from slime_rl.types import SMALLEST_GROUP, Finish, Prompt, Sample, Segment, Span


class Rendering(Protocol):
    """What a program asks of `rendering.Renderer`, which needs a tokenizer and seconds to import."""

    @property
    def stop_token_ids(self) -> Sequence[int]: ...

    def encode_prompt(self, prompt: Prompt) -> list[int]: ...

    def decode(self, tokens: NDArray[np.int32]) -> str: ...


log = logging.getLogger(__name__)


class SingleTurn:
    """Samples a whole group with one request, so that the engine reads the prompt once.

    An answer that may be longer than `segment_tokens` is asked for in parts of that length, each of which is durable
    before the next one is asked for. With `seeds` every sample is a request with a seed of its own, whole in one part.

    A sample that was aborted, or failed in its parts, is asked for again alone, `max_attempts` times in all. A group
    that stays short of some is an error, unless it `may_be_short` and has SMALLEST_GROUP left.
    """

    def __init__(
        self,
        *,
        http: EngineHttp,
        renderer: Rendering,
        sampling: SamplingConfig,
        segment_tokens: int | None = None,
        seeds: Seeds | None = None,
        max_attempts: int = 1,
        may_be_short: bool = False,
    ) -> None:
        self._http = http
        self._renderer = renderer
        self._max_new_tokens = sampling.max_new_tokens
        self._stop_token_ids = (*renderer.stop_token_ids, *sampling.stop_token_ids)
        self._segment_tokens = segment_tokens or sampling.max_new_tokens
        self._seeds = seeds
        self._max_attempts = max_attempts
        self._may_be_short = may_be_short

    async def __call__(
        self, prompt: Prompt, *, num_samples: int, temperature: float, drafts: Drafts | None = None
    ) -> list[Sample]:
        """One sample for each of `num_samples` trajectories.

        Raises EngineError if a sample stays aborted: it stopped for a reason of ours and not of the model's, so the
        group must be sampled again, from its drafts where it has some.
        """
        tokens = self._renderer.encode_prompt(prompt)
        if self._seeds is not None:
            group = NO_GROUP if drafts is None else drafts.group
            seeds = [self._seeds.of(group=group, prompt=prompt.index, sample=i) for i in range(num_samples)]
            return self._group(prompt, tokens, await self._seeded(tokens, seeds, temperature), temperature)
        if drafts is not None and self._segment_tokens < self._max_new_tokens:
            return await self._in_parts(tokens, num_samples, temperature, drafts)
        return self._group(prompt, tokens, await self._whole(tokens, num_samples, temperature), temperature)

    async def _whole(self, tokens: list[int], num_samples: int, temperature: float) -> list[Completion]:
        """A completion for each sample, those that were aborted asked for again."""
        completions = await self._generate(tokens, num_samples, temperature, self._max_new_tokens)
        for _ in range(self._max_attempts - 1):
            aborted = [i for i, completion in enumerate(completions) if completion.finish is Finish.ABORT]
            if not aborted:
                break
            log.warning("%d of %d samples were aborted and are asked for again", len(aborted), num_samples)
            for i, completion in zip(aborted, await self._again(tokens, len(aborted), temperature), strict=False):
                completions[i] = completion
        return completions

    async def _again(self, tokens: list[int], num_samples: int, temperature: float) -> list[Completion]:
        """So many completions, or none where the request fails: it must not cost the ones that are there."""
        try:
            return await self._generate(tokens, num_samples, temperature, self._max_new_tokens)
        except EngineError as fault:
            log.warning("%d samples could not be asked for again: %s", num_samples, fault)
            return []

    async def _seeded(self, tokens: list[int], seeds: list[int], temperature: float) -> list[Completion]:
        """A completion for each seed, one after the other."""
        return [
            completion
            for seed in seeds
            for completion in await self._generate(tokens, 1, temperature, self._max_new_tokens, seed=seed)
        ]

    def _group(
        self, prompt: Prompt, tokens: list[int], completions: Sequence[Completion], temperature: float
    ) -> list[Sample]:
        whole = [(i, completion) for i, completion in enumerate(completions) if completion.finish is not Finish.ABORT]
        num_aborted = len(completions) - len(whole)
        if num_aborted and not (self._may_be_short and len(whole) >= SMALLEST_GROUP):
            raise EngineError(
                f"{self._http.address.name} aborted {num_aborted} of {len(completions)} samples "
                f"of prompt {prompt.index}"
            )
        return [self._sample(i, tokens, completion, temperature) for i, completion in whole]

    async def _in_parts(self, prompt: list[int], num_samples: int, temperature: float, drafts: Drafts) -> list[Sample]:
        """Every sample by itself, from where its parts end; one that fails lets the others come to their ends."""
        earlier = by_sample(await drafts.segments(), num_samples)
        tasks = [self._persist(i, prompt, parts, temperature, drafts) for i, parts in enumerate(earlier)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        whole = [result for result in results if isinstance(result, Sample)]
        may_be_short = self._may_be_short and len(whole) >= SMALLEST_GROUP
        for result in results:
            if isinstance(result, BaseException) and not (may_be_short and isinstance(result, EngineError)):
                raise result
        return whole

    async def _persist(
        self, index: int, prompt: list[int], parts: list[Segment], temperature: float, drafts: Drafts
    ) -> Sample:
        """A sample by itself, gone on with after each failure from the parts it has by then."""
        for _ in range(self._max_attempts - 1):
            try:
                return await self._finish(index, prompt, parts, temperature, drafts)
            except EngineError as fault:
                log.warning("sample %d is gone on with after %d parts: %s", index, len(parts), fault)
        return await self._finish(index, prompt, parts, temperature, drafts)

    async def _finish(
        self, index: int, prompt: list[int], parts: list[Segment], temperature: float, drafts: Drafts
    ) -> Sample:
        while not parts or parts[-1].finish is None:
            tokens = [*map(int, np.concatenate([part.tokens for part in parts]))] if parts else prompt
            left = self._max_new_tokens - (len(tokens) - len(prompt))
            limit = min(self._segment_tokens, left)
            [completion] = await self._generate(tokens, 1, temperature, limit)
            part = self._part(index, tokens, completion, temperature, is_first=not parts, is_last=limit == left)
            if part.num_tokens or part.finish is not None:
                await drafts.extend(part)
                parts.append(part)
            if completion.finish is Finish.ABORT:
                raise EngineError(f"{self._http.address.name} aborted sample {index} after {len(tokens)} tokens")
        written = np.concatenate([part.tokens for part in parts])[len(prompt) :]
        return join(parts, text=self._renderer.decode(written))

    def _part(
        self,
        index: int,
        before: list[int],
        completion: Completion,
        temperature: float,
        *,
        is_first: bool,
        is_last: bool,
    ) -> Segment:
        """What a completion adds to the tokens before it; the first part begins with the prompt."""
        num_read = len(before) if is_first else 0
        start = len(before) - num_read
        written = len(completion.tokens)
        goes_on = completion.finish is Finish.ABORT or (completion.finish is Finish.LENGTH and not is_last)
        return Segment(
            index=index,
            start=start,
            tokens=np.concatenate([np.array(before[start:], dtype=np.int32), completion.tokens]),
            loss_mask=np.arange(num_read + written) >= num_read,
            logprobs=np.concatenate([np.zeros(num_read, dtype=np.float32), completion.logprobs]),
            versions=tuple(Span(s.version, s.start - start, s.end - start) for s in completion.versions),
            temperature=temperature,
            finish=None if goes_on else completion.finish,
        )

    async def _generate(
        self,
        tokens: list[int],
        num_samples: int,
        temperature: float,
        max_new_tokens: int,
        seed: int | None = None,
    ) -> list[Completion]:
        return await self._http.generate(
            tokens,
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            stop_token_ids=self._stop_token_ids,
            seed=seed,
        )

    def _sample(self, index: int, prompt: list[int], completion: Completion, temperature: float) -> Sample:
        zeros = np.zeros(len(prompt), dtype=np.float32)
        tokens = np.concatenate([np.array(prompt, dtype=np.int32), completion.tokens])
        return Sample(
            index=index,
            trajectory=index,
            tokens=tokens,
            loss_mask=np.arange(len(tokens)) >= len(prompt),
            logprobs=np.concatenate([zeros, completion.logprobs]),
            versions=completion.versions,
            temperature=temperature,
            finish=completion.finish,
            text=self._renderer.decode(completion.tokens),
        )
