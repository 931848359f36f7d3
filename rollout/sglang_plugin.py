"""What slime_rl replaces inside SGLang's processes, through SGLang's own entry point group `sglang.srt.plugins`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from slime_rl.rollout.weights.proof import checksum

PIN_HOST_MEMORY = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"
HASH_WEIGHT = "sglang.srt.utils.weight_checker._hash_tensor"


def register() -> None:
    """Called by SGLang in each of its processes."""
    for target, function in replacements().items():
        module, name = target.rsplit(".", 1)
        setattr(importlib.import_module(module), name, function)


def check() -> None:
    """Raise LookupError unless the installed SGLang has all that is replaced; SGLang only logs a plugin's failure."""
    for target in replacements():
        module, name = target.rsplit(".", 1)
        if not hasattr(importlib.import_module(module), name):
            raise LookupError(f"the installed sglang has no {target}, which slime_rl replaces")


def replacements() -> Mapping[str, Callable[..., object]]:
    """What stands in for which function on this device.

    A CPU has no driver to pin host memory with, which `enable_return_routed_experts` asks for. On a GPU, SGLang hashes
    weights with a kernel of its own; the proof of a publish needs the checksum of a CPU there too.
    """
    if torch.cuda.is_available():
        return {HASH_WEIGHT: hash_weight}
    return {PIN_HOST_MEMORY: leave_unpinned}


def leave_unpinned(*_args: object, **_options: object) -> None:
    """Stands in for the function that pins host memory."""


def hash_weight(tensor: Tensor) -> str:
    """Stands in for the function that hashes a weight."""
    return checksum([tensor])
