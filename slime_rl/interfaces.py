"""What the loop asks of the parts around it.

A worker's side of the buffer is `Slots`, the trainer's is `Steps`; the same store answers both. Every wait behind these
calls is bounded by the part that waits, and raises WaitTimeout with the names of whom it waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slime_rl.types import Assignment, BufferStatus, Prompt, Reservation, Sample, Segment, StepReport, Version


class Slots(Protocol):
    """The worker's side of the buffer: the right to generate, and where groups go."""

    async def reserve(self, holder: str, *, serves: Version | None = None) -> Reservation | None:
        """Wait for a free slot and take it for the next prompt, or None once no prompt will come any more.

        `serves` is the oldest version that the holder's engines serve, if it may be older than the published one: such
        a pool gets a slot only if its group can keep its deadline beside the others.
        """
        ...

    async def heartbeat(self, holder: str) -> frozenset[int]:
        """Keep every lease of `holder`, and return the ids of their groups; the holder has lost all others.

        Without it leases expire: a group with durable segments is continued by another holder, others start again.
        """
        ...

    async def fill(self, reservation: Reservation, samples: Sequence[Sample]) -> None:
        """Hand in the scored samples of a reservation, once; a repeat changes nothing.

        Raises FencedError if the reservation has expired and belongs to somebody else.
        """
        ...

    async def release(self, reservation: Reservation, *, reason: str, retry: bool) -> None:
        """Give a slot back without a group: its prompt is tried again, or dropped and counted under `reason`.

        A retry beyond the bounded number of attempts becomes a drop.
        """
        ...


class Partials(Protocol):
    """The worker's side of the buffer for long samples: what is durable of them before their group is filled."""

    async def extend(self, reservation: Reservation, segment: Segment) -> None:
        """Make the next part of a sample durable; a repeat changes nothing.

        Raises FencedError if the reservation has expired, StoreError for a part that does not begin where the sample's
        durable parts end.
        """
        ...

    async def segments(self, reservation: Reservation) -> list[Segment]:
        """The durable parts of the samples of a reservation that is continued, in the order in which they came."""
        ...


class Steps(Protocol):
    """The trainer's side of the buffer: which groups a step trains, and when their slots are free again."""

    async def assign(self, step: int) -> Assignment:
        """Wait until `step` can be filled within the staleness bound, and fix its groups; repeatable."""
        ...

    async def publish(self, version: Version) -> None:
        """The engines serve `version`: the slots of the steps behind it are free."""
        ...

    async def commit(self, step: int) -> None:
        """A durable checkpoint contains `step`: delete the payloads of it and of the steps before."""
        ...

    async def snapshot(self, version: Version) -> bytes:
        """What a checkpoint of `version`, published, has to hold of the buffer so that the run can go on from it."""
        ...

    async def status(self) -> BufferStatus: ...


class Trainer(Protocol):
    """The ranks that hold the weights, seen as one."""

    async def load(self) -> Version:
        """Build the model and load its weights; return their version."""
        ...

    async def step(self, assignment: Assignment) -> StepReport:
        """Take the training step that `assignment` describes; the report carries the new version."""
        ...

    async def publish(self, version: Version) -> None:
        """Bring `version` into every engine and return when each has confirmed it."""
        ...

    async def save(self, version: Version, snapshot: bytes) -> None:
        """Write a durable checkpoint of `version` with the buffer's `snapshot` in it."""
        ...


class Drafts(Protocol):
    """The durable parts of one group's samples, as the program sees them that generates it; `group` is its id."""

    @property
    def group(self) -> int: ...

    async def segments(self) -> list[Segment]:
        """Those that earlier attempts left, in the order in which they came."""
        ...

    async def extend(self, segment: Segment) -> None:
        """Make the next part of a sample durable; raises FencedError once the group is another holder's."""
        ...


class Program(Protocol):
    """What turns a prompt into samples, `num_samples` trajectories of it; long ones are kept in `drafts` on the way."""

    async def __call__(
        self, prompt: Prompt, *, num_samples: int, temperature: float, drafts: Drafts | None = None
    ) -> list[Sample]: ...


class Filter(Protocol):
    """What keeps groups that teach nothing out of the training."""

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> str | None:
        """Why a scored group is dropped, or None; raises FilterError if the function fails or says neither."""
        ...


class Reward(Protocol):
    """What scores the samples of one prompt."""

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with their rewards set, in order.

        Raises RewardError if the function fails, runs out of time or returns something that is no finite number. The
        error holds the samples that are scored all the same, where the function looks at each by itself.
        """
        ...
