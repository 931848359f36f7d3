"""The refusals that every buffer words alike."""

from __future__ import annotations

from collections.abc import Iterable

from slime_rl.errors import FencedError, StaleError, StoreError
from slime_rl.types import Reservation, Segment


def fenced(reservation: Reservation, *, now: str) -> FencedError:
    """A holder's group went on without it; `now` says what became of the group."""
    return FencedError(
        f"{reservation.holder} cannot fill group {reservation.id}: its attempt {reservation.attempt} ended, {now}"
    )


def superseded(run_id: str) -> FencedError:
    """The run was resumed since."""
    return FencedError(f"run {run_id!r} was resumed since this process joined it, and goes on without it")


def behind(run_id: str, *, seen: int, found: int) -> StoreError:
    """The server has forgotten writes that it had acknowledged."""
    return StoreError(
        f"the server has lost writes of run {run_id!r}: its last one is number {found}, it had acknowledged {seen} "
        f"(appendonly yes and appendfsync always keep them); resume the run from its last checkpoint"
    )


def gap(reservation: Reservation, segment: Segment, *, progress: int) -> StoreError:
    """A part of a sample that leaves some of it out, or comes again in another shape."""
    return StoreError(
        f"group {reservation.id}, sample {segment.index}: expected a segment that begins at token {progress}, "
        f"got {segment.start}"
    )


def stale(step: int, id: int, *, oldest: int, bound: int) -> StaleError:
    """A group holds tokens that are older than the bound, which only a fault of a worker can bring about."""
    return StaleError(f"step {step}: group {id} holds tokens of version {oldest}, expected {bound} or later")


def never_assigned(what: str, step: int) -> StoreError:
    """A call came before its step."""
    return StoreError(f"{what}: step {step} has not been assigned")


def never_published(what: str, version: int) -> StoreError:
    """A call came before the engines served what it is about."""
    return StoreError(f"{what}: version {version} has not been published")


def already_committed(step: int) -> StoreError:
    """A step was asked for again after its groups were deleted."""
    return StoreError(f"step {step} cannot be assigned: it is committed and its groups are deleted")


def no_payload(keys: Iterable[str]) -> StoreError:
    """Groups were to be read that the buffer does not hold."""
    return StoreError(f"no payload under {', '.join(keys)}: never filled, or its step is committed")
