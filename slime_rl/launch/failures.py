"""Finds the cause in what a run raised: tasks run in groups, and a group's failure is a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slime_rl.errors import SlimeError


@contextmanager
def cause_first() -> Iterator[None]:
    """Raise the first named error out of an ExceptionGroup, so that the user reads one line."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = _first(group)
        if cause is None:
            raise
        raise cause from None


def _first(group: BaseExceptionGroup) -> BaseException | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, SlimeError | KeyboardInterrupt):
            return found
    return None
