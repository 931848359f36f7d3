"""The error tree. A user's mistake ends the command with exit status 2, a fault of the world with 1.

SlimeError
|-- UserError            told in one line before anything starts
|   |-- ConfigError      a field of the configuration
|   |-- DataError        a data set or one of its rows
|   |-- ModelError       a model folder
|   `-- RunFolderError   a folder that another run has used
`-- RunError             ends the run with its cause
    |-- EngineError      an engine or its router died, hung or answered with an error
    |-- WeightsError     an engine did not take a version in as it was published
    |-- TrainerError     a trainer rank failed, or a loss, gradient or log-prob was not finite
    |-- RewardError      a reward function failed or returned something that is no score
    |-- FilterError      a filter failed or returned something that is no verdict
    |-- WaitTimeout      a bounded wait ran out; says for what and who would have ended it
    `-- StoreError       the data buffer
        |-- CodecError   a payload is damaged or of a foreign format; names its key
        |-- DropError    too many groups were dropped while a step waited for its own
        |-- FencedError  a holder or trainer acted on what is no longer its own
        `-- StaleError   a group is older than the bound allows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class SlimeError(Exception):
    """Every error that slime_rl raises on purpose."""

    exit_status = 1


class UserError(SlimeError):
    """A mistake that the user can mend."""

    exit_status = 2


class ConfigError(UserError):
    """A field of the configuration is wrong: its dotted path, what was expected, what came."""

    def __init__(self, path: str, expected: str, got: object) -> None:
        came = "nothing" if got is None else repr(got)
        super().__init__(f"{path} {expected}, got {came}" if path else f"expected {expected}, got {came}")
        self.path, self.expected, self.got = path, expected, got

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str, object]]:
        return ConfigError, (self.path, self.expected, self.got)


class DataError(UserError):
    """A data set is missing or one of its rows is not what the configuration says."""


class ModelError(UserError):
    """A model folder is missing, incomplete or of an architecture that is not known."""


class RunFolderError(UserError):
    """The run folder belongs to another run."""


class RunError(SlimeError):
    """A fault that ends the run."""


class EngineError(RunError):
    """An engine or the router died, hung or answered with an error."""


class WeightsError(RunError):
    """An engine's weights are not the ones that were published."""


class TrainerError(RunError):
    """A trainer rank failed."""


class RewardError(RunError):
    """A reward function failed, or what it returned is no score; `scored` are the samples for which it did not."""

    def __init__(self, text: str, *, scored: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.scored = tuple(scored)


class FilterError(RunError):
    """A filter failed, ran out of time, or returned something that is no verdict."""


class WaitTimeout(RunError):
    """A bounded wait ran out."""


class StoreError(RunError):
    """The data buffer failed."""


class CodecError(StoreError):
    """A payload is damaged or of a foreign format."""


class DropError(StoreError):
    """More groups were dropped for one step than `loop.max_dropped_per_step` allows."""


class FencedError(StoreError):
    """A holder or a trainer acted on a group that is no longer its own."""


class StaleError(StoreError):
    """A group is older than the staleness bound allows."""


def first_cause(failure: BaseException) -> BaseException:
    """The first error of ours inside a tree of exception groups, or what was given where there is none."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    causes = [first_cause(error) for error in failure.exceptions]
    return next((cause for cause in causes if isinstance(cause, SlimeError | KeyboardInterrupt)), failure)


@contextmanager
def cause_first() -> Iterator[None]:
    """Raise the cause out of a tree of exception groups, so that the user reads one line."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if cause is group:
            raise
        raise cause from None
