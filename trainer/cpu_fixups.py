"""The four places where megatron-core needs more than another device to run without CUDA and TransformerEngine.

Each function runs right after the body of the module it is given. Each has a test that fails when a new release of
megatron-core no longer needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any


def no_jit_fuser(module: ModuleType) -> None:
    """Turn off torch.compile for ten-line functions: it wants a C++ compiler and tens of seconds in every process."""
    module.disable_jit_fuser()


def quiet_rng_warning(module: ModuleType) -> None:
    """Drop the warning that the CPU generator has moved: here it is the device's generator as well."""
    logging.getLogger(module.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())


def host_side_moe_splits(module: ModuleType) -> None:
    """Make the all-to-all split sizes host integers, as they are after a copy from a CUDA device.

    `te_general_gemm` is also used without a guard by the router, so it has to exist without TransformerEngine.
    """

    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    module.__dict__.setdefault("te_general_gemm", None)
    module.__dict__["maybe_move_tensor_to_cpu"] = maybe_move_tensor_to_cpu


def loadable_adamw_state(module: ModuleType) -> None:
    """Let the distributed optimiser load a checkpoint into torch's AdamW.

    torch's AdamW has no state before its first step, and keeps a `step` tensor for each parameter in it, where
    TransformerEngine's keeps one for the group. Without this, loading dies on a missing state, or gives all parameters
    one `step` tensor, which a resumed step then increments once for each of them: silently wrong.
    """
    optimizer = module.DistributedOptimizer
    set_states = optimizer._set_main_param_and_optimizer_states
    sharded_state_dict, load_state_dict = optimizer.sharded_state_dict, optimizer.load_state_dict

    def _set_main_param_and_optimizer_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        step = {"step": state["step"]} if "step" in state else {}
        return set_states(self, model_param, {**step, **tensors})

    def _sharded_state_dict(self: Any, model_state: Any, is_loading: bool = False, *args: Any, **kwargs: Any) -> Any:
        if is_loading and not self.optimizer.state:
            self._init_optimizer_states_with_dummy_values()
        return sharded_state_dict(self, model_state, is_loading, *args, **kwargs)

    def _load_state_dict(self: Any, state_dict: Any) -> None:
        load_state_dict(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()

    optimizer._set_main_param_and_optimizer_states = _set_main_param_and_optimizer_states
    optimizer.sharded_state_dict, optimizer.load_state_dict = _sharded_state_dict, _load_state_dict


FIXUPS: dict[str, Callable[[ModuleType], None]] = {
    "megatron.core.jit": no_jit_fuser,
    "megatron.core.tensor_parallel.random": quiet_rng_warning,
    "megatron.core.transformer.moe.moe_utils": host_side_moe_splits,
    "megatron.core.optimizer.distrib_optimizer": loadable_adamw_state,
}
