"""What slime_rl replaces inside SGLang's processes, through SGLang's own entry point group `sglang.srt.plugins`."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pkgutil
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from slime_rl.rollout.arguments import SEEDED
from slime_rl.rollout.seeded_sampler import draw
from slime_rl.rollout.weights.proof import checksum

PIN_HOST_MEMORY = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"
HASH_WEIGHT = "sglang.srt.utils.weight_checker._hash_tensor"
DRAW_BY_SEED = "sglang.srt.layers.sampler.multinomial_with_seed"
DESCRIBE_BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
DEFAULT_SEED = 42
"""SGLang's own, of a request that gives none."""


def register() -> None:
    """Called by SGLang in each of its processes, which then also write their stacks to the log on SIGUSR1."""
    faulthandler.register(signal.SIGUSR1)
    for target, function in replacements().items():
        module, name = target.rsplit(".", 1)
        setattr(importlib.import_module(module), name, function)
    for target, function in additions().items():
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(target, function, hooks.HookType.AFTER)


def check() -> None:
    """Raise LookupError unless the installed SGLang has all that is changed; SGLang only logs a plugin's failure."""
    for target in (*replacements(), *additions()):
        try:
            pkgutil.resolve_name(target)
        except (AttributeError, ImportError):
            raise LookupError(f"the installed sglang has no {target}, which slime_rl changes") from None


def replacements() -> Mapping[str, Callable[..., object]]:
    """What stands in for which function on this device.

    A CPU has no driver to pin host memory with, which `enable_return_routed_experts` asks for. On a GPU, SGLang hashes
    weights with a kernel of its own; the proof of a publish needs the checksum of a CPU there too.
    """
    if torch.cuda.is_available():
        return {HASH_WEIGHT: hash_weight}
    if seeded():
        return {PIN_HOST_MEMORY: leave_unpinned, DRAW_BY_SEED: draw}
    return {PIN_HOST_MEMORY: leave_unpinned}


def additions() -> Mapping[str, Callable[..., object]]:
    """What runs after which function, with its result and arguments.

    SGLang heeds the seeds of requests with `enable_deterministic_inference` only, which no CPU backend can do.
    """
    return {DESCRIBE_BATCH: add_seeds} if seeded() else {}


def seeded() -> bool:
    """Whether this engine is on a CPU and has to sample by the seeds of its requests."""
    return os.environ.get(SEEDED) == "1"


def leave_unpinned(*_args: object, **_options: object) -> None:
    """Stands in for the function that pins host memory."""


def hash_weight(tensor: Tensor) -> str:
    """Stands in for the function that hashes a weight."""
    return checksum([tensor])


def add_seeds(info: Any, _kind: type, batch: Any, *_arguments: object) -> None:
    """Gives the description of a batch [R requests] the seeds of its requests."""
    given = [request.sampling_params.sampling_seed for request in batch.reqs]
    info.sampling_seed = torch.tensor([DEFAULT_SEED if seed is None else seed for seed in given], dtype=torch.int64)
