"""A draw of tokens by seeds, for engines on a CPU: there SGLang has none of its own.

Shape letters: R rows of a batch, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xFF51AFD7ED558CCD - 2**64, 0xC4CEB9FE1A85EC53 - 2**64)
"""Of MurmurHash3's 64-bit finaliser, as signed integers."""
UNIFORM_BITS = 52


def draw(logprobs: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """A token for each row by its seed and position [R, 1], distributed as exp(logprobs) [R, V] is.

    The token is where the cumulated distribution passes a uniform number, in float64. A row's token does not depend on
    the other rows. Seeds and positions [R] are whole numbers below 2^31.
    """
    cumulated = logprobs.double().exp().cumsum(dim=1)
    threshold = uniform(seeds, positions)[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, threshold, right=True)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each pair of seed and position [R], in float64 with 52 bits.

    MurmurHash3's finaliser (Appleby, 2011) of the two together: it maps different pairs to different hashes.
    """
    mixed = (seeds.long() << 32) + positions.long()
    for multiplier in MULTIPLIERS:
        mixed = (mixed ^ _shifted(mixed, 33)) * multiplier
    mixed = mixed ^ _shifted(mixed, 33)
    return _shifted(mixed, 64 - UNIFORM_BITS).double() / 2**UNIFORM_BITS


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills up with zeros; torch's own copies the sign."""
    return (value >> bits) & (2 ** (64 - bits) - 1)
