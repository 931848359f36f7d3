"""The program of one turn: the model answers a prompt once, and that is the trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slime_rl.config import SamplingConfig
from slime_rl.errors import EngineError
from slime_rl.rollout.engine_http import Completion, EngineHttp
from slime_rl.types import Finish, Prompt, Sample


class Rendering(Protocol):
    """What a program asks of `rendering.Renderer`, which needs a tokenizer and seconds to import."""

    @property
    def stop_token_ids(self) -> Sequence[int]: ...

    def encode_prompt(self, prompt: Prompt) -> list[int]: ...

    def decode(self, tokens: NDArray[np.int32]) -> str: ...


class SingleTurn:
    """Samples a whole group with one request, so that the engine reads the prompt once."""

    def __init__(self, *, http: EngineHttp, renderer: Rendering, sampling: SamplingConfig) -> None:
        self._http = http
        self._renderer = renderer
        self._max_new_tokens = sampling.max_new_tokens
        self._stop_token_ids = (*renderer.stop_token_ids, *sampling.stop_token_ids)

    async def __call__(self, prompt: Prompt, *, num_samples: int, temperature: float) -> list[Sample]:
        """One sample for each of `num_samples` trajectories.

        Raises EngineError if a sample was aborted: it stopped for a reason of ours and not of the model's, so the
        group must be sampled again as a whole.
        """
        tokens = self._renderer.encode_prompt(prompt)
        completions = await self._http.generate(
            tokens,
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=self._max_new_tokens,
            stop_token_ids=self._stop_token_ids,
        )
        num_aborted = sum(c.finish == Finish.ABORT for c in completions)
        if num_aborted:
            raise EngineError(
                f"{self._http.address.name} aborted {num_aborted} of {num_samples} samples of prompt {prompt.index}"
            )
        return [self._sample(i, tokens, completion, temperature) for i, completion in enumerate(completions)]

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
