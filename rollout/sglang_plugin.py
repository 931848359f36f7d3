"""What slime_rl replaces inside SGLang's processes, through SGLang's own entry point group `sglang.srt.plugins`."""

from __future__ import annotations

import importlib

import torch

PIN_HOST_MEMORY = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"


def register() -> None:
    """Called by SGLang in each of its processes.

    On a CPU there is no driver to pin host memory with, which `enable_return_routed_experts` asks for.
    """
    if not torch.cuda.is_available():
        module, name = PIN_HOST_MEMORY.rsplit(".", 1)
        setattr(importlib.import_module(module), name, leave_unpinned)


def leave_unpinned(*_args: object, **_options: object) -> None:
    """Stands in for the function that pins host memory."""


def check() -> None:
    """Raise LookupError unless the installed SGLang has what is replaced; SGLang only logs a plugin's failure."""
    module, name = PIN_HOST_MEMORY.rsplit(".", 1)
    if not hasattr(importlib.import_module(module), name):
        raise LookupError(f"the installed sglang has no {PIN_HOST_MEMORY}, which slime_rl replaces on a CPU")
