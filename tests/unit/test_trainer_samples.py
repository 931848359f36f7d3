"""From groups to samples with advantages, and the totals that are reported."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slime_rl.config import ObjectiveConfig
from slime_rl.errors import TrainerError
from slime_rl.trainer.report import Totals
from slime_rl.trainer.samples import (
    group_totals,
    over_std,
    reduced,
    squares,
    trained_samples,
    without_stale,
    without_truncated,
)
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


def weighted(reducer, *groups, **options):
    samples = trained_samples(groups, GRPO)
    return [(item.weight, item.adds_to_n) for item in reduced(samples, ObjectiveConfig(reducer=reducer, **options))]


def test_the_sum_over_n_is_what_the_reducer_says():
    plain = group(3, 1.0, 0.0)  # two trained tokens a sample
    assert weighted("token_mean", plain) == [(1.0, 2), (1.0, 2)]
    assert weighted("sequence_mean", plain) == [(0.5, 1), (0.5, 1)]
    assert weighted("constant", plain, reducer_length=8) == [(0.125, 1), (0.125, 1)]


def test_branches_are_pooled_and_their_trajectory_counts_once():
    branched = group(3, 1.0, 1.0, 0.0, trajectories=[7, 7, 8])
    assert weighted("sequence_mean", branched) == [(0.25, 1), (0.25, 0), (0.5, 1)]


def test_a_trajectory_counts_in_its_first_branch_that_is_trained_and_one_that_is_not_never():
    samples = trained_samples([group(3, 1.0, 1.0, 0.0, trajectories=[7, 7, 8])], GRPO)
    out = [replace(item, sample=replace(item.sample, loss_mask=np.zeros(4, np.bool_))) for item in samples]
    found = reduced([out[0], samples[1], out[2]], ObjectiveConfig(reducer="sequence_mean"))
    assert [(item.weight, item.adds_to_n) for item in found] == [(0.5, 0), (0.5, 1), (1.0, 0)]


def test_rloo_and_the_deviation_of_the_whole_step():
    groups = [group(3, 1.0, 0.0), group(5, 7.0, 7.0, 1.0)]
    found = trained_samples(groups, ObjectiveConfig(estimator="rloo"))
    assert [item.advantage for item in found] == [1.0, -1.0, 3.0, 3.0, -6.0]
    plain = trained_samples(groups, GRPO)
    total, count = squares(plain)
    assert (total, count) == (0.25 + 0.25 + 4 + 4 + 16, 5)
    std = np.std([item.advantage for item in plain], ddof=1)
    assert [i.advantage for i in over_std(plain, total=total, count=count)] == pytest.approx(
        [item.advantage / std for item in plain], rel=1e-5
    )


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
