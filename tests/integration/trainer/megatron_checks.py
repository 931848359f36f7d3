"""What the tests ask of megatron itself: does it still need each fix-up, and is our attention the same as torch's."""

from __future__ import annotations

import importlib.util
import inspect
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import slime_rl.trainer  # noqa: F401  megatron has to find its hook in place

# isort: split
import megatron.core.jit
import megatron.core.optimizer
import megatron.core.tensor_parallel.random
import megatron.core.transformer.moe.moe_utils
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_rl.config_file import validate
from slime_rl.errors import SlimeError, TrainerError
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.trainer import distributed
from slime_rl.trainer.attention import PackedAttention
from slime_rl.trainer.cpu_device import CPU_DEVICE
from slime_rl.trainer.megatron_cpu import STAND_IN, on_cpu
from slime_rl.trainer.rank import MegatronRank
from slime_rl.types import Group, Version


def without_fixup(name: str) -> ModuleType:
    """A second copy of a megatron module, rewritten for the CPU but not fixed up."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__[STAND_IN] = CPU_DEVICE
    exec(on_cpu(Path(spec.origin).read_bytes(), spec.origin), module.__dict__)
    return module


def jit_fuser() -> tuple[bool, bool]:
    """Whether megatron compiles by itself, and whether it does here."""
    return (
        without_fixup("megatron.core.jit").jit_fuser is torch.compile,
        megatron.core.jit.jit_fuser is torch.compile,
    )


def rng_warning() -> tuple[bool, bool]:
    """Whether megatron warns by itself when the CPU generator moves, and whether it does here."""
    warned = []
    logger = megatron.core.tensor_parallel.random.logging.getLogger("megatron.core.tensor_parallel.random")
    source = inspect.getsource(megatron.core.tensor_parallel.random)
    for text in ("CPU RNG state changed within GPU RNG context", "another warning"):
        record = logger.makeRecord(logger.name, 30, __file__, 0, text, (), None)
        warned.append(bool(logger.filter(record)))
    assert warned[1]
    return "CPU RNG state changed within GPU RNG context" in source, warned[0]


def moe_helpers() -> tuple[bool, bool, bool, bool]:
    """Whether the name without a guard exists, and whether split sizes become numpy: by itself, and here."""
    plain, fixed = without_fixup("megatron.core.transformer.moe.moe_utils"), megatron.core.transformer.moe.moe_utils
    sizes = torch.tensor([3, 4])
    return (
        hasattr(plain, "te_general_gemm"),
        isinstance(plain.maybe_move_tensor_to_cpu(sizes, as_numpy=True), torch.Tensor),
        hasattr(fixed, "te_general_gemm"),
        isinstance(fixed.maybe_move_tensor_to_cpu(sizes, as_numpy=True), torch.Tensor),
    )


def resume(config: dict[str, Any], *, groups: Sequence[Group], folder: str, fixup: bool = True) -> float:
    """Two steps, a checkpoint, a third step; then the third again from the checkpoint: how far the weights differ."""
    fixed = megatron.core.optimizer.DistributedOptimizer
    if not fixup:
        plain = without_fixup("megatron.core.optimizer.distrib_optimizer")
        megatron.core.optimizer.DistributedOptimizer = plain.DistributedOptimizer
    try:
        straight = _third_step(config, groups, folder, resumed=False)
        resumed = _third_step(config, groups, folder, resumed=True)
    finally:
        megatron.core.optimizer.DistributedOptimizer = fixed
    return max((straight[name] - weight).abs().max().item() for name, weight in resumed.items())


def fails_to_resume(config: dict[str, Any], **arguments: Any) -> str:
    """What megatron says, without the fix-up, to a distributed optimiser's checkpoint."""
    try:
        return f"the weights differ by {resume(config, fixup=False, **arguments)}"
    except TrainerError as error:
        return type(error.__cause__).__name__


def _third_step(
    config: dict[str, Any], groups: Sequence[Group], folder: str, *, resumed: bool
) -> dict[str, torch.Tensor]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    checkpoint = Checkpoint(Path(folder), Version(2))
    checkpoint.trainer.mkdir(parents=True, exist_ok=True)
    resume = checkpoint if resumed else None
    trainer = start(config, rank=0, world_size=1, port=port, groups=groups, resume=resume)
    ids = [group.id for group in groups]
    try:
        if not resumed:
            trainer.step(ids, 0)
            trainer.step(ids, 1)
            trainer.save(checkpoint)
        trainer.step(ids, 2)
        return {name: weight.clone() for name, weight in trainer.export()}
    finally:
        trainer.close()


def start(
    config: dict[str, Any],
    *,
    rank: int,
    world_size: int,
    port: int,
    groups: Sequence[Group],
    resume: Checkpoint | None = None,
) -> MegatronRank:
    """A rank that has joined its peers and loaded the model."""
    by_id = {group.id: group for group in groups}
    trainer = MegatronRank(
        validate(config),
        rank=rank,
        world_size=world_size,
        master_addr="127.0.0.1",
        master_port=port,
        read_groups=lambda ids: [by_id[id] for id in ids],
    )
    try:
        trainer.load(resume)
    except SlimeError:
        trainer.close()
        raise
    return trainer


def packed_attention(
    *, rank: int, world_size: int, port: int, lengths: Sequence[int], heads: tuple[int, int]
) -> tuple[float, float]:
    """How far packed attention over the ranks is from torch's, a sequence at a time: in values and in gradients."""
    trainer = validate(
        {"run": {"folder": ""}, "model": {"path": ""}, "data": {"path": ""}, "loop": {"steps": 1}}
    ).trainer
    distributed.join(trainer, rank=rank, world_size=world_size, master_addr="127.0.0.1", master_port=port)
    num_heads, num_groups = heads
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8 * num_heads,
        num_attention_heads=num_heads,
        num_query_groups=num_groups,
        attention_dropout=0.0,
    )
    groups = ProcessGroupCollection(cp=distributed.data_parallel_group())
    attention = PackedAttention(config, 1, AttnMaskType.causal, "self", pg_collection=groups)
    torch.manual_seed(0)
    shapes = [(sum(lengths), count, 8) for count in (num_heads, num_groups, num_groups)]
    query, key, value = inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    weights = torch.randn(sum(lengths), 8 * num_heads)
    expected = _one_by_one(query, key, value, lengths)
    expected_grads = torch.autograd.grad((expected * weights).sum(), inputs)
    bounds = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
    longest = max(lengths)
    packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest)
    local = [_slice(x.detach(), lengths, rank, world_size).requires_grad_() for x in inputs]
    found = attention(*local, packed_seq_params=packed)
    grads = torch.autograd.grad((found * _slice(weights, lengths, rank, world_size)).sum(), local)
    distributed.leave()
    pairs = zip(grads, expected_grads, strict=True)
    return (
        (found - _slice(expected, lengths, rank, world_size)).abs().max().item(),
        max((grad - _slice(whole, lengths, rank, world_size)).abs().max().item() for grad, whole in pairs),
    )


def _one_by_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    parts = []
    for qkv in zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True):
        q, k, v = (x.transpose(0, 1) for x in qkv)
        k, v = (x.repeat_interleave(len(q) // len(k), dim=0) for x in (k, v))
        scores = (q @ k.transpose(1, 2)) / 8**0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        parts.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


def _slice(x: torch.Tensor, lengths: Sequence[int], rank: int, size: int) -> torch.Tensor:
    """What a context-parallel rank holds: chunks `rank` and `2 size - 1 - rank` of every sequence."""
    if size == 1:
        return x
    chunks = [sequence.chunk(2 * size) for sequence in x.split(list(lengths))]
    return torch.cat([part for parts in chunks for part in (parts[rank], parts[2 * size - 1 - rank])])


SCENARIOS: dict[str, Callable[..., Any]] = {
    scenario.__name__: scenario
    for scenario in (jit_fuser, rng_warning, moe_helpers, resume, fails_to_resume, packed_attention)
}
