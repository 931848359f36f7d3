"""Sharing out, packing and what a micro-batch holds."""

import numpy as np
import pytest

from slime_rl.errors import TrainerError
from slime_rl.trainer.packing import TrainedSample, best_fit, idle, pack, runs, share_groups, token_versions
from slime_rl.types import AssignedGroup, Assignment, Finish, Sample, Span, Version


def sample(tokens, mask, *, versions=((0, 0, None),), temperature=1.0, logprobs=None, index=0):
    length = len(tokens)
    return Sample(
        index=index,
        trajectory=index,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.bool_),
        logprobs=np.zeros(length, np.float32) if logprobs is None else np.array(logprobs, np.float32),
        versions=tuple(Span(Version(v), start, length if end is None else end) for v, start, end in versions),
        temperature=temperature,
        finish=Finish.STOP,
        reward=0.0,
    )


def trained(item, *, group=0, advantage=1.0):
    return TrainedSample(sample=item, group=group, advantage=advantage)


def assignment(*tokens):
    groups = [AssignedGroup(id=10 + i, num_samples=2, num_tokens=n, oldest=Version(0)) for i, n in enumerate(tokens)]
    return Assignment(step=3, groups=tuple(groups))


def test_groups_are_shared_out_whole_and_about_equal_in_tokens():
    shares = share_groups(assignment(50, 10, 40, 30, 30), 2)
    assert shares == [[10, 14], [11, 12, 13]]  # 80 tokens each


def test_every_group_goes_to_one_rank():
    shares = share_groups(assignment(*range(1, 30)), 4)
    assert sorted(id for share in shares for id in share) == list(range(10, 39))
    loads = [sum(id - 9 for id in share) for share in shares]
    assert max(loads) - min(loads) <= 2


def test_a_rank_may_get_no_group():
    assert share_groups(assignment(5), 3) == [[10], [], []]
    assert share_groups(assignment(), 2) == [[], []]


def test_sharing_does_not_depend_on_the_order_of_equal_groups():
    assert share_groups(assignment(7, 7, 7, 7), 2) == share_groups(assignment(7, 7, 7, 7), 2) == [[10, 12], [11, 13]]


def test_best_fit_fills_the_fullest_bin_that_takes_an_item():
    assert best_fit([6, 3, 4, 7, 2], 10) == [[3, 1], [0, 2], [4]]


def test_a_longer_item_has_a_bin_to_itself():
    assert best_fit([3, 25, 2], 10) == [[1], [0, 2]]


def test_bins_hold_every_item_once_and_keep_their_capacity():
    lengths = np.random.default_rng(0).integers(1, 100, 500).tolist()
    bins = best_fit(lengths, 128)
    assert sorted(index for bin_ in bins for index in bin_) == list(range(500))
    assert max(sum(lengths[index] for index in bin_) for bin_ in bins) <= 128
    assert len(bins) <= 1.1 * sum(lengths) / 128


def test_micro_batch_pairs_each_place_with_the_token_after_it():
    short = sample([5, 6, 7], [0, 0, 1], temperature=0.5, logprobs=[0, 0, -0.7], index=0)
    long = sample(
        [1, 2, 3, 4, 9], [0, 1, 1, 0, 0], versions=((2, 0, 2), (3, 2, None)), logprobs=[0, -0.1, -0.2, 0, 0], index=1
    )
    (batch,) = pack(
        [trained(long, group=8, advantage=2.0), trained(short, group=7)], max_tokens=100, version=Version(3)
    )
    assert batch.lengths == (2, 2)  # each up to its last trained token, which is only a target
    assert batch.groups == (8, 7)
    assert batch.tokens.tolist() == [1, 2, 5, 6]
    assert batch.rows.tolist() == [0, 1, 3]
    assert batch.targets.tolist() == [2, 3, 7]
    assert batch.behaviour.tolist() == pytest.approx([-0.1, -0.2, -0.7])
    assert batch.temperatures.tolist() == [1.0, 1.0, 0.5]
    assert batch.advantages.tolist() == [2.0, 2.0, 1.0]
    assert batch.lags.tolist() == [1, 0, 3]


def test_equal_lengths_lie_side_by_side():
    samples = [trained(sample(range(n), [0] * (n - 1) + [1])) for n in (5, 3, 5, 4, 3)]
    (batch,) = pack(samples, max_tokens=100, version=Version(0))
    assert batch.lengths == (2, 2, 3, 4, 4)
    assert list(runs(batch.lengths)) == [(2, 2), (3, 1), (4, 2)]


def test_a_sample_with_nothing_trained_stays_out():
    samples = [trained(sample([1, 2], [0, 0])), trained(sample([3, 4], [0, 1]))]
    (batch,) = pack(samples, max_tokens=100, version=Version(0))
    assert batch.tokens.tolist() == [3]


def test_with_nothing_trained_there_is_one_idle_micro_batch():
    for samples in ([], [trained(sample([1, 2], [0, 0]))]):
        (batch,) = pack(samples, max_tokens=100, version=Version(0))
        assert batch.lengths == idle().lengths == (1,)
        assert len(batch.rows) == 0


def test_every_trained_token_is_in_exactly_one_micro_batch():
    generator = np.random.default_rng(1)
    samples = []
    for index in range(40):
        length = int(generator.integers(2, 50))
        mask = generator.random(length) < 0.5
        mask[0] = False
        samples.append(trained(sample(generator.integers(0, 9, length), mask, index=index)))
    batches = pack(samples, max_tokens=60, version=Version(0))
    assert sum(len(batch.rows) for batch in batches) == sum(item.sample.num_trained for item in samples)
    assert all(len(batch.tokens) <= 60 for batch in batches)
    assert all(sum(batch.lengths) == len(batch.tokens) for batch in batches)


def test_values_of_masked_out_tokens_are_never_selected():
    item = sample([1, 2, 3], [0, 1, 0], logprobs=[np.nan, -0.5, np.inf])
    (batch,) = pack([trained(item)], max_tokens=10, version=Version(0))
    assert batch.behaviour.tolist() == [-0.5]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_log_prob_that_is_not_finite_is_refused_by_name(value):
    item = sample([1, 2, 3], [0, 1, 1], logprobs=[0, -0.5, value], index=4)
    with pytest.raises(TrainerError, match="group 6, sample 4: a log-prob of the engine is not finite"):
        pack([trained(item, group=6)], max_tokens=10, version=Version(0))


def test_a_first_token_cannot_be_trained():
    with pytest.raises(TrainerError, match="nothing comes before it"):
        pack([trained(sample([1, 2], [1, 1]))], max_tokens=10, version=Version(0))


def test_token_versions_follow_the_spans():
    item = sample([1, 2, 3, 4], [0, 1, 1, 1], versions=((4, 1, 3), (5, 3, 4)))
    assert token_versions(item).tolist() == [0, 4, 4, 5]


def test_runs_of_nothing():
    assert list(runs(())) == []
