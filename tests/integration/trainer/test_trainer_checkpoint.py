"""A checkpoint of the trainer: training goes on from it as if nothing had happened, in any number of ranks."""

import numpy as np
import pytest

from slime_rl.errors import TrainerError

pytestmark = [pytest.mark.slow, pytest.mark.megatron]

OPTIMIZERS = [{}, {"use_distributed_optimizer": True}]
DTYPES = ["float32", "bfloat16"]


@pytest.fixture
def groups(new_groups):
    return new_groups([2, 3, 2])


def all_of(groups):
    return [group.id for group in groups]


@pytest.mark.parametrize("megatron", OPTIMIZERS, ids=["replicated", "distributed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_after_a_checkpoint_are_bit_equal_to_those_without_one(
    ranks, models, new_config, groups, new_checkpoint, dtype, megatron
):
    config = new_config(models["qwen3"], model={"dtype": dtype}, trainer={"megatron": megatron})
    _, straight = ranks.train(config, groups, 4)
    ranks.train(config, groups, 2, save=new_checkpoint(2))
    _, resumed = ranks.train(config, groups, 2, resume=new_checkpoint(2))
    assert all(np.array_equal(resumed[name], weight) for name, weight in straight.items())


@pytest.mark.parametrize("megatron", OPTIMIZERS, ids=["replicated", "distributed"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_checkpoint_goes_on_in_another_number_of_ranks(
    ranks, models, new_config, groups, new_checkpoint, megatron, before, after
):
    config = new_config(models["qwen3"], trainer={"megatron": megatron})

    def train(num_ranks, **arguments):
        if num_ranks == 1:
            return ranks.train(config, groups, 2, **arguments)[1]
        each = [{"shares": [ids] * 2} for ids in ([0, 2], [1])]
        return ranks.both("train", each, config=config, groups=groups, **arguments)[0][1]

    train(before, save=new_checkpoint(2))
    resumed = train(after, resume=new_checkpoint(2))
    _, straight = ranks.train(config, groups, 4)
    for name, weight in straight.items():
        np.testing.assert_allclose(resumed[name], weight, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_before_the_first_step_holds_no_moments_and_resumes(
    ranks, models, new_config, groups, new_checkpoint
):
    config = new_config(models["qwen3"])
    ranks.train(config, groups, 0, save=new_checkpoint(0))
    _, resumed = ranks.train(config, groups, 1, resume=new_checkpoint(0))
    _, straight = ranks.train(config, groups, 1)
    assert all(np.array_equal(resumed[name], weight) for name, weight in straight.items())


def test_a_checkpoint_of_another_model_is_refused(ranks, models, new_config, groups, new_checkpoint):
    ranks.train(new_config(models["qwen2"]), groups, 1, save=new_checkpoint(1))
    with pytest.raises(TrainerError, match="does not hold the state of this model"):
        ranks.train(new_config(models["qwen3"]), groups, 0, resume=new_checkpoint(1))
