"""Which prompt a group id stands for, over several sources and all epochs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 4096
"""After so many groups at most, the sources take turns in the same way again; weights are exact to one part of it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One part of the training data: its rows, its share of the groups, and a digest of what the rows hold."""

    size: int
    weight: float = 1.0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which prompts are issued: a pure function of the group id.

    The sources take turns by their weights, so that after any n groups each has had its share of n to less than one.
    Each goes through epochs of its own: every row once, as it stands in the file or in a permutation drawn from
    (seed, epoch, source) alone. A resumed run goes on where it was without having stored any order.
    """

    sources: tuple[Source, ...]
    seed: int
    shuffle: bool

    def row(self, group_id: int) -> int:
        """The row behind the `group_id`-th prompt issued, in the sources one after the other."""
        turns = _turns(tuple(source.weight for source in self.sources))
        number, count = turns.at(group_id)
        size = self.sources[number].size
        epoch, position = divmod(count, size)
        row = int(_permutations(self.seed, number, size)(epoch)[position]) if self.shuffle else position
        return sum(source.size for source in self.sources[:number]) + row

    def num_issues(self, max_epochs: int) -> int:
        """How many groups there are before one would need a source's epoch number `max_epochs`, counted from 0."""
        turns = _turns(tuple(source.weight for source in self.sources))
        return min(turns.when(number, source.size * max_epochs) for number, source in enumerate(self.sources))


@dataclass(frozen=True, slots=True)
class _Turns:
    """One period P of the sources' turns.

    `schedule[P]` is the source of each turn, `before[P]` how many turns the same source had earlier in the period, and
    `own[S]` the turns of each source.
    """

    schedule: NDArray[np.int64]
    before: NDArray[np.int64]
    own: tuple[NDArray[np.int64], ...]

    def at(self, turn: int) -> tuple[int, int]:
        """The source whose turn it is, and how many turns it had before."""
        period, place = divmod(turn, len(self.schedule))
        source = int(self.schedule[place])
        return source, period * len(self.own[source]) + int(self.before[place])

    def when(self, source: int, count: int) -> int:
        """The turn before which `source` has had `count` turns, and which is its own."""
        period, place = divmod(count, len(self.own[source]))
        return period * len(self.schedule) + int(self.own[source][place])


@functools.lru_cache(maxsize=16)
def _turns(weights: tuple[float, ...]) -> _Turns:
    schedule = np.array(_schedule(_shares(weights)), np.int64)
    own = tuple(np.flatnonzero(schedule == source) for source in range(len(weights)))
    before = np.empty_like(schedule)
    for turns in own:
        before[turns] = np.arange(len(turns))
    return _Turns(schedule, before, own)


def _shares(weights: tuple[float, ...]) -> list[int]:
    """The weights as whole turns of one period: exact where MAX_PERIOD allows, else by largest remainder, none 0."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * common) for weight in exact]
    divisor = math.gcd(*whole)
    whole = [share // divisor for share in whole]
    total = sum(whole)
    if total <= MAX_PERIOD:
        return whole
    free = MAX_PERIOD - len(whole)
    shares = [1 + share * free // total for share in whole]
    by_remainder = sorted(range(len(whole)), key=lambda source: (-(whole[source] * free % total), source))
    for source in by_remainder[: MAX_PERIOD - sum(shares)]:
        shares[source] += 1
    return shares


def _schedule(shares: list[int]) -> list[int]:
    """Who has each turn of a period: of those not ahead of their share, the one whose next turn is due first.

    The i-th turn of a source with share s of P may come from floor(iP/s) on and must come before ceil((i+1)P/s).
    Earliest deadline first meets every deadline, as the windows fill the period exactly (Baruah et al., "Proportionate
    progress", Algorithmica 1996), so a source is never a whole turn from its share.
    """
    period = sum(shares)
    had = [0] * len(shares)
    turns: list[int] = []
    for turn in range(period):
        waiting = [source for source, share in enumerate(shares) if had[source] * period < share * (turn + 1)]
        source = min(waiting, key=lambda source: (-(-(had[source] + 1) * period // shares[source]), source))
        had[source] += 1
        turns.append(source)
    return turns


@functools.lru_cache(maxsize=256)
def _permutations(seed: int, source: int, size: int) -> Callable[[int], NDArray[np.int64]]:
    """What draws the permutations of one source by epoch, and keeps the last two."""
    return functools.lru_cache(maxsize=2)(functools.partial(_permutation, seed, source, size))


def _permutation(seed: int, source: int, size: int, epoch: int) -> NDArray[np.int64]:
    """A permutation by numpy's frozen RandomState, whose stream no later release of numpy changes (NEP 19)."""
    entropy = [seed, epoch, source] if source else [seed, epoch]
    generator = np.random.MT19937(np.random.SeedSequence(entropy))
    return np.random.RandomState(generator).permutation(size)
