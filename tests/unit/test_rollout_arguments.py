"""Arguments of the engines: read from the installed SGLang's source, checked, completed."""

import ast
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from slime_rl.config import ModelConfig, RolloutConfig
from slime_rl.errors import ConfigError
from slime_rl.rollout.address import Keys
from slime_rl.rollout.arguments import (
    CPU_ARGUMENTS,
    DETERMINISTIC,
    FIXED,
    OURS,
    SEEDED,
    check_sglang_arguments,
    deterministic_arguments,
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
        (
            {"preferred_sampling_params": {"top_p": 0.9}},
            "rollout.sglang.preferred_sampling_params must be null: it would change what every request samples from, "
            "got {'top_p': 0.9}",
        ),
        (
            {"sampling_defaults": "model"},
            'rollout.sglang.sampling_defaults must be "openai": samples come from the model\'s own distribution at '
            "one temperature, got 'model'",
        ),
        ({"tp_size": 2}, "rollout.sglang.tp_size must be 1: published weights are checked on one rank, got 2"),
    ],
)
def test_other_arguments_are_refused_with_their_path(given, message):
    with pytest.raises(ConfigError) as caught:
        check_sglang_arguments(given)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", FIXED)
def test_an_argument_that_changes_what_is_sampled_may_only_keep_its_value(name):
    kept, _ = FIXED[name]
    check_sglang_arguments({name: kept})
    with pytest.raises(ConfigError, match=rf"rollout\.sglang\.{name} must be "):
        check_sglang_arguments({name: "another"})


def test_every_engine_has_these_values_by_itself_or_from_slime_rl():
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "srt/arg_groups/fields"
    found = {}
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(f.read_text())) for f in folder.glob("*.py")):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in FIXED:
            assert node.value is not None
            found[node.target.id] = ast.literal_eval(node.value)
    started_with = found | {name: value for name, value in arguments_of({}).items() if name in FIXED}
    assert started_with == {name: kept for name, (kept, _) in FIXED.items()}


def test_an_environment_that_changes_log_probs_does_not_reach_an_engine(monkeypatch):
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    assert server_environment({"device": "cpu"})["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"


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


def test_an_engine_of_a_deterministic_run_keeps_no_prefixes_and_on_a_gpu_runs_in_sglangs_own_mode():
    on_cpu, on_gpu = (deterministic_arguments({"device": device}) for device in ("cpu", "cuda"))
    assert on_cpu["disable_radix_cache"]
    assert on_gpu == {**on_cpu, "enable_deterministic_inference": True}
    assert set(on_gpu) <= known_arguments()


def test_an_engine_on_a_cpu_samples_by_seeds_on_one_thread_in_a_deterministic_run_only(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv(SEEDED, "1")
    usual, deterministic = (server_environment({"device": "cpu"}, deterministic=value) for value in (False, True))
    assert (usual["OMP_NUM_THREADS"], usual[SEEDED]) == ("4", "0")
    assert (deterministic["OMP_NUM_THREADS"], deterministic[SEEDED]) == ("1", "1")


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_an_argument_that_leaves_bits_to_chance_is_refused_in_a_deterministic_run_only(name):
    check_sglang_arguments({name: "another"})
    check_sglang_arguments({name: DETERMINISTIC[name][0]}, deterministic=True)
    with pytest.raises(ConfigError, match=rf"rollout\.sglang\.{name} must be "):
        check_sglang_arguments({name: "another"}, deterministic=True)


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
