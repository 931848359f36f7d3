"""Which of megatron's own fields `trainer.megatron` may set, checked without importing megatron."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_rl.installed import check_arguments, dataclass_fields

DATACLASSES = (
    ("core/transformer/transformer_config.py", "TransformerConfig"),
    ("core/model_parallel_config.py", "ModelParallelConfig"),
    ("core/optimizer/optimizer_config.py", "OptimizerConfig"),
    ("core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
)

_FROM_MODEL_FOLDER = {
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "normalization",
    "layernorm_epsilon",
    "qk_layernorm",
    "add_qkv_bias",
    "add_bias_linear",
    "gated_linear_unit",
    "activation_func",
    "multi_latent_attention",
    "num_moe_experts",
}
_FROM_CONFIG = {
    "params_dtype",
    "pipeline_dtype",
    "bf16",
    "fp16",
    "lr",
    "min_lr",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "clip_grad",
}
_LAYOUT = {
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
}
_FOR_THE_LOSS = {
    "attention_dropout",
    "hidden_dropout",
    "calculate_per_token_loss",
    "variable_seq_lengths",
    "grad_reduce_in_fp32",
    "average_in_collective",
    "finalize_model_grads_func",
    "grad_scale_func",
    "no_sync_func",
    "perform_initialization",
    "use_cpu_initialization",
    "timers",
}
OURS = frozenset(_FROM_MODEL_FOLDER | _FROM_CONFIG | _LAYOUT | _FOR_THE_LOSS)
"""Fields that slime_rl sets itself: the architecture, the precision, the layout and what the loss depends on."""


def check_megatron_arguments(given: Mapping[str, Any]) -> None:
    """Refuse what the installed megatron does not know and what slime_rl sets itself.

    Raises ConfigError with the path `trainer.megatron.<name>`.
    """
    known = frozenset().union(*(dataclass_fields("megatron", module, name) for module, name in DATACLASSES))
    what = "a field of megatron's transformer, optimiser or data-parallel configuration"
    check_arguments("trainer.megatron", given, known=known, ours=OURS, what=what)
