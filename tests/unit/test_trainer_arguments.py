"""What `trainer.megatron` may hold, and that asking costs no import of megatron."""

import subprocess
import sys

import pytest

from slime_rl.errors import ConfigError
from slime_rl.trainer.arguments import OURS, check_megatron_arguments


def test_fields_of_each_of_megatrons_dataclasses_pass():
    check_megatron_arguments(
        {
            "recompute_granularity": "full",
            "deterministic_mode": True,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
        }
    )


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'recompute_granularity'") as caught:
        check_megatron_arguments({"recompute_granularty": "full"})
    assert caught.value.path == "trainer.megatron.recompute_granularty"


@pytest.mark.parametrize("name", ["hidden_size", "lr", "params_dtype", "calculate_per_token_loss", "clip_grad"])
def test_what_slime_rl_sets_is_refused(name):
    with pytest.raises(ConfigError, match="is set by slime_rl"):
        check_megatron_arguments({name: 1})


def test_every_field_that_is_ours_exists_in_megatron():
    from slime_rl.installed import dataclass_fields
    from slime_rl.trainer.arguments import DATACLASSES

    known = frozenset().union(*(dataclass_fields("megatron", module, name) for module, name in DATACLASSES))
    assert not OURS - known


def test_the_check_loads_neither_torch_nor_megatron():
    code = (
        "import sys; from slime_rl.trainer.arguments import check_megatron_arguments;"
        "from slime_rl.trainer.packing import share_groups;"
        "check_megatron_arguments({'recompute_granularity': 'full'});"
        "print([name for name in ('torch', 'megatron.core', 'ray', 'redis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
