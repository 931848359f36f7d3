"""Megatron's model of a Hugging Face folder, its weights in and out.

Shape letters: T packed tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from mbridge.core import LLMBridge
from mbridge.models import LLaMABridge, Qwen2Bridge, Qwen3Bridge
from megatron.core import parallel_state
from megatron.core.extensions.transformer_engine import HAVE_TE
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_rl.config import ModelConfig
from slime_rl.errors import ModelError
from slime_rl.trainer.architecture import read_architecture, rope_arguments
from slime_rl.trainer.layers import dense_block

_BRIDGES: dict[str, type[LLMBridge]] = {"llama": LLaMABridge, "qwen2": Qwen2Bridge, "qwen3": Qwen3Bridge}
_WITHOUT_TRANSFORMER_ENGINE = {
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "apply_rope_fusion": False,
    "persist_layer_norm": False,
    "gradient_accumulation_fusion": False,
}


class PolicyModel(GPTModel):
    """Megatron's GPT, whose last stage returns hidden states [T, 1, H].

    The logits [T, V] are made outside, only for trained tokens and a few at a time.
    """

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    @property
    def head(self) -> Tensor:
        """The weight that turns hidden states into logits, [V, H]."""
        shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        assert weight is not None  # the last stage has one
        return weight


class HubModel:
    """A Hugging Face folder as a megatron model of this rank: builds it, loads it, exports it.

    Raises ModelError for a folder that the trainer cannot build.
    """

    def __init__(self, config: ModelConfig, megatron: Mapping[str, Any]) -> None:
        self.folder = config.path
        self.architecture = read_architecture(config.path)
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        bridge = _BRIDGES[self.architecture.model_type]
        self._bridge = bridge(cast(Any, self.architecture), dtype=self.dtype)
        if not self._tied:  # mbridge keeps what it learnt of a tied model for all models of the class
            self._bridge._DIRECT_MAPPING = self._bridge._DIRECT_MAPPING | {"output_layer.weight": "lm_head.weight"}
        self._bridge.set_extra_args(**(_fixed_arguments() | fields_of(TransformerConfig, megatron)))

    @property
    def _tied(self) -> bool:
        return self.architecture.tie_word_embeddings

    def build(self) -> PolicyModel:
        """The modules of this rank on its device, their weights not yet set."""
        config = self._bridge.config
        model = PolicyModel(
            config,
            cast(Any, _block(config)),
            vocab_size=self.architecture.vocab_size,
            max_sequence_length=self.architecture.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=self._tied,
            **rope_arguments(self.architecture),
        )
        return model.cuda() if torch.cuda.is_available() else model

    def load(self, model: PolicyModel) -> None:
        """Fill `model` from the folder; every rank of its parallel group takes part.

        Raises ModelError where the folder lacks a weight.
        """
        try:
            self._bridge.load_weights([model], self.folder)
        except (KeyError, ValueError) as error:
            raise ModelError(f"{self.folder}: a weight is missing: {error}") from error

    def export(self, model: PolicyModel) -> Iterator[tuple[str, Tensor]]:
        """The weights under their checkpoint names, in one order; every rank of the parallel group takes part.

        The tensors share memory with the model: they change with its next step.
        """
        for name, weight in self._bridge.export_weights([model]):
            yield name, weight.detach().to(self.dtype)


def _block(config: TransformerConfig) -> TransformerBlockSubmodules:
    return get_gpt_decoder_block_spec(config, use_transformer_engine=True) if HAVE_TE else dense_block(config)


def fields_of(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that the dataclass `kind` has."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in arguments.items() if name in names}


def _fixed_arguments() -> dict[str, Any]:
    """What the loss needs, and what the device can do."""
    fixed: dict[str, Any] = {
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "calculate_per_token_loss": True,
        "perform_initialization": False,
        "use_cpu_initialization": not torch.cuda.is_available(),
    }
    return fixed if HAVE_TE else fixed | _WITHOUT_TRANSFORMER_ENGINE
