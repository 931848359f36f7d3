"""What `torch.cuda` means inside megatron on a machine without CUDA: a device that is the CPU and never busy."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch


class _Done:
    """A CUDA stream or event that has nothing left to do."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _nothing

    def __enter__(self) -> _Done:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Done)

    def __hash__(self) -> int:
        return hash(_Done)

    def record_event(self, *_: Any) -> _Done:
        return _Done()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: _Done) -> float:
        return 0.0


class _Generators:
    """`torch.cuda.default_generators`: every device has the one generator of the CPU."""

    def __getitem__(self, _: int) -> torch.Generator:
        return torch.default_generator


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


class _CpuDevice(types.ModuleType):
    """The part of `torch.cuda` that megatron calls; what is not listed is the real thing."""

    Stream = Event = _Done
    default_generators = _Generators()
    nvtx = types.SimpleNamespace(range_push=_nothing, range_pop=_nothing)

    current_device = staticmethod(lambda: torch.device("cpu"))
    device_count = staticmethod(lambda: 1)
    get_device_capability = staticmethod(lambda *_: (0, 0))
    current_stream = default_stream = staticmethod(_Done)
    stream = device = staticmethod(lambda *_, **__: contextlib.nullcontext())
    synchronize = empty_cache = set_device = reset_peak_memory_stats = _lazy_init = staticmethod(_nothing)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(_zero)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state = staticmethod(lambda *_: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))
    _lazy_call = staticmethod(lambda call, **_: call())

    @property
    def random(self) -> _CpuDevice:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


CPU_DEVICE = _CpuDevice("slime_rl_cpu_device")
