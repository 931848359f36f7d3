"""The draw by seeds: which distribution it has, and what it depends on."""

import math

import pytest
import torch

from slime_rl.rollout.seeded_sampler import draw, uniform

NUM_DRAWS = 20_000
MANY = torch.arange(NUM_DRAWS)
LOGPROBS = torch.log_softmax(torch.tensor([0.0, 2.0, -1.0, 1.0, -math.inf, 0.5, 3.0, -2.0]), dim=0)


def normal_score(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard deviations chi-square lies above its mean, nearly (Wilson and Hilferty, 1931)."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    freedom = int(possible.sum()) - 1
    squares = ((counts - expected)[possible] ** 2 / expected[possible]).sum().item()
    spread = 2 / (9 * freedom)
    return ((squares / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [(MANY, torch.full_like(MANY, 7)), (torch.full_like(MANY, 12345), MANY), (MANY * 31 % 2**31, MANY % 50)],
)
def test_tokens_are_distributed_as_the_log_probs_say(seeds, positions):
    tokens = draw(LOGPROBS.expand(NUM_DRAWS, -1), seeds, positions)
    assert tokens.shape == (NUM_DRAWS, 1)
    counts = torch.bincount(tokens[:, 0], minlength=len(LOGPROBS)).double()
    assert abs(normal_score(counts, NUM_DRAWS * LOGPROBS.double().exp())) < 3


def test_neighbouring_seeds_and_positions_give_independent_numbers():
    for first, second in [((MANY, MANY * 0), (MANY + 1, MANY * 0)), ((MANY * 0, MANY), (MANY * 0, MANY + 1))]:
        cells = (uniform(*first) * 8).long() * 8 + (uniform(*second) * 8).long()
        counts = torch.bincount(cells, minlength=64).double()
        assert abs(normal_score(counts, torch.full((64,), NUM_DRAWS / 64, dtype=torch.float64))) < 3


def test_numbers_lie_between_0_and_1_for_the_largest_seeds_and_positions():
    ends = torch.tensor([0, 1, 2**31 - 1])
    numbers = uniform(ends.repeat_interleave(3), ends.repeat(3))
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert len(set(numbers.tolist())) == 9


def test_a_token_depends_on_its_own_row_only():
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.log_softmax(torch.randn(40, 50, generator=generator), dim=1)
    seeds, positions = torch.arange(40) * 77, torch.arange(40) + 3
    together = draw(logprobs, seeds, positions)
    alone = [draw(logprobs[i : i + 1], seeds[i : i + 1], positions[i : i + 1]) for i in range(40)]
    assert torch.equal(together, torch.cat(alone))
    assert not torch.equal(together, draw(logprobs, seeds + 1, positions))


def test_a_token_of_probability_0_is_never_drawn():
    only_last = torch.full((NUM_DRAWS, 5), -math.inf)
    only_last[:, 3] = 0.0
    assert (draw(only_last, MANY, MANY) == 3).all()
