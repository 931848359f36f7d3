"""What a group must be to enter the buffer."""

from __future__ import annotations

from collections.abc import Sequence

from slime_rl.errors import StoreError
from slime_rl.types import AssignedGroup, Finish, Group, Reservation, Sample


def group_of(reservation: Reservation, samples: Sequence[Sample]) -> Group:
    """The group that fills a reservation; raises StoreError unless it has samples and all of them are complete."""
    aborted = [sample.index for sample in samples if sample.finish is Finish.ABORT]
    if not samples or aborted:
        found = f"aborted samples {aborted}" if samples else "none"
        raise StoreError(f"group {reservation.id}: expected complete samples, got {found}")
    return Group(
        id=reservation.id,
        prompt_index=reservation.prompt_index,
        attempt=reservation.attempt,
        samples=tuple(samples),
    )


def measure(group: Group, reservation: Reservation) -> AssignedGroup:
    """The sizes of a group, and the oldest version behind its trained tokens (the reservation's if it has none)."""
    return AssignedGroup(
        id=group.id,
        num_samples=len(group.samples),
        num_tokens=sum(sample.num_tokens for sample in group.samples),
        oldest=min((s.oldest for s in group.samples if s.num_trained), default=reservation.version),
    )
