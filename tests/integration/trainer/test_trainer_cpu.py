"""Each fix-up of megatron is still needed and still works; attention over packs and ranks is plain attention."""

import pytest

pytestmark = [pytest.mark.megatron, pytest.mark.slow]


def test_megatron_compiles_small_functions_and_the_fix_up_stops_it(ranks):
    by_itself, here = ranks.one("jit_fuser")
    assert by_itself
    assert not here


def test_megatron_warns_of_the_shared_generator_and_the_fix_up_drops_only_that(ranks):
    by_itself, here = ranks.one("rng_warning")
    assert by_itself
    assert not here


def test_megatron_leaves_split_sizes_on_the_device_and_the_fix_up_does_not(ranks):
    name_exists, stays_a_tensor, name_exists_here, stays_a_tensor_here = ranks.one("moe_helpers")
    assert not name_exists
    assert stays_a_tensor
    assert name_exists_here
    assert not stays_a_tensor_here


def test_distributed_optimizer_resumes_exactly(ranks, models, new_config, new_groups, tmp_path):
    config = new_config(models["qwen3"], trainer={"megatron": {"use_distributed_optimizer": True}})
    arguments = {"config": config, "groups": new_groups([2, 3]), "folder": str(tmp_path)}
    assert ranks.one("resume", **arguments) == 0.0


def test_distributed_optimizer_does_not_resume_without_the_fix_up(ranks, models, new_config, new_groups, tmp_path):
    config = new_config(models["qwen3"], trainer={"megatron": {"use_distributed_optimizer": True}})
    arguments = {"config": config, "groups": new_groups([2, 3]), "folder": str(tmp_path)}
    fault = ranks.one("fails_to_resume", **arguments)
    assert fault in ("AssertionError", "KeyError")


LENGTHS = (4, 4, 8, 8, 8, 12, 28)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_packed_attention_is_attention_over_each_sequence(ranks, heads):
    values, gradients = ranks.alone("packed_attention", lengths=(1, 3, *LENGTHS, 29), heads=heads)
    assert values < 1e-6
    assert gradients < 2e-6


def test_packed_attention_over_two_context_parallel_ranks(ranks):
    for values, gradients in ranks.both("packed_attention", [{}, {}], lengths=LENGTHS, heads=(4, 2)):
        assert values < 1e-6
        assert gradients < 2e-6
