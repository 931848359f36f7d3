"""Attention over packed sequences by torch's own kernel, on any device, where TransformerEngine is not there.

Shape letters: S sequences, T tokens of this rank, N query heads, G key/value heads, D channels of a head, L the length
of a sequence, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_rl.trainer.packing import runs


class PackedAttention(MegatronModule):
    """Causal self-attention (`core_attention` of a layer) in megatron's `thd` layout, and in `sbhd` without packing.

    Neighbours of equal length are attended to as one batch, so that a pack sorted by length costs one call for each
    length and no padding. Context parallel ranks hold chunks r and 2c - 1 - r of every sequence cut into 2c, and gather
    keys and values.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        if attention_type != "self" or config.window_size is not None or config.softmax_type != "vanilla":
            raise NotImplementedError("PackedAttention is plain causal self-attention")
        assert config.kv_channels is not None  # set by the configuration itself
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.dropout = config.attention_dropout
        assert pg_collection is not None  # megatron's Attention always has one
        self.context_group: dist.ProcessGroup = pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Packed: query [T, N, D], key and value [T, G, D] -> [T, N * D]. Else [L, B, N, D] -> [L, B, N * D]."""
        if packed_seq_params is None:
            query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            return self._attend(query, key, value).permute(2, 0, 1, 3).flatten(2)
        bounds = packed_seq_params.cu_seqlens_q_padded
        if bounds is None:
            bounds = packed_seq_params.cu_seqlens_q
        lengths = [end - start for start, end in pairwise(bounds.tolist())]
        if self.context_group.size() == 1:
            return self._attend_to_runs(query, key, value, lengths)
        return self._attend_across_ranks(query, key, value, lengths)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """query [B, N, L, D], key and value [B, G, L, D] -> [B, N, L, D]; causal unless there is a mask."""
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=query.size(1) != key.size(1),
        )

    def _attend_to_runs(self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        batches = list(runs(lengths))
        sizes = [length * count for length, count in batches]
        parts = []
        for (length, count), *qkv in zip(batches, *(x.split(sizes) for x in (query, key, value)), strict=True):
            q, k, v = (x.unflatten(0, (count, length)).transpose(1, 2) for x in qkv)
            parts.append(self._attend(q, k, v).transpose(1, 2).flatten(0, 1))
        return torch.cat(parts).flatten(1)

    def _attend_across_ranks(self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        size, rank = self.context_group.size(), self.context_group.rank()
        local = [length // size for length in lengths]
        gathered = gather_from_sequence_parallel_region(torch.stack((key, value), dim=1), group=self.context_group)
        shards = [shard.split(local) for shard in gathered.chunk(size)]
        parts = []
        for place, (q, length) in enumerate(zip(query.split(local), lengths, strict=True)):
            chunk = length // (2 * size)
            whole = torch.cat(
                [
                    shards[min(part, 2 * size - 1 - part)][place].chunk(2)[part >= size]  # [chunk, 2, G, D]
                    for part in range(2 * size)
                ]
            )
            ours = torch.cat([torch.arange(part * chunk, (part + 1) * chunk) for part in (rank, 2 * size - 1 - rank)])
            mask = ours.to(q.device)[:, None] >= torch.arange(length, device=q.device)
            k, v = whole.unbind(dim=1)
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            parts.append(self._attend(q, k, v, mask)[0].transpose(0, 1))
        return torch.cat(parts).flatten(1)
