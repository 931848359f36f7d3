"""The objective as pure functions on trained tokens only.

Masked-out values never get here: packing selects the trained tokens first, so that no 0 * NaN can leak. Each function
returns one value per token or sample; the caller sums over every micro-batch and rank and divides once by N, the number
of trained tokens of the whole step.

Shape letters: M trained tokens, S samples, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STD_EPSILON = 1e-6
MAX_EXPONENT = 20.0
"""A ratio of e^20 is far outside every clip range and far inside float32."""


def group_advantages(rewards: Tensor, groups: Tensor, trajectories: Tensor, *, normalize_by_std: bool) -> Tensor:
    """The advantage of each sample over its group: A = R - mean(R), by trajectory.

    GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2); without the division by the standard deviation as in
    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783). Samples of one group and trajectory are branches: they share its
    reward and count once in the mean and the standard deviation (unbiased, plus 1e-6).

    rewards [S] floats, groups [S] and trajectories [S] ids in any order -> [S]. A lone trajectory has advantage 0.
    """
    pairs, trajectory = torch.unique(torch.stack((groups, trajectories), dim=1), dim=0, return_inverse=True)
    _, group = torch.unique(pairs[:, 0], return_inverse=True)
    reward = rewards.new_empty(len(pairs)).index_copy(0, trajectory, rewards)
    size = torch.bincount(group).to(rewards.dtype)
    mean = torch.zeros_like(size).index_add(0, group, reward) / size
    advantage = reward - mean[group]
    if normalize_by_std:
        variance = torch.zeros_like(size).index_add(0, group, advantage**2) / (size - 1).clamp(min=1)
        advantage = advantage / (variance.sqrt() + STD_EPSILON)[group]
    return advantage[trajectory]


def clipped_ratio_loss(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """The clipped policy-gradient loss of each token, and whether the clip cut its gradient off.

    PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7) with the two sides of the clip set apart as in DAPO
    (Yu et al. 2025, arXiv 2503.14476, equation 10):

        r = exp(l - p)        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    logprobs l [M], proximal p [M] without gradient, advantages A [M] -> loss [M], clipped [M] bool.
    """
    ratio = torch.exp((logprobs - proximal).clamp(-MAX_EXPONENT, MAX_EXPONENT))
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(free, bounded), bounded > free


@torch.no_grad()
def truncated_importance_weights(proximal: Tensor, behaviour: Tensor, *, cap: float) -> Tensor:
    """How much more likely the trainer finds each token than the engine that sampled it: w = min(exp(p - b), cap).

    Truncated importance sampling between engine and trainer (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"). The exponent is capped before exp, so that nothing overflows.

    proximal p [M], behaviour b [M] as the engine recorded it -> w [M] without gradient.
    """
    return torch.exp((proximal - behaviour).clamp(max=math.log(cap)))


def supervised_loss(logprobs: Tensor) -> Tensor:
    """Cross-entropy with the tokens that were given: -l. logprobs l [M] -> [M]."""
    return -logprobs


def logprobs_and_entropy(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, and the entropy of its distribution, at the sample's own temperature.

    logits [M, V] of any float type, targets [M], temperatures [M] -> l [M], entropy [M] without gradient; float32.
    """
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropy
