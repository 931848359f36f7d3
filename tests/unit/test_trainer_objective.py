"""The objective against numbers worked out by hand."""

import math

import pytest
import torch

from slime_rl.trainer.head import token_logprobs
from slime_rl.trainer.objective import (
    clipped_ratio_loss,
    group_advantages,
    importance_weights_inside,
    logprobs_and_entropy,
    sequence_log_ratio,
    sequence_mask,
    supervised_loss,
    truncated_importance_weights,
    weighted_logprob_loss,
)


def advantages(rewards, groups=None, trajectories=None, **options):
    groups = groups or [0] * len(rewards)
    trajectories = trajectories or list(range(len(rewards)))
    return group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        torch.tensor(trajectories),
        **options,
    ).tolist()


def test_advantage_is_the_reward_above_the_mean_of_its_group():
    assert advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]


def test_advantage_over_the_unbiased_standard_deviation():
    found = advantages([1.0, 0.0, 0.0, 1.0], normalize_by_std=True)
    assert found == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)


@pytest.mark.parametrize("normalize_by_std", [False, True])
def test_advantage_of_equal_rewards_is_zero(normalize_by_std):
    assert advantages([0.3, 0.3, 0.3], normalize_by_std=normalize_by_std) == pytest.approx([0.0] * 3, abs=1e-9)


def test_groups_go_by_id_and_not_by_place():
    rewards, groups = [1.0, 5.0, 0.0, 7.0, 2.0], [4, 9, 4, 9, 4]
    assert advantages(rewards, groups) == [0.0, -1.0, -1.0, 1.0, 1.0]


def test_branches_share_a_reward_and_count_once():
    # three trajectories with rewards 1, 0, 0, the first in three branches
    found = advantages([1.0, 0.0, 1.0, 0.0, 1.0], trajectories=[7, 8, 7, 9, 7])
    assert found == pytest.approx([2 / 3, -1 / 3, 2 / 3, -1 / 3, 2 / 3])


def test_one_trajectory_number_in_two_groups_is_two_trajectories():
    assert advantages([1.0, 0.0, 4.0, 2.0], [0, 0, 1, 1], [0, 1, 0, 1]) == [0.5, -0.5, 1.0, -1.0]


@pytest.mark.parametrize("normalize_by_std", [False, True])
def test_advantages_of_trajectories_sum_to_zero_in_each_group(normalize_by_std):
    generator = torch.Generator().manual_seed(3)
    rewards = torch.rand(60, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, 7, (60,), generator=generator)
    found = group_advantages(rewards, groups, torch.arange(60), normalize_by_std=normalize_by_std)
    sums = torch.zeros(7, dtype=torch.float64).index_add(0, groups, found)
    assert sums.abs().max() < 1e-12


def test_on_policy_the_loss_is_minus_the_advantage_and_the_gradient_too():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss, clipped = clipped_ratio_loss(
        logprobs - logprobs.detach(), torch.tensor([2.0, -3.0]), clip_low=0.2, clip_high=0.28
    )
    loss.sum().backward()
    assert loss.tolist() == [-2.0, 3.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-2.0, 3.0]
    assert not clipped.any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.5, 1.0, -1.28, 0.0),  # above the clip, and better: no further
        (1.5, -1.0, 1.5, 1.5),  # above the clip, and worse: back
        (0.5, 1.0, -0.5, -0.5),  # below the clip, and better: back
        (0.5, -1.0, 0.8, 0.0),  # below the clip, and worse: no further
        (1.1, 1.0, -1.1, -1.1),
    ],
)
def test_clip_cuts_off_what_moves_away(ratio, advantage, loss, slope):
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    found, clipped = clipped_ratio_loss(logprobs, torch.tensor([advantage]), clip_low=0.2, clip_high=0.28)
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope)
    assert clipped.item() == (slope == 0.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (5.0, -1.0, 3.0, 0.0),  # would be 5: the dual clip ends it
        (2.0, -1.0, 2.0, 2.0),  # below the dual clip
        (5.0, 1.0, -1.28, 0.0),  # positive advantages are not touched
    ],
)
def test_the_dual_clip_bounds_what_a_negative_advantage_costs(ratio, advantage, loss, slope):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    found, clipped = clipped_ratio_loss(
        log_ratio, torch.tensor([advantage]), clip_low=0.2, clip_high=0.28, dual_clip=3.0
    )
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(slope)
    assert clipped.item() == (slope == 0.0)


def test_a_sequence_has_one_ratio_and_each_of_its_tokens_its_gradient():
    # two sequences: log-ratios 0.1, 0.3, 0.2 with mean 0.2, and -0.4 alone
    log_ratio = torch.tensor([0.1, 0.3, -0.4, 0.2], dtype=torch.float64, requires_grad=True)
    found = sequence_log_ratio(log_ratio, torch.tensor([0, 0, 1, 0]))
    assert found.tolist() == pytest.approx([0.2, 0.2, -0.4, 0.2])
    found.exp().sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([math.exp(0.2)] * 2 + [math.exp(-0.4), math.exp(0.2)])


def test_the_mean_over_a_sequence_of_its_token_losses_has_the_gradient_of_gspo():
    # GSPO on one sequence inside the clip: d/dl of -A exp(mean(l - p)) = -A s / T for each token
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    proximal = torch.tensor([-1.1, -1.9, -0.6], dtype=torch.float64)
    sequence = torch.zeros(3, dtype=torch.long)
    ratio = torch.exp((logprobs - proximal).mean())
    (-2.0 * ratio).backward()
    expected, logprobs.grad = logprobs.grad, None
    log_ratio = sequence_log_ratio(logprobs - proximal, sequence)
    loss, _ = clipped_ratio_loss(log_ratio, torch.full((3,), 2.0, dtype=torch.float64), clip_low=0.2, clip_high=0.28)
    loss.mean().backward()
    assert loss.tolist() == pytest.approx([-2.0 * ratio.item()] * 3)
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize(("ratio", "weight"), [(1.1, 1.1), (3.0, 1.28), (0.1, 0.8)])
def test_cispo_weights_log_probs_and_leaves_no_token_without_gradient(ratio, weight):
    logprobs = torch.tensor([-2.0], requires_grad=True)
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, clipped = weighted_logprob_loss(logprobs, log_ratio, torch.tensor([-3.0]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-weight * -3.0 * -2.0)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(weight * 3.0)
    assert log_ratio.grad is None
    assert clipped.item() == (ratio != 1.1)


def test_icepop_drops_what_is_outside_its_band():
    proximal = torch.log(torch.tensor([0.5, 0.2, 0.9, 0.5, 1e-30]))
    behaviour = torch.log(torch.tensor([0.4, 0.5, 0.3, 0.5, 0.5]))
    weights = importance_weights_inside(proximal, behaviour, low=0.5, high=2.0)
    assert weights.tolist() == pytest.approx([1.25, 0.0, 0.0, 1.0, 0.0])


def test_a_sequence_is_masked_by_its_geometric_mean():
    # means of p - b: (0.9 + 0.3) / 2 = 0.6 < log 2 = 0.693; (1.0 + 0.6) / 2 = 0.8 above it; -0.8 below log 0.5
    difference = torch.tensor([0.9, 1.0, 0.3, 0.6, -0.8])
    found = sequence_mask(difference, torch.zeros(5), torch.tensor([0, 1, 0, 1, 2]), low=0.5, high=2.0)
    assert found.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_leave_one_out_holds_a_reward_against_the_others():
    # 1 against (0 + 0 + 1) / 3, 0 against (1 + 0 + 1) / 3
    found = advantages([1.0, 0.0, 0.0, 1.0], leave_one_out=True)
    assert found == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert advantages([4.0], leave_one_out=True) == [0.0]


def test_huge_ratios_stay_finite():
    logprobs = torch.tensor([500.0, -500.0], requires_grad=True)
    loss, _ = clipped_ratio_loss(logprobs, torch.tensor([-1.0, -1.0]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_importance_weight_is_capped_before_it_can_overflow():
    proximal = torch.tensor([-1.0, -1.0, 0.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-1.0, -1.5, -1000.0, 99.0])
    weights = truncated_importance_weights(proximal, behaviour, cap=2.0)
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, 0.0])
    assert not weights.requires_grad


def test_a_log_prob_that_is_no_number_stays_one():
    assert truncated_importance_weights(torch.tensor([math.nan]), torch.zeros(1), cap=2.0).isnan().all()


def test_supervised_loss_is_cross_entropy():
    assert supervised_loss(torch.tensor([-0.5, -2.0])).tolist() == [0.5, 2.0]


LOGITS = torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 0.5, 2.0], [-1.0, 3.0, 2.0, 0.0]])
TARGETS = torch.tensor([3, 0, 1])


def test_logprobs_and_entropy_of_three_rows():
    logprobs, entropy = logprobs_and_entropy(LOGITS, TARGETS, torch.ones(3))
    assert logprobs.tolist() == pytest.approx([-0.440190, -0.195007, -0.361849], abs=1e-6)
    assert entropy.tolist() == pytest.approx([0.947537, 0.627587, 0.773068], abs=1e-6)


def test_each_row_has_its_own_temperature():
    temperatures = torch.tensor([0.5, 1.0, 2.0])
    logprobs, _ = logprobs_and_entropy(LOGITS, TARGETS, temperatures)
    expected = [
        logprobs_and_entropy(LOGITS[i : i + 1] / t, TARGETS[i : i + 1], torch.ones(1))[0].item()
        for i, t in enumerate(temperatures)
    ]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_chunks_of_tokens_give_the_same_values_and_gradients():
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 6, dtype=torch.float64), torch.randn(11, 6, dtype=torch.float64)
    targets, temperatures = torch.randint(0, 11, (7,)), torch.rand(7) + 0.5
    found = []
    for max_logits in (10**6, 22, 1):
        leaves = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        logprobs, entropy = token_logprobs(*leaves, targets, temperatures, max_logits=max_logits)
        (logprobs * torch.arange(7)).sum().backward()
        found.append((logprobs, entropy, *(leaf.grad for leaf in leaves)))
    for whole, pairs, single in zip(*found, strict=True):
        torch.testing.assert_close(pairs, whole)
        torch.testing.assert_close(single, whole)


@pytest.mark.parametrize("max_logits", [10**6, 22])
def test_the_entropy_has_a_gradient_only_where_it_is_trained(max_logits):
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 6, dtype=torch.float64), torch.randn(11, 6, dtype=torch.float64)
    targets, temperatures = torch.randint(0, 11, (7,)), torch.rand(7) + 0.5
    leaf = hidden.clone().requires_grad_()
    _, entropy = token_logprobs(leaf, head, targets, temperatures, max_logits=max_logits, trains_entropy=True)
    entropy.sum().backward()
    plain = hidden.clone().requires_grad_()
    torch.distributions.Categorical(logits=plain @ head.T / temperatures[:, None]).entropy().sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-5, atol=1e-6)
    _, fixed = token_logprobs(leaf, head, targets, temperatures, max_logits=max_logits)
    assert not fixed.requires_grad


def test_no_trained_token_gives_no_loss_and_a_zero_gradient():
    hidden = torch.randn(0, 6, requires_grad=True)
    head = torch.randn(11, 6, requires_grad=True)
    nothing = torch.zeros(0)
    logprobs, _ = token_logprobs(hidden, head, nothing.long(), nothing)
    weights = truncated_importance_weights(logprobs, nothing, cap=2.0)
    loss, _ = clipped_ratio_loss(logprobs - logprobs.detach(), nothing, clip_low=0.2, clip_high=0.28)
    total = (weights * loss).sum()
    total.backward()
    assert total.item() == 0.0
    assert head.grad is not None
    assert not head.grad.any()


def test_the_mean_over_tokens_does_not_depend_on_how_they_are_split():
    # 4 trajectories of 12 tokens, the last 8 trained, with values (1..8) x 1, 10, 100, 1000; a model of one weight
    values = torch.arange(1.0, 9.0, dtype=torch.float64) * torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    results = []
    for split in (1, 2, 4, 8, 32):
        weight = torch.ones((), dtype=torch.float64, requires_grad=True)
        total = torch.zeros((), dtype=torch.float64)
        for part in values.flatten().chunk(split):
            loss = (weight * part).sum()
            loss.backward()
            total += loss.detach()
        assert weight.grad is not None
        results.append((total.item() / values.numel(), weight.grad.item() / values.numel()))
    assert results == [pytest.approx((1249.875, 1249.875), rel=1e-12)] * 5
