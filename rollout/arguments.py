"""The arguments of an SGLang server: which ones the installed version knows, and which ones slime_rl gives.

SGLang's own names and defaults are read from its source; nothing of it is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime_rl.config import ModelConfig, RolloutConfig
from slime_rl.errors import ConfigError
from slime_rl.installed import check_arguments, folder_fields
from slime_rl.rollout.address import Keys
from slime_rl.types import Version

OURS = frozenset(
    {
        "model_path",
        "tokenizer_path",
        "dtype",
        "trust_remote_code",
        "host",
        "port",
        "api_key",
        "admin_api_key",
        "weight_version",
        "custom_weight_loader",
        "skip_tokenizer_init",
    }
)
"""Arguments that slime_rl sets itself."""

FIXED: Mapping[str, tuple[Any, str]] = {
    "preferred_sampling_params": (None, "it would change what every request samples from"),
    "sampling_defaults": ("openai", "samples come from the model's own distribution at one temperature"),
    "enable_custom_logit_processor": (False, "samples come from the model's own distribution"),
    "enable_strict_thinking": (False, "samples come from the model's own distribution"),
    "enable_watermark": (False, "a watermark changes which tokens are sampled"),
    "enable_deterministic_inference": (False, "samples without seeds would be the same; run.deterministic sets it"),
    "rl_on_policy_target": (None, "all samples of a group would share one seed and be the same"),
    "speculative_accept_threshold_single": (1.0, "a lower one accepts tokens that the model would not sample"),
    "speculative_accept_threshold_acc": (1.0, "a lower one accepts tokens that the model would not sample"),
    "allow_auto_truncate": (False, "log-probs would be of a prompt that was cut"),
    "json_model_override_args": ("{}", "the trainer builds the model as model.path says"),
    "forward_hooks": (None, "the trainer's model has none"),
    "lora_paths": (None, "the trainer's model has none"),
    "quantization": (None, "published weights are checked in model.dtype"),
    "quantize_and_serve": (False, "published weights are checked in model.dtype"),
    "dllm_algorithm": (None, "log-probs are of a model that writes token by token"),
    "is_embedding": (False, "the engine has to generate"),
    "tp_size": (1, "published weights are checked on one rank"),
    "pp_size": (1, "published weights are checked on one rank"),
    "dp_size": (1, "published weights are checked on one rank"),
}
"""Arguments that decide what is sampled, or whose log-probs come back: the value each must keep, and why."""

DETERMINISTIC: Mapping[str, tuple[Any, str]] = {
    "disable_radix_cache": (True, "log-probs after a cached prefix differ in their last bits"),
    "speculative_algorithm": (None, "drafts are not sampled by the seeds of their requests"),
}
"""Arguments that a deterministic run needs besides: the value of each, and why."""

SEEDED = "SLIME_RL_SEEDED_SAMPLING"
"""Environment variable of an engine that has to sample by seeds without SGLang's help; read in `sglang_plugin.py`."""

SAMPLING_ENVIRONMENT: Mapping[str, str] = {
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
    "SGLANG_SANITIZE_NAN_LOGITS": "0",
    "SGLANG_SIMULATE_ACC_LEN": "-1",
}
"""Log-probs at the temperature of the request, of the model's own logits, of tokens that it sampled."""

WEIGHT_LOADER = "slime_rl.rollout.weights.intake.load"
"""The function that reads published tensors inside the engine."""

CPU_ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_overlap_schedule": True,
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
    "sleep_on_idle": True,
    "max_total_tokens": 65536,
    "max_running_requests": 128,
}
"""What an SGLang server needs on a CPU, where it would else spin when idle and size its cache from free memory."""

KEEP_ALIVE_S = 3600
GPU_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))


def known_arguments() -> frozenset[str]:
    """The fields of the installed SGLang's ServerArgs, which are spread over its `arg_groups/fields` modules."""
    fields = folder_fields("sglang", "srt/arg_groups/fields")
    return frozenset(name for name in fields if not name.startswith("_"))


def check_sglang_arguments(given: Mapping[str, Any], *, deterministic: bool = False) -> None:
    """Refuse what the installed SGLang does not accept, what slime_rl sets itself, and what changes the samples.

    In a `deterministic` run that goes for what could change between two runs, too.

    Raises ConfigError with the path `rollout.sglang.NAME` and the nearest known name.
    """
    check_arguments(
        "rollout.sglang", given, known=known_arguments(), ours=OURS, what="an argument of the installed SGLang"
    )
    fixed = {**FIXED, **DETERMINISTIC} if deterministic else FIXED
    for name, value in given.items():
        if name in fixed and value != fixed[name][0]:
            kept, why = fixed[name]
            raise ConfigError(f"rollout.sglang.{name}", f"must be {_spelled(kept)}: {why}", value)


def server_arguments(
    model: ModelConfig, rollout: RolloutConfig, *, port: int, keys: Keys, seed: int, version: Version
) -> dict[str, Any]:
    """All arguments of one engine; the user's own win over the defaults for the device."""
    given = dict(rollout.sglang)
    device = CPU_ARGUMENTS if on_cpu(given) else {}
    return {
        "random_seed": seed,
        **device,
        **given,
        "sampling_defaults": FIXED["sampling_defaults"][0],
        "model_path": model.path,
        "dtype": model.dtype,
        "trust_remote_code": model.trust_remote_code,
        "host": "127.0.0.1",
        "port": port,
        "api_key": keys.api,
        "admin_api_key": keys.admin,
        "weight_version": str(version),
        "custom_weight_loader": [WEIGHT_LOADER],
    }


def deterministic_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine of a deterministic run gets besides. On a GPU that is SGLang's own mode; a CPU has none."""
    values = {name: value for name, (value, _) in DETERMINISTIC.items()}
    return values if on_cpu(given) else {**values, "enable_deterministic_inference": True}


def server_environment(given: Mapping[str, Any], *, deterministic: bool = False) -> dict[str, str]:
    """The environment of an engine: this process's own, and what SGLang reads from it.

    One thread a process on a CPU, since several servers share the cores. `/health` only says that the server
    answers; that it generates is asked by `/health_generate`, which must not run while generation is paused. An idle
    connection is closed by the client before the server would, else a request could meet a closing one and be lost.
    """
    environment = dict(os.environ)
    if on_cpu(given):
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment[SEEDED] = "0"
        if deterministic:
            environment |= {"OMP_NUM_THREADS": "1", SEEDED: "1"}
    environment.update(SAMPLING_ENVIRONMENT)
    environment["HF_HUB_OFFLINE"] = "1"
    environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
    environment["SGLANG_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def on_cpu(given: Mapping[str, Any]) -> bool:
    """Whether an engine with these arguments runs on a CPU: it says so, or the machine has no driver for a GPU."""
    return given.get("device", "cuda" if any(p.exists() for p in GPU_DRIVERS) else "cpu") == "cpu"


def _spelled(value: Any) -> str:
    """A value as a configuration file spells it."""
    return json.dumps(value)
