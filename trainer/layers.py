"""Transformer layers without TransformerEngine, with its parameter names.

The names (`linear_qkv.layer_norm_weight` and so on) are what converters and checkpoints go by, so both are the same
with and without TransformerEngine.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from slime_rl.trainer.attention import PackedAttention


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019, arXiv 1910.07467), marked for sequence parallel reduction."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _norm_weight(config, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class NormedColumnParallelLinear(ColumnParallelLinear):
    """A column-parallel linear layer whose input is normed first, as TransformerEngine's fused one."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = _norm_weight(config, input_size)

    def forward(self, x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        normed = F.rms_norm(x, self.layer_norm_weight.shape, self.layer_norm_weight, self.eps)
        return super().forward(normed, *args, **options)


def _norm_weight(config: TransformerConfig, size: int) -> nn.Parameter:
    device = None if config.use_cpu_initialization else torch.cuda.current_device()
    weight = nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=device))
    weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]: megatron's mark
    return weight


def dense_block(config: TransformerConfig, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage of a dense decoder."""
    qk_norm = RMSNorm if config.qk_layernorm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=NormedColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=qk_norm,
        k_layernorm=qk_norm,
    )
    layer = TransformerLayerSubmodules(
        self_attention=ModuleSpec(SelfAttention, {"attn_mask_type": AttnMaskType.causal}, attention),
        self_attn_bda=cast(Any, get_bias_dropout_add),
        mlp=ModuleSpec(
            MLP, submodules=MLPSubmodules(linear_fc1=NormedColumnParallelLinear, linear_fc2=RowParallelLinear)
        ),
        mlp_bda=cast(Any, get_bias_dropout_add),
    )
    return TransformerBlockSubmodules(
        layer_specs=[ModuleSpec(TransformerLayer, submodules=layer)] * get_num_layers_to_build(config, vp_stage),
        layer_norm=cast(Any, RMSNorm),
    )
