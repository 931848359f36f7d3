"""The optimiser of a rank: gradients averaged over the step's tokens, clipped, and applied at the scheduled rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module

from slime_rl.config import TrainerConfig
from slime_rl.errors import TrainerError
from slime_rl.trainer.model import PolicyModel, fields_of
from slime_rl.types import Version


def data_parallel(model: PolicyModel, megatron: Mapping[str, Any]) -> DistributedDataParallel:
    """Wrap a model so that its gradients are summed over data-parallel ranks, in float32."""
    config = model.config
    wrapped = Float16Module(config, model) if config.bf16 else model
    options = fields_of(DistributedDataParallelConfig, megatron)
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, **options), wrapped)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = ddp.no_sync
    return ddp


_OF_THE_STATE = "params", "step"
"""What a parameter group holds that is no setting."""


class Optimizer:
    """Megatron's optimiser and schedule over one wrapped model, master weights in float32."""

    def __init__(self, model: DistributedDataParallel, config: TrainerConfig, *, num_steps: int) -> None:
        self._model = model
        params_dtype = model.config.params_dtype
        self.config = OptimizerConfig(
            lr=config.lr,
            min_lr=config.min_lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.clip_grad,
            params_dtype=params_dtype,
            bf16=params_dtype is torch.bfloat16,
            **fields_of(OptimizerConfig, config.megatron),
        )
        self._optimizer = cast(ChainedOptimizer, get_megatron_optimizer(self.config, [model]))
        for group in self._optimizer.param_groups:
            if "fused" in group:  # torch's own optimiser: one kernel for each weight instead of ten
                group["fused"] = True
        self._schedule = OptimizerParamScheduler(
            self._optimizer,
            init_lr=0.0,
            max_lr=config.lr,
            min_lr=config.min_lr,
            lr_warmup_steps=config.lr_warmup_steps,
            lr_decay_steps=max(num_steps, config.lr_warmup_steps) + 1,
            lr_decay_style=config.lr_schedule,
            start_wd=config.weight_decay,
            end_wd=config.weight_decay,
            wd_incr_steps=1,
            wd_incr_style="constant",
        )

    @property
    def has_stepped(self) -> bool:
        """Whether there are moments: an optimiser makes them in its first step."""
        return any(optimizer.optimizer.state for optimizer in self._optimizer.chained_optimizers)

    def sharded_state_dict(
        self, model: Mapping[str, Any], *, is_loading: bool, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Master weights and moments as Megatron's distributed checkpoints take them."""
        return self._optimizer.sharded_state_dict(dict(model), is_loading=is_loading, metadata=dict(metadata))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take master weights and moments from a checkpoint, and keep the settings of this configuration.

        The rate of a step follows from its version alone.
        """
        settings = [
            {k: v for k, v in group.items() if k not in _OF_THE_STATE} for group in self._optimizer.param_groups
        ]
        self._optimizer.load_state_dict(dict(state))
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(values)

    def settle(self) -> None:
        """Wait until every rank holds the weights of the last step, even where they are gathered ahead of their use."""
        if self._model.ddp_config.overlap_param_gather:
            self._model.start_param_sync(force_sync=True)

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def learning_rate(self, version: Version) -> float:
        """Set the rate of the step that starts from `version`, and return it.

        It warms up from lr / warm-up steps to lr, then stays, or falls to reach `min_lr` one step after the last.
        """
        self._schedule.num_steps = version
        self._schedule.step(increment=1)
        return float(self._optimizer.param_groups[0]["lr"])

    def grad_norm(self) -> float:
        """The 2-norm of the whole gradient, the same on every rank. Comes before `update`.

        Raises TrainerError if it is not finite.
        """
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        if not math.isfinite(norm):
            raise TrainerError(f"the gradient norm is {norm}")
        return norm

    def update(self, grad_norm: float) -> None:
        """Clip the gradient by its norm and step."""
        for optimizer in self._optimizer.chained_optimizers:
            clip_grad_by_total_norm_fp32(
                list[torch.Tensor](optimizer.get_parameters()),
                self.config.clip_grad,
                grad_norm,
                self.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8,
            )
        self._optimizer.step_with_ready_grads()
