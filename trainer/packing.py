"""Which rank and which micro-batch a sample goes to, and what a micro-batch holds: numpy only.

Shape letters: S samples of a micro-batch, T tokens of it, M trained tokens of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slime_rl.errors import TrainerError
from slime_rl.types import Assignment, Sample, Version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedSample:
    """A sample as the loss sees it."""

    sample: Sample
    group: int
    advantage: float
    weight: float = 1.0  # of each of its tokens in the sum
    counted: int | None = None  # what it adds to N, by which the sum is divided; None: its trained tokens

    @property
    def adds_to_n(self) -> int:
        return self.sample.num_trained if self.counted is None else self.counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Samples laid end to end without padding, each up to its last trained token, which itself is only a target.

    `rows` are the places whose next token is trained: what the model says there is compared with `targets`. The arrays
    of M values have one for each trained token.
    """

    groups: tuple[int, ...]  # the groups that have a sample here
    lengths: tuple[int, ...]  # [S], ascending, so that equal lengths lie side by side
    tokens: NDArray[np.int64]  # [T]
    rows: NDArray[np.int64]  # [M]
    owners: NDArray[np.int64]  # [M] the place of each token's sample in `lengths`
    targets: NDArray[np.int64]  # [M]
    behaviour: NDArray[np.float32]  # [M] the engine's log-probs
    temperatures: NDArray[np.float32]  # [M]
    advantages: NDArray[np.float32]  # [M]
    weights: NDArray[np.float32]  # [M] of the tokens in the sum
    lags: NDArray[np.int64]  # [M] trainer version minus the version that produced the token
    adds_to_n: int


def share_groups(assignment: Assignment, num_ranks: int) -> list[list[int]]:
    """The ids of the groups that each rank reads: whole groups, in the step's order, about equal in tokens.

    The longest group goes first, each to the rank with the fewest tokens so far. The same assignment is always shared
    out in the same way. A rank may get none.
    """
    order = {group.id: place for place, group in enumerate(assignment.groups)}
    tokens = [0] * num_ranks
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    for group in sorted(assignment.groups, key=lambda group: (-group.num_tokens, group.id)):
        rank = tokens.index(min(tokens))
        tokens[rank] += group.num_tokens
        shares[rank].append(group.id)
    return [sorted(share, key=order.__getitem__) for share in shares]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices into `lengths`, in bins whose sum is at most `capacity`; a longer item has a bin to itself.

    Best fit decreasing: the longest item first, each into the fullest bin that still takes it.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free, bin), ascending
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        place = bisect_left(room, (length, -1))
        if place == len(room):
            bins.append([index])
            insort(room, (capacity - length, len(bins) - 1))
            continue
        free, chosen = room.pop(place)
        bins[chosen].append(index)
        insort(room, (free - length, chosen))
    return bins


def pack(samples: Sequence[TrainedSample], *, max_tokens: int, version: Version) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` tokens for the trainer at `version`; samples with nothing trained stay out.

    There is always one micro-batch: without a trained token it is `idle`, since every rank takes part in every step.
    Raises TrainerError for a sample that cannot be trained.
    """
    places = [(item, np.flatnonzero(item.sample.loss_mask)) for item in samples if item.sample.num_trained]
    bins = best_fit([int(trained[-1]) for _, trained in places], max_tokens)
    return [_lay_out([places[index] for index in bin_], version) for bin_ in bins] or [idle()]


def idle() -> MicroBatch:
    """A micro-batch with nothing to train."""
    nothing, weightless = np.zeros(0, np.int64), np.zeros(0, np.float32)
    return MicroBatch(
        groups=(),
        lengths=(1,),
        tokens=np.zeros(1, np.int64),
        rows=nothing,
        owners=nothing,
        targets=nothing,
        behaviour=weightless,
        temperatures=weightless,
        advantages=weightless,
        weights=weightless,
        lags=nothing,
        adds_to_n=0,
    )


def _lay_out(items: Sequence[tuple[TrainedSample, NDArray[np.int64]]], version: Version) -> MicroBatch:
    """One micro-batch of samples and the places of their trained tokens."""
    items = sorted(items, key=lambda item: item[1][-1])
    samples = [item.sample for item, _ in items]
    places = [trained for _, trained in items]
    lengths = np.array([trained[-1] for trained in places])
    owner = np.repeat(np.arange(len(items)), [len(trained) for trained in places])
    starts = np.cumsum(lengths) - lengths
    for (item, trained), sample in zip(items, samples, strict=True):
        if trained[0] == 0:
            raise _untrainable(item, "its first token is masked in, and nothing comes before it")
        if not np.isfinite(sample.logprobs[trained]).all():
            raise _untrainable(item, "a log-prob of the engine is not finite")

    def of_trained(arrays: Iterable[NDArray]) -> NDArray:
        return np.concatenate([array[trained] for array, trained in zip(arrays, places, strict=True)])

    return MicroBatch(
        groups=tuple(dict.fromkeys(item.group for item, _ in items)),
        lengths=tuple(lengths.tolist()),
        tokens=np.concatenate([s.tokens[:n] for s, n in zip(samples, lengths, strict=True)]).astype(np.int64),
        rows=np.concatenate(places) - 1 + starts[owner],
        owners=owner,
        targets=of_trained(sample.tokens for sample in samples).astype(np.int64),
        behaviour=of_trained(sample.logprobs for sample in samples).astype(np.float32),
        temperatures=np.array([sample.temperature for sample in samples], np.float32)[owner],
        advantages=np.array([item.advantage for item, _ in items], np.float32)[owner],
        weights=np.array([item.weight for item, _ in items], np.float32)[owner],
        adds_to_n=sum(item.adds_to_n for item, _ in items),
        lags=version - of_trained(token_versions(sample) for sample in samples),
    )


def _untrainable(item: TrainedSample, fault: str) -> TrainerError:
    return TrainerError(f"group {item.group}, sample {item.sample.index}: {fault}")


def token_versions(sample: Sample) -> NDArray[np.int64]:
    """The version that produced each token of a sample, [T]; 0 where none is recorded."""
    versions = np.zeros(sample.num_tokens, np.int64)
    for span in sample.versions:
        versions[span.start : span.end] = span.version
    return versions


def runs(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(length, how often) for each run of equal neighbours in `lengths`."""
    start = 0
    for place in range(1, len(lengths) + 1):
        if place == len(lengths) or lengths[place] != lengths[start]:
            yield lengths[start], place - start
            start = place
