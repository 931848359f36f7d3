"""From groups to samples with advantages, and the totals that are reported."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slime_rl.config import ObjectiveConfig
from slime_rl.errors import TrainerError
from slime_rl.trainer.report import Totals
from slime_rl.trainer.samples import group_totals, trained_samples, without_stale, without_truncated
from slime_rl.types import Finish, Group, Sample, Span, Version

GRPO, SFT = ObjectiveConfig(), ObjectiveConfig(loss="sft")


def group(id, *rewards, trajectories=None):
    samples = [
        Sample(
            index=index,
            trajectory=index if trajectories is None else trajectories[index],
            tokens=np.arange(4, dtype=np.int32),
            loss_mask=np.array([0, 0, 1, 1], np.bool_),
            logprobs=np.zeros(4, np.float32),
            versions=(Span(Version(0), 0, 4),),
            temperature=1.0,
            finish=Finish.STOP,
            reward=reward,
        )
        for index, reward in enumerate(rewards)
    ]
    return Group(id=id, prompt_index=id, attempt=0, samples=tuple(samples))


def test_each_sample_has_the_advantage_in_its_own_group():
    found = trained_samples([group(3, 1.0, 0.0), group(5, 7.0, 7.0, 1.0)], GRPO)
    assert [(item.group, item.advantage) for item in found] == [(3, 0.5), (3, -0.5), (5, 2.0), (5, 2.0), (5, -4.0)]


def test_tokens_before_the_bound_leave_the_loss():
    [first, *_] = trained_samples([group(3, 1.0, 0.0)], GRPO)
    mixed = replace(first.sample, versions=(Span(Version(4), 0, 3), Span(Version(5), 3, 4)), logprobs=-np.ones(4, "f4"))
    items = [replace(first, sample=mixed)]
    [kept] = without_stale(items, oldest=Version(4))
    assert kept.sample.loss_mask.tolist() == [False, False, True, True]
    [cut] = without_stale(items, oldest=Version(5))
    assert cut.sample.loss_mask.tolist() == [False, False, False, True]
    assert cut.sample.logprobs.tolist() == [0.0, 0.0, 0.0, -1.0]
    assert (cut.advantage, cut.sample.num_trained) == (first.advantage, 1)
    [none] = without_stale(items, oldest=Version(6))
    assert none.sample.num_trained == 0


def test_truncated_samples_leave_the_loss_and_keep_their_advantages():
    samples = trained_samples([group(3, 1.0, 0.0)], GRPO)
    cut = replace(samples[1].sample, finish=Finish.LENGTH, logprobs=-np.ones(4, "f4"))
    whole, masked = without_truncated([samples[0], replace(samples[1], sample=cut)])
    assert whole is samples[0]
    assert (masked.advantage, masked.sample.num_trained, masked.sample.logprobs.any()) == (-0.5, 0, False)


def test_supervised_samples_need_no_reward():
    found = trained_samples([group(3, None)], SFT)
    assert [item.advantage for item in found] == [1.0]


def test_no_groups_are_no_samples():
    assert trained_samples([], GRPO) == []


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(TrainerError, match="group 3, sample 1: reward is"):
        trained_samples([group(3, 1.0, reward)], GRPO)


def test_a_group_of_one_trajectory_is_refused():
    with pytest.raises(TrainerError, match="group 3 has a single trajectory"):
        trained_samples([group(3, 1.0, 1.0, trajectories=[0, 0])], GRPO)


def test_reward_and_length_count_trajectories_and_not_branches():
    totals = group_totals([group(3, 1.0, 1.0, 0.0, trajectories=[0, 0, 1])])
    assert (totals.sums["reward"], totals.counts["reward"]) == (1.0, 2)
    assert (totals.sums["response_length"], totals.counts["response_length"]) == (6, 2)
    assert totals.sums["num_tokens"] == 12


def test_nothing_read_has_the_same_names_as_something_read():
    assert group_totals([]).sums.keys() == group_totals([group(3, 1.0)]).sums.keys()


def test_totals_add_sums_and_counts_and_keep_the_largest():
    totals, other = Totals(), Totals()
    totals.add("loss", 6.0, 3)
    totals.raise_to("lag", 1.0)
    other.add("loss", 1.0, 1)
    other.raise_to("lag", 4.0)
    totals.merge(other)
    assert (totals.sums, totals.counts, totals.maxima) == ({"loss": 7.0}, {"loss": 4}, {"lag": 4.0})
