"""The proof that an engine holds what was published: its checksums against those of what was sent.

SGLang skips a tensor whose name it does not know and still answers with success, so nothing less will do. It stores
the projections of a layer in one parameter (`qkv_proj`, `gate_up_proj`), and pads the rows of the vocabulary; both are
followed here, for dense models on one rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slime_rl.errors import WeightsError
from slime_rl.rollout.weights.transport import NamedTensor

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""SGLang's fused modules and the checkpoint's modules that they hold, in order of their rows."""

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
VOCABULARY = (HEAD, EMBEDDING)
VOCABULARY_MULTIPLE = 64
CHECKSUM_DIGITS = 16
NUM_NAMED = 4


def engine_checksums(tensors: Sequence[NamedTensor]) -> dict[str, str]:
    """The checksums that an engine reports when it holds `tensors`, by its own parameter names."""
    by_name = dict(tensors)
    found: dict[str, str] = {}
    for name in by_name:
        fused, parts = _fused(name)
        if fused not in found and all(part in by_name for part in parts):
            found[fused] = checksum([_padded(part, by_name[part]) for part in parts])
    return found


def checksum(parts: Sequence[Tensor]) -> str:
    """The first digits of the SHA-256 of the bytes of `parts`, one after another; SGLang's own on a CPU."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:CHECKSUM_DIGITS]


def check_held(engine: str, *, published: Mapping[str, str], held: Mapping[str, str]) -> None:
    """Raise WeightsError that names the parameters which `engine` does not hold as they were published."""
    published = dict(published)
    if HEAD not in held and published.get(HEAD) == published.get(EMBEDDING):
        published.pop(HEAD, None)  # a tied head is the embedding
    faults = [
        *(f"{name} was published but is not part of the model" for name in published.keys() - held.keys()),
        *(f"{name} was not published" for name in held.keys() - published.keys()),
        *(f"{name} differs" for name in published.keys() & held.keys() if published[name] != held[name]),
    ]
    if faults:
        more = f" and {len(faults) - NUM_NAMED} more" if len(faults) > NUM_NAMED else ""
        raise WeightsError(
            f"{engine} does not hold the published weights: {'; '.join(sorted(faults)[:NUM_NAMED])}{more}"
        )


def _fused(name: str) -> tuple[str, list[str]]:
    """The engine's name of the parameter that holds tensor `name`, and the names of all tensors in it."""
    owner, _, leaf = name.rpartition(".")
    prefix, _, module = owner.rpartition(".")
    for fused, modules in FUSED.items():
        if module in modules:
            return f"{prefix}.{fused}.{leaf}", [f"{prefix}.{m}.{leaf}" for m in modules]
    return name, [name]


def _padded(name: str, tensor: Tensor) -> Tensor:
    """`tensor` as the engine stores it: rows of a vocabulary filled up with zeros."""
    if name not in VOCABULARY:
        return tensor
    return torch.nn.functional.pad(tensor, (0, 0, 0, -tensor.shape[0] % VOCABULARY_MULTIPLE))
