"""What a step did, as sums and counts that add over micro-batches and ranks, never as means of means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass(slots=True)
class Totals:
    """Sums with what they count, and maxima, of some part of a step."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float) -> None:
        """Add `total` over `count` things."""
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0.0) + count

    def raise_to(self, name: str, value: float) -> None:
        """Keep the largest value seen; NaN stays."""
        seen = self.maxima.get(name, value)
        self.maxima[name] = math.nan if math.isnan(seen) or math.isnan(value) else max(seen, value)

    def merge(self, other: Totals) -> None:
        """Add everything of `other`."""
        for name, total in other.sums.items():
            self.add(name, total, other.counts[name])
        for name, value in other.maxima.items():
            self.raise_to(name, value)

    def over_ranks(self, group: dist.ProcessGroup, device: torch.device) -> Totals:
        """The totals of all ranks of a group, which must all hold the same names."""
        names, tops = sorted(self.sums), sorted(self.maxima)
        sums = _total([*_pick(self.sums, names), *_pick(self.counts, names)], group, device)
        maxima = _largest(_pick(self.maxima, tops), group, device)
        return Totals(
            dict(zip(names, sums, strict=False)),
            dict(zip(names, sums[len(names) :], strict=True)),
            dict(zip(tops, maxima, strict=True)),
        )


def _pick(values: Mapping[str, float], names: list[str]) -> list[float]:
    return [values[name] for name in names]


def _total(values: list[float], group: dist.ProcessGroup, device: torch.device) -> list[float]:
    vector = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(vector, dist.ReduceOp.SUM, group=group)
    return vector.tolist()


def _largest(values: list[float], group: dist.ProcessGroup, device: torch.device) -> list[float]:
    """Each value's maximum over the ranks, NaN where any of them has it: a backend's own MAX loses some of those."""
    vector = torch.tensor(values, dtype=torch.float64, device=device)
    is_nan = vector.isnan()
    both = torch.stack([vector.masked_fill(is_nan, -math.inf), is_nan.double()])
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    return both[0].masked_fill(both[1] > 0, math.nan).tolist()
