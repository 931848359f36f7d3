"""Arguments of the engines: read from the installed SGLang's source, checked, completed."""

import subprocess
import sys

import pytest

from slime_rl.config import ModelConfig, RolloutConfig
from slime_rl.errors import ConfigError
from slime_rl.rollout.address import Keys
from slime_rl.rollout.arguments import (
    CPU_ARGUMENTS,
    OURS,
    check_sglang_arguments,
    known_arguments,
    server_arguments,
    server_environment,
)
from slime_rl.types import Version

KEYS = Keys("api-key", "admin-key")


def arguments_of(sglang):
    return server_arguments(
        ModelConfig(path="/models/m", dtype="float32"),
        RolloutConfig(sglang=sglang),
        port=4321,
        keys=KEYS,
        seed=7,
        version=Version(3),
    )


def test_the_installed_sglang_knows_every_argument_that_we_give():
    assert known_arguments() >= OURS
    assert set(CPU_ARGUMENTS) <= known_arguments()
    assert set(arguments_of({})) <= known_arguments()


def test_known_arguments_are_accepted():
    check_sglang_arguments({"mem_fraction_static": 0.8, "context_length": 512})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"mem_fraction_statc": 0.8},
            "rollout.sglang.mem_fraction_statc is not an argument of the installed SGLang; "
            "did you mean 'mem_fraction_static'?, got 0.8",
        ),
        ({"port": 30000}, "rollout.sglang.port is set by slime_rl and cannot be passed through, got 30000"),
        ({"api_key": "k"}, "rollout.sglang.api_key is set by slime_rl and cannot be passed through, got 'k'"),
        ({"tp_size": 2}, "rollout.sglang.tp_size must be 1: published weights are checked on one rank, got 2"),
    ],
)
def test_other_arguments_are_refused_with_their_path(given, message):
    with pytest.raises(ConfigError) as caught:
        check_sglang_arguments(given)
    assert str(caught.value) == message


def test_the_users_values_win_over_the_defaults_of_the_device():
    given = arguments_of({"device": "cpu", "max_total_tokens": 4096, "random_seed": 1})
    assert given["max_total_tokens"] == 4096
    assert given["random_seed"] == 1
    assert given["attention_backend"] == "torch_native"
    assert given["weight_version"] == "3"


def test_an_engine_on_another_device_gets_no_defaults_of_the_cpu():
    given = arguments_of({"device": "cuda"})
    assert not set(CPU_ARGUMENTS) - {"device"} & set(given)
    assert "SGLANG_USE_CPU_ENGINE" not in server_environment({"device": "cuda"})
    assert server_environment({"device": "cpu"})["SGLANG_USE_CPU_ENGINE"] == "1"


def test_keys_do_not_show_in_a_representation():
    assert "api-key" not in repr(KEYS)
    assert "admin-key" not in repr(KEYS)


def test_checking_arguments_imports_no_heavy_library():
    code = (
        "import sys; from slime_rl.rollout import arguments, engine, evaluation, model_folder, router, single_turn;"
        "arguments.known_arguments();"
        "print([m for m in ('torch', 'sglang', 'transformers', 'ray', 'megatron') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
