"""The refusals that every buffer words alike."""

from __future__ import annotations

from collections.abc import Iterable

from slime_rl.errors import FencedError, StoreError
from slime_rl.types import Reservation


def fenced(reservation: Reservation, *, now: str) -> FencedError:
    """A holder's group went on without it; `now` says what became of the group."""
    return FencedError(
        f"{reservation.holder} cannot fill group {reservation.id}: its attempt {reservation.attempt} ended, {now}"
    )


def never_assigned(what: str, step: int) -> StoreError:
    """A call came before its step."""
    return StoreError(f"{what}: step {step} has not been assigned")


def already_committed(step: int) -> StoreError:
    """A step was asked for again after its groups were deleted."""
    return StoreError(f"step {step} cannot be assigned: it is committed and its groups are deleted")


def no_payload(keys: Iterable[str]) -> StoreError:
    """Groups were to be read that the buffer does not hold."""
    return StoreError(f"no payload under {', '.join(keys)}: never filled, or its step is committed")
