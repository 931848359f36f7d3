"""The records that cross package borders, and nothing else.

Shape letters: T tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

Version = NewType("Version", int)
"""Policy version: the number of training batches behind the weights; 0 is the starting checkpoint."""

Message = Mapping[str, Any]
"""One chat message: `role` and `content`."""


SMALLEST_GROUP = 2
"""Fewer trajectories have nothing to be compared with."""

NOTHING_RIGHT = "equal rewards, none above 0"
ALL_ALIKE = "equal rewards above 0"
TRUNCATED = "all samples truncated"
"""Why the built-in filters drop groups: rewards name these reasons, and the buffer says what they mean."""


class Finish(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task to attempt: what the model sees and what the reward compares with.

    Exactly one of `messages` and `text` is set. `tools` are what the chat template shows as tools. `metadata` holds
    every other column of the row.
    """

    index: int
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    answer: str = ""
    tools: tuple[Mapping[str, Any], ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise ValueError("a prompt has either messages or text")


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` (exclusive) of a sample were produced by `version`."""

    version: Version
    start: int
    end: int


def _check_aligned(
    tokens: NDArray[np.int32], loss_mask: NDArray[np.bool_], logprobs: NDArray[np.float32], versions: tuple[Span, ...]
) -> None:
    lengths = tokens.shape, loss_mask.shape, logprobs.shape
    if len(set(lengths)) != 1 or tokens.ndim != 1:
        raise ValueError(f"tokens, loss_mask and logprobs must align, got shapes {lengths}")
    covered = np.zeros(len(tokens), dtype=np.bool_)
    for span in versions:
        covered[span.start : span.end] = True
    if not covered[loss_mask].all():
        raise ValueError(f"versions must cover every masked-in token, got {versions}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One token sequence on its way from the engine to the gradient.

    There is no prompt/response split: a multi-turn sequence interleaves what the model read and what it wrote, and
    `loss_mask` marks what it wrote. The three arrays have one length T; `logprobs` are the engine's own, at
    `temperature`, and 0 where the mask is. `versions` covers every masked-in token. Branches of one
    `trajectory` share its reward and count once where trajectories are counted. `arrays` holds what else a part of the
    system keeps for the trainer, under names of its own: numbers or booleans of any shape, such as routed experts
    [T, layers, top_k].
    """

    index: int
    trajectory: int
    tokens: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T]
    logprobs: NDArray[np.float32]  # [T]
    versions: tuple[Span, ...]
    temperature: float
    finish: Finish
    text: str = ""
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_aligned(self.tokens, self.loss_mask, self.logprobs, self.versions)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_trained(self) -> int:
        """Masked-in tokens: what this sample adds to the loss denominator."""
        return int(self.loss_mask.sum())

    @property
    def oldest(self) -> Version:
        """The oldest version behind any trained token.

        Raises ValueError for a sample with nothing masked in.
        """
        return min(s.version for s in self.versions if self.loss_mask[s.start : s.end].any())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A part of a sample, made durable while the rest is being generated.

    `index` is the sample's, `start` the place of the part's first token in it; the arrays are as a sample's, of the
    part's length T, and `versions` count from the beginning of the part. `finish` is set on a sample's last part.
    """

    index: int
    start: int
    tokens: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T]
    logprobs: NDArray[np.float32]  # [T]
    versions: tuple[Span, ...]
    temperature: float
    finish: Finish | None = None

    def __post_init__(self) -> None:
        _check_aligned(self.tokens, self.loss_mask, self.logprobs, self.versions)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The samples of one prompt, which are compared with one another."""

    id: int
    prompt_index: int
    attempt: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The right to generate one group, taken before its first token is sampled.

    `id` counts the prompts issued before this one over all epochs, so a group id names an epoch and a place in its
    order. `version` is the oldest one the engines served at the time, and the group must be trained at trainer
    version `deadline` or before. (`id`, `attempt`) makes every later call idempotent. One that is `continued` keeps
    the version and the deadline of the attempt that left durable segments.
    """

    id: int
    attempt: int
    prompt_index: int
    holder: str
    version: Version
    deadline: Version
    temperature: float
    continued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedGroup:
    """A group of a step, and what is needed to share the work out: its id and its sizes."""

    id: int
    num_samples: int
    num_tokens: int
    oldest: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The groups that a step trains, in their order; the same ones whenever it is asked for again.

    `returned` are the finished groups that no later step may train, and whose prompts are tried again: known only
    when the step gets its groups.
    """

    step: int
    groups: tuple[AssignedGroup, ...]
    returned: tuple[AssignedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one training step did. `sums` and `counts` pair up by name, so that ranks and steps add."""

    version: Version
    sums: Mapping[str, float]
    counts: Mapping[str, float]
    maxima: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def mean(self, name: str) -> float:
        """The mean of `name` over what it counts; NaN where nothing was counted."""
        count = self.counts[name]
        return self.sums[name] / count if count else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStatus:
    """How many groups are in each state, why groups went missing, and with which lag groups were assigned so far.

    `num_bytes` is what the groups in the buffer weigh.
    """

    version: Version
    slots: int
    states: Mapping[str, int]
    dropped: Mapping[str, int]
    requeued: Mapping[str, int]
    lags: Mapping[int, int] = field(default_factory=dict)
    num_bytes: int = 0
    waiting_for: tuple[str, ...] = ()
