"""From the groups a rank has read to samples with an advantage each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from slime_rl.config import ObjectiveConfig
from slime_rl.errors import TrainerError
from slime_rl.trainer.objective import STD_EPSILON, group_advantages
from slime_rl.trainer.packing import TrainedSample, token_versions
from slime_rl.trainer.report import Totals
from slime_rl.types import Finish, Group, Sample, Version


def trained_samples(groups: Sequence[Group], objective: ObjectiveConfig) -> list[TrainedSample]:
    """Every sample of the groups with its advantage, which is 1 where the loss is supervised.

    Raises TrainerError for a group that has nothing to compare, or a reward that is no finite number.
    """
    samples = [(group.id, sample) for group in groups for sample in group.samples]
    if objective.loss == "sft" or not samples:
        advantages = [1.0] * len(samples)
    else:
        _check_rewards(groups)
        advantages = group_advantages(
            torch.tensor([sample.reward for _, sample in samples], dtype=torch.float64),
            torch.tensor([group for group, _ in samples]),
            torch.tensor([sample.trajectory for _, sample in samples]),
            normalize_by_std=objective.normalize_by_std,
            leave_one_out=objective.estimator == "rloo",
        ).tolist()
    return [
        TrainedSample(sample=sample, group=group, advantage=advantage)
        for (group, sample), advantage in zip(samples, advantages, strict=True)
    ]


def squares(samples: Sequence[TrainedSample]) -> tuple[float, float]:
    """The sum of the squared advantages of all trajectories, and how many these are."""
    by_trajectory = {(item.group, item.sample.trajectory): item.advantage for item in samples}
    return float(sum(advantage**2 for advantage in by_trajectory.values())), float(len(by_trajectory))


def over_std(samples: Sequence[TrainedSample], *, total: float, count: float) -> list[TrainedSample]:
    """The samples with advantages over their standard deviation in the whole step, whose mean is 0 by construction.

    The normalisation of REINFORCE++ with a group baseline (Hu et al. 2025, arXiv 2501.03262); `total` and
    `count` are the `squares` of all ranks.
    """
    std = math.sqrt(total / max(count - 1, 1))
    return [replace(item, advantage=item.advantage / (std + STD_EPSILON)) for item in samples]


def reduced(samples: Sequence[TrainedSample], objective: ObjectiveConfig) -> list[TrainedSample]:
    """The samples with the weights of their tokens, and what each adds to N, such that sum / N is what is asked for.

    token_mean     the mean over all trained tokens: weight 1, N counts tokens
    sequence_mean  the mean over trajectories of the mean over their trained tokens, branches pooled; N counts
                   trajectories with a trained token
    constant       the mean over the same trajectories of their sums over `reducer_length`: Dr. GRPO (Liu et al. 2025,
                   arXiv 2503.20783), in which each token of a long answer weighs no less
    """
    if objective.reducer == "token_mean":
        return list(samples)
    num_tokens: dict[tuple[int, int], int] = {}
    for item in samples:
        key = item.group, item.sample.trajectory
        num_tokens[key] = num_tokens.get(key, 0) + item.sample.num_trained
    found, counted = [], set[tuple[int, int]]()
    for item in samples:
        key = item.group, item.sample.trajectory
        is_first = item.sample.num_trained > 0 and key not in counted
        if is_first:
            counted.add(key)
        length = objective.reducer_length or max(num_tokens[key], 1)
        found.append(replace(item, weight=1 / length, counted=int(is_first)))
    return found


def without_stale(samples: Sequence[TrainedSample], *, oldest: Version) -> list[TrainedSample]:
    """The samples with every token out of the loss that a version before `oldest` produced."""
    return [replace(item, sample=_without_stale(item.sample, oldest)) for item in samples]


def without_truncated(samples: Sequence[TrainedSample]) -> list[TrainedSample]:
    """The samples, those that were cut at their limit with no token in the loss; advantages stay as they are."""
    return [replace(s, sample=_masked_out(s.sample)) if s.sample.finish == Finish.LENGTH else s for s in samples]


def _masked_out(sample: Sample) -> Sample:
    return replace(sample, loss_mask=np.zeros_like(sample.loss_mask), logprobs=np.zeros_like(sample.logprobs))


def _without_stale(sample: Sample, oldest: Version) -> Sample:
    mask = sample.loss_mask & (token_versions(sample) >= oldest)
    return replace(sample, loss_mask=mask, logprobs=np.where(mask, sample.logprobs, np.float32(0)))


def group_totals(groups: Sequence[Group]) -> Totals:
    """Reward and response length, counted by trajectory, and the tokens of this rank."""
    totals = Totals()
    rewards: dict[tuple[int, int], float | None] = {}
    for group in groups:
        for sample in group.samples:
            rewards[group.id, sample.trajectory] = sample.reward
    scored = [reward for reward in rewards.values() if reward is not None]
    samples = [sample for group in groups for sample in group.samples]
    totals.add("reward", sum(scored), len(scored))
    totals.add("num_tokens", sum(sample.num_tokens for sample in samples), 0)
    totals.add("truncated", sum(sample.finish == Finish.LENGTH for sample in samples), len(samples))
    totals.add("response_length", sum(sample.num_trained for sample in samples), len(rewards))
    return totals


def _check_rewards(groups: Sequence[Group]) -> None:
    for group in groups:
        if len({sample.trajectory for sample in group.samples}) < 2:
            raise TrainerError(f"group {group.id} has a single trajectory, and nothing to compare it with")
        for sample in group.samples:
            if sample.reward is None or not math.isfinite(sample.reward):
                raise TrainerError(f"group {group.id}, sample {sample.index}: reward is {sample.reward}")
