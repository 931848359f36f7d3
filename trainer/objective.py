"""The objective as pure functions on trained tokens only.

Masked-out values never get here: packing selects the trained tokens first, so that no 0 * NaN can leak. Each function
returns one value per token or sample; the caller weights the tokens, sums over every micro-batch and rank, and divides
once by N (samples.py).

Shape letters: M trained tokens, S samples, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slime_rl.config import ObjectiveConfig

STD_EPSILON = 1e-6
MAX_EXPONENT = 20.0
"""A ratio of e^20 is far outside every clip range and far inside float32."""


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    trajectories: Tensor,
    *,
    normalize_by_std: bool = False,
    leave_one_out: bool = False,
) -> Tensor:
    """The advantage of each sample over its group: A = R - mean(R), by trajectory.

    GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2); without the division by the standard deviation as in
    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783). Samples of one group and trajectory are branches: they share its
    reward and count once in the mean and the standard deviation (unbiased, plus 1e-6). With `leave_one_out` the mean is
    over the other trajectories, so that it does not depend on the one it is held against: RLOO (Ahmadian et al. 2024,
    arXiv 2402.14740).

    rewards [S] floats, groups [S] and trajectories [S] ids in any order -> [S]. A lone trajectory has advantage 0.
    """
    pairs, trajectory = torch.unique(torch.stack((groups, trajectories), dim=1), dim=0, return_inverse=True)
    _, group = torch.unique(pairs[:, 0], return_inverse=True)
    reward = rewards.new_empty(len(pairs)).index_copy(0, trajectory, rewards)
    size = torch.bincount(group).to(rewards.dtype)
    mean = torch.zeros_like(size).index_add(0, group, reward) / size
    advantage = reward - mean[group]
    if leave_one_out:
        advantage = advantage * (size / (size - 1).clamp(min=1))[group]
    if normalize_by_std:
        variance = torch.zeros_like(size).index_add(0, group, advantage**2) / (size - 1).clamp(min=1)
        advantage = advantage / (variance.sqrt() + STD_EPSILON)[group]
    return advantage[trajectory]


def clipped_ratio_loss(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """The clipped policy-gradient loss of each token, and whether the clip cut its gradient off.

    PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7) with the two sides of the clip set apart as in DAPO
    (Yu et al. 2025, arXiv 2503.14476, equation 10):

        r = exp(l - p)        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    With `dual_clip` c > 1 the loss of a negative advantage is at most -c A, however large the ratio (Ye et al. 2020,
    arXiv 1912.09729).

    log_ratio l - p [M] (or that of the sequence, `sequence_log_ratio`), advantages A [M] -> loss [M], clipped [M] bool.
    """
    ratio = torch.exp(log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT))
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss, clipped = torch.maximum(free, bounded), bounded > free
    if dual_clip is None:
        return loss, clipped
    most = -dual_clip * advantages
    capped = (advantages < 0) & (most < loss)
    return torch.where(capped, most, loss), clipped | capped


def sequence_log_ratio(log_ratio: Tensor, sequences: Tensor) -> Tensor:
    """The mean log-ratio of each token's sequence, whose value all its tokens share and whose gradient each has alone.

    The ratio of GSPO-token (Zheng et al. 2025, arXiv 2507.18071): s = exp(mean(l - p)), and for a
    token sg(s) exp(l - sg(l)), so that the gradient of s flows through every token of the sequence with weight s.

    log_ratio l - p [M], sequences [M] numbers from 0 -> [M].
    """
    size = torch.bincount(sequences).to(log_ratio.dtype)
    mean = torch.zeros_like(size).index_add(0, sequences, log_ratio.detach()) / size.clamp(min=1)
    return mean[sequences] + log_ratio - log_ratio.detach()


def weighted_logprob_loss(
    logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """The loss of each token with its clipped ratio as a weight, and whether the clip changed that weight.

    CISPO (MiniMax 2025, arXiv 2506.13585): loss = -sg(clip(r, 1 - clip_low, 1 + clip_high)) A l. No
    token loses its gradient, which the clip of a ratio would take from rare ones.

    logprobs l [M], log_ratio l - p [M], advantages A [M] -> loss [M], clipped [M] bool.
    """
    ratio = torch.exp(log_ratio.detach().clamp(-MAX_EXPONENT, MAX_EXPONENT))
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * logprobs, weight != ratio


@torch.no_grad()
def truncated_importance_weights(proximal: Tensor, behaviour: Tensor, *, cap: float) -> Tensor:
    """How much more likely the trainer finds each token than the engine that sampled it: w = min(exp(p - b), cap).

    Truncated importance sampling between engine and trainer (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"). The exponent is capped before exp, so that nothing overflows.

    proximal p [M], behaviour b [M] as the engine recorded it -> w [M] without gradient.
    """
    return torch.exp((proximal - behaviour).clamp(max=math.log(cap)))


@torch.no_grad()
def importance_weights_inside(proximal: Tensor, behaviour: Tensor, *, low: float, high: float) -> Tensor:
    """w = exp(p - b) where that is inside [low, high], else 0: the token teaches nothing.

    IcePop (Ling team 2025, arXiv 2510.18855).

    proximal p [M], behaviour b [M] -> w [M] without gradient.
    """
    log_weight = (proximal - behaviour).clamp(-MAX_EXPONENT, MAX_EXPONENT)
    weight = torch.exp(log_weight)
    return torch.where((weight >= low) & (weight <= high), weight, torch.zeros_like(weight))


@torch.no_grad()
def sequence_mask(proximal: Tensor, behaviour: Tensor, sequences: Tensor, *, low: float, high: float) -> Tensor:
    """1 for the tokens of sequences whose geometric mean of exp(p - b) is inside [low, high], else 0.

    A sequence that the engine sampled from quite another distribution is left out as a whole (Liu et al. 2025, "When
    speed kills stability": geometric sequence-level masked importance sampling).

    proximal p [M], behaviour b [M], sequences [M] numbers from 0 -> [M] without gradient.
    """
    size = torch.bincount(sequences).to(proximal.dtype)
    mean = torch.zeros_like(size).index_add(0, sequences, proximal - behaviour) / size.clamp(min=1)
    inside = (mean >= math.log(low)) & (mean <= math.log(high))
    return inside.to(proximal.dtype)[sequences]


def policy_losses(
    config: ObjectiveConfig, logprobs: Tensor, proximal: Tensor, advantages: Tensor, sequences: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of each token that `objective.loss` asks for, before any correction, and whether it was clipped.

    logprobs l, proximal p, advantages A, sequences (numbers from 0), all [M] -> loss [M], clipped [M] bool.
    """
    log_ratio = logprobs - proximal
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    if config.loss == "cispo":
        return weighted_logprob_loss(logprobs, log_ratio, advantages, **clip)
    if config.loss == "gspo":
        log_ratio = sequence_log_ratio(log_ratio, sequences)
    return clipped_ratio_loss(log_ratio, advantages, **clip, dual_clip=config.dual_clip)


def correction_weights(
    config: ObjectiveConfig, proximal: Tensor, behaviour: Tensor, sequences: Tensor
) -> Tensor | None:
    """The weight of each token between engine and trainer that `objective.correction` asks for, None for `none`.

    proximal p, behaviour b, sequences (numbers from 0), all [M] -> w [M] without gradient.
    """
    inside = {"low": config.correction_low, "high": config.correction_high}
    match config.correction:
        case "tis":
            return truncated_importance_weights(proximal, behaviour, cap=config.correction_cap)
        case "icepop":
            return importance_weights_inside(proximal, behaviour, **inside)
        case "sequence_mask":
            return sequence_mask(proximal, behaviour, sequences, **inside)
        case _:
            return None


def supervised_loss(logprobs: Tensor) -> Tensor:
    """Cross-entropy with the tokens that were given: -l. logprobs l [M] -> [M]."""
    return -logprobs


def logprobs_and_entropy(
    logits: Tensor, targets: Tensor, temperatures: Tensor, *, trains_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, and the entropy of its distribution, at the sample's own temperature.

    logits [M, V] of any float type, targets [M], temperatures [M] -> l [M], entropy [M]; float32. The entropy has a
    gradient only where it `trains_entropy`.
    """
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    with torch.set_grad_enabled(trains_entropy and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropy
