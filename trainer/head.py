"""From hidden states to log-probabilities without ever holding the logits of a whole micro-batch.

Shape letters: M trained tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime_rl.trainer.objective import logprobs_and_entropy

MAX_LOGITS = 2**25
"""How many logits exist at once: 128 MB in float32."""


def token_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    *,
    max_logits: int = MAX_LOGITS,
    trains_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target and the entropy at its place, at the sample's own temperature.

    What does not fit into `max_logits` is cut into chunks of tokens, whose logits are made again in the backward pass.

    hidden [M, H], head [V, H], targets [M], temperatures [M] -> l [M], entropy [M]; float32. The entropy has a
    gradient only where it `trains_entropy`.
    """
    chunk = max(1, max_logits // len(head))
    if len(hidden) <= chunk:
        return _chunk_logprobs(hidden, head, targets, temperatures, trains_entropy)
    parts = [
        checkpoint(_chunk_logprobs, part, head, *rest, trains_entropy, use_reentrant=False, preserve_rng_state=False)
        for part, *rest in zip(hidden.split(chunk), targets.split(chunk), temperatures.split(chunk), strict=True)
    ]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


def _chunk_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperatures: Tensor, trains_entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, head)
    return logprobs_and_entropy(logits, targets, temperatures, trains_entropy=trains_entropy)
